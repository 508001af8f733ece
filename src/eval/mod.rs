//! Measurements of the whole: speed, and what is lost by forgetting.

pub mod budget;
mod error;
pub mod fidelity;
pub mod ingest;
pub mod journal;
pub mod lane;
pub mod metrics;
pub mod oracle;
pub mod plot;
pub mod probes;
pub mod race;
pub mod reasoning;
pub mod recall;
pub mod rows;
pub mod speed;
pub mod stream;
pub mod table;
pub mod trajectories;

pub use error::EvalError;
