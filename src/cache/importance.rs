//! What recent queries attend to.
//!
//! One procedure serves every policy that asks recent queries; [`Importance`] says in what the
//! published ones differ. All of it runs in f32.

use super::policy::HeadView;
use crate::kernel::norm::softmax;
use crate::kernel::panels::{LANES, Panels};
use crate::kernel::simd::{Kernel, Simd, dispatch};

/// Which keys a query's softmax runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Those before the cut: the window's own keys are left out of the denominator (R-KV).
    Past,
    /// All up to the query's own position.
    Causal,
}

/// How the query heads of a group become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Maximum of the logits, before the softmax (R-KV).
    MaxLogit,
    /// Maximum of the weights, after the softmax (G-KV).
    MaxWeight,
    /// Mean of the weights, after the softmax (SnapKV in kvpress, TOVA).
    MeanWeight,
}

/// How importance spreads to neighbouring slots; widths are odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    None,
    Max(usize),
    /// Slots beyond the ends count as zeros.
    Mean(usize),
}

/// A way to turn a window of queries into one number a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Importance {
    /// Newest queries that are asked, at most [`super::policy::WINDOW`].
    pub n_queries: usize,
    /// Newest slots that get no number.
    pub n_cut: usize,
    pub keys: Keys,
    pub group: Group,
    pub pool: Pool,
}

/// Buffers of [`Importance::measure`], reused.
#[derive(Default)]
pub struct ImportanceWork {
    panels: Panels,
    /// Logits, then weights, `[rows, S / 8 * 8]`.
    weights: Vec<f32>,
    unpooled: Vec<f32>,
}

impl ImportanceWork {
    pub(super) fn bytes(&self) -> usize {
        let Self { panels, weights, unpooled } = self;
        panels.bytes() + (weights.capacity() + unpooled.capacity()) * size_of::<f32>()
    }
}

impl Importance {
    /// Writes the importance of each slot before the cut into the front of `out`, `[S]`, zeros
    /// behind, and returns how many slots lie before the cut. Zeros where there is no query.
    pub fn measure(
        &self,
        head: &HeadView<'_>,
        work: &mut ImportanceWork,
        out: &mut [f32],
    ) -> usize {
        out.fill(0.0);
        let n_past = head.n_slots.saturating_sub(self.n_cut);
        let n_queries = self.n_queries.min(head.n_queries);
        if n_past == 0 || n_queries == 0 {
            return n_past;
        }
        let first = head.n_queries - n_queries;
        let group_len = head.n_groups * head.head_dim;
        let queries = &head.queries[first * group_len..head.n_queries * group_len];
        let width = match self.keys {
            Keys::Past => n_past,
            Keys::Causal => head.n_slots,
        };
        let n_rows = if self.group == Group::MaxLogit { 1 } else { head.n_groups };
        let stride = width.next_multiple_of(LANES);

        work.panels.fill(&head.keys[..width * head.head_dim], head.head_dim);
        work.weights.resize(n_queries * n_rows * stride, 0.0);
        dispatch(Logits {
            head,
            queries,
            panels: &work.panels,
            merges_group: self.group == Group::MaxLogit,
            logits: &mut work.weights,
            stride,
        });
        let rows_of_queries = work.weights.chunks_exact_mut(n_rows * stride);
        for (rows, &position) in rows_of_queries.zip(&head.query_positions[first..]) {
            let n_visible = match self.keys {
                Keys::Past => width,
                Keys::Causal => head.positions.partition_point(|&key| key <= position),
            };
            for row in rows.chunks_exact_mut(stride) {
                softmax(&mut row[..n_visible]);
                row[n_visible..].fill(0.0);
            }
            self.add_group(rows, stride, &mut out[..n_past]);
        }
        out[..n_past].iter_mut().for_each(|x| *x /= n_queries as f32);
        self.pool.apply(&mut out[..n_past], &mut work.unpooled);
        n_past
    }

    /// Adds one query's weights, `[rows, stride]`, to `out`.
    fn add_group(&self, rows: &[f32], stride: usize, out: &mut [f32]) {
        let n_rows = rows.len() / stride;
        for (slot_idx, out) in out.iter_mut().enumerate() {
            let weights = rows[slot_idx..].iter().step_by(stride);
            *out += match self.group {
                Group::MaxLogit | Group::MaxWeight => weights.copied().fold(0.0, f32::max),
                Group::MeanWeight => weights.sum::<f32>() / n_rows as f32,
            };
        }
    }
}

/// Fills `logits`, `[rows, stride]`: a row a query or a row a query head; of the first kind if the
/// group becomes one here already.
struct Logits<'a> {
    head: &'a HeadView<'a>,
    queries: &'a [f32],
    panels: &'a Panels,
    merges_group: bool,
    logits: &'a mut [f32],
    stride: usize,
}

impl Kernel for Logits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { head, queries, panels, merges_group, logits, stride } = self;
        let scale = 1.0 / (head.head_dim as f32).sqrt();
        let mut put = |query_idx: usize, dots: [f32; LANES], first: usize| {
            let dots = dots.map(|x| x * scale);
            let (row_idx, group_idx) = if merges_group {
                (query_idx / head.n_groups, query_idx % head.n_groups)
            } else {
                (query_idx, 0)
            };
            let row = &mut logits[row_idx * stride..][first..first + LANES];
            if group_idx == 0 {
                row.copy_from_slice(&dots);
            } else {
                row.iter_mut().zip(dots).for_each(|(x, dot)| *x = x.max(dot));
            }
        };
        for panel_idx in 0..stride / LANES {
            let first = panel_idx * LANES;
            let mut threes = queries.chunks_exact(3 * head.head_dim);
            for (i, three) in threes.by_ref().enumerate() {
                let (a, rest) = three.split_at(head.head_dim);
                let (b, c) = rest.split_at(head.head_dim);
                for (r, dots) in panels.dots_of(simd, [a, b, c], panel_idx).into_iter().enumerate()
                {
                    put(3 * i + r, dots, first);
                }
            }
            let n_left = threes.remainder().len() / head.head_dim;
            let n_done = queries.len() / head.head_dim - n_left;
            for (i, query) in threes.remainder().chunks_exact(head.head_dim).enumerate() {
                put(n_done + i, panels.dots(simd, query, panel_idx), first);
            }
        }
    }
}

impl Pool {
    fn apply(self, values: &mut [f32], unpooled: &mut Vec<f32>) {
        let (Self::Max(width) | Self::Mean(width)) = self else { return };
        unpooled.clear();
        unpooled.extend_from_slice(values);
        for (i, value) in values.iter_mut().enumerate() {
            let near =
                &unpooled[i.saturating_sub(width / 2)..unpooled.len().min(i + width / 2 + 1)];
            *value = match self {
                Self::Max(_) => near.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                _ => near.iter().sum::<f32>() / width as f32,
            };
        }
    }
}
