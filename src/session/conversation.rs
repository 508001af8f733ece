//! A session's messages and the tokens they became: a stream that only grows.
//!
//! The last role group stays open, without tokens, until a message of another role or a
//! generation closes it, since templates join messages of one role.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::error::SessionError;
use super::layout::Layout;
use super::models::Model;
use super::notes::{self, Described};
use super::pins::{Pin, PinRoom, Pins};
use super::record::Entry;
use crate::cache::notes::Notes;
use crate::engine::{Run, RunKind};
use crate::ingest::condense::Condense;
use crate::ingest::prior::Evidence;
use crate::ingest::reader::{self, Reader};
use crate::ingest::span::{Part, Span};
use crate::trajectory::{Message, Role};

/// A place in a conversation to which it can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    reader: reader::Mark,
    n_entries: usize,
    n_runs: usize,
    n_open: usize,
    n_pins: usize,
    is_headed: bool,
}

impl Mark {
    /// Messages that the conversation had.
    pub fn n_entries(self) -> usize {
        self.n_entries
    }
}

/// How messages are taken in.
#[derive(Clone, Debug)]
pub struct Intake {
    pub condense: Condense,
    /// Slots of the cache that stay, for what notes point to; none where all stay.
    pub budget: Option<usize>,
}

/// Messages, and the token stream of all closed role groups.
pub struct Conversation {
    model: Arc<Model>,
    tools: Vec<Value>,
    budget: Option<usize>,
    reader: Reader,
    entries: Vec<Entry>,
    /// Of each entry.
    spans: Vec<Vec<Span>>,
    layout: Layout,
    pins: Pins,
    /// Of the messages that have tokens.
    evidence: Evidence,
    /// In the order in which the model reads them; none is merged with another.
    runs: Vec<Run>,
    /// What the cache is told with each run.
    notes: Vec<Notes>,
    n_tokens: usize,
    /// Messages at the end of `entries` that have no tokens yet.
    n_open: usize,
    /// System messages and tools stand in the stream.
    is_headed: bool,
}

impl Conversation {
    /// # Errors
    /// Where a rule is switched off that is not there.
    pub fn new(model: Arc<Model>, tools: Vec<Value>, intake: Intake) -> Result<Self, SessionError> {
        Ok(Self {
            model,
            tools,
            budget: intake.budget,
            reader: Reader::new(intake.condense)?,
            entries: Vec::new(),
            spans: Vec::new(),
            layout: Layout::default(),
            pins: Pins::default(),
            evidence: Evidence::default(),
            runs: Vec::new(),
            notes: Vec::new(),
            n_tokens: 0,
            n_open: 0,
            is_headed: false,
        })
    }

    /// A conversation from its stored messages. The model is given what it was given before,
    /// whatever the rules of folding are by now.
    pub fn restore(
        model: Arc<Model>,
        tools: Vec<Value>,
        intake: Intake,
        entries: Vec<Entry>,
    ) -> Result<Self, SessionError> {
        let mut conversation = Self::new(model, tools, intake)?;
        for mut entry in entries {
            match entry.generated.take() {
                Some(tokens) => {
                    conversation.open_turn()?;
                    conversation.close_turn(tokens, entry.message)?;
                }
                None => {
                    conversation.make_room_for(entry.message.role)?;
                    let given = entry.given.as_deref();
                    let spans = conversation.reader.remember(&entry.message, given, &entry.folds);
                    conversation.take(entry, spans);
                }
            }
        }
        Ok(conversation)
    }

    /// Takes later messages in in another way.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn set_intake(&mut self, intake: Intake) -> Result<(), SessionError> {
        self.reader.configure(intake.condense)?;
        self.budget = intake.budget;
        Ok(())
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

