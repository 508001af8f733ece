//! The KV cache of a session and what stays in it.
//!
//! Letters used for shapes everywhere: `L` layers, `H` KV heads, `G` query heads a KV head,
//! `D` head dimension, `S` live slots of a layer, `T` new tokens, `W` observed queries.

pub mod bank;
pub mod budget;
pub mod compress;
pub mod freeze;
pub mod importance;
pub mod kv;
pub mod notes;
pub mod plan;
pub mod policy;
pub mod redundancy;

pub use budget::Budget;
pub use kv::{CacheShape, KvCache, KvElement};
pub use notes::Notes;
pub use plan::SpanPlan;
pub use policy::Policy;
