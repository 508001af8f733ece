//! Attention of new tokens over the slots of one layer.
//!
//! The slots that a token sees, live ones and then staged ones, are cut into ranges of
//! `RANGE`. Each range gives a partial result (Milakov and Gimelshein, 2018), and these are
//! joined in order; so a token's result has the same bits whether it comes alone, with its own key
//! already among the live ones, or in a block, and whatever the number of threads.

mod part;

use std::cell::Cell;

use rayon::prelude::*;

use super::norm::exp;
use super::simd::{LANES, Simd, dispatch};
use crate::cache::kv::{CacheShape, KvElement, Slots};
use part::{AddWeights, Scores, Weigh, widen_vectors};

/// Slots of a partial result.
const RANGE: usize = 256;

/// Slots whose keys or values are widened at a time, to stay in the first-level cache.
const TILE: usize = 32;

/// Query rows that share widened keys and values: as many tokens as make about this many.
const ROWS: usize = 24;

/// Multiplications that are worth a task of their own.
const TASK: usize = 128 * 1024;

/// The slots that new tokens see.
pub struct Attention<'a, E> {
    /// Seen by every token.
    pub live: Slots<'a, E>,
    /// A block's own slots, of which token `t` sees the first `t + 1`.
    pub staged: Option<Slots<'a, E>>,
    pub shape: &'a CacheShape,
}

/// Where the attention that slots receive is added: softmax weights, summed over the group and
/// the tokens.
pub struct Mass<'a> {
    /// `[H, stride]` of the live slots.
    pub live: &'a mut [f32],
    /// `[H, T]`; empty where nothing is staged.
    pub staged: &'a mut [f32],
}

/// `out = softmax(scale * queries . keys) . values`.
///
/// `queries` (rotated) and `out` are `[n_tokens, H * G, D]`. A token that sees no slot at all gets
/// zeros.
///
/// # Panics
/// Where the slices are not as long as the shapes ask, or fewer tokens are staged than asked.
pub fn attend<E: KvElement>(
    attention: &Attention<'_, E>,
    queries: &[f32],
    n_tokens: usize,
    scale: f32,
    mass: Option<Mass<'_>>,
    out: &mut [f32],
) {
    let shape = attention.shape;
    let width = shape.n_heads() * shape.head_dim;
    assert_eq!(queries.len(), n_tokens * width, "queries are [T, H * G, D]");
    assert_eq!(out.len(), n_tokens * width, "outputs are [T, H * G, D]");
    for slots in [Some(attention.live), attention.staged].into_iter().flatten() {
        let len = shape.n_kv_heads * slots.stride * shape.head_dim;
        assert!(slots.n_slots <= slots.stride && slots.keys.len() >= len, "keys are [H, S, D]");
        assert!(slots.values.len() >= len, "values are [H, S, D]");
    }
    assert!(
        attention.staged.is_none_or(|staged| staged.n_slots >= n_tokens),
        "all {n_tokens} tokens are staged"
    );
    if n_tokens == 0 || width == 0 {
        return;
    }
    let call = Call {
        attention,
        queries,
        scale,
        dim: shape.head_dim,
        padded: shape.head_dim.next_multiple_of(LANES),
        tile_tokens: (ROWS / shape.n_groups).max(1).min(n_tokens),
        n_tokens,
    };
    let mut norms = vec![Norm::NONE; n_tokens * shape.n_heads()];
    call.run(out, &mut norms);
    if let Some(mass) = mass {
        call.add_mass(&norms, mass);
    }
}

/// The running maximum of a row's scores and the sum of `e^(score - max)`.
#[derive(Clone, Copy, Debug)]
struct Norm {
    max: f32,
    sum: f32,
}

impl Norm {
    const NONE: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// One call of [`attend`].
struct Call<'a, E> {
    attention: &'a Attention<'a, E>,
    queries: &'a [f32],
    scale: f32,
    dim: usize,
    /// `dim` filled up with zeros to whole vectors.
    padded: usize,
    tile_tokens: usize,
    n_tokens: usize,
}

/// The rows of some tokens for one KV head against one range of slots.
#[derive(Clone, Copy)]
struct Part {
    head_idx: usize,
    first_token: usize,
    n_tokens: usize,
    first_slot: usize,
    n_slots: usize,
}

