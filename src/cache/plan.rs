//! What is decided once a compaction, for all heads of all layers.
//!
//! A plan speaks of positions; [`super::budget`] carries it out on whatever slots a head has left
//! of them. It can ask for more than there is room for: the bound wins.

use std::ops::Range;

use super::budget::Budget;
use super::notes::Notes;

/// What a plan is made from.
pub struct SessionView<'a> {
    /// Those that hold and what they say is told by [`Self::n_read`].
    pub notes: &'a Notes,
    /// Tokens read so far, a staged block included.
    pub n_read: u32,
    pub budget: Budget,
    /// Slots of each head, a staged block included.
    pub n_slots: usize,
}

/// Slots that stay for what they are, whatever their score.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Positions, most wanted first. Where a run does not fit whole, its best slots stay.
    pub runs: Vec<Range<u32>>,
    /// Slots of a head that stay for this reason at most.
    pub cap: usize,
}

/// A span that keeps at least a share where it keeps anything at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub tokens: Range<u32>,
    /// Slots.
    pub n_min: usize,
}

/// A run of tokens whose scores are raised or lowered.
#[derive(Clone, Debug, PartialEq)]
pub struct Shift {
    pub tokens: Range<u32>,
    /// In the spread that scores have within a head.
    pub by: f32,
}

/// A policy's decisions on spans. The default decides nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanPlan {
    /// Later text points to them: they stay before anything but sinks. Filled in by the cache, for
    /// all policies alike.
    pub pins: Vec<Range<u32>>,
    /// By rank: what comes first gets its slots first.
    pub protected: Vec<Protected>,
    /// Served after what is protected.
    pub quotas: Vec<Quota>,
    /// Spans that go whole, before any other slot goes.
    pub leaving: Vec<Range<u32>>,
    /// For the policy's own scoring.
    pub shifts: Vec<Shift>,
    /// Tokens read so far, for the policy's own scoring.
    pub n_read: u32,
}

/// Of the budget, what pins may hold: one part in so many.
pub const PINS_PART: usize = 4;

impl SpanPlan {
    /// Decides nothing of scores or spans.
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty()
            && self.protected.is_empty()
            && self.quotas.is_empty()
            && self.leaving.is_empty()
    }

    /// Adds what the shifts say to `sums`, `[S]`, for slots at ascending `positions`, `[S]`.
    pub fn add_shifts(&self, positions: &[u32], sums: &mut [f32]) {
        for shift in &self.shifts {
            let slots = slots_of(positions, &shift.tokens);
            sums[slots].iter_mut().for_each(|sum| *sum += shift.by);
        }
    }
}

/// The slots that hold `tokens`, of slots at ascending `positions`.
pub fn slots_of(positions: &[u32], tokens: &Range<u32>) -> Range<usize> {
    let start = positions.partition_point(|&position| position < tokens.start);
    start..start + positions[start..].partition_point(|&position| position < tokens.end)
}
