//! Some query rows against one range of slots.

use std::any::TypeId;
use std::array::from_fn;

use half::f16;

use super::{Call, Norm, Part, RANGE, TILE};
use crate::cache::kv::KvElement;
use crate::kernel::norm::exp;
use crate::kernel::simd::{Kernel, LANES, Simd};

/// Scores of a part's rows, `[rows, RANGE]`.
pub(super) struct Scores<'a, 'c, E> {
    pub call: &'a Call<'c, E>,
    pub part: Part,
    pub queries: &'a [f32],
    pub tile: &'a mut [f32],
    pub scores: &'a mut [f32],
}

impl<E: KvElement> Kernel for Scores<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let padded = self.call.padded;
        for start in (0..self.part.n_slots).step_by(TILE) {
            let n = TILE.min(self.part.n_slots - start);
            let first = self.part.first_slot + start;
            self.call.widen(simd, |slots| slots.keys, self.part.head_idx, first, n, self.tile);
            let n_rows = self.queries.len() / padded;
            let mut row = 0;
            while row < n_rows {
                let queries = &self.queries[row * padded..];
                let scores = &mut self.scores[row * RANGE + start..];
                row += match n_rows - row {
                    1 => scores_of_rows::<S, 1>(simd, queries, self.tile, n, padded, scores),
                    2 | 4 => scores_of_rows::<S, 2>(simd, queries, self.tile, n, padded, scores),
                    _ => scores_of_rows::<S, 3>(simd, queries, self.tile, n, padded, scores),
                };
            }
        }
    }
}

/// Four slots at a time, so that their sums across lanes are taken together.
#[inline(always)]
fn scores_of_rows<S: Simd, const R: usize>(
    simd: S,
    queries: &[f32],
    keys: &[f32],
    n_slots: usize,
    padded: usize,
    scores: &mut [f32],
) -> usize {
    let n_vectors = padded / LANES;
    let queries: [&[[f32; LANES]]; R] =
        from_fn(|r| &queries[r * padded..(r + 1) * padded].as_chunks().0[..n_vectors]);
    for (i, keys) in keys.chunks_exact(4 * padded).take(n_slots.div_ceil(4)).enumerate() {
        let keys: [&[[f32; LANES]]; 4] =
            from_fn(|s| &keys[s * padded..(s + 1) * padded].as_chunks().0[..n_vectors]);
        let mut sums = [[simd.splat(0.0); 4]; R];
        for v in 0..n_vectors {
            let key = [
                simd.load(&keys[0][v]),
                simd.load(&keys[1][v]),
                simd.load(&keys[2][v]),
                simd.load(&keys[3][v]),
            ];
            for r in 0..R {
                let query = simd.load(&queries[r][v]);
                for s in 0..4 {
                    sums[r][s] = simd.mul_add(query, key[s], sums[r][s]);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            scores[r * RANGE + 4 * i..][..4].copy_from_slice(&simd.sums(sums));
        }
    }
    R
}

/// Turns a part's scores into weights and sums up the values with them.
pub(super) struct Weigh<'a, 'c, E> {
    pub call: &'a Call<'c, E>,
    pub part: Part,
    pub tile: &'a mut [f32],
    pub scores: &'a mut [f32],
    pub result: &'a mut [f32],
}

impl<E: KvElement> Kernel for Weigh<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let padded = self.call.padded;
        let width = padded + 2;
        let n_groups = self.call.attention.shape.n_groups;
        let n_rows = self.part.n_tokens * n_groups;
        for (row_idx, (scores, result)) in
            self.scores.chunks_exact_mut(RANGE).zip(self.result.chunks_exact_mut(width)).enumerate()
        {
            let n_seen = self.call.visible(self.part.first_token + row_idx / n_groups);
            let n_seen = n_seen.saturating_sub(self.part.first_slot).min(self.part.n_slots);
            let norm = soften(scores, n_seen);
            result.fill(0.0);
            result[padded..].copy_from_slice(&[norm.max, norm.sum]);
        }
        for start in (0..self.part.n_slots).step_by(TILE) {
            let n = TILE.min(self.part.n_slots - start);
            let first = self.part.first_slot + start;
            self.call.widen(simd, |slots| slots.values, self.part.head_idx, first, n, self.tile);
            let mut row = 0;
            while row < n_rows {
                let weights = &self.scores[row * RANGE + start..];
                let result = &mut self.result[row * width..];
                row += match n_rows - row {
                    1 => values_of_rows::<S, 1>(simd, weights, self.tile, n, padded, result),
                    2 | 4 => values_of_rows::<S, 2>(simd, weights, self.tile, n, padded, result),
                    _ => values_of_rows::<S, 3>(simd, weights, self.tile, n, padded, result),
                };
            }
        }
    }
}

