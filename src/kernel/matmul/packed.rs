//! Quantised weights, eight rows woven together.
//!
//! A *lane* is 32 bytes: four columns of each of eight rows. Four lanes are half a block (16
//! columns), eight a block, so that one instruction multiplies four columns of eight rows with the
//! same four activations and no sum across a register is ever taken. Quants of fewer than 8 bits
//! are split into planes: `BITS` lanes hold a block.
//!
//! | bits | lanes of a block |
//! | --- | --- |
//! | 8 | 0..4 the first half, 4..8 the second |
//! | 4 | 0..4, the first half in the low nibbles, the second in the high ones |
//! | 5 | as 4; lane 4 holds the fifth bits, bit `4 * half + lane` of each byte |
//! | 6 | as 4; lanes 4 and 5 hold bits five and six of a half, at bit `2 * lane` |

use std::marker::PhantomData;
use std::ops::Range;

use half::f16;
use rayon::prelude::*;

use super::activations::{Activations, BLOCK, Rounded};
use super::format::{Block, Format, Minimum};
use super::{Form, GROUP, Output, with_scratch};
use crate::kernel::simd::{Kernel, Simd, dispatch};

/// 32 bytes that never straddle two cache lines.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Lane([u8; 32]);

/// A matrix of one format. Rows are padded to whole groups with zeros.
pub(super) struct Packed<F> {
    n_cols: usize,
    /// `[groups, blocks, F::BITS]`
    lanes: Vec<Lane>,
    /// `[groups, n_cols / F::COLUMNS, 1 or 2 (the minimum)]`
    scales: Vec<[f16; GROUP]>,
    /// `[groups, blocks, F::SCALES, 1 or 2 (the minimum)]`, where [`Format::STEPS`].
    steps: Vec<[i8; GROUP]>,
    format: PhantomData<F>,
}

impl<F: Format> Packed<F> {
    /// Numbers that go with a scale: itself and a stored minimum.
    const WITH_MINIMUM: usize = if matches!(F::MINIMUM, Minimum::Stored) { 2 } else { 1 };

    /// Blocks of 32 columns.
    fn n_blocks(&self) -> usize {
        self.n_cols / BLOCK
    }

    fn lanes_of_group(&self) -> usize {
        self.n_blocks() * F::BITS
    }

    fn scales_of_group(&self) -> usize {
        self.n_cols / F::COLUMNS * Self::WITH_MINIMUM
    }

    /// At least one, so that all three buffers divide into groups alike.
    fn steps_of_group(&self) -> usize {
        if F::STEPS { self.n_blocks() * F::SCALES * Self::WITH_MINIMUM } else { 1 }
    }

    /// Repacks the rows of a file, as many bytes as the shape takes and not none.
    pub fn pack(bytes: &[u8], n_rows: usize, n_cols: usize) -> Self {
        let mut packed = Self {
            n_cols,
            lanes: Vec::new(),
            scales: Vec::new(),
            steps: Vec::new(),
            format: PhantomData,
        };
        let n_groups = n_rows.div_ceil(GROUP);
        let (n_lanes, n_scales, n_steps) =
            (packed.lanes_of_group(), packed.scales_of_group(), packed.steps_of_group());
        packed.lanes = vec![Lane([0; 32]); n_groups * n_lanes];
        packed.scales = vec![[f16::ZERO; GROUP]; n_groups * n_scales];
        packed.steps = vec![[0; GROUP]; n_groups * n_steps];
        let row_bytes = n_cols / F::COLUMNS * F::BYTES;
        bytes
            .par_chunks(GROUP * row_bytes)
            .zip(packed.lanes.par_chunks_mut(n_lanes))
            .zip(packed.scales.par_chunks_mut(n_scales))
            .zip(packed.steps.par_chunks_mut(n_steps))
            .for_each(|(((bytes, lanes), scales), steps)| {
                for (row_idx, row) in bytes.chunks_exact(row_bytes).enumerate() {
                    Self::pack_row(row, row_idx, lanes, scales, steps);
                }
            });
        packed
    }

