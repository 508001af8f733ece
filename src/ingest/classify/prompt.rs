//! System prompts and what people ask for.

use super::{Classified, push};
use crate::ingest::span::Kind;

/// A system prompt: each rule is a span of its own.
pub(super) fn system(text: &str) -> Classified {
    let mut spans = Vec::new();
    let mut offset = 0;
    let mut in_code = false;
    // A list's item goes on until a blank line or a line that is indented no more.
    let mut in_item = false;
    for line in text.split_inclusive('\n') {
        let bytes = offset..offset + line.len();
        offset = bytes.end;
        let trimmed = line.trim();
        in_code ^= trimmed.starts_with("```");
        let begins_item = !in_code && is_item(trimmed);
        let goes_on = in_item && !trimmed.is_empty() && line.starts_with([' ', '\t']);
        in_item = begins_item || goes_on;
        let is_rule = in_item || !in_code && is_rule(trimmed);
        match is_rule {
            true if goes_on && !begins_item => push(&mut spans, bytes, Kind::Instruction),
            true => spans.push(super::Span::new(super::Part::Content, bytes, Kind::Instruction)),
            false => push(&mut spans, bytes, Kind::System),
        }
    }
    let mut classified = Classified { spans, ..Classified::default() };
    classified.record.thinks_aloud = thinks_aloud(text);
    classified
}

/// What a person says; reminders that an agent adds are rules.
pub(super) fn task(text: &str) -> Classified {
    let mut classified = Classified::default();
    classified.record.thinks_aloud = thinks_aloud(text);
    let kind = if is_from_harness(text) { Kind::Other } else { Kind::Task };
    let mut at = 0;
    for reminder in super::frame::reminders(text) {
        push(&mut classified.spans, at..reminder.start, kind);
        push(&mut classified.spans, reminder.clone(), Kind::Instruction);
        at = reminder.end;
    }
    push(&mut classified.spans, at..text.len(), kind);
    classified
}

/// True where the text asks for thoughts beside actions, as agents do whose actions are text.
fn thinks_aloud(text: &str) -> bool {
    let marks = [
        "bash code block",
        "triple backtick",
        "```mswea_bash_command",
        "THOUGHT",
        "DISCUSSION",
        "general thought",
        "<function=",
    ];
    marks.iter().any(|mark| text.contains(mark))
}

/// True for what agents say by themselves when an answer had no proper action.
fn is_from_harness(text: &str) -> bool {
    let starts = [
        "Please always provide EXACTLY ONE action",
        "Your output was not formatted correctly",
        "Your last output did not use any tool calls",
        "Your command ran successfully and did not produce any output",
        "No tool calls found in the response",
        "Format error",
    ];
    starts.iter().any(|start| text.trim_start().starts_with(start))
}

fn is_item(line: &str) -> bool {
    let is_bullet = line.starts_with(['-', '*', '•', '+']) && line[1..].starts_with(' ')
        || line.strip_prefix('•').is_some_and(|rest| rest.starts_with(' '));
    let n_digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let is_number = matches!(n_digits, 1 | 2)
        && line[n_digits..].strip_prefix(['.', ')']).is_some_and(|rest| rest.starts_with(' '));
    is_bullet || is_number
}

/// True for a sentence that says what must be or must not.
fn is_rule(line: &str) -> bool {
    let is_heading = line.starts_with('#');
    let words = [
        "must",
        "never",
        "always",
        "do not",
        "don't",
        "should",
        "shall",
        "important",
        "only",
        "avoid",
        "make sure",
        "ensure",
        "required",
        "cannot",
        "not allowed",
        "please",
    ];
    let line = line.to_ascii_lowercase();
    let is_word = |word: &&str| {
        line.match_indices(word).any(|(at, found)| {
            let ends = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
            let before = at.checked_sub(1).and_then(|at| line.as_bytes().get(at));
            ends(before) && ends(line.as_bytes().get(at + found.len()))
        })
    };
    !is_heading && words.iter().any(is_word)
}