/// `e^(score - max)` of the first `n` scores; the rest become 0.
#[inline(always)]
fn soften(scores: &mut [f32], n: usize) -> Norm {
    if n == 0 {
        scores.fill(0.0);
        return Norm::NONE;
    }
    let (scores, rest) = scores.split_at_mut(n.next_multiple_of(LANES));
    rest.fill(0.0);
    scores[n..].fill(f32::NEG_INFINITY);
    let mut tops = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (top, score) in tops.iter_mut().zip(chunk) {
            *top = if *score > *top { *score } else { *top };
        }
    }
    let max = tops.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    for score in &mut *scores {
        *score = exp(*score - max);
    }
    scores[n..].fill(0.0);
    let mut sums = [0.0; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (sum, weight) in sums.iter_mut().zip(chunk) {
            *sum += weight;
        }
    }
    Norm { max, sum: sums.iter().sum() }
}

/// Adds `n_slots` weighted values to the results of `R` rows, four vectors at a time.
#[inline(always)]
fn values_of_rows<S: Simd, const R: usize>(
    simd: S,
    weights: &[f32],
    values: &[f32],
    n_slots: usize,
    padded: usize,
    result: &mut [f32],
) -> usize {
    let mut column = 0;
    while column < padded {
        column += if padded - column >= 4 * LANES {
            values_of_columns::<S, R, 4>(simd, weights, values, n_slots, padded, column, result)
        } else {
            values_of_columns::<S, R, 1>(simd, weights, values, n_slots, padded, column, result)
        };
    }
    R
}

#[inline(always)]
fn values_of_columns<S: Simd, const R: usize, const V: usize>(
    simd: S,
    weights: &[f32],
    values: &[f32],
    n_slots: usize,
    padded: usize,
    column: usize,
    result: &mut [f32],
) -> usize {
    let width = padded + 2;
    let weights: [&[f32]; R] = from_fn(|r| &weights[r * RANGE..][..n_slots]);
    let mut sums = [[simd.splat(0.0); V]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let from = &result[r * width + column..][..V * LANES];
        for (sum, from) in sums.iter_mut().zip(from.as_chunks().0) {
            *sum = simd.load(from);
        }
    }
    for (s, value) in values.chunks_exact(padded).take(n_slots).enumerate() {
        let value = value[column..][..V * LANES].as_chunks::<LANES>().0;
        for r in 0..R {
            let weight = simd.splat(weights[r][s]);
            for v in 0..V {
                sums[r][v] = simd.mul_add(weight, simd.load(&value[v]), sums[r][v]);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        let to = &mut result[r * width + column..][..V * LANES];
        for (sum, to) in sums.into_iter().zip(to.as_chunks_mut().0) {
            simd.store(sum, to);
        }
    }
    V * LANES
}

/// Adds a part's final weights to `sums`, `[RANGE]`.
pub(super) struct AddWeights<'a, 'c, E> {
    pub call: &'a Call<'c, E>,
    pub part: Part,
    pub scores: &'a [f32],
    pub norms: &'a [Norm],
    pub sums: &'a mut [f32],
}

impl<E: KvElement> Kernel for AddWeights<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let shape = self.call.attention.shape;
        for (row_idx, scores) in self.scores.chunks_exact(RANGE).enumerate() {
            let token_idx = self.part.first_token + row_idx / shape.n_groups;
            let head = self.part.head_idx * shape.n_groups + row_idx % shape.n_groups;
            let norm = self.norms[token_idx * shape.n_heads() + head];
            let n_seen = self.call.visible(token_idx).saturating_sub(self.part.first_slot);
            let share = 1.0 / norm.sum;
            for (sum, score) in self.sums.iter_mut().zip(scores).take(n_seen) {
                *sum += exp(score - norm.max) * share;
            }
        }
    }
}

/// Widens vectors of `dim` numbers to `padded` ones, the rest of them 0.
#[inline(always)]
pub(super) fn widen_vectors<S: Simd, E: KvElement>(
    simd: S,
    vectors: &[E],
    dim: usize,
    padded: usize,
    to: &mut [f32],
) {
    if dim == padded && TypeId::of::<E>() == TypeId::of::<f16>() {
        let vectors = bytemuck::cast_slice::<E, f16>(vectors);
        for (from, to) in vectors.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
            simd.store(simd.widen_f16(from), to);
        }
        return;
    }
    for (from, to) in vectors.chunks_exact(dim).zip(to.chunks_exact_mut(padded)) {
        E::widen(from, &mut to[..dim]);
        to[dim..].fill(0.0);
    }
}
