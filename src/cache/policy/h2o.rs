//! `h2o`: heavy hitters and the recent.
//!
//! H2O (arXiv 2306.14048): the attention a slot has received since it came, summed over queries
//! and the query heads of the group. Half of the budget goes to the highest sums, half to the
//! latest slots. What has been evicted is forgotten.

use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// Accumulated attention.
pub struct H2o;

impl Policy for H2o {
    fn name(&self) -> &'static str {
        "h2o"
    }

    fn score(&self, _: &HeadView<'_>, memory: HeadMemory<'_>, _: &mut Work, scores: &mut [f32]) {
        scores.copy_from_slice(memory.importance);
    }

    fn protection(&self, budget: usize) -> Protection {
        Protection { n_sinks: 0, n_recent: budget / 2 }
    }

    fn accumulates_attention(&self) -> bool {
        true
    }
}
