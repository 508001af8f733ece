//! Rows of activations, as they are and rounded to 8 bits.

use std::cell::Cell;

use crate::kernel::simd::{Kernel, Simd, dispatch};

/// Columns that share a scale.
pub(super) const BLOCK: usize = 32;

/// A block of one row, rounded: its values are about `scale * quants`.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Rounded {
    /// -127 to 127.
    pub quants: [i8; BLOCK],
    pub scale: f32,
    /// Sums of the rounded values of each half.
    pub sums: [f32; 2],
}

impl Rounded {
    const ZERO: Self = Self { quants: [0; BLOCK], scale: 0.0, sums: [0.0; 2] };

    #[inline(always)]
    fn new(values: &[f32; BLOCK]) -> Self {
        let mut tops = [0f32; 8];
        for chunk in values.as_chunks::<8>().0 {
            for (top, x) in tops.iter_mut().zip(chunk) {
                *top = if x.abs() > *top { x.abs() } else { *top };
            }
        }
        let top = tops.iter().fold(0f32, |a, &b| a.max(b));
        let scale = top / 127.0;
        let inverse = if top > 0.0 { 127.0 / top } else { 0.0 };
        let mut quants = [0i8; BLOCK];
        for (quant, x) in quants.iter_mut().zip(values) {
            *quant = nearest(x * inverse) as i8;
        }
        let mut sums = [0.0; 2];
        for (sum, half) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
            *sum = half.iter().map(|&q| i32::from(q)).sum::<i32>() as f32 * scale;
        }
        Self { quants, scale, sums }
    }
}

/// Rows of activations, `[n_tokens, n_cols]`.
pub(super) struct Activations<'a> {
    pub n_tokens: usize,
    pub n_cols: usize,
    pub values: &'a [f32],
    /// The whole blocks of each row, `[n_tokens, n_cols / BLOCK]`.
    rounded: Vec<Rounded>,
}

impl<'a> Activations<'a> {
    /// Rounds rows and lends them; the buffer is the thread's own, and taken out of its place
    /// meanwhile: a thread that waits may begin other work that needs one.
    pub fn with(x: &'a [f32], n_tokens: usize, n_cols: usize, run: impl FnOnce(&Self)) {
        thread_local!(static BUFFER: Cell<Vec<Rounded>> = const { Cell::new(Vec::new()) });
        let mut rounded = BUFFER.take();
        rounded.resize(n_tokens * (n_cols / BLOCK), Rounded::ZERO);
        let mut rows = Self { n_tokens, n_cols, values: x, rounded };
        dispatch(Round(&mut rows));
        run(&rows);
        BUFFER.set(rows.rounded);
    }

    #[inline(always)]
    pub fn row(&self, token_idx: usize) -> &'a [f32] {
        &self.values[token_idx * self.n_cols..(token_idx + 1) * self.n_cols]
    }

    #[inline(always)]
    pub fn rounded(&self, token_idx: usize) -> &[Rounded] {
        let n_blocks = self.n_cols / BLOCK;
        &self.rounded[token_idx * n_blocks..(token_idx + 1) * n_blocks]
    }
}

struct Round<'r, 'a>(&'r mut Activations<'a>);

impl Kernel for Round<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let n_blocks = self.0.n_cols / BLOCK;
        for token_idx in 0..self.0.n_tokens {
            let row = self.0.row(token_idx).as_chunks::<BLOCK>().0;
            for (to, block) in self.0.rounded[token_idx * n_blocks..].iter_mut().zip(row) {
                *to = Rounded::new(block);
            }
        }
    }
}

/// The nearest integer to a number between -127 and 127, from the low bits of a float.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}