impl<E: KvElement> Call<'_, E> {
    /// Slots that a token sees.
    fn visible(&self, token_idx: usize) -> usize {
        let staged = if self.attention.staged.is_some() { token_idx + 1 } else { 0 };
        self.attention.live.n_slots + staged
    }

    fn part(&self, head_idx: usize, first_token: usize, range_idx: usize) -> Part {
        let n_tokens = self.tile_tokens.min(self.n_tokens - first_token);
        let first_slot = range_idx * RANGE;
        let n_seen = self.visible(first_token + n_tokens - 1);
        let n_slots = RANGE.min(n_seen.saturating_sub(first_slot));
        Part { head_idx, first_token, n_tokens, first_slot, n_slots }
    }

    fn run(&self, out: &mut [f32], norms: &mut [Norm]) {
        let n_rows = self.tile_tokens * self.attention.shape.n_heads();
        let n_tiles = self.n_tokens.div_ceil(self.tile_tokens);
        // Many tiles are work for all threads; few are cut into their parts.
        let is_cut = n_tiles < 2 * rayon::current_num_threads();
        out.par_chunks_mut(n_rows * self.dim)
            .zip(norms.par_chunks_mut(n_rows))
            .with_min_len(if is_cut { n_tiles } else { 1 })
            .enumerate()
            .for_each(|(i, (out, norms))| self.tile(i * self.tile_tokens, is_cut, out, norms));
    }

    /// Computes all parts of one tile of tokens and joins them.
    fn tile(&self, first_token: usize, is_cut: bool, out: &mut [f32], norms: &mut [Norm]) {
        let shape = self.attention.shape;
        let (n_heads, n_groups) = (shape.n_heads(), shape.n_groups);
        let n_rows = norms.len() / shape.n_kv_heads;
        let n_ranges = self.visible(first_token + n_rows / n_groups - 1).div_ceil(RANGE);
        let n_parts = shape.n_kv_heads * n_ranges;
        let width = self.padded + 2;
        let work = 2 * n_rows * RANGE * self.padded;
        let at_once = if is_cut { TASK.div_ceil(work) } else { n_parts };
        with_scratch(&PARTS, n_parts * n_rows * width, |parts| {
            parts.par_chunks_mut(n_rows * width).with_min_len(at_once).enumerate().for_each(
                |(i, to)| self.partial(self.part(i / n_ranges, first_token, i % n_ranges), to),
            );
            for (i, (out, norm)) in out.chunks_exact_mut(self.dim).zip(norms).enumerate() {
                let (token_idx, head) = (i / n_heads, i % n_heads);
                let row_idx = token_idx * n_groups + head % n_groups;
                let first = head / n_groups * n_ranges;
                let rows = (first..first + n_ranges)
                    .map(|part| &parts[(part * n_rows + row_idx) * width..][..width]);
                *norm = join(rows, out);
            }
        });
    }

    /// Writes the weighted values of each row, its maximum and its sum, `[rows, padded + 2]`.
    fn partial(&self, part: Part, result: &mut [f32]) {
        self.with_queries(part, |queries, tile, scores| {
            dispatch(Scores { call: self, part, queries, tile, scores });
            dispatch(Weigh { call: self, part, tile, scores, result });
        });
    }

    /// Lends the part's queries, scaled and padded, `[rows, padded]`, room for a tile and room for
    /// `[rows, RANGE]` scores.
    fn with_queries(&self, part: Part, run: impl FnOnce(&[f32], &mut [f32], &mut [f32])) {
        let n_groups = self.attention.shape.n_groups;
        let n_rows = part.n_tokens * n_groups;
        let (n_queries, n_tile) = (n_rows * self.padded, TILE * self.padded);
        with_scratch(&PART, n_queries + n_tile + n_rows * RANGE, |scratch| {
            let (queries, rest) = scratch.split_at_mut(n_queries);
            let (tile, scores) = rest.split_at_mut(n_tile);
            for (row_idx, to) in queries.chunks_exact_mut(self.padded).enumerate() {
                let token_idx = part.first_token + row_idx / n_groups;
                let head = part.head_idx * n_groups + row_idx % n_groups;
                let start = (token_idx * self.attention.shape.n_heads() + head) * self.dim;
                let from = &self.queries[start..start + self.dim];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from * self.scale;
                }
                to[self.dim..].fill(0.0);
            }
            run(queries, tile, scores);
        });
    }

    /// Widens `n` vectors from slot `first` on, counted over live and staged slots, into
    /// `[TILE, padded]`; whole vectors of zeros follow.
    #[inline(always)]
    fn widen<S: Simd>(
        &self,
        simd: S,
        vectors: impl for<'s> Fn(&Slots<'s, E>) -> &'s [E],
        head_idx: usize,
        first: usize,
        n: usize,
        tile: &mut [f32],
    ) {
        let live = &self.attention.live;
        let n_live = live.n_slots.saturating_sub(first).min(n);
        let (from_live, from_staged) = tile[..n * self.padded].split_at_mut(n_live * self.padded);
        if n_live > 0 {
            let start = (head_idx * live.stride + first) * self.dim;
            let vectors = &vectors(live)[start..start + n_live * self.dim];
            widen_vectors(simd, vectors, self.dim, self.padded, from_live);
        }
        if let (Some(staged), true) = (&self.attention.staged, n > n_live) {
            let first = (first + n_live) - live.n_slots;
            let start = (head_idx * staged.stride + first) * self.dim;
            let vectors = &vectors(staged)[start..start + (n - n_live) * self.dim];
            widen_vectors(simd, vectors, self.dim, self.padded, from_staged);
        }
        tile[n * self.padded..].fill(0.0);
    }

    /// Adds up every row's weights, once the norms of all rows are known.
    fn add_mass(&self, norms: &[Norm], mass: Mass<'_>) {
        let shape = self.attention.shape;
        let n_seen = self.visible(self.n_tokens - 1);
        if n_seen == 0 {
            return;
        }
        let n_ranges = n_seen.div_ceil(RANGE);
        let mut sums = vec![0f32; shape.n_kv_heads * n_ranges * RANGE];
        sums.par_chunks_mut(RANGE).enumerate().for_each(|(i, sums)| {
            for first_token in (0..self.n_tokens).step_by(self.tile_tokens) {
                let part = self.part(i / n_ranges, first_token, i % n_ranges);
                self.with_queries(part, |queries, tile, scores| {
                    dispatch(Scores { call: self, part, queries, tile, scores });
                    dispatch(AddWeights { call: self, part, scores, norms, sums });
                });
            }
        });
        let n_live = self.attention.live.n_slots;
        let stride = self.attention.live.stride;
        let n_staged = self.attention.staged.map_or(0, |staged| staged.stride);
        for (head_idx, sums) in sums.chunks_exact(n_ranges * RANGE).enumerate() {
            let (live, staged) = sums[..n_seen].split_at(n_live);
            super::norm::add(&mut mass.live[head_idx * stride..][..n_live], live);
            super::norm::add(&mut mass.staged[head_idx * n_staged..][..staged.len()], staged);
        }
    }
}

