//! How notes speak: to the model, in its own terms.

use std::borrow::Cow;

use crate::ingest::span::Span;

/// Characters of a first line that a note quotes.
const QUOTED: usize = 80;

/// Characters of a command that a note repeats.
const COMMAND: usize = 160;

/// The command behind an output, where a note can repeat it on one line.
pub fn command(span: &Span) -> Option<&str> {
    let command = span.command.as_deref()?.trim();
    let short = !command.is_empty() && command.chars().count() <= COMMAND;
    (short && !command.contains('\n')).then_some(command)
}

/// How to see lines of an output again, such as `cargo test 2>&1 | sed -n 10,60p`.
pub fn lines_again(span: &Span) -> String {
    match command(span) {
        Some(command) if command.contains(['&', ';', '|']) => {
            format!("({command}) 2>&1 | sed -n FROM,TOp")
        }
        // A single word may be a tool that no shell knows.
        Some(command) if command.contains(' ') => format!("{command} 2>&1 | sed -n FROM,TOp"),
        _ => "the same again into a file, then sed -n FROM,TOp".to_owned(),
    }
}

/// The first line that is not blank, as a note quotes it.
pub fn first_line(text: &str) -> Cow<'_, str> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    clip(line, QUOTED)
}

/// At most `chars` characters of a text on one line.
pub fn clip(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        Some((end, _)) => {
            Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default().trim_end()))
        }
        None => Cow::Borrowed(text),
    }
}

/// A number with commas between its thousands.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 error`, `2 errors`.
pub fn counted(number: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Adds a line of its own, whatever stands before it.
pub fn push(out: &mut String, note: &str) {
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out.push_str(note);
    out.push('\n');
}

/// Whether a line is a note that folding left.
pub fn is_note(line: &str) -> bool {
    let line = line.trim();
    if let Some(rest) = line.strip_prefix("… ") {
        return rest.contains(" more ");
    }
    let Some(rest) = line.strip_prefix('[') else { return false };
    let parts = [" lines as in the earlier output", " were shown before", "abridged: "];
    let is_same =
        |rest: &str| rest.contains("not repeated here") || rest.starts_with("as the earlier");
    parts.iter().any(|part| rest.contains(part)) || rest.strip_prefix("same ").is_some_and(is_same)
}

/// The text if it is shorter than what it stands for.
pub fn shorter(folded: String, text: &str) -> Option<String> {
    (folded.len() < text.len()).then_some(folded)
}
