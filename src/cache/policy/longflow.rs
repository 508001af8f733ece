//! `longflow`: what the latest query takes from each slot.
//!
//! LongFlow (arXiv 2603.11504, `yisunlp/LongFLow`): a slot's share in the last query's output,
//! `|a_t * v_t|` averaged over the head dimension and all query heads of the layer; all KV heads
//! keep the same slots, and nothing else protects one. The paper overwrites one slot a step, here
//! a compaction evicts a buffer's worth.

use super::super::importance::{Group, Importance, Keys, Pool};
use super::{HeadMemory, HeadView, Policy, Protection, Work};

/// The last query's attention, weighted with the values it brings in.
pub struct LongFlow;

impl Policy for LongFlow {
    fn name(&self) -> &'static str {
        "longflow"
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
        for (score, value) in scores.iter_mut().zip(head.values.chunks_exact(head.head_dim)) {
            let size: f32 = value.iter().map(|x| x.abs()).sum();
            *score *= size / head.head_dim as f32;
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection::default()
    }

    fn needs_values(&self) -> bool {
        true
    }

    fn shares_survivors(&self) -> bool {
        true
    }
}
