//! What the cache is told of tokens: spans, places and events of the text, as positions.
//!
//! Everything here is a function of the conversation's text, so that a cache that is made again
//! from it is told the same.

use std::ops::Range;

use super::layout::Layout;
use super::pins::Pin;
use super::record::Entry;
use crate::cache::notes::{Event, Kind, Notes, Priors, Span as TokenSpan, What};
use crate::ingest::history::{History, How};
use crate::ingest::log::{Log, Severity};
use crate::ingest::prior::{self, Evidence};
use crate::ingest::span::{self, Part, Span};
use crate::ingest::structure::{self, Given};

/// A prior of 1 in the cache's unit.
const SPREAD: f32 = 16.0;

/// Findings of one log that are kept as evidence; the first ones tell most.
const FINDINGS_MAX: usize = 8;

/// Messages that have just got their tokens, and what is known of them.
pub struct Described<'a> {
    pub layout: &'a Layout,
    pub history: &'a History,
    pub entries: &'a [Entry],
    /// Of each entry.
    pub spans: &'a [Vec<Span>],
    /// The messages.
    pub messages: Range<usize>,
    /// Position from which on it is known.
    pub at: usize,
    /// Assistant messages before the first of them.
    pub turn: u32,
    /// Lines of files that the work has pointed to so far.
    pub evidence: &'a Evidence,
}

impl Described<'_> {
    /// What the cache is told with the messages; `pins` are those that came with them.
    pub fn notes(&self, pins: &[Pin], lines: Vec<u32>) -> Notes {
        let mut notes = Notes { lines, ..Notes::default() };
        notes.events.extend(pins.iter().map(|pin| {
            self.event(pin.tokens.clone(), if pin.is_set { What::Pin } else { What::Unpin })
        }));
        for idx in self.messages.clone() {
            notes.spans.extend(self.spans[idx].iter().filter_map(|span| self.span(idx, span)));
            notes.priors.extend(self.spans[idx].iter().filter_map(|span| self.priors(idx, span)));
            notes.events.extend(self.overtaken(idx));
            let evidence = self.edits(idx).chain(self.findings(idx)).chain(self.named(idx));
            notes.events.extend(evidence.map(|tokens| self.event(tokens, What::Evidence)));
        }
        notes
    }

    fn event(&self, tokens: Range<u32>, what: What) -> Event {
        Event { at: self.at as u32, tokens, what }
    }

    fn span(&self, idx: usize, span: &Span) -> Option<TokenSpan> {
        Some(TokenSpan {
            tokens: self.layout.tokens(idx, span.part, &span.bytes)?,
            at: self.at as u32,
            kind: kind(span.kind),
            source: source(span),
            turn: self.turn,
        })
    }

    /// What the lines of a piece of code are worth, by what they are.
    fn priors(&self, idx: usize, span: &Span) -> Option<Priors> {
        if span.part != Part::Content || !may_hold_code(span.kind) {
            return None;
        }
        let text = self.entries[idx].content().get(span.bytes.clone())?;
        let classes = prior::classes(&structure::read(text, &Given::from(span)), self.evidence);
        if classes.is_empty() {
            return None;
        }
        let (first, tokens) = self.layout.token_bytes(idx, &span.bytes)?;
        let weights = prior::token_priors(&classes, &tokens);
        let values = weights.iter().map(|weight| (weight * SPREAD).round() as i8).collect();
        Some(Priors { first, at: self.at as u32, values })
    }

    /// Lines of files that errors and traces in the message name, where they were shown.
    fn named(&self, idx: usize) -> impl Iterator<Item = Range<u32>> {
        let content = self.entries[idx].content();
        let logs = self.spans[idx].iter().filter(|span| span.kind == span::Kind::Log);
        let texts = logs.filter_map(|span| content.get(span.bytes.clone()));
        texts.flat_map(prior::places).filter_map(|(path, number)| {
            let file = self.history.shown(path)?;
            let line = file.line(number).filter(|line| self.history.is_current(file, line))?;
            self.layout.tokens(line.place.message, Part::Content, &line.place.bytes)
        })
    }

    /// Lines of files that the message outdates or repeats.
    fn overtaken(&self, idx: usize) -> impl Iterator<Item = Event> {
        self.history.overtaken(idx).iter().filter_map(|overtaken| {
            let place = &overtaken.place;
            let tokens = self.layout.tokens(place.message, Part::Content, &place.bytes)?;
            let what = match overtaken.how {
                How::Outdated => What::Stale,
                How::Repeated => What::Repeated,
            };
            Some(self.event(tokens, what))
        })
    }

    /// Tool calls that edit a file.
    fn edits(&self, idx: usize) -> impl Iterator<Item = Range<u32>> {
        self.history.edits(idx).filter_map(move |call| {
            let length = self.entries[idx].message.tool_calls.get(call)?.function.arguments.len();
            self.layout.tokens(idx, Part::ToolCall(call), &(0..length))
        })
    }

    /// Errors and failed tests of a log, with what was expected and what came.
    fn findings(&self, idx: usize) -> impl Iterator<Item = Range<u32>> {
        let content = self.entries[idx].content();
        let logs = self.spans[idx].iter().filter(|span| span.kind == span::Kind::Log);
        logs.flat_map(move |span| {
            let found = content.get(span.bytes.clone()).map_or(Vec::new(), findings);
            let start = span.bytes.start;
            found.into_iter().filter_map(move |bytes| {
                let bytes = bytes.start + start..bytes.end + start;
                self.layout.tokens(idx, Part::Content, &bytes)
            })
        })
    }
}

