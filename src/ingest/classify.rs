//! Finds a message's spans.
//!
//! What a tool's output is comes from the client's `meta`, else from the call that it answers,
//! else from the text's own shape; in doubt it is `other`.

use super::act::{self, Act};
use super::history::{History, Record};
use super::span::{Kind, Part, Span};
use crate::trajectory::{Message, Role};

mod answer;
mod frame;
mod output;
mod prompt;
mod shape;
#[cfg(test)]
mod tests;

/// A message's spans, and what it adds to the history; outputs are added when it is known what
/// the model is given of them.
#[derive(Debug, Default)]
pub(super) struct Classified {
    pub spans: Vec<Span>,
    /// Which of the spans are a tool's own words, without what an agent puts around them.
    pub bodies: Vec<usize>,
    pub record: Record,
}

/// The spans of a message in its conversation.
pub(super) fn message(message: &Message, history: &History) -> Classified {
    let mut classified = match message.role {
        Role::System => prompt::system(&message.content),
        Role::Tool => output::spans(message, frame::open(&message.content), history),
        Role::User => user(message, history),
        Role::Assistant => answer::spans(message, history),
    };
    let reasoning = message.reasoning_content.as_deref().unwrap_or_default();
    if !reasoning.is_empty() {
        classified.spans.insert(0, Span::new(Part::Reasoning, 0..reasoning.len(), Kind::Thought));
        classified.bodies.iter_mut().for_each(|at| *at += 1);
    }
    for (index, call) in message.tool_calls.iter().enumerate() {
        let act = act::of_call(call);
        let length = call.function.arguments.len();
        if length > 0 {
            classified.spans.push(call_span(Part::ToolCall(index), 0..length, &act));
        }
        classified.record.calls.push((call.id.clone(), act));
    }
    classified
}

/// A person's words, or a tool's output in a user's name.
fn user(message: &Message, history: &History) -> Classified {
    let frame = frame::open(&message.content);
    // The last output of a run may come bare: what was submitted.
    let is_submission = || history.awaits_text() && shape::of(&message.content) == Kind::Diff;
    if history.has_answer() && (frame.is_output || message.meta.is_some() || is_submission()) {
        return output::spans(message, frame, history);
    }
    prompt::task(&message.content)
}

fn call_span(part: Part, bytes: std::ops::Range<usize>, act: &Act) -> Span {
    let mut span = Span::new(part, bytes, Kind::ToolCall);
    span.command = act.command.clone();
    // Of several files that are edited, none is the span's.
    span.path = act.path.clone().or_else(|| match &act.touches[..] {
        [only] => only.path.clone(),
        _ => None,
    });
    span.language = span.path.as_deref().and_then(super::language::Language::of_path);
    span
}

/// Adds a span of the content, or makes the last one longer if it says the same.
fn push(spans: &mut Vec<Span>, bytes: std::ops::Range<usize>, kind: Kind) {
    match spans.last_mut() {
        _ if bytes.is_empty() => {}
        Some(last)
            if last.bytes.end == bytes.start
                && *last == Span::new(Part::Content, last.bytes.clone(), kind) =>
        {
            last.bytes.end = bytes.end;
        }
        _ => spans.push(Span::new(Part::Content, bytes, kind)),
    }
}
