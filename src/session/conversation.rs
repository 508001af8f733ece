//! A session's messages and the tokens they became: a stream that only grows.
//!
//! The last role group stays open, without tokens, until a message of another role or a
//! generation closes it, since templates join messages of one role.

use std::sync::Arc;

use serde_json::Value;

use super::error::SessionError;
use super::models::Model;
use super::record::Entry;
use crate::engine::{Run, RunKind};
use crate::trajectory::{Message, Role};

/// A place in a conversation to which it can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    n_entries: usize,
    n_runs: usize,
    n_open: usize,
    is_headed: bool,
}

impl Mark {
    /// Messages that the conversation had.
    pub fn n_entries(self) -> usize {
        self.n_entries
    }
}

/// Messages, and the token stream of all closed role groups.
pub struct Conversation {
    model: Arc<Model>,
    tools: Vec<Value>,
    entries: Vec<Entry>,
    /// In the order in which the model reads them; none is merged with another.
    runs: Vec<Run>,
    n_tokens: usize,
    /// Messages at the end of `entries` that have no tokens yet.
    n_open: usize,
    /// System messages and tools stand in the stream.
    is_headed: bool,
}

impl Conversation {
    pub fn new(model: Arc<Model>, tools: Vec<Value>) -> Self {
        Self {
            model,
            tools,
            entries: Vec::new(),
            runs: Vec::new(),
            n_tokens: 0,
            n_open: 0,
            is_headed: false,
        }
    }

    /// A conversation from its stored messages.
    pub fn restore(
        model: Arc<Model>,
        tools: Vec<Value>,
        entries: Vec<Entry>,
    ) -> Result<Self, SessionError> {
        let mut conversation = Self::new(model, tools);
        for entry in entries {
            match entry.generated {
                Some(tokens) => {
                    conversation.open_turn()?;
                    conversation.close_turn(tokens, entry.message)?;
                }
                None => conversation.push(entry.message)?,
            }
        }
        Ok(conversation)
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.entries.iter().map(|entry| &entry.message)
    }

    /// Assistant messages that were generated here.
    pub fn turns(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.generated.is_some()).count() as u64
    }

    /// Tokens of the stream.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Tokens of the open group, as they would be if it were closed now.
    pub fn n_open_tokens(&self) -> Result<usize, SessionError> {
        if self.n_open == 0 {
            return Ok(0);
        }
        Ok(self.render_open()?.len())
    }

    /// Adds a message to the open group, or closes that and opens the next.
    pub fn push(&mut self, message: Message) -> Result<(), SessionError> {
        let open = self.entries.len() - self.n_open;
        if self.entries.get(open).is_some_and(|entry| entry.message.role != message.role) {
            self.close_group()?;
        }
        self.entries.push(Entry::given(message));
        self.n_open += 1;
        Ok(())
    }

    /// Closes the open group and begins an assistant message for the model to write.
    pub fn open_turn(&mut self) -> Result<(), SessionError> {
        self.close_group()?;
        let prompt = self.encode(&self.model.chat.generation_prompt(true).text)?;
        self.append(Run::prompt(prompt));
        Ok(())
    }

    /// Ends the message that [`Self::open_turn`] began. The last of `tokens` was chosen, but not
    /// read into the cache by the generation itself.
    pub fn close_turn(&mut self, tokens: Vec<u32>, message: Message) -> Result<(), SessionError> {
        let mut read = tokens.clone();
        let last = read.pop();
        self.append(Run::generated(read));
        let is_end = |token: &u32| self.model.tokenizer.eos_ids().contains(token);
        let mut rest: Vec<u32> = last.into_iter().filter(|token| !is_end(token)).collect();
        let closing = self.model.chat.closing();
        rest.extend(self.encode(&(closing.end + &closing.rest))?);
        self.append(Run::prompt(rest));
        self.entries.push(Entry { message, generated: Some(tokens) });
        Ok(())
    }

    pub fn mark(&self) -> Mark {
        Mark {
            n_entries: self.entries.len(),
            n_runs: self.runs.len(),
            n_open: self.n_open,
            is_headed: self.is_headed,
        }
    }

    /// Takes back everything since `mark`.
    pub fn rewind(&mut self, mark: Mark) {
        self.entries.truncate(mark.n_entries);
        self.runs.truncate(mark.n_runs);
        self.n_tokens = self.runs.iter().map(|run| run.tokens.len()).sum();
        self.n_open = mark.n_open;
        self.is_headed = mark.is_headed;
    }

    /// Runs from the one with this index on, and the index to ask with next time.
    pub fn runs_since(&self, run_idx: usize) -> (&[Run], usize) {
        (&self.runs[run_idx.min(self.runs.len())..], self.runs.len())
    }

    /// Everything behind the stream's first `n_tokens`.
    pub fn runs_after(&self, n_tokens: usize) -> Vec<Run> {
        let mut skip = n_tokens;
        let mut rest = Vec::new();
        for run in &self.runs {
            if skip > 0 && skip >= run.tokens.len() {
                skip -= run.tokens.len();
            } else {
                rest.push(Run { kind: run.kind, tokens: run.tokens[skip..].to_vec() });
                skip = 0;
            }
        }
        rest
    }

    /// Identity of the stream's first `n_tokens`: a cache fits this conversation only if it was
    /// made from the same tokens, read in the same way.
    pub fn stream_hash(&self, n_tokens: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut left = n_tokens;
        for run in &self.runs {
            let taken = &run.tokens[..run.tokens.len().min(left)];
            left -= taken.len();
            let kind = u32::from(run.kind == RunKind::Generated) << 31;
            for token in taken {
                hasher.update(&(token | kind).to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    fn append(&mut self, run: Run) {
        self.n_tokens += run.tokens.len();
        self.runs.push(run);
    }

    fn close_group(&mut self) -> Result<(), SessionError> {
        if self.n_open > 0 || !self.is_headed {
            let tokens = self.render_open()?;
            self.append(Run::prompt(tokens));
            self.n_open = 0;
            self.is_headed = true;
        }
        Ok(())
    }

    /// The open group's tokens, with the head before it where that is missing.
    fn render_open(&self) -> Result<Vec<u32>, SessionError> {
        let open = &self.entries[self.entries.len() - self.n_open..];
        let messages: Vec<Message> = open.iter().map(|entry| entry.message.clone()).collect();
        let chat = &self.model.chat;
        let is_system = messages.first().is_some_and(|first| first.role == Role::System);
        let mut tokens = Vec::new();
        if !self.is_headed {
            let system = if is_system { &messages[..] } else { &[] };
            tokens = self.encode(&chat.head(system, &self.tools)?)?;
        }
        if !messages.is_empty() && (self.is_headed || !is_system) {
            tokens.extend(self.encode(&chat.group(&messages)?)?);
        }
        Ok(tokens)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, SessionError> {
        Ok(self.model.tokenizer.encode(text)?)
    }
}