    /// Weaves one row into its group.
    fn pack_row(
        row: &[u8],
        row_idx: usize,
        lanes: &mut [Lane],
        scales: &mut [[f16; GROUP]],
        steps: &mut [[i8; GROUP]],
    ) {
        let blocks_inside = F::COLUMNS / BLOCK;
        let steps_inside = blocks_inside * F::SCALES;
        let mut block = Block::EMPTY;
        for (i, bytes) in row.chunks_exact(F::BYTES).enumerate() {
            F::read(bytes, &mut block);
            let scales = &mut scales[i * Self::WITH_MINIMUM..(i + 1) * Self::WITH_MINIMUM];
            for (to, scale) in scales.iter_mut().zip([block.scale, block.minimum]) {
                to[row_idx] = scale;
            }
            if F::STEPS {
                let steps = &mut steps[i * steps_inside * Self::WITH_MINIMUM..];
                for (step_idx, steps) in
                    steps.chunks_exact_mut(Self::WITH_MINIMUM).take(steps_inside).enumerate()
                {
                    let both = [block.scale_steps[step_idx], block.minimum_steps[step_idx]];
                    for (to, step) in steps.iter_mut().zip(both) {
                        to[row_idx] = step;
                    }
                }
            }
            let lanes = &mut lanes[i * blocks_inside * F::BITS..];
            let quants = block.quants[..F::COLUMNS].chunks_exact(BLOCK);
            for (lanes, quants) in lanes.chunks_exact_mut(F::BITS).zip(quants) {
                Self::pack_block(quants, row_idx, lanes);
            }
        }
    }

    /// Weaves a block's quants into its lanes; see the table at the top.
    fn pack_block(quants: &[u8], row_idx: usize, lanes: &mut [Lane]) {
        for (i, four) in quants.as_chunks::<4>().0.iter().enumerate() {
            let (half, lane) = (i / 4, i % 4);
            let mut put = |lane: usize, bits: [u8; 4]| {
                let to = &mut lanes[lane].0[4 * row_idx..4 * row_idx + 4];
                for (to, bits) in to.iter_mut().zip(bits) {
                    *to |= bits;
                }
            };
            if F::BITS == 8 {
                put(4 * half + lane, *four);
                continue;
            }
            put(lane, four.map(|quant| (quant & 15) << (4 * half)));
            match F::BITS {
                5 => put(4, four.map(|quant| (quant >> 4) << (4 * half + lane))),
                6 => put(4 + half, four.map(|quant| (quant >> 4) << (2 * lane))),
                _ => {}
            }
        }
    }

    fn group(&self, group_idx: usize) -> Group<'_, F> {
        let (n_lanes, n_scales, n_steps) =
            (self.lanes_of_group(), self.scales_of_group(), self.steps_of_group());
        Group {
            lanes: &self.lanes[group_idx * n_lanes..(group_idx + 1) * n_lanes],
            scales: &self.scales[group_idx * n_scales..(group_idx + 1) * n_scales],
            steps: &self.steps[group_idx * n_steps..(group_idx + 1) * n_steps],
            format: PhantomData,
        }
    }
}

impl<F: Format> Form for Packed<F> {
    const ROUNDS: bool = true;

    fn bytes(&self) -> usize {
        size_of_val(self.lanes.as_slice())
            + size_of_val(self.scales.as_slice())
            + size_of_val(self.steps.as_slice())
    }

    fn row(&self, row_idx: usize, out: &mut [f32]) {
        dispatch(Widen { group: self.group(row_idx / GROUP), lane: row_idx % GROUP, out });
    }

    fn multiply(&self, groups: Range<usize>, x: &Activations, out: &Output<'_>) {
        with_scratch(x.n_tokens * GROUP, |totals| {
            let totals = totals.as_chunks_mut().0;
            dispatch(Multiply { weights: self, groups, x, out, totals });
        });
    }
}

/// Eight rows.
struct Group<'a, F> {
    /// `[blocks, F::BITS]`
    lanes: &'a [Lane],
    scales: &'a [[f16; GROUP]],
    steps: &'a [[i8; GROUP]],
    format: PhantomData<F>,
}

