//! The only map from what went wrong inside to what a client is told.

use super::rpc::{Kind, RpcError};
use crate::engine::EngineError;
use crate::session::SessionError;
use crate::store::StoreError;

impl From<SessionError> for RpcError {
    /// Lists every variant, so that a new error does not compile before it has a code.
    fn from(error: SessionError) -> Self {
        Self::from(&error)
    }
}

impl From<&SessionError> for RpcError {
    fn from(error: &SessionError) -> Self {
        let text = error.to_string();
        match error {
            SessionError::NotFound(_)
            | SessionError::Closed(_)
            | SessionError::NoCheckpoint { .. } => Self::of(Kind::SessionNotFound, text),
            SessionError::Busy(_) => {
                Self::of(Kind::SessionBusy, text).with("retry_after_ms", 1_000)
            }
            SessionError::ContextOverflow { limit, asked } => {
                Self::of(Kind::ContextOverflow, text).with("limit", *limit).with("asked", *asked)
            }
            SessionError::ModelMismatch { .. } | SessionError::ToolsMismatch(_) => {
                Self::of(Kind::ModelMismatch, text)
            }
            SessionError::Invalid(_) | SessionError::NoHandle { .. } => Self::invalid_params(text),
            SessionError::ShuttingDown => Self::of(Kind::ShuttingDown, text),
            SessionError::Registry(_) | SessionError::Model { .. } => {
                Self::of(Kind::ModelNotFound, text)
            }
            SessionError::Engine(EngineError::KvMemory { needed, limit }) => {
                Self::of(Kind::KvMemory, text).with("limit", *limit).with("asked", *needed)
            }
            SessionError::Engine(EngineError::Stopped) => Self::of(Kind::ShuttingDown, text),
            SessionError::Engine(EngineError::EmptyPrompt | EngineError::Step(_))
            | SessionError::Chat(_)
            | SessionError::Tokenizer(_)
            | SessionError::Internal(_) => Self::internal(text),
            SessionError::Store(StoreError::BadId { .. } | StoreError::Exists { .. }) => {
                Self::invalid_params(text)
            }
            SessionError::Store(StoreError::NotFound { .. }) => {
                Self::of(Kind::SessionNotFound, text)
            }
            SessionError::Store(_) => Self::of(Kind::Store, text),
        }
    }
}
