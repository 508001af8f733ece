//! `rkv`: attended to, and not said twice.
//!
//! R-KV (arXiv 2505.24133), in the order of the authors' code: `λ · importance − (1 − λ) ·
//! redundancy`, both softmaxed, for the slots before the window of 8. Where paper and code differ
//! the code is followed, but for `λ`, which is the paper's.

use super::agent::{self, Settings, spans};
use super::snapkv::SnapKv;
use super::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};
use crate::cache::plan::{SessionView, SpanPlan};
use crate::cache::redundancy::redundancy;

/// Importance against redundancy.
pub struct Rkv {
    /// Weight of importance, in 0..=1. The paper has 0.1, the authors' scripts 0.07.
    pub lambda: f32,
    pub protects: Protects,
}

/// What stays besides the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protects {
    /// Nothing, as published.
    Window,
    /// Four sinks: a control that tells what these alone are worth.
    Sinks,
    /// All that `agent` protects: a control that tells what its scores are worth.
    AsAgent,
}

impl Default for Rkv {
    fn default() -> Self {
        Self { lambda: 0.1, protects: Protects::Window }
    }
}

impl Policy for Rkv {
    fn name(&self) -> &'static str {
        match self.protects {
            Protects::Window => "rkv",
            Protects::Sinks => "rkv+sinks",
            Protects::AsAgent => "rkv+protected",
        }
    }

    fn plan(&self, session: &SessionView<'_>) -> SpanPlan {
        match self.protects {
            Protects::AsAgent => {
                let protected = spans::protected(&Settings::default(), session);
                SpanPlan { protected, ..SpanPlan::default() }
            }
            Protects::Window | Protects::Sinks => SpanPlan::default(),
        }
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
        match self.protects {
            Protects::Window => Protection { n_sinks: 0, n_recent: WINDOW },
            Protects::Sinks => Protection { n_sinks: agent::SINKS, n_recent: WINDOW },
            Protects::AsAgent => Protection { n_sinks: agent::SINKS, n_recent: agent::RECENT },
        }
    }
}