impl<F: Format> Group<'_, F> {
    /// Four columns of a block as bytes, of lane 0 to 7; see the table at the top.
    #[inline(always)]
    fn quants<S: Simd>(&self, simd: S, block_idx: usize, lane: usize) -> S::Bytes {
        let lanes = &self.lanes[block_idx * F::BITS..(block_idx + 1) * F::BITS];
        if F::BITS == 8 {
            return simd.load_bytes(&lanes[lane].0);
        }
        let (half, lane) = (lane / 4, lane % 4);
        let low = simd.bits(simd.load_bytes(&lanes[lane].0), 4 * half as i32, 15);
        let (plane, shift, mask) = match F::BITS {
            5 => (4, (4 * half + lane) as i32 - 4, 16),
            6 => (4 + half, 2 * lane as i32 - 4, 48),
            _ => return low,
        };
        simd.or(low, simd.bits(simd.load_bytes(&lanes[plane].0), shift, mask))
    }

    /// The scale and the minimum of a block, or of a half where [`Format::SCALES`] is 2.
    #[inline(always)]
    fn scale<S: Simd>(&self, simd: S, block_idx: usize, half: usize) -> [S::Floats; 2] {
        let scale = self.part(simd, block_idx, half, 0);
        let minimum = match F::MINIMUM {
            Minimum::None => simd.splat(0.0),
            Minimum::Scales(n) => simd.mul(scale, simd.splat(f32::from(n))),
            Minimum::Stored => self.part(simd, block_idx, half, 1),
        };
        [scale, minimum]
    }

    /// The scale (`part` 0) or the stored minimum (1).
    #[inline(always)]
    fn part<S: Simd>(&self, simd: S, block_idx: usize, half: usize, part: usize) -> S::Floats {
        let parts = Packed::<F>::WITH_MINIMUM;
        let whole = simd.widen_f16(&self.scales[block_idx * BLOCK / F::COLUMNS * parts + part]);
        if !F::STEPS {
            return whole;
        }
        let step_idx = block_idx * F::SCALES + half;
        simd.mul(whole, simd.widen_i8(&self.steps[step_idx * parts + part]))
    }
}

/// Products of some groups with all tokens.
///
/// A block is unpacked into registers, and then meets the same block of every token. A token's
/// sums run over the blocks in their order, so that its bits do not depend on the others.
struct Multiply<'a, 'x, F> {
    weights: &'a Packed<F>,
    groups: Range<usize>,
    x: &'a Activations<'x>,
    out: &'a Output<'a>,
    /// `[n_tokens]`
    totals: &'a mut [[f32; GROUP]],
}

impl<F: Format> Kernel for Multiply<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for group_idx in self.groups {
            let group = self.weights.group(group_idx);
            match self.totals.len() {
                1 => group.few::<S, 1>(simd, self.x, self.totals),
                2 => group.few::<S, 2>(simd, self.x, self.totals),
                3 => group.few::<S, 3>(simd, self.x, self.totals),
                4 => group.few::<S, 4>(simd, self.x, self.totals),
                _ => group.many(simd, self.x, self.totals),
            }
            for (token_idx, total) in self.totals.iter().enumerate() {
                self.out.write(token_idx, group_idx, total);
            }
        }
    }
}

/// A block of a group, or a half of one where [`Format::SCALES`] is 2, in registers.
struct Part<S: Simd, F, const L: usize> {
    weights: [S::Bytes; L],
    scale: S::Floats,
    minimum: S::Floats,
    half: usize,
    format: PhantomData<F>,
}

impl<S: Simd, F: Format, const L: usize> Part<S, F, L> {
    #[inline(always)]
    fn new(simd: S, group: &Group<'_, F>, block_idx: usize, half: usize) -> Self {
        let mut weights = [simd.load_bytes(&[0; 32]); L];
        for (lane, weights) in weights.iter_mut().enumerate() {
            *weights = group.quants(simd, block_idx, half * L + lane);
        }
        let [scale, minimum] = group.scale(simd, block_idx, half);
        Self { weights, scale, minimum, half, format: PhantomData }
    }

