//! `gkv`: R-KV with a memory of importance.
//!
//! G-KV (arXiv 2512.00504): softmax over all keys that a query may see, then the maximum over the
//! group and the mean over the window, divided by its maximum; of this and the decayed score of
//! the last compaction the greater counts. Redundancy is divided by its maximum too, so that an
//! even mix means what it says. Slots inside the window get no score and begin without a memory.

use super::super::importance::{Group, Importance, Keys, Pool};
use super::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};
use crate::cache::redundancy::redundancy;

/// Importance, remembered, against redundancy.
pub struct Gkv {
    /// Weight of importance, in 0..=1.
    pub lambda: f32,
    /// What of a slot's importance is left at the next compaction, in 0..=1.
    pub decay: f32,
}

impl Default for Gkv {
    fn default() -> Self {
        Self { lambda: 0.5, decay: 0.8 }
    }
}

impl Policy for Gkv {
    fn name(&self) -> &'static str {
        "gkv"
    }

    fn score(
        &self,
        head: &HeadView<'_>,
        memory: HeadMemory<'_>,
        work: &mut Work,
        scores: &mut [f32],
    ) {
        let importance = Importance {
            n_queries: WINDOW,
            n_cut: WINDOW,
            keys: Keys::Causal,
            group: Group::MaxWeight,
            pool: Pool::None,
        };
        let n_past = importance.measure(head, &mut work.importance, scores);
        let redundancy = redundancy(head.keys, head.head_dim, memory.matches, &mut work.redundancy);
        let (scores, redundancy) = (&mut scores[..n_past], &redundancy[..n_past]);
        let (most_important, most_redundant) = (max(scores), max(redundancy));
        for ((score, redundancy), old) in scores.iter_mut().zip(redundancy).zip(memory.importance) {
            *old = (*score / most_important).max(self.decay * *old);
            *score = self.lambda * *old - (1.0 - self.lambda) * redundancy / most_redundant;
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: 0, n_recent: WINDOW }
    }
}

/// The greatest value, and never so little that it could not divide.
fn max(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::MIN_POSITIVE, f32::max)
}
