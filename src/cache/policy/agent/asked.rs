//! What the model has looked for: the greatest weight that any of its queries gives a slot.

use super::super::HeadView;
use crate::kernel::norm::softmax;
use crate::kernel::panels::{LANES, Panels};
use crate::kernel::simd::{Kernel, Simd, dispatch};

/// Buffers of [`asked`], reused.
#[derive(Default)]
pub struct AskedWork {
    panels: Panels,
    /// One query's logits, then weights, `[G, S / 8 * 8]`.
    weights: Vec<f32>,
}

impl AskedWork {
    /// Bytes that the buffers hold.
    pub(in crate::cache) fn bytes(&self) -> usize {
        self.panels.bytes() + self.weights.capacity() * size_of::<f32>()
    }
}

/// Writes each slot's importance, `[S]`: softmax over all slots a query may see, then the greatest
/// of a group's query heads and of all queries, those of the bank and those of the window.
pub fn asked(head: &HeadView<'_>, work: &mut AskedWork, out: &mut [f32]) {
    let AskedWork { panels, weights } = work;
    let stride = head.n_slots.next_multiple_of(LANES);
    panels.fill(head.keys, head.head_dim);
    weights.resize(head.n_groups * stride, 0.0);
    out.fill(0.0);
    let group = head.n_groups * head.head_dim;
    let bank = head.bank.chunks_exact(group).map(|query| (query, head.n_slots));
    let window = head.queries.chunks_exact(group).zip(head.query_positions);
    let window = window
        .map(|(query, position)| (query, head.positions.partition_point(|key| key <= position)));
    for (query, n_visible) in bank.chain(window) {
        dispatch(Logits { query, head_dim: head.head_dim, panels, logits: weights, stride });
        for row in weights.chunks_exact_mut(stride) {
            softmax(&mut row[..n_visible]);
            let weights = out.iter_mut().zip(&row[..n_visible]);
            weights.for_each(|(most, &weight)| *most = most.max(weight));
        }
    }
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
