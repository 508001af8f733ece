//! `streaming`: the first few slots and the latest.
//!
//! StreamingLLM (arXiv 2309.17453), except that keys keep the positions they were rotated at.

use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// Attention sinks and a sliding window.
pub struct Streaming {
    pub n_sinks: usize,
}

impl Default for Streaming {
    fn default() -> Self {
        Self { n_sinks: 4 }
    }
}

impl Policy for Streaming {
    fn name(&self) -> &'static str {
        "streaming"
    }

    fn score(&self, _: &HeadView<'_>, _: HeadMemory<'_>, _: &mut Work, scores: &mut [f32]) {
        scores.fill(0.0);
    }

    fn protection(&self, budget: usize) -> Protection {
        Protection { n_sinks: self.n_sinks, n_recent: budget.saturating_sub(self.n_sinks) }
    }
}
