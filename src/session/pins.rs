//! What notes in folded messages point to: it must stay in the cache.

use std::ops::Range;

use super::layout::Layout;
use crate::ingest::history::{How, Overtaken, Place};
use crate::ingest::reader::{Fold, Room};
use crate::ingest::span::Part;

/// Pins may take one slot of so many of the budget.
const SHARE: usize = 4;

/// Tokens that a note points to, or that an edit has outdated since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Position from which on it holds: that of the note, or of the edit.
    pub at: usize,
    pub tokens: Range<u32>,
    /// False where it takes back all earlier pins that share a token with it.
    pub is_set: bool,
}

/// All pins of a conversation, in the order of their notes. A function of the messages as they
/// were given, so that a restored conversation has the same.
#[derive(Debug, Default)]
pub struct Pins(Vec<Pin>);

impl Pins {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn truncate(&mut self, n_pins: usize) {
        self.0.truncate(n_pins);
    }

    pub fn all(&self) -> &[Pin] {
        &self.0
    }

    /// The pins that came with the last messages, from position `at` on.
    pub fn since(&self, at: usize) -> &[Pin] {
        &self.0[self.0.partition_point(|pin| pin.at < at)..]
    }

    /// Adds what a message at position `at` or later does: its notes pin what they point to, and
    /// its edits take pins back.
    pub fn add(&mut self, at: usize, folds: &[Fold], overtaken: &[Overtaken], layout: &Layout) {
        let edited = overtaken.iter().filter(|overtaken| overtaken.how == How::Outdated);
        let edited = edited.map(|overtaken| (&overtaken.place, false));
        let noted = folds.iter().flat_map(|fold| &fold.points_to).map(|place| (place, true));
        self.0.extend(edited.chain(noted).filter_map(|(place, is_set)| {
            Some(Pin { at, tokens: tokens(layout, place)?, is_set })
        }));
    }

    /// The tokens that are pinned, some perhaps twice.
    fn pinned(&self) -> Vec<&Range<u32>> {
        let mut pinned: Vec<&Range<u32>> = Vec::new();
        for pin in &self.0 {
            if pin.is_set {
                pinned.push(&pin.tokens);
            } else {
                pinned.retain(|one| one.end <= pin.tokens.start || pin.tokens.end <= one.start);
            }
        }
        pinned
    }
}

/// Tokens in any of the ranges.
fn count<'a>(ranges: impl IntoIterator<Item = &'a Range<u32>>) -> usize {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut n_tokens, mut seen) = (0, 0);
    for range in ranges {
        n_tokens += range.end.saturating_sub(range.start.max(seen));
        seen = seen.max(range.end);
    }
    n_tokens as usize
}

fn tokens(layout: &Layout, place: &Place) -> Option<Range<u32>> {
    layout.tokens(place.message, Part::Content, &place.bytes)
}

/// What a note at the end of the stream may point to: text that can be pinned, and that the cache
/// has not let go of by then.
pub struct PinRoom<'a> {
    pub layout: &'a Layout,
    pub pins: &'a Pins,
    /// Tokens of the stream.
    pub n_tokens: usize,
    /// Slots of the cache that stay; none where all do.
    pub budget: Option<usize>,
}

impl Room for PinRoom<'_> {
    fn may_point_to(&self, place: &Place) -> bool {
        let Some(tokens) = tokens(self.layout, place) else { return false };
        let Some(budget) = self.budget else { return true };
        let pinned = self.pins.pinned();
        let n_pinned = count(pinned.iter().copied().chain([&tokens]));
        let is_pinned = n_pinned == count(pinned);
        let is_recent = tokens.start as usize + budget >= self.n_tokens;
        is_pinned || is_recent && n_pinned <= budget / SHARE
    }
}
