//! `full`: nothing is ever evicted.

use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// Keeps every slot; the reference that the others are measured against.
pub struct Full;

impl Policy for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn score(&self, _: &HeadView<'_>, _: HeadMemory<'_>, _: &mut Work, scores: &mut [f32]) {
        scores.fill(0.0);
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection::default()
    }

    fn evicts(&self) -> bool {
        false
    }
}
