//! A generation's text as it comes: written by the engine's thread, read by any number of
//! connections at their own pace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::detokenize::Detokenizer;
use super::error::SessionError;
use super::think::{Part, Splitter};
use crate::engine::{CacheStats, FinishReason, Listener, Timing, Verdict};
use crate::model::tokenizer::Tokenizer;
use crate::trajectory::{Message, Role};

/// How a generation ended.
pub type Outcome = Result<Answer, SessionError>;

/// A finished generation.
#[derive(Debug)]
pub struct Answer {
    pub message: Message,
    pub finish_reason: FinishReason,
    /// Tokens of the conversation before the answer, evicted ones included.
    pub prompt_tokens: usize,
    /// Those of them that stood in the cache when the generation was asked for.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub reasoning_tokens: usize,
    pub policy: String,
    pub budget: usize,
    pub stats: CacheStats,
    pub timing: Timing,
    /// The seed that was used, also where none was given.
    pub seed: u64,
}

/// What is known of a generation so far.
#[derive(Default)]
struct State {
    parts: Vec<Part>,
    message: Option<Message>,
    tokens: Vec<u32>,
    n_reasoning: usize,
    prefill: (usize, usize),
    outcome: Option<Arc<Outcome>>,
}

/// A generation's deltas, kept until the session's next generation.
pub struct Stream {
    /// Names the generation to clients.
    pub id: String,
    state: Mutex<State>,
    changed: Notify,
}

impl Stream {
    pub fn new(id: String) -> Self {
        Self { id, state: Mutex::new(State::default()), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each writer leaves the state whole, so a panic elsewhere spoils nothing here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Deltas from number `from` on, and the outcome if there is one. Waits until there is
    /// something of either.
    pub async fn after(&self, from: usize) -> (Vec<Part>, Option<Arc<Outcome>>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                let parts = state.parts.get(from..).unwrap_or_default();
                if !parts.is_empty() || state.outcome.is_some() {
                    return (parts.to_vec(), state.outcome.clone());
                }
            }
            changed.await;
        }
    }

    /// Prompt tokens read, and how many there are to read.
    pub fn prefill(&self) -> (usize, usize) {
        self.state().prefill
    }

    /// Tokens chosen so far.
    pub fn tokens(&self) -> Vec<u32> {
        self.state().tokens.clone()
    }

    pub fn n_tokens(&self) -> usize {
        self.state().tokens.len()
    }

    /// Tokens of thoughts.
    pub fn n_reasoning(&self) -> usize {
        self.state().n_reasoning
    }

    /// Tells all readers that no more comes.
    pub fn finish(&self, outcome: Outcome) {
        self.change(|state| state.outcome = Some(Arc::new(outcome)));
    }

    /// The text of the answer so far.
    pub fn text(&self) -> String {
        let state = self.state();
        let texts = state.parts.iter().filter_map(|part| match part {
            Part::Content(text) => Some(text.as_str()),
            Part::Reasoning(_) | Part::ToolCall { .. } => None,
        });
        texts.collect()
    }

    /// The assistant's message, whole once the generation has ended.
    pub fn message(&self) -> Message {
        self.state().message.clone().unwrap_or_else(|| Message::text(Role::Assistant, ""))
    }
}

/// What ends a thought that has grown too long.
pub struct ReasoningLimit {
    pub max_tokens: usize,
    /// Tokens that close the thought.
    pub closing: Vec<u32>,
}

/// Turns tokens into parts on the engine's thread.
pub struct Writer {
    pub stream: Arc<Stream>,
    pub tokenizer: Arc<Tokenizer>,
    pub detokenizer: Detokenizer,
    pub splitter: Splitter,
    pub reasoning_limit: Option<ReasoningLimit>,
}

impl Writer {
    fn publish(&self, parts: Vec<Part>, token: Option<u32>) {
        let is_thinking = self.splitter.is_thinking();
        self.stream.change(|state| {
            state.parts.extend(parts);
            state.tokens.extend(token);
            state.n_reasoning += usize::from(is_thinking && token.is_some());
        });
    }

    /// Gives out what was held back.
    fn flush(&mut self) {
        let rest = self.detokenizer.finish(&self.tokenizer).unwrap_or_default();
        let mut parts = self.splitter.push(&rest);
        parts.extend(self.splitter.finish());
        self.publish(parts, None);
        let message = self.splitter.message().clone();
        self.stream.change(|state| state.message = Some(message));
    }
}

impl Listener for Writer {
    fn token(&mut self, token: u32) -> Verdict {
        if self.tokenizer.is_eos(token) {
            self.publish(Vec::new(), Some(token));
            self.flush();
            return Verdict::Stop(if self.splitter.message().tool_calls.is_empty() {
                FinishReason::Stop
            } else {
                FinishReason::ToolCalls
            });
        }
        let text = self.detokenizer.push(&self.tokenizer, token).unwrap_or_default();
        let parts = self.splitter.push(&text);
        self.publish(parts, Some(token));
        if self.splitter.is_stopped() {
            return Verdict::Stop(FinishReason::Stop);
        }
        match &self.reasoning_limit {
            Some(limit)
                if self.splitter.is_thinking() && self.stream.n_reasoning() >= limit.max_tokens =>
            {
                let closing = limit.closing.clone();
                self.reasoning_limit = None;
                Verdict::Force(closing)
            }
            _ => Verdict::Continue,
        }
    }

    fn progress(&mut self, done: usize, total: usize) {
        self.stream.change(|state| state.prefill = (done, total));
    }
}

impl Drop for Writer {
    /// However the generation ended, its last words come out before its answer.
    fn drop(&mut self) {
        self.flush();
    }
}
