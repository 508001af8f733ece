//! `snapkv`: what an observation window attends to.
//!
//! SnapKV (arXiv 2404.14469). The defaults are those of the baseline in the R-KV authors' code
//! (window 8, softmax over the keys before it, maximum over the group, max-pool 7); the fields hold
//! other published variants.

use super::super::importance::{Group, Importance, Keys, Pool};
use super::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};

/// Pooled attention of the last queries; the window itself stays.
pub struct SnapKv {
    /// At most [`WINDOW`].
    pub window: usize,
    pub keys: Keys,
    pub group: Group,
    pub pool: Pool,
}

impl Default for SnapKv {
    fn default() -> Self {
        Self { window: WINDOW, keys: Keys::Past, group: Group::MaxLogit, pool: Pool::Max(7) }
    }
}

impl SnapKv {
    pub(super) fn importance(&self) -> Importance {
        Importance {
            n_queries: self.window,
            n_cut: self.window,
            keys: self.keys,
            group: self.group,
            pool: self.pool,
        }
    }
}

impl Policy for SnapKv {
    fn name(&self) -> &'static str {
        "snapkv"
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, work: &mut Work, scores: &mut [f32]) {
        self.importance().measure(head, &mut work.importance, scores);
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: 0, n_recent: self.window }
    }
}