/// Adds the lines of files that a message points to.
pub fn observe(evidence: &mut Evidence, content: &str, spans: &[Span]) {
    for span in spans.iter().filter(|span| span.part == Part::Content) {
        let Some(text) = content.get(span.bytes.clone()) else { continue };
        match span.kind {
            span::Kind::Log => evidence.read_log(text),
            span::Kind::Diff => evidence.read_diff(text),
            _ => {}
        }
    }
}

fn may_hold_code(kind: span::Kind) -> bool {
    use span::Kind::{Answer, Diff, FileView, Search, Task};
    matches!(kind, FileView | Diff | Search | Answer | Task)
}

/// Bytes of a log's first errors and failures.
fn findings(text: &str) -> Vec<Range<usize>> {
    let log = Log::read(text);
    let errors = log.findings.iter().filter(|finding| finding.severity != Severity::Warning);
    let (mut line, mut byte) = (0, 0);
    let mut byte_of = |wanted: usize| {
        byte += log.lines[line..wanted].iter().map(|line| line.len()).sum::<usize>();
        line = wanted;
        byte
    };
    errors
        .take(FINDINGS_MAX)
        .map(|finding| byte_of(finding.lines.start)..byte_of(finding.lines.end))
        .collect()
}

fn kind(kind: span::Kind) -> Kind {
    match kind {
        span::Kind::System => Kind::System,
        span::Kind::Instruction => Kind::Instruction,
        span::Kind::Task => Kind::Task,
        span::Kind::Thought => Kind::Thought,
        span::Kind::Answer => Kind::Answer,
        span::Kind::ToolCall => Kind::ToolCall,
        span::Kind::FileView | span::Kind::Listing | span::Kind::Search => Kind::View,
        span::Kind::Diff => Kind::Diff,
        span::Kind::Log => Kind::Log,
        span::Kind::Screen | span::Kind::Other => Kind::Other,
    }
}

/// A number for the file or the command that a span shows, the same in every run; 0 for none.
fn source(span: &Span) -> u32 {
    let Some(name) = span.path.as_ref().or(span.command.as_ref()) else { return 0 };
    let hash = blake3::hash(name.as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_le_bytes([a, b, c, d]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_where_the_errors_are() {
        let text = "   Compiling a v0.1.0\nerror[E0308]: mismatched types\n --> src/lib.rs:3:5\n\n\
                    warning: unused\n --> src/lib.rs:9:5\n\nerror: could not compile\n";
        let found: Vec<_> = findings(text).into_iter().map(|bytes| &text[bytes]).collect();
        assert!(
            found[0].starts_with("error[E0308]") && found[0].contains("lib.rs:3:5"),
            "{found:?}"
        );
        assert!(found.iter().all(|finding| !finding.contains("unused")), "{found:?}");
    }
}
