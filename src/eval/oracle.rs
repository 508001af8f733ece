//! A bound no policy can know: survivors chosen by the attention that is still to come.

use std::sync::Arc;

use rayon::prelude::*;

use super::lane::{Machine, StepKind, steps};
use super::stream::Stream;
use crate::cache::importance::{Group, Importance, ImportanceWork, Keys, Pool};
use crate::cache::kv::{KvElement, LayerCache, Rotate};
use crate::cache::notes::Notes;
use crate::cache::plan::SpanPlan;
use crate::cache::policy::full::Full;
use crate::cache::policy::{HeadMemory, HeadView, Policy, Protection, WINDOW, Work};
use crate::cache::{Budget, CacheShape};
use crate::model::ModelError;
use half::f16;

/// Keeps, in each head, what the assistant's tokens still to come attend to under a full cache;
/// four sinks and the last 64 slots always.
pub struct Oracle {
    shape: CacheShape,
    n_tokens: usize,
    /// Where each turn ends.
    ends: Vec<usize>,
    /// For each turn the attention that its tokens and those of later turns pay, `[L, H, P]`:
    /// softmax weights, the maximum over the group, summed over tokens.
    attention: Vec<Vec<f32>>,
}

impl Oracle {
    /// Reads the stream under a full cache and records who looks at what. `progress` is told of
    /// each number of tokens that have been read.
    ///
    /// # Errors
    /// Where the stream is longer than the model's context.
    pub fn new(
        stream: &Stream,
        machine: &mut Machine,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, ModelError> {
        let shape = machine.decoder.shape();
        let n_tokens = stream.tokens.len();
        let size = shape.n_layers * shape.n_kv_heads * n_tokens;
        let mut attention: Vec<_> = stream.turns.iter().map(|_| vec![0.0; size]).collect();
        let mut lane = machine.lane(
            Arc::new(Full),
            Budget { n_slots: n_tokens, n_buffer: 1 },
            &Notes::default(),
        );
        let mut works: Vec<_> = (0..shape.n_layers).map(|_| Recorder::default()).collect();
        for step in steps(stream) {
            let tokens = &stream.tokens[step.tokens.clone()];
            if step.kind == StepKind::Written {
                let turn = stream.turns.iter().position(|t| t.tokens.contains(&step.tokens.start));
                // A cache holds as many queries, and no more, as are read at once here.
                for tokens in tokens.chunks(WINDOW) {
                    let work = &mut machine.work;
                    machine.decoder.replay(tokens, &mut lane.cache, work, None)?;
                    let Some(to) = turn.map(|turn| &mut attention[turn]) else { continue };
                    let layers = to.par_chunks_mut(shape.n_kv_heads * n_tokens);
                    layers.zip(lane.cache.layers()).zip(&mut works).for_each(
                        |((to, layer), work)| {
                            work.add(&shape, layer, tokens.len(), machine.decoder.rope(), to);
                        },
                    );
                }
            } else {
                machine.decoder.prefill(tokens, &mut lane.cache, &mut machine.work, None)?;
            }
            progress(tokens.len());
        }
        for turn in (1..attention.len()).rev() {
            let (before, behind) = attention.split_at_mut(turn);
            if let (Some(sum), Some(later)) = (before.last_mut(), behind.first()) {
                sum.iter_mut().zip(later).for_each(|(sum, later)| *sum += later);
            }
        }
        let ends = stream.turns.iter().map(|turn| turn.tokens.end).collect();
        Ok(Self { shape, n_tokens, ends, attention })
    }
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, _: &mut Work, scores: &mut [f32]) {
        let now = head.positions.last().map_or(0, |last| *last as usize + 1);
        let turn = self.ends.partition_point(|end| *end <= now);
        let row = head.layer_idx * self.shape.n_kv_heads + head.head_idx;
        let to_come =
            self.attention.get(turn).map(|all| &all[row * self.n_tokens..][..self.n_tokens]);
        for (score, &position) in scores.iter_mut().zip(head.positions) {
            *score = to_come.map_or(0.0, |to_come| to_come[position as usize]);
        }
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: 4, n_recent: 64 }
    }
}

/// Buffers for one layer.
#[derive(Default)]
struct Recorder {
    keys: Vec<f32>,
    queries: Vec<f32>,
    weights: Vec<f32>,
    work: ImportanceWork,
}

impl Recorder {
    /// Adds the attention that the last `n_queries` tokens pay to each position, `[H, P]`.
    fn add(
        &mut self,
        shape: &CacheShape,
        layer: &LayerCache<f16>,
        n_queries: usize,
        rope: &dyn Rotate,
        to: &mut [f32],
    ) {
        let (slots, window) = (layer.slots(), layer.window());
        let (dim, group) = (shape.head_dim, shape.n_groups * shape.head_dim);
        let importance = Importance {
            n_queries,
            n_cut: 0,
            keys: Keys::Causal,
            group: Group::MaxWeight,
            pool: Pool::None,
        };
        let n_positions = to.len() / shape.n_kv_heads;
        let (plan, notes) = (SpanPlan::default(), Notes::default());
        self.keys.resize(slots.n_slots * dim, 0.0);
        self.weights.resize(slots.n_slots, 0.0);
        for (head_idx, to) in to.chunks_exact_mut(n_positions).enumerate() {
            let start = head_idx * slots.stride * dim;
            f16::widen(&slots.keys[start..start + slots.n_slots * dim], &mut self.keys);
            self.queries.clear();
            let tokens = window.queries.chunks_exact(shape.n_heads() * dim);
            for (token, &position) in tokens.zip(&window.positions) {
                let first = self.queries.len();
                self.queries.extend_from_slice(&token[head_idx * group..(head_idx + 1) * group]);
                let queries = self.queries[first..].chunks_exact_mut(dim);
                queries.for_each(|query| rope.rotate(query, position));
            }
            let view = HeadView {
                keys: &self.keys,
                values: &[],
                queries: &self.queries,
                query_positions: &window.positions,
                positions: layer.positions(head_idx),
                n_slots: slots.n_slots,
                n_groups: shape.n_groups,
                head_dim: dim,
                n_queries: window.positions.len(),
                bank: &[],
                plan: &plan,
                notes: &notes,
                layer_idx: 0,
                head_idx,
            };
            importance.measure(&view, &mut self.work, &mut self.weights);
            let n = n_queries as f32;
            to.iter_mut().zip(&self.weights).for_each(|(sum, mean)| *sum += n * mean);
        }
    }
}
