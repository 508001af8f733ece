//! Reading trajectories.

mod act;
mod classify;
mod command;
pub mod condense;
pub mod fold;
pub mod formats;
pub mod graph;
pub mod history;
pub mod language;
pub mod log;
pub mod prior;
pub mod reader;
pub mod report;
pub mod shown;
mod shell;
pub mod span;
pub mod template;
pub mod structure;
