//! Attar runs reasoning models for coding agents under a fixed KV-cache budget.
//!
//! Modules are listed in the order in which a message passes through them. `config` and
//! `trajectory` are data that all may name, `eval` measures the whole from outside.

pub mod config;
pub mod trajectory;
pub mod wire;
pub mod session;
pub mod ingest;
pub mod engine;
pub mod model;
pub mod cache;
pub mod kernel;
pub mod store;
pub mod eval;
