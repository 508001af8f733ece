//! One agent's session: its text, its turns, and its way through the engine.

pub mod chat;
mod checkpoints;
pub mod conversation;
pub mod detokenize;
pub mod error;
pub mod generation;
mod layout;
pub mod live;
pub mod models;
mod notes;
mod pins;
pub mod record;
pub mod registry;
mod slots;
pub mod think;
pub mod turn;

pub use error::SessionError;
pub use registry::Sessions;
pub use slots::{Guard, Started};
