//! What is stored of a session's text. JSON, so that a person can read an export.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conversation::Intake;
use super::error::SessionError;
use crate::cache::policy;
use crate::ingest::condense::Condense;
use crate::ingest::reader::{Fold, handle};
use crate::trajectory::Message;

/// Version of [`Header`] and [`Entry`]; another one is refused.
const VERSION: u32 = 1;

/// How a session's cache is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheOptions {
    pub policy: String,
    /// Slots that stay at a compaction.
    pub budget: usize,
    /// Slots beyond the budget that may fill before the next.
    pub buffer: usize,
}

/// The smallest budget that is legal.
pub const BUDGET_MIN: usize = 256;
/// The largest budget or buffer that is legal: far beyond any model's context.
const SLOTS_MAX: usize = 1 << 24;

impl CacheOptions {
    /// Checks each value.
    ///
    /// # Errors
    /// Says which value is out of bounds, or which policies there are.
    pub fn validate(&self) -> Result<(), SessionError> {
        policy::by_name(&self.policy)?;
        if !(BUDGET_MIN..=SLOTS_MAX).contains(&self.budget) {
            let budget = self.budget;
            return Err(SessionError::Invalid(format!(
                "budget {budget} is out of bounds: at least {BUDGET_MIN} slots, at most {SLOTS_MAX}"
            )));
        }
        if !(1..=SLOTS_MAX).contains(&self.buffer) {
            let buffer = self.buffer;
            return Err(SessionError::Invalid(format!(
                "buffer {buffer} is out of bounds: at least 1 slot, at most {SLOTS_MAX}"
            )));
        }
        Ok(())
    }
}

/// A session without its messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Of the record's format.
    version: u32,
    pub model: String,
    /// Identity of weights, tokenizer and template together.
    pub fingerprint: String,
    pub tools: Vec<Value>,
    pub cache: CacheOptions,
    /// What is folded of messages that come in; those that stand here stay as they are.
    #[serde(default)]
    pub condense: Condense,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub updated_ms: u64,
    /// Messages.
    #[serde(rename = "messages")]
    pub n_entries: u64,
    /// Assistant messages that were generated here.
    pub turns: u64,
    /// Tokens of the conversation.
    pub tokens: u64,
}

impl Header {
    pub fn new(
        model: &str,
        fingerprint: &str,
        tools: Vec<Value>,
        cache: CacheOptions,
        condense: Condense,
    ) -> Self {
        let now = now_ms();
        Self {
            version: VERSION,
            model: model.to_owned(),
            fingerprint: fingerprint.to_owned(),
            tools,
            cache,
            condense,
            created_ms: now,
            updated_ms: now,
            n_entries: 0,
            turns: 0,
            tokens: 0,
        }
    }

    /// How messages are taken in.
    pub fn intake(&self) -> Intake {
        let keeps_all = policy::by_name(&self.cache.policy).is_ok_and(|policy| !policy.evicts());
        Intake {
            condense: self.condense.clone().known(),
            budget: (!keeps_all).then_some(self.cache.budget),
        }
    }
}

/// One message of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub message: Message,
    /// The tokens of a message that was generated here, as they were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Vec<u32>>,
    /// The content that the model was given, where it is not the message's own. What a model has
    /// read never changes, so this is kept and not made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// How [`Self::given`] came about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<Fold>,
}

impl Entry {
    /// The content as the model was given it.
    pub fn content(&self) -> &str {
        self.given.as_deref().unwrap_or(&self.message.content)
    }

    /// The message as the model was given it.
    pub fn as_given(&self) -> Cow<'_, Message> {
        let Some(content) = &self.given else { return Cow::Borrowed(&self.message) };
        let message = &self.message;
        Cow::Owned(Message {
            role: message.role,
            content: content.clone(),
            reasoning_content: message.reasoning_content.clone(),
            tool_calls: message.tool_calls.clone(),
            tool_call_id: message.tool_call_id.clone(),
            name: message.name.clone(),
            meta: message.meta.clone(),
        })
    }

    /// By which name the message's own content can be had back, where another was given.
    pub fn handle(&self) -> Option<String> {
        self.given.as_ref().map(|_| handle(&self.message.content))
    }
}

/// What a generation under way began with, logged once so that a crash does not lose it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Messages that the session had; with another number the generation has ended since.
    pub n_entries: u64,
    /// Messages that came with the request and are in no entry yet.
    pub messages: Vec<Message>,
}

/// What a generation under way has come to, logged again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub tokens: Vec<u32>,
    pub text: String,
}

/// A generation that a crash cut off.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    pub begun: Begun,
    pub progress: Progress,
}

/// A record as bytes.
pub fn to_bytes<T: Serialize>(record: &T) -> Result<Vec<u8>, SessionError> {
    serde_json::to_vec(record).map_err(|e| SessionError::Internal(format!("cannot store: {e}")))
}

/// A record from bytes.
pub fn from_bytes<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, SessionError> {
    serde_json::from_slice(bytes)
        .map_err(|e| SessionError::Internal(format!("a stored record cannot be read: {e}")))
}

/// A header from bytes.
///
/// # Errors
/// Refuses versions that this build does not know.
pub fn header(bytes: &[u8]) -> Result<Header, SessionError> {
    let header: Header = from_bytes(bytes)?;
    if header.version == VERSION {
        return Ok(header);
    }
    let version = header.version;
    Err(SessionError::Internal(format!(
        "the session was stored in version {version}, this build reads version {VERSION}"
    )))
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}
