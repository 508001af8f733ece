//! Stretches of an output that stand in an earlier one: what a script prints again, an issue that
//! is looked up again.

use std::ops::Range;

use super::seen_lines::{MOVED, Shown, follows, places};
use super::{AGAIN, Folded, Rule, WORTH, note, same_failures};
use crate::ingest::history::{History, Place};
use crate::ingest::log::{Log, Role};
use crate::ingest::shown::pieces;
use crate::ingest::span::{Kind, Span};

/// Leaves out of an output the stretches that an earlier one has byte for byte.
pub struct SeenBlocks;

/// Characters of the lines between which a stretch lies, as its note quotes them.
const QUOTED: usize = 40;

/// Bytes up to which a line that says how a log ended stays.
const VERDICT_LINE: usize = 512;

impl Rule for SeenBlocks {
    fn name(&self) -> &'static str {
        "seen_blocks"
    }

    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded> {
        if matches!(span.kind, Kind::FileView | Kind::Diff) {
            return None;
        }
        let mut lines: Vec<Shown<'_>> = history.pieces().seen(pieces(text)).collect();
        if !lines.chunk_by(follows).any(|stretch| stretch.len() >= MOVED) {
            return None;
        }
        let mut stays = stays(text).into_iter().peekable();
        for (piece, seen) in &mut lines {
            while stays.next_if(|range| range.end <= piece.bytes.start).is_some() {}
            let ends = stays.peek().is_some_and(|range| range.start <= piece.bytes.start);
            // What a note says now it does not say by what it said before.
            if ends || piece.text.starts_with(same_failures::TITLE) {
                *seen = None;
            }
        }
        let mut out = String::new();
        let mut points_to = Vec::new();
        let mut copied = 0;
        for stretch in lines.chunk_by(follows).filter(|stretch| stretch.len() >= MOVED) {
            let (Some((first, _)), Some((last, _))) = (stretch.first(), stretch.last()) else {
                continue;
            };
            let places = places(stretch);
            let said = said(stretch, &places, history);
            let is_worth = said.len() + WORTH <= last.bytes.end - first.bytes.start;
            if is_worth && !places.iter().all(|place| history.was_noted(place, AGAIN)) {
                out.push_str(text.get(copied..first.bytes.start)?);
                out.push_str(&said);
                copied = last.bytes.end;
                points_to.extend(places);
            }
        }
        out.push_str(text.get(copied..)?);
        let text = note::shorter(out, text)?;
        Some(Folded { text, points_to })
    }
}

/// What to say in place of a stretch that stands in these places.
fn said(stretch: &[Shown<'_>], places: &[Place], history: &History) -> String {
    let past = places.first().and_then(|place| history.output_at(place));
    let of = match past.and_then(|past| note::command(&past.span)) {
        Some(command) => format!(" of `{command}`"),
        None => String::new(),
    };
    let mut filled =
        stretch.iter().map(|(line, _)| line.text.trim()).filter(|line| !line.is_empty());
    let first = note::clip(filled.next().unwrap_or_default(), QUOTED);
    let last = note::clip(filled.next_back().unwrap_or_default(), QUOTED);
    let n_lines = stretch.len();
    format!("[{n_lines} lines as in the earlier output{of}, from {first:?} to {last:?}]")
}

/// Bytes of a log that stay whatever was shown before: how it ended. What passed stays too, for
/// that goes in a shorter way.
fn stays(text: &str) -> Vec<Range<usize>> {
    let log = Log::read(text);
    if !log.is_recognised() {
        return Vec::new();
    }
    let verdict = log.verdict();
    let mut ranges = Vec::new();
    let mut start = 0;
    for (at, (line, role)) in log.lines.iter().zip(&log.roles).enumerate() {
        let ends = verdict.contains(&at) && line.len() <= VERDICT_LINE;
        if ends || matches!(role, Role::Passing(_)) {
            ranges.push(start..start + line.len());
        }
        start += line.len();
    }
    ranges
}
