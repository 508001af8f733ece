//! Keys laid out so that one vector meets eight of them at once.

/// Slots of a panel.
pub const LANES: usize = 8;

/// The keys of one head in panels of eight slots, `[S / 8, D, 8]`, the last one filled up with
/// zeros. Inner products with a panel run along the slots, so they need no sum across lanes and
/// the compiler turns them into vector instructions by itself: those of the
/// [`Kernel`](super::simd::Kernel) that they are called from.
#[derive(Default)]
pub struct Panels {
    data: Vec<f32>,
    head_dim: usize,
}

impl Panels {
    /// Lays out `keys`, `[S, D]`.
    pub fn fill(&mut self, keys: &[f32], head_dim: usize) {
        let n_slots = keys.len() / head_dim;
        self.head_dim = head_dim;
        self.data.clear();
        self.data.resize(n_slots.div_ceil(LANES) * LANES * head_dim, 0.0);
        let panels = self.data.chunks_exact_mut(LANES * head_dim);
        for (panel, keys) in panels.zip(keys.chunks(LANES * head_dim)) {
            if keys.len() < LANES * head_dim {
                for (lane, key) in keys.chunks_exact(head_dim).enumerate() {
                    for (to, &x) in panel[lane..].iter_mut().step_by(LANES).zip(key) {
                        *to = x;
                    }
                }
                continue;
            }
            let keys: [&[f32]; LANES] =
                std::array::from_fn(|lane| &keys[lane * head_dim..(lane + 1) * head_dim]);
            for (i, to) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                *to = std::array::from_fn(|lane| keys[lane][i]);
            }
        }
    }

    /// Inner products of `row`, `[D]`, with the eight keys of a panel. Sums run in the same order
    /// as in [`dot`], to the last bit, whatever the instructions.
    #[inline(always)]
    pub fn dots(&self, row: &[f32], panel_idx: usize) -> [f32; LANES] {
        let size = LANES * self.head_dim;
        let panel = &self.data[panel_idx * size..(panel_idx + 1) * size];
        let (quads, rest) = row.as_chunks::<4>();
        let (keys, tail) = panel.as_chunks::<LANES>().0.as_chunks::<4>();
        // Four sums hide the latency of an addition; as four arrays they stay in registers.
        let [mut a, mut b, mut c, mut d] = [[0.0; LANES]; 4];
        for (xs, keys) in quads.iter().zip(keys) {
            add_scaled(&mut a, xs[0], &keys[0]);
            add_scaled(&mut b, xs[1], &keys[1]);
            add_scaled(&mut c, xs[2], &keys[2]);
            add_scaled(&mut d, xs[3], &keys[3]);
        }
        for ((x, key), sum) in rest.iter().zip(tail).zip([&mut a, &mut b, &mut c]) {
            add_scaled(sum, *x, key);
        }
        std::array::from_fn(|lane| (a[lane] + b[lane]) + (c[lane] + d[lane]))
    }
}

#[inline(always)]
fn add_scaled(sum: &mut [f32; LANES], x: f32, key: &[f32; LANES]) {
    for lane in 0..LANES {
        sum[lane] += x * key[lane];
    }
}

/// The inner product of two vectors, summed in four interleaved parts.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a_quads, a_rest), (b_quads, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0.0; 4];
    for (a, b) in a_quads.iter().zip(b_quads) {
        for i in 0..4 {
            sums[i] += a[i] * b[i];
        }
    }
    for ((a, b), sum) in a_rest.iter().zip(b_rest).zip(&mut sums) {
        *sum += a * b;
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// The inner product of sums in f64 with a vector, itself in f64.
#[inline(always)]
pub fn dot_f64(a: &[f64], b: &[f32]) -> f64 {
    let ((a_quads, a_rest), (b_quads, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0.0; 4];
    for (a, b) in a_quads.iter().zip(b_quads) {
        for i in 0..4 {
            sums[i] += a[i] * f64::from(b[i]);
        }
    }
    for ((a, &b), sum) in a_rest.iter().zip(b_rest).zip(&mut sums) {
        *sum += a * f64::from(b);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_panel_gives_the_inner_products_of_its_keys(
            (head_dim, keys, row) in (1usize..70, 1usize..30).prop_flat_map(|(dim, n)| (
                Just(dim),
                prop::collection::vec(-2.0f32..2.0, dim * n),
                prop::collection::vec(-2.0f32..2.0, dim),
            ))
        ) {
            let mut panels = Panels::default();
            panels.fill(&keys, head_dim);
            for (slot_idx, key) in keys.chunks_exact(head_dim).enumerate() {
                let found = panels.dots(&row, slot_idx / LANES)[slot_idx % LANES];
                prop_assert_eq!(found, dot(&row, key));
                let exact: f64 = row.iter().zip(key).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
                prop_assert!((f64::from(found) - exact).abs() < 1e-4);
            }
        }
    }
}
