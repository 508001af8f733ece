//! Why a measurement ended early.

use std::path::PathBuf;

use super::journal::JournalError;
use crate::cache::policy::UnknownPolicy;
use crate::ingest::formats::FormatError;
use crate::model::ModelError;
use crate::model::tokenizer::TokenizerError;
use crate::session::SessionError;

/// Every way in which a measurement fails.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot read {} as a trajectory: {source}", path.display())]
    Trajectory { path: PathBuf, source: FormatError },
    #[error("there is no trajectory (.json, .jsonl or .traj) in {}", path.display())]
    NoTrajectory { path: PathBuf },
    #[error("the model cannot be run: {0}")]
    Model(#[from] ModelError),
    #[error("the conversation cannot be rendered: {0}")]
    Session(#[from] SessionError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    Journal(#[from] JournalError),
}
