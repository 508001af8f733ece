//! Why a session could not do what was asked.

use crate::cache::policy::UnknownPolicy;
use crate::engine::EngineError;
use crate::engine::sampler::SamplingError;
use crate::ingest::condense::UnknownRule;
use crate::model::ModelError;
use crate::model::registry::RegistryError;
use crate::model::tokenizer::TokenizerError;
use crate::session::chat::ChatError;
use crate::store::StoreError;

/// Every way in which a session's operation fails.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("session `{0}` does not exist; open it first")]
    NotFound(String),
    #[error("session `{0}` is closed; open it again to go on")]
    Closed(String),
    #[error("session `{0}` is generating; wait for its answer or cancel it")]
    Busy(String),
    #[error("session `{session}` has no checkpoint `{checkpoint}`")]
    NoCheckpoint { session: String, checkpoint: String },
    #[error(
        "session `{session}` has no message with the handle `{handle}`; `session/append` and `session/inspect` give them"
    )]
    NoHandle { session: String, handle: String },
    #[error(
        "maximum context length is {limit} tokens, the conversation would have {asked}; open a new session or give less text"
    )]
    ContextOverflow { limit: usize, asked: usize },
    #[error(
        "session `{session}` was made with {stored}, not {asked}; pass `rebuild: true` to read it again, or open another session"
    )]
    ModelMismatch { session: String, stored: String, asked: String },
    #[error(
        "session `{0}` was made with other tools; pass `rebuild: true` to read it again, or open another session"
    )]
    ToolsMismatch(String),
    /// A parameter whose value cannot be.
    #[error("{0}")]
    Invalid(String),
    #[error("the daemon is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the model `{name}` cannot be loaded: {source}")]
    Model { name: String, source: ModelError },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Internal(String),
}

impl From<UnknownPolicy> for SessionError {
    fn from(error: UnknownPolicy) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<UnknownRule> for SessionError {
    fn from(error: UnknownRule) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<SamplingError> for SessionError {
    fn from(error: SamplingError) -> Self {
        Self::Invalid(error.to_string())
    }
}
