//! Rows of activations, as they are and rounded to 8 bits.

use std::cell::Cell;

use rayon::prelude::*;

use crate::kernel::simd::{Kernel, Simd, dispatch};

/// Columns that share a scale.
pub(super) const BLOCK: usize = 32;

/// Blocks of a token that are rounded after one another, so that reads run straight on for long.
const RUN: usize = 8;

/// Tokens from which on rounding is worth several threads.
const MANY: usize = 32;

/// A block of one row, rounded: its values are about `scale * quants`.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Rounded {
    /// -127 to 127, in fours.
    pub quants: [[i8; 4]; BLOCK / 4],
    pub scale: f32,
    /// Sums of the rounded values: of all, of the first half, of the second.
    pub sums: [f32; 3],
}

impl Rounded {
    const ZERO: Self = Self { quants: [[0; 4]; BLOCK / 4], scale: 0.0, sums: [0.0; 3] };

    #[inline(always)]
    fn new<S: Simd>(simd: S, values: &[f32; BLOCK]) -> Self {
        let mut quants = [[0; 4]; BLOCK / 4];
        let (scale, halves) = simd.round(values, &mut quants);
        let sums = [halves[0] + halves[1], halves[0], halves[1]].map(|sum| sum as f32 * scale);
        Self { quants, scale, sums }
    }
}

/// Rows of activations, `[n_tokens, n_cols]`.
pub(super) struct Activations<'a> {
    pub n_tokens: usize,
    pub n_cols: usize,
    pub values: &'a [f32],
    /// The whole blocks of each row, `[n_cols / BLOCK, n_tokens]`.
    rounded: Vec<Rounded>,
}

impl<'a> Activations<'a> {
    /// Lends rows as they are, without [`Self::blocks`].
    pub fn exact(x: &'a [f32], n_tokens: usize, n_cols: usize) -> Self {
        Self { n_tokens, n_cols, values: x, rounded: Vec::new() }
    }

    /// Rounds rows and lends them; the buffer is the thread's own, and taken out of its place
    /// meanwhile: a thread that waits may begin other work that needs one.
    pub fn with(x: &'a [f32], n_tokens: usize, n_cols: usize, run: impl FnOnce(&Self)) {
        thread_local!(static BUFFER: Cell<Vec<Rounded>> = const { Cell::new(Vec::new()) });
        let mut rounded = BUFFER.take();
        rounded.resize(n_tokens * (n_cols / BLOCK), Rounded::ZERO);
        let round = |(run_idx, to): (usize, &mut [Rounded])| {
            dispatch(Round { x, n_cols, n_tokens, first: run_idx * RUN * BLOCK, to });
        };
        if n_tokens < MANY {
            rounded.chunks_mut(RUN * n_tokens).enumerate().for_each(round);
        } else {
            rounded.par_chunks_mut(RUN * n_tokens).enumerate().for_each(round);
        }
        let rows = Self { n_tokens, n_cols, values: x, rounded };
        run(&rows);
        BUFFER.set(rows.rounded);
    }

    #[inline(always)]
    pub fn row(&self, token_idx: usize) -> &'a [f32] {
        &self.values[token_idx * self.n_cols..(token_idx + 1) * self.n_cols]
    }

    /// One block of every token after the other.
    #[inline(always)]
    pub fn blocks(&self) -> impl Iterator<Item = &[Rounded]> {
        self.rounded.chunks_exact(self.n_tokens)
    }
}

/// Rounds some blocks of every token.
struct Round<'a> {
    x: &'a [f32],
    n_cols: usize,
    n_tokens: usize,
    /// Where the first block begins in a row.
    first: usize,
    /// `[n, n_tokens]`
    to: &'a mut [Rounded],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (token_idx, row) in self.x.chunks_exact(self.n_cols).enumerate() {
            let to = self.to[token_idx..].iter_mut().step_by(self.n_tokens);
            for (to, block) in to.zip(row[self.first..].as_chunks::<BLOCK>().0) {
                *to = Rounded::new(simd, block);
            }
        }
    }
}
