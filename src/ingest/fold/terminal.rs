//! What a terminal would have made of it: no colour codes, and of a progress bar its last state.

use std::borrow::Cow;

use super::{Folded, Rule};
use crate::ingest::history::History;
use crate::ingest::span::{Kind, Span};

/// Takes out what only a terminal needs.
pub struct Terminal;

impl Rule for Terminal {
    fn name(&self) -> &'static str {
        "terminal"
    }

    fn fold(&self, span: &Span, text: &str, _history: &History) -> Option<Folded> {
        // In a file's text every byte counts, since an edit has to quote it.
        let blanks = match span.kind {
            Kind::FileView => return None,
            Kind::Diff | Kind::Search => false,
            _ => true,
        };
        let seen = as_seen(text, blanks);
        (seen.len() < text.len()).then(|| Folded::of(seen.into_owned()))
    }
}

/// The text without escape sequences, and if asked as a terminal would show it: of each line its
/// last state, without blanks at the end.
pub(super) fn as_seen(text: &str, blanks: bool) -> Cow<'_, str> {
    let plain = strip(text);
    let noisy = plain.contains('\r') || plain.contains(" \n") || plain.contains("\t\n");
    if !blanks || !noisy && !plain.ends_with([' ', '\t']) {
        return plain;
    }
    let mut out = String::with_capacity(plain.len());
    for line in plain.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        // A carriage return goes back to the line's start; what follows writes over it.
        let last = line.rsplit('\r').find(|state| !state.trim().is_empty()).unwrap_or_default();
        out.push_str(last.trim_end_matches([' ', '\t']));
        out.push_str(end);
    }
    Cow::Owned(out)
}

/// The text without escape sequences.
fn strip(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    // The stripper drops tabs and returns too, and after an unfinished sequence all that follows.
    for piece in text.split_inclusive(['\n', '\r', '\t']) {
        if !piece.contains('\u{1b}') {
            out.push_str(piece);
            continue;
        }
        let (body, end) = piece.split_at(piece.trim_end_matches(['\n', '\r', '\t']).len());
        match String::from_utf8(strip_ansi_escapes::strip(body)) {
            Ok(stripped) => out.push_str(&stripped),
            Err(_) => out.push_str(body),
        }
        out.push_str(end);
    }
    Cow::Owned(out)
}
