//! Measurements of the whole.

pub mod ingest;
pub mod speed;
