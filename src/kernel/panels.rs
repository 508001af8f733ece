//! Keys laid out so that one vector meets eight of them at once.

use super::simd::Simd;

/// Slots of a panel.
pub const LANES: usize = 8;

/// The keys of one head in panels of eight slots, `[S / 8, D, 8]`, the last one filled up with
/// zeros. Inner products with a panel run along the slots, so they need no sum across lanes.
#[derive(Default)]
pub struct Panels {
    data: Vec<f32>,
    head_dim: usize,
}

impl Panels {
    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.data.capacity() * size_of::<f32>()
    }

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

    /// Inner products of `row`, `[D]`, with the eight keys of a panel.
    #[inline(always)]
    pub fn dots<S: Simd>(&self, simd: S, row: &[f32], panel_idx: usize) -> [f32; LANES] {
        let [dots] = self.dots_of(simd, [row], panel_idx);
        dots
    }

    /// [`Self::dots`] of `R` rows, the same to the last bit. Three share each load of the panel,
    /// and their sums still fit in sixteen registers.
    #[inline(always)]
    pub fn dots_of<S: Simd, const R: usize>(
        &self,
        simd: S,
        rows: [&[f32]; R],
        panel_idx: usize,
    ) -> [[f32; LANES]; R] {
        let size = LANES * self.head_dim;
        let panel = &self.data[panel_idx * size..(panel_idx + 1) * size];
        let (quads, tail) = panel.as_chunks::<LANES>().0.as_chunks::<4>();
        let rows = rows.map(|row| row[..self.head_dim].as_chunks::<4>());
        let row_quads = rows.map(|(row, _)| &row[..quads.len()]);
        // Four sums a row hide the latency of an addition.
        let mut sums = [[simd.splat(0.0); 4]; R];
        for (i, quad) in quads.iter().enumerate() {
            for lane in 0..4 {
                let key = simd.load(&quad[lane]);
                for r in 0..R {
                    sums[r][lane] =
                        simd.mul_add(simd.splat(row_quads[r][i][lane]), key, sums[r][lane]);
                }
            }
        }
        for (i, key) in tail.iter().enumerate() {
            let key = simd.load(key);
            for r in 0..R {
                sums[r][i] = simd.mul_add(simd.splat(rows[r].1[i]), key, sums[r][i]);
            }
        }
        let mut dots = [[0.0; LANES]; R];
        let one = simd.splat(1.0);
        for (dots, [a, b, c, d]) in dots.iter_mut().zip(sums) {
            let (ab, cd) = (simd.mul_add(a, one, b), simd.mul_add(c, one, d));
            simd.store(simd.mul_add(ab, one, cd), dots);
        }
        dots
    }
}

/// The inner product of two vectors, summed in eight interleaved parts.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a_lanes, a_rest), (b_lanes, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        add_products(&mut sums, a, b);
    }
    for ((a, b), sum) in a_rest.iter().zip(b_rest).zip(&mut sums) {
        *sum += a * b;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

#[inline(always)]
fn add_products(sums: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += a[lane] * b[lane];
    }
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
    use crate::kernel::simd::{Kernel, dispatch};

    struct Dots<'a, const R: usize> {
        panels: &'a Panels,
        rows: [&'a [f32]; R],
        slot_idx: usize,
    }

    impl<const R: usize> Kernel for Dots<'_, R> {
        type Output = [f32; R];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; R] {
            let dots = self.panels.dots_of(simd, self.rows, self.slot_idx / LANES);
            dots.map(|dots| dots[self.slot_idx % LANES])
        }
    }

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
                let found = dispatch(Dots { panels: &panels, rows: [&row], slot_idx })[0];
                let of_three = dispatch(Dots { panels: &panels, rows: [key, &row, key], slot_idx });
                prop_assert_eq!(of_three[1], found);
                let exact: f64 = row.iter().zip(key).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
                prop_assert!((f64::from(found) - exact).abs() < 1e-4);
            }
        }
    }
}
