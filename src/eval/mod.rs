//! Measurements of the whole.

pub mod speed;