    /// The messages as they came.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.entries.iter().map(|entry| &entry.message)
    }

    /// Spans of an entry's parts, over the text that the model was given.
    pub fn spans(&self, message_idx: usize) -> &[Span] {
        self.spans.get(message_idx).map_or(&[], Vec::as_slice)
    }

    /// What notes point to, in the order of the notes.
    pub fn pins(&self) -> &[Pin] {
        self.pins.all()
    }

    /// Positions of the tokens that hold some bytes of a message's part, as the model was given
    /// it. None for a message of the open group, and where the template changed the text.
    pub fn tokens(
        &self,
        message_idx: usize,
        part: Part,
        bytes: &Range<usize>,
    ) -> Option<Range<u32>> {
        self.layout.tokens(message_idx, part, bytes)
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
        Ok(self.render_open()?.0.len())
    }

    /// Reads a message and adds it to the open group, or closes that and opens the next.
    pub fn push(&mut self, message: Message) -> Result<(), SessionError> {
        self.make_room_for(message.role)?;
        let room = PinRoom {
            layout: &self.layout,
            pins: &self.pins,
            n_tokens: self.n_tokens,
            budget: self.budget,
        };
        let reading = self.reader.read(&message, &room);
        let (given, folds) = (reading.given, reading.folds);
        self.take(Entry { message, generated: None, given, folds }, reading.spans);
        Ok(())
    }

    /// Closes the open group if it is of another role.
    fn make_room_for(&mut self, role: Role) -> Result<(), SessionError> {
        let open = self.entries.len() - self.n_open;
        if self.entries.get(open).is_some_and(|entry| entry.message.role != role) {
            self.close_group()?;
        }
        Ok(())
    }

    /// Adds a message that was read to the open group.
    fn take(&mut self, entry: Entry, spans: Vec<Span>) {
        let overtaken = self.reader.history().overtaken(self.entries.len());
        self.pins.add(self.n_tokens, &entry.folds, overtaken, &self.layout);
        self.entries.push(entry);
        self.spans.push(spans);
        self.n_open += 1;
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
        let tokenizer = &self.model.tokenizer;
        let mut read = tokens.clone();
        let last = read.pop();
        let is_end = |token: &u32| tokenizer.eos_ids().contains(token);
        let mut rest: Vec<u32> = last.into_iter().filter(|token| !is_end(token)).collect();
        let written = [&read[..], &rest].concat();
        let text = tokenizer.decode(&written)?;
        let closing = self.model.chat.closing();
        rest.extend(self.encode(&(closing.end + &closing.rest))?);
        // The cache has been told nothing of it while it was written.
        let at = self.n_tokens + tokens.len();
        let said = [Cow::Borrowed(&message)];
        self.layout.add(tokenizer, self.n_tokens, &written, &text, said);
        self.append(Run::generated(read));
        self.append(Run::prompt(rest));
        self.spans.push(self.reader.remember(&message, None, &[]));
        self.entries.push(Entry {
            message,
            generated: Some(tokens),
            given: None,
            folds: Vec::new(),
        });
        self.note(self.entries.len() - 1, at, Vec::new());
        Ok(())
    }

    pub fn mark(&self) -> Mark {
        Mark {
            reader: self.reader.mark(),
            n_entries: self.entries.len(),
            n_runs: self.runs.len(),
            n_open: self.n_open,
            n_pins: self.pins.len(),
            is_headed: self.is_headed,
        }
    }

    /// Takes back everything since `mark`.
    pub fn rewind(&mut self, mark: Mark) {
        self.reader.rewind(mark.reader);
        self.entries.truncate(mark.n_entries);
        self.spans.truncate(mark.n_entries);
        self.layout.truncate(mark.n_entries - mark.n_open);
        self.pins.truncate(mark.n_pins);
        self.evidence = Evidence::default();
        let n_closed = mark.n_entries - mark.n_open;
        for (entry, spans) in self.entries.iter().zip(&self.spans).take(n_closed) {
            notes::observe(&mut self.evidence, entry.content(), spans);
        }
        self.runs.truncate(mark.n_runs);
        self.notes.truncate(mark.n_runs);
        self.n_tokens = self.runs.iter().map(|run| run.tokens.len()).sum();
        self.n_open = mark.n_open;
        self.is_headed = mark.is_headed;
    }

    /// All that the cache is told of the tokens.
    pub fn notes(&self) -> Notes {
        let mut all = Notes::default();
        for notes in &self.notes {
            all.spans.extend_from_slice(&notes.spans);
            all.priors.extend_from_slice(&notes.priors);
            all.events.extend_from_slice(&notes.events);
            all.lines.extend_from_slice(&notes.lines);
        }
        let mut sorted = Notes::default();
        sorted.extend(all);
        sorted
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
        self.notes.push(Notes::default());
    }

    /// Tells the cache with the last run of the messages from `first` on, which have their tokens
    /// now; it may know from position `at` on.
    fn note(&mut self, first: usize, at: usize, lines: Vec<u32>) {
        for (entry, spans) in self.entries.iter().zip(&self.spans).skip(first) {
            notes::observe(&mut self.evidence, entry.content(), spans);
        }
        let is_answer = |entry: &&Entry| entry.message.role == Role::Assistant;
        let described = Described {
            layout: &self.layout,
            history: self.reader.history(),
            entries: &self.entries,
            spans: &self.spans,
            messages: first..self.entries.len(),
            at,
            turn: self.entries[..first].iter().filter(is_answer).count() as u32,
            evidence: &self.evidence,
        };
        let notes = described.notes(self.pins.since(at), lines);
        if let Some(last) = self.notes.last_mut() {
            last.extend(notes);
        }
    }

    fn close_group(&mut self) -> Result<(), SessionError> {
        if self.n_open > 0 || !self.is_headed {
            let (tokens, text) = self.render_open()?;
            let (first, at) = (self.entries.len() - self.n_open, self.n_tokens);
            let messages = self.entries[first..].iter().map(Entry::as_given);
            let lines = self.layout.add(&self.model.tokenizer, at, &tokens, &text, messages);
            self.append(Run::prompt(tokens));
            self.note(first, at, lines);
            self.n_open = 0;
            self.is_headed = true;
        }
        Ok(())
    }

    /// The open group's tokens, with the head before it where that is missing; and their text.
    fn render_open(&self) -> Result<(Vec<u32>, String), SessionError> {
        let open = &self.entries[self.entries.len() - self.n_open..];
        let messages: Vec<Message> =
            open.iter().map(|entry| entry.as_given().into_owned()).collect();
        let chat = &self.model.chat;
        let is_system = messages.first().is_some_and(|first| first.role == Role::System);
        let (mut tokens, mut text) = (Vec::new(), String::new());
        if !self.is_headed {
            let system = if is_system { &messages[..] } else { &[] };
            text = chat.head(system, &self.tools)?;
            tokens = self.encode(&text)?;
        }
        if !messages.is_empty() && (self.is_headed || !is_system) {
            let group = chat.group(&messages)?;
            tokens.extend(self.encode(&group)?);
            text += &group;
        }
        Ok((tokens, text))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, SessionError> {
        Ok(self.model.tokenizer.encode(text)?)
    }
}
