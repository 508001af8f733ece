//! `tova`: what the latest query attends to.
//!
//! TOVA (arXiv 2401.06104): the last query's softmax weights, averaged over all query heads of the
//! layer; all KV heads keep the same slots, and recency protects none. The paper evicts one slot a
//! step, here a compaction evicts a buffer's worth.

use super::super::importance::{Group, Importance, Keys, Pool};
use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// The last query's attention.
pub struct Tova;

impl Policy for Tova {
    fn name(&self) -> &'static str {
        "tova"
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, work: &mut Work, scores: &mut [f32]) {
        let last_query = Importance {
            n_queries: 1,
            n_cut: 0,
            keys: Keys::Causal,
            group: Group::MeanWeight,
            pool: Pool::None,
        };
        last_query.measure(head, &mut work.importance, scores);
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection::default()
    }

    fn shares_survivors(&self) -> bool {
        true
    }
}
