//! `rkv`: attended to, and not said twice.
//!
//! R-KV (arXiv 2505.24133), in the order of the authors' code: `λ · importance − (1 − λ) ·
//! redundancy`, both softmaxed, for the slots before the window of 8. Where paper and code differ
//! the code is followed, but for `λ`, which is the paper's.

use super::snapkv::SnapKv;
use super::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};
use crate::cache::redundancy::redundancy;

/// Importance against redundancy.
pub struct Rkv {
    /// Weight of importance, in 0..=1. The paper has 0.1, the authors' scripts 0.07.
    pub lambda: f32,
}

impl Default for Rkv {
    fn default() -> Self {
        Self { lambda: 0.1 }
    }
}

impl Policy for Rkv {
    fn name(&self) -> &'static str {
        "rkv"
    }

    fn score(
        &self,
        head: &HeadView<'_>,
        memory: HeadMemory<'_>,
        work: &mut Work,
        scores: &mut [f32],
    ) {
        let importance = SnapKv::default().importance();
        let n_past = importance.measure(head, &mut work.importance, scores);
        let redundancy = redundancy(head.keys, head.head_dim, memory.matches, &mut work.redundancy);
        for (score, redundancy) in scores[..n_past].iter_mut().zip(redundancy) {
            *score = self.lambda * *score - (1.0 - self.lambda) * redundancy;
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: 0, n_recent: WINDOW }
    }
}
