//! What the model says: thoughts, answers, and actions that are written in the text.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{Classified, call_span, push};
use crate::ingest::act::{self, Act};
use crate::ingest::command;
use crate::ingest::history::History;
use crate::ingest::span::{Kind, Part};
use crate::trajectory::{FunctionCall, Message, ToolCall};

/// Names behind a fence that holds an action.
const SHELLS: [&str; 7] = ["bash", "sh", "shell", "zsh", "console", "mswea_bash_command", ""];

pub(super) fn spans(message: &Message, history: &History) -> Classified {
    let text = message.content.as_str();
    let mut classified = Classified::default();
    classified.record.is_answer = true;
    let spans = &mut classified.spans;
    let thought = think(text);
    push(spans, 0..thought.end, Kind::Thought);
    let rest = thought.end..text.len();
    let start = text[rest.clone()].trim_start();
    let says_thought = ["THOUGHT", "DISCUSSION", "Thought:"].iter().any(|s| start.starts_with(s));
    let thinks_aloud = says_thought || history.thinks_aloud();
    let has_calls = !message.tool_calls.is_empty();
    let may_act = thinks_aloud && !has_calls;
    let action = may_act.then(|| action(text, rest.clone())).flatten();
    match action {
        None if says_thought || thinks_aloud && has_calls => push(spans, rest, Kind::Thought),
        None => push(spans, rest, Kind::Answer),
        Some((bytes, act)) => {
            let after = &text[bytes.end..];
            // Blanks behind the action belong to it.
            let end = if after.trim().is_empty() { text.len() } else { bytes.end };
            push(spans, rest.start..bytes.start, Kind::Thought);
            spans.push(call_span(Part::Content, bytes.start..end, &act));
            push(spans, end..text.len(), Kind::Answer);
            classified.record.calls.push((String::new(), act));
        }
    }
    classified
}

/// The thoughts at the beginning, with their tags; some models leave out the opening one.
fn think(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    let is_open = text[start..].starts_with("<think>") || text[start..].starts_with("<thinking>");
    let end = ["</think>", "</thinking>"]
        .iter()
        .filter_map(|tag| Some(text.find(tag)? + tag.len()))
        .min();
    match end {
        Some(end) if is_open || text[..end].matches('<').count() == 1 => 0..end,
        None if is_open => 0..text.len(),
        _ => 0..0,
    }
}

/// The last action in the text.
fn action(text: &str, within: Range<usize>) -> Option<(Range<usize>, Act)> {
    function(text, within.clone()).or_else(|| block(text, within))
}

/// The last code block that a shell can run.
fn block(text: &str, within: Range<usize>) -> Option<(Range<usize>, Act)> {
    let mut offset = within.start;
    let mut open: Option<(usize, usize, bool)> = None;
    let mut last = None;
    for line in text[within].split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let Some(name) = line.trim_end().strip_prefix("```") else { continue };
        open = match open {
            None => Some((start, offset, SHELLS.contains(&name.trim()))),
            Some((block, body, is_shell)) if name.is_empty() => {
                if is_shell {
                    last = Some((block..offset, body..start));
                }
                None
            }
            within => within,
        };
    }
    let (bytes, body) = last?;
    Some((bytes, command::act(&text[body])))
}

/// `<function=NAME><parameter=KEY>VALUE</parameter></function>`, as OpenHands writes it for models
/// without tool calls.
fn function(text: &str, within: Range<usize>) -> Option<(Range<usize>, Act)> {
    let start = within.start + text[within.clone()].rfind("<function=")?;
    let end = text[start..within.end].find("</function>").map_or(within.end, |at| start + at + 11);
    let (name, mut rest) = text[start + 10..end].split_once('>')?;
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, value) = parameter.split_once('>')?;
        let (value, behind) = value.split_once("</parameter>").unwrap_or((value, ""));
        arguments.insert(key.to_owned(), Value::from(value.trim_matches('\n')));
        rest = behind;
    }
    let arguments = Value::Object(arguments).to_string();
    let function = FunctionCall { name: name.to_owned(), arguments };
    let call = ToolCall { id: String::new(), kind: "function".to_owned(), function };
    Some((start..end, act::of_call(&call)))
}
