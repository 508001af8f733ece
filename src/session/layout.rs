//! Where the messages' texts stand in the token stream.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;

use crate::ingest::span::Part;
use crate::model::tokenizer::{Guard, Tokenizer};
use crate::trajectory::Message;

/// The texts of all messages whose role group is closed.
#[derive(Default)]
pub struct Layout {
    groups: Vec<Group>,
    messages: Vec<Texts>,
}

/// Tokens of messages that were put into tokens together.
struct Group {
    /// Position of the first.
    first_token: usize,
    /// Bytes of the group's text up to each token's end; empty where the tokens do not spell it.
    ends: Vec<u32>,
}

/// Where a message's parts stand in its group's text; a template may change or leave out one.
#[derive(Default)]
struct Texts {
    group_idx: usize,
    reasoning: Option<Found>,
    content: Option<Found>,
    /// What stands behind the content: the tool calls, in the template's form.
    calls: Range<usize>,
}

/// A part's text inside a group's.
struct Found {
    bytes: Range<usize>,
    /// Bytes that the template took off its beginning.
    n_trimmed: usize,
}

impl Layout {
    /// Forgets all but the first `n_messages`, which end with a group.
    pub fn truncate(&mut self, n_messages: usize) {
        self.messages.truncate(n_messages);
        self.groups.truncate(self.messages.last().map_or(0, |last| last.group_idx + 1));
    }

    /// Adds messages that became `tokens`, the first of them at `first_token`, by way of `text`.
    /// Gives the positions of the tokens that begin a line of it.
    pub fn add<'a>(
        &mut self,
        tokenizer: &Tokenizer,
        first_token: usize,
        tokens: &[u32],
        text: &str,
        messages: impl IntoIterator<Item = Cow<'a, Message>>,
    ) -> Vec<u32> {
        let text = Guard::restore(text);
        let mut n_bytes = 0;
        let mut ends: Vec<u32> = tokens
            .iter()
            .map(|&token| {
                n_bytes += tokenizer.text_len(token);
                n_bytes as u32
            })
            .collect();
        if n_bytes != text.len() {
            ends.clear();
        }
        let lines = line_starts(first_token, &ends, text.as_bytes());
        let group_idx = self.groups.len();
        let n_before = self.messages.len();
        let mut from = 0;
        for message in messages {
            let mut next = |wanted: &str| {
                let found = find(&text, from, wanted)?;
                from = found.bytes.end;
                Some(found)
            };
            let reasoning = message.reasoning_content.as_deref().and_then(&mut next);
            let content = next(&message.content);
            if let Some(before) = self.messages[n_before..].last_mut() {
                let first = reasoning.as_ref().or(content.as_ref());
                before.calls.end = first.map_or(from, |found| found.bytes.start);
            }
            self.messages.push(Texts { group_idx, reasoning, content, calls: from..text.len() });
        }
        if self.messages.len() > n_before {
            self.groups.push(Group { first_token, ends });
        }
        lines
    }

    /// Positions of the tokens that hold some bytes of a message's part; none where the message's
    /// group is open, or the part does not stand in the prompt as it is.
    pub fn tokens(
        &self,
        message_idx: usize,
        part: Part,
        bytes: &Range<usize>,
    ) -> Option<Range<u32>> {
        let texts = self.messages.get(message_idx)?;
        let group = self.groups.get(texts.group_idx)?;
        let found = match part {
            Part::Reasoning => texts.reasoning.as_ref()?,
            Part::Content => texts.content.as_ref()?,
            Part::ToolCall(_) => return group.tokens(&texts.calls),
        };
        let place = |at: usize| {
            let at = found.bytes.start + at.saturating_sub(found.n_trimmed);
            at.min(found.bytes.end)
        };
        group.tokens(&(place(bytes.start)..place(bytes.end)))
    }

    /// The position of the first token that holds some bytes of a message's content, and where
    /// each of the tokens lies among those bytes. None as with [`Self::tokens`].
    pub fn token_bytes(
        &self,
        message_idx: usize,
        bytes: &Range<usize>,
    ) -> Option<(u32, Vec<(usize, usize)>)> {
        let tokens = self.tokens(message_idx, Part::Content, bytes)?;
        let texts = self.messages.get(message_idx)?;
        let (group, found) = (self.groups.get(texts.group_idx)?, texts.content.as_ref()?);
        let first = (found.bytes.start + bytes.start).saturating_sub(found.n_trimmed);
        let within = |end: u32| (end as usize).saturating_sub(first).min(bytes.len());
        let idx = tokens.start as usize - group.first_token;
        let mut start = idx.checked_sub(1).map_or(0, |before| within(group.ends[before]));
        let ends = &group.ends[idx..idx + tokens.len()];
        let placed = ends.iter().map(|&end| {
            let end = within(end);
            (std::mem::replace(&mut start, end), end)
        });
        Some((tokens.start, placed.collect()))
    }
}

impl Group {
    fn tokens(&self, bytes: &Range<usize>) -> Option<Range<u32>> {
        let (start, end) = (bytes.start as u32, bytes.end as u32);
        if start >= end || self.ends.last().is_none_or(|&last| end > last) {
            return None;
        }
        let first = self.ends.partition_point(|&token_end| token_end <= start);
        let last = self.ends.partition_point(|&token_end| token_end < end);
        Some((self.first_token + first) as u32..(self.first_token + last + 1) as u32)
    }
}

/// Positions of the tokens with which a line begins: those behind a token with a line end in it.
fn line_starts(first_token: usize, ends: &[u32], text: &[u8]) -> Vec<u32> {
    let mut start = 0;
    let mut begins = true;
    let mut found = Vec::new();
    for (token, &end) in (first_token as u32..).zip(ends) {
        if begins {
            found.push(token);
        }
        begins = memchr::memchr(b'\n', &text[start..end as usize]).is_some();
        start = end as usize;
    }
    found
}

/// Where `wanted` stands in `text` from a byte on, white space around it aside.
fn find(text: &str, from: usize, wanted: &str) -> Option<Found> {
    let trimmed = wanted.trim();
    if trimmed.is_empty() {
        return None;
    }
    let whole = memmem::find(&text.as_bytes()[from..], wanted.as_bytes());
    let (at, len, n_trimmed) = match whole {
        Some(at) => (at, wanted.len(), 0),
        None => {
            let at = memmem::find(&text.as_bytes()[from..], trimmed.as_bytes())?;
            (at, trimmed.len(), wanted.len() - wanted.trim_start().len())
        }
    };
    Some(Found { bytes: from + at..from + at + len, n_trimmed })
}
