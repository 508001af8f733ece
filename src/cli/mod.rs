//! The command line: one file a subcommand.

pub mod bench;
pub mod chat;
pub mod condense;
pub mod demo;
pub mod doctor;
pub mod eval;
pub mod local;
pub mod model;
pub mod replay;
pub mod serve;
pub mod sessions;
pub mod status;
