//! What the model has looked for: the weights that its remembered queries give each slot.

use super::super::HeadView;
use crate::kernel::norm::softmax;
use crate::kernel::panels::{LANES, Panels};
use crate::kernel::simd::{Kernel, Simd, dispatch};

/// Added to a weight before its logarithm: what is looked at less is not told apart.
const LEAST: f32 = 1e-6;

/// Buffers of [`asked`], reused.
#[derive(Default)]
pub struct AskedWork {
    panels: Panels,
    /// One query's logits, then weights, `[G, S / 8 * 8]`.
    weights: Vec<f32>,
    /// Sums over the window's queries, `[S]`.
    window: Vec<f32>,
}

impl AskedWork {
    /// Bytes that the buffers hold.
    pub(in crate::cache) fn bytes(&self) -> usize {
        let numbers = self.weights.capacity() + self.window.capacity();
        self.panels.bytes() + numbers * size_of::<f32>()
    }
}

/// Writes each slot's log importance, `[S]`. A query's weight of a slot is a softmax over all
/// slots that it may see, and of a group's query heads the greatest counts. Importance is the root
/// of the mean square over the bank's queries, between the mean, in which a slot that few ask for
/// is lost, and the greatest, which one query decides. To its logarithm comes, `window` times,
/// that of the mean over the window's queries; where the bank is empty these stand in for it.
pub fn asked(head: &HeadView<'_>, window: f32, work: &mut AskedWork, out: &mut [f32]) {
    let AskedWork { panels, weights, window: seen } = work;
    panels.fill(head.keys, head.head_dim);
    weights.resize(head.n_groups * head.n_slots.next_multiple_of(LANES), 0.0);
    out.fill(0.0);
    seen.clear();
    seen.resize(head.n_slots, 0.0);

    let group = head.n_groups * head.head_dim;
    let is_bank_empty = head.bank.is_empty();
    for query in head.bank.chunks_exact(group) {
        let weights = weigh(head, query, head.n_slots, panels, weights);
        out.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight * weight);
    }
    if window > 0.0 || is_bank_empty {
        for (query, position) in head.queries.chunks_exact(group).zip(head.query_positions) {
            let n_visible = head.positions.partition_point(|key| key <= position);
            let weights = weigh(head, query, n_visible, panels, weights);
            for ((sum, seen), weight) in out.iter_mut().zip(&mut *seen).zip(weights) {
                *seen += weight;
                *sum += if is_bank_empty { weight * weight } else { 0.0 };
            }
        }
    }
    let n_seen = head.n_queries.max(1) as f32;
    let n_asked = if is_bank_empty { n_seen } else { (head.bank.len() / group) as f32 };
    for (out, seen) in out.iter_mut().zip(seen) {
        let importance = (*out / n_asked).sqrt();
        *out = (importance + LEAST).ln() + window * (*seen / n_seen + LEAST).ln();
    }
}

/// The weights of one query's group, `[G, D]`, on the first `n_visible` slots.
fn weigh<'a>(
    head: &HeadView<'_>,
    query: &[f32],
    n_visible: usize,
    panels: &Panels,
    weights: &'a mut [f32],
) -> &'a [f32] {
    let stride = weights.len() / head.n_groups;
    dispatch(Logits { query, head_dim: head.head_dim, panels, logits: weights, stride });
    weights.chunks_exact_mut(stride).for_each(|row| softmax(&mut row[..n_visible]));
    let (first, rest) = weights.split_at_mut(stride);
    for row in rest.chunks_exact(stride) {
        first.iter_mut().zip(row).for_each(|(most, &weight)| *most = most.max(weight));
    }
    &first[..n_visible]
}

/// Fills `logits`, `[G, stride]`, from a group's query heads, `[G, D]`.
struct Logits<'a> {
    query: &'a [f32],
    head_dim: usize,
    panels: &'a Panels,
    logits: &'a mut [f32],
    stride: usize,
}

impl Kernel for Logits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let rows = self.logits.chunks_exact_mut(self.stride);
        for (query, row) in self.query.chunks_exact(self.head_dim).zip(rows) {
            for (panel_idx, logits) in row.chunks_exact_mut(LANES).enumerate() {
                let dots = self.panels.dots(simd, query, panel_idx);
                logits.iter_mut().zip(dots).for_each(|(logit, dot)| *logit = dot * scale);
            }
        }
    }
}