/// Joins the parts of one row in order: `[padded]` weighted values, their maximum and sum each.
fn join<'p>(parts: impl Iterator<Item = &'p [f32]>, out: &mut [f32]) -> Norm {
    let mut norm = Norm::NONE;
    out.fill(0.0);
    for part in parts {
        let (values, last) = part.split_at(part.len() - 2);
        let new = Norm { max: last[0], sum: last[1] };
        if new.sum == 0.0 {
            continue;
        }
        let max = norm.max.max(new.max);
        let keep = if norm.sum == 0.0 { 0.0 } else { exp(norm.max - max) };
        let take = exp(new.max - max);
        for (out, value) in out.iter_mut().zip(values) {
            *out = *out * keep + value * take;
        }
        norm = Norm { max, sum: norm.sum * keep + new.sum * take };
    }
    if norm.sum != 0.0 {
        let share = 1.0 / norm.sum;
        out.iter_mut().for_each(|out| *out *= share);
    }
    norm
}

type Scratch = std::thread::LocalKey<Cell<Vec<f32>>>;

thread_local! {
    static PARTS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static PART: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Lends a buffer of `len` numbers of any value that the thread keeps for the next call. It is
/// taken out of its place meanwhile: a thread that waits may begin other work that needs one.
fn with_scratch(place: &'static Scratch, len: usize, run: impl FnOnce(&mut [f32])) {
    let mut scratch = place.take();
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    run(&mut scratch[..len]);
    place.set(scratch);
}
