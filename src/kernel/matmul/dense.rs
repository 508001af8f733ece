//! Weights held as floats of 32 or 16 bits.

use std::array::from_fn;
use std::ops::Range;

use half::{bf16, f16};

use super::activations::Activations;
use super::{Form, GROUP, Output, with_scratch};
use crate::kernel::simd::{Kernel, LANES, Simd, dispatch};

/// Tokens from which on weights are widened a tile at a time, and left to the `gemm` crate.
const MANY: usize = 17;

/// Rows that are widened at a time: with fewer, reading the activations again for each tile
/// would cost more than the products.
const TILE_ROWS: usize = 64;

/// A float that weights are held in.
pub(super) trait Float: Copy + Send + Sync + Into<f32> {
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Floats;
}

impl Float for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Floats {
        simd.load(from)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Floats {
        simd.widen_f16(from)
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Floats {
        simd.widen_bf16(from)
    }
}

/// Weights one row after the other.
pub(super) struct Dense<E> {
    values: Vec<E>,
    n_cols: usize,
}

impl<E: Float> Dense<E> {
    pub fn new(values: Vec<E>, n_cols: usize) -> Self {
        Self { values, n_cols }
    }

    pub fn read<const N: usize>(bytes: &[u8], n_cols: usize, read: impl Fn([u8; N]) -> E) -> Self {
        Self::new(bytes.as_chunks::<N>().0.iter().map(|&value| read(value)).collect(), n_cols)
    }

    pub fn rows(&self, first_row: usize, n_rows: usize) -> &[E] {
        &self.values[first_row * self.n_cols..(first_row + n_rows) * self.n_cols]
    }
}

impl<E: Float> Form for Dense<E> {
    const ROUNDS: bool = false;

    fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    fn row(&self, row_idx: usize, out: &mut [f32]) {
        dispatch(Widen { from: self.rows(row_idx, 1), to: out });
    }

    fn multiply(&self, groups: Range<usize>, x: &Activations, out: &Output<'_>) {
        if x.n_tokens < MANY {
            groups.for_each(|group_idx| {
                let first_row = group_idx * GROUP;
                let rows = self.rows(first_row, GROUP.min(out.n_rows - first_row));
                dispatch(Multiply { rows, group_idx, x, out });
            });
            return;
        }
        let end = (groups.end * GROUP).min(out.n_rows);
        for first_row in (groups.start * GROUP..end).step_by(TILE_ROWS) {
            let n_rows = TILE_ROWS.min(end - first_row);
            with_scratch(n_rows * self.n_cols, |weights| {
                dispatch(Widen { from: self.rows(first_row, n_rows), to: weights });
                out.gemm(first_row, n_rows, weights, x.values, x.n_tokens);
            });
        }
    }
}

struct Widen<'a, E> {
    from: &'a [E],
    to: &'a mut [f32],
}

impl<E: Float> Kernel for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (from, from_rest) = self.from.as_chunks::<LANES>();
        let (to, to_rest) = self.to.as_chunks_mut::<LANES>();
        for (from, to) in from.iter().zip(to) {
            simd.store(E::load(simd, from), to);
        }
        for (&from, to) in from_rest.iter().zip(to_rest) {
            *to = from.into();
        }
    }
}

struct Multiply<'a, 'x, E> {
    /// `[n, n_cols]`
    rows: &'a [E],
    group_idx: usize,
    x: &'a Activations<'x>,
    out: &'a Output<'a>,
}

impl<E: Float> Kernel for Multiply<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut token_idx = 0;
        while token_idx < self.x.n_tokens {
            token_idx += match self.x.n_tokens - token_idx {
                1 => self.tokens::<S, 1>(simd, token_idx),
                2 | 3 => self.tokens::<S, 2>(simd, token_idx),
                _ => self.tokens::<S, 4>(simd, token_idx),
            };
        }
    }
}

impl<E: Float> Multiply<'_, '_, E> {
    /// Multiplies the group with `T` tokens, so that its weights are widened once for all.
    #[inline(always)]
    fn tokens<S: Simd, const T: usize>(&self, simd: S, first: usize) -> usize {
        const WIDTH: usize = 2 * LANES;
        let mut values = [[0.0; GROUP]; T];
        for (row_idx, row) in self.rows.chunks_exact(self.x.n_cols).enumerate() {
            let (chunks, rest) = row.as_chunks::<WIDTH>();
            let x: [_; T] = from_fn(|t| self.x.row(first + t).as_chunks::<WIDTH>());
            let mut sums = [[simd.splat(0.0); 2]; T];
            for (i, chunk) in chunks.iter().enumerate() {
                let chunk = chunk.as_chunks::<LANES>().0;
                let weights = [E::load(simd, &chunk[0]), E::load(simd, &chunk[1])];
                for t in 0..T {
                    let x = x[t].0[i].as_chunks::<LANES>().0;
                    sums[t][0] = simd.mul_add(weights[0], simd.load(&x[0]), sums[t][0]);
                    sums[t][1] = simd.mul_add(weights[1], simd.load(&x[1]), sums[t][1]);
                }
            }
            for t in 0..T {
                let zero = simd.splat(0.0);
                let whole: f32 = simd.sums([sums[t][0], sums[t][1], zero, zero]).iter().sum();
                let rest = rest.iter().zip(x[t].1).map(|(&w, x)| w.into() * x).sum::<f32>();
                values[t][row_idx] = whole + rest;
            }
        }
        for (t, values) in values.iter().enumerate() {
            self.out.write(first + t, self.group_idx, values);
        }
        T
    }
}
