//! Reading trajectories.

pub mod formats;
