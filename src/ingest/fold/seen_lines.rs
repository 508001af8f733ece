//! A view of lines that were shown before.

use std::ops::Range;

use super::{AGAIN, Folded, Rule, WORTH, note};
use crate::ingest::history::{History, Place};
use crate::ingest::shown::{Line, Seen, numbered_lines};
use crate::ingest::span::{Kind, Span};

/// Shows of a file only the lines that were not shown before as they are now.
pub struct SeenLines;

/// Lines that must follow one another to be taken for lines that moved.
pub(super) const MOVED: usize = 5;

impl Rule for SeenLines {
    fn name(&self) -> &'static str {
        "seen_lines"
    }

    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded> {
        let path = span.path.as_deref().filter(|_| span.kind == Kind::FileView)?;
        let file = history.shown(path)?;
        let lines: Vec<_> = file.seen(numbered_lines(span, text)).collect();
        let mut out = String::new();
        let mut points_to = Vec::new();
        let mut copied = 0;
        for run in runs(&lines) {
            let Some((bytes, note)) = note(path, run) else { continue };
            let places = places(run);
            // Whoever asks for what a note stood for is to have it.
            if places.iter().all(|place| history.was_noted(place, AGAIN)) {
                continue;
            }
            if note.len() + WORTH <= bytes.len() {
                out.push_str(text.get(copied..bytes.start)?);
                out.push_str(&note);
                copied = bytes.end;
                points_to.extend(places);
            }
        }
        out.push_str(text.get(copied..)?);
        let text = note::shorter(out, text)?;
        Some(Folded { text, points_to })
    }
}

/// A line of the view, and where it was shown before.
pub(super) type Shown<'a> = (Line<'a>, Option<&'a Seen>);

/// Stretches of lines that were all shown before, neighbours in the file.
fn runs<'l, 'a>(lines: &'l [Shown<'a>]) -> Vec<&'l [Shown<'a>]> {
    let known = known(lines);
    let mut runs = Vec::new();
    let mut start = 0;
    for at in 0..lines.len() {
        let goes_on = known[at]
            && lines.get(at + 1).is_some_and(|next| next.0.number == lines[at].0.number + 1)
            && known[at + 1];
        if !goes_on {
            runs.extend(lines.get(start..=at).filter(|_| known[at]));
            start = at + 1;
        }
    }
    runs
}

/// Which lines are the same line as one that was shown: they have its number, or moved with their
/// neighbours. A line that only reads like another one elsewhere is new.
fn known(lines: &[Shown<'_>]) -> Vec<bool> {
    let mut known = Vec::with_capacity(lines.len());
    for stretch in lines.chunk_by(follows) {
        let moved = stretch.len() >= MOVED;
        known.extend(
            stretch
                .iter()
                .map(|(line, seen)| seen.is_some_and(|seen| moved || seen.number == line.number)),
        );
    }
    known
}

/// Whether two lines that follow each other did so before.
pub(super) fn follows(before: &Shown<'_>, line: &Shown<'_>) -> bool {
    match (before.1, line.1) {
        (Some(before), Some(seen)) => {
            before.place.message == seen.place.message && before.number + 1 == seen.number
        }
        _ => false,
    }
}

/// The bytes of a run, and what to say in place of it.
fn note(path: &str, run: &[Shown<'_>]) -> Option<(Range<usize>, String)> {
    let ((first, shown_first), (last, shown_last)) = (run.first()?, run.last()?);
    let (from, to) = (first.number, last.number);
    let (old_from, old_to) = (shown_first.as_ref()?.number, shown_last.as_ref()?.number);
    let moved = if old_from == from {
        String::new()
    } else if old_to.checked_sub(old_from) == to.checked_sub(from) {
        format!(" as {old_from}-{old_to}")
    } else {
        " with other numbers".to_owned()
    };
    let note = format!("[lines {from}-{to} were shown before{moved}: sed -n {from},{to}p {path}]");
    Some((first.bytes.start..last.bytes.end, note))
}

/// Where a run was shown, a place for each stretch of one message.
pub(super) fn places(run: &[Shown<'_>]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for seen in run.iter().filter_map(|(_, seen)| *seen) {
        match places.last_mut() {
            Some(place)
                if place.message == seen.place.message
                    && place.bytes.end <= seen.place.bytes.start =>
            {
                place.bytes.end = seen.place.bytes.end;
            }
            _ => places.push(seen.place.clone()),
        }
    }
    places
}