    /// Adds the products with a token's block to its sums.
    #[inline(always)]
    fn add(&self, simd: S, x: &Rounded, total: S::Floats) -> S::Floats {
        let dot = simd.dot(F::BITS, self.weights, &x.quants.as_chunks::<L>().0[self.half]);
        let total = simd.mul_add(dot, simd.mul(self.scale, simd.splat(x.scale)), total);
        if F::MINIMUM == Minimum::None {
            return total;
        }
        let sum = if F::SCALES == 1 { x.sums[0] } else { x.sums[1 + self.half] };
        simd.mul_add(self.minimum, simd.splat(sum), total)
    }
}

impl<F: Format> Group<'_, F> {
    /// Products with `T` tokens, whose sums stay in registers.
    #[inline(always)]
    fn few<S: Simd, const T: usize>(&self, simd: S, x: &Activations, totals: &mut [[f32; GROUP]]) {
        let mut sums = [simd.splat(0.0); T];
        for (block_idx, x) in x.blocks().enumerate() {
            let x = &x.as_chunks::<T>().0[0];
            if F::SCALES == 1 {
                self.add::<S, 8, T>(simd, block_idx, 0, x, &mut sums);
            } else {
                self.add::<S, 4, T>(simd, block_idx, 0, x, &mut sums);
                self.add::<S, 4, T>(simd, block_idx, 1, x, &mut sums);
            }
        }
        for (sum, total) in sums.into_iter().zip(totals) {
            simd.store(sum, total);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const L: usize, const T: usize>(
        &self,
        simd: S,
        block_idx: usize,
        half: usize,
        x: &[Rounded; T],
        sums: &mut [S::Floats; T],
    ) {
        let part = Part::<S, F, L>::new(simd, self, block_idx, half);
        for (x, sum) in x.iter().zip(sums) {
            *sum = part.add(simd, x, *sum);
        }
    }

    /// Products with any number of tokens, whose sums are in memory.
    #[inline(always)]
    fn many<S: Simd>(&self, simd: S, x: &Activations, totals: &mut [[f32; GROUP]]) {
        totals.fill([0.0; GROUP]);
        for (block_idx, x) in x.blocks().enumerate() {
            if F::SCALES == 1 {
                self.add_in_memory::<S, 8>(simd, block_idx, 0, x, totals);
            } else {
                self.add_in_memory::<S, 4>(simd, block_idx, 0, x, totals);
                self.add_in_memory::<S, 4>(simd, block_idx, 1, x, totals);
            }
        }
    }

    #[inline(always)]
    fn add_in_memory<S: Simd, const L: usize>(
        &self,
        simd: S,
        block_idx: usize,
        half: usize,
        x: &[Rounded],
        totals: &mut [[f32; GROUP]],
    ) {
        let part = Part::<S, F, L>::new(simd, self, block_idx, half);
        for (x, total) in x.iter().zip(totals) {
            simd.store(part.add(simd, x, simd.load(total)), total);
        }
    }
}

/// Widens one row of a group to f32.
struct Widen<'a, F> {
    group: Group<'a, F>,
    lane: usize,
    out: &'a mut [f32],
}

impl<F: Format> Kernel for Widen<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (mut quants, mut scales) = ([0; 32], [[0.0; GROUP]; 2]);
        for (i, out) in self.out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (block_idx, lane) = (i / 8, i % 8);
            simd.store_bytes(self.group.quants(simd, block_idx, lane), &mut quants);
            let both = self.group.scale(simd, block_idx, lane * F::SCALES / 8);
            simd.store(both[0], &mut scales[0]);
            simd.store(both[1], &mut scales[1]);
            for (c, out) in out.iter_mut().enumerate() {
                let quant = quants[4 * self.lane + c];
                let quant = if F::BITS == 8 { f32::from(quant as i8) } else { f32::from(quant) };
                *out = quant * scales[0][self.lane] + scales[1][self.lane];
            }
        }
    }
}
