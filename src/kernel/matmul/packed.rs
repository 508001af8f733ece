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

use std::array::from_fn;
use std::marker::PhantomData;

use half::f16;
use rayon::prelude::*;

use super::activations::{Activations, BLOCK, Rounded};
use super::format::{Block, Format, Minimum};
use super::{Form, GROUP, Output};
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
    fn bytes(&self) -> usize {
        size_of_val(self.lanes.as_slice())
            + size_of_val(self.scales.as_slice())
            + size_of_val(self.steps.as_slice())
    }

    fn widen(&self, first_row: usize, out: &mut [f32]) {
        for (i, out) in out.chunks_mut(GROUP * self.n_cols).enumerate() {
            let group = self.group(first_row / GROUP + i);
            dispatch(Widen { group, n_cols: self.n_cols, out });
        }
    }

    fn multiply(&self, group_idx: usize, x: &Activations, out: &Output<'_>) {
        dispatch(Multiply { group: self.group(group_idx), group_idx, x, out });
    }
}

/// Eight rows.
struct Group<'a, F> {
    lanes: &'a [Lane],
    scales: &'a [[f16; GROUP]],
    steps: &'a [[i8; GROUP]],
    format: PhantomData<F>,
}

impl<F: Format> Group<'_, F> {
    /// The quants of half a block.
    #[inline(always)]
    fn quants<S: Simd>(simd: S, lanes: &[Lane], half: usize) -> [S::Bytes; 4] {
        [
            Self::quant(simd, lanes, half, 0),
            Self::quant(simd, lanes, half, 1),
            Self::quant(simd, lanes, half, 2),
            Self::quant(simd, lanes, half, 3),
        ]
    }

    #[inline(always)]
    fn quant<S: Simd>(simd: S, lanes: &[Lane], half: usize, lane: usize) -> S::Bytes {
        if F::BITS == 8 {
            return simd.load_bytes(&lanes[4 * half + lane].0);
        }
        let low = simd.bits(simd.load_bytes(&lanes[lane].0), 4 * half as i32, 15);
        let (plane, shift, mask) = match F::BITS {
            5 => (4, (4 * half + lane) as i32 - 4, 16),
            6 => (4 + half, 2 * lane as i32 - 4, 48),
            _ => return low,
        };
        simd.or(low, simd.bits(simd.load_bytes(&lanes[plane].0), shift, mask))
    }

    /// The scale and the minimum of half a block.
    #[inline(always)]
    fn scale<S: Simd>(&self, simd: S, block_idx: usize, half: usize) -> (S::Floats, S::Floats) {
        let scale = self.part(simd, block_idx, half, 0);
        let minimum = match F::MINIMUM {
            Minimum::None => simd.splat(0.0),
            Minimum::Scales(n) => simd.mul(scale, simd.splat(f32::from(n))),
            Minimum::Stored => self.part(simd, block_idx, half, 1),
        };
        (scale, minimum)
    }

    /// The scale (`part` 0) or the stored minimum (1).
    #[inline(always)]
    fn part<S: Simd>(&self, simd: S, block_idx: usize, half: usize, part: usize) -> S::Floats {
        let parts = Packed::<F>::WITH_MINIMUM;
        let whole = simd.widen_f16(&self.scales[block_idx * BLOCK / F::COLUMNS * parts + part]);
        if !F::STEPS {
            return whole;
        }
        let step_idx = block_idx * F::SCALES + half * (F::SCALES - 1);
        simd.mul(whole, simd.widen_i8(&self.steps[step_idx * parts + part]))
    }
}

struct Multiply<'a, 'x, F> {
    group: Group<'a, F>,
    group_idx: usize,
    x: &'a Activations<'x>,
    out: &'a Output<'a>,
}

impl<F: Format> Kernel for Multiply<'_, '_, F> {
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

impl<F: Format> Multiply<'_, '_, F> {
    /// Multiplies the group with `T` tokens, so that its quants are unpacked once for all.
    #[inline(always)]
    fn tokens<S: Simd, const T: usize>(&self, simd: S, first: usize) -> usize {
        let n_blocks = self.x.n_cols / BLOCK;
        let x: [&[Rounded]; T] = from_fn(|t| &self.x.rounded(first + t)[..n_blocks]);
        let mut totals = [simd.splat(0.0); T];
        for block_idx in 0..n_blocks {
            let x = x.map(|row| &row[block_idx]);
            self.half::<S, T, 0>(simd, block_idx, x, &mut totals);
            self.half::<S, T, 1>(simd, block_idx, x, &mut totals);
        }
        for (t, total) in totals.into_iter().enumerate() {
            let mut values = [0.0; GROUP];
            simd.store(total, &mut values);
            self.out.write(first + t, self.group_idx, &values);
        }
        T
    }

    #[inline(always)]
    fn half<S: Simd, const T: usize, const HALF: usize>(
        &self,
        simd: S,
        block_idx: usize,
        x: [&Rounded; T],
        totals: &mut [S::Floats; T],
    ) {
        let lanes = &self.group.lanes[block_idx * F::BITS..(block_idx + 1) * F::BITS];
        let weights = Group::<F>::quants(simd, lanes, HALF);
        let (scale, minimum) = self.group.scale(simd, block_idx, HALF);
        for t in 0..T {
            let dot = simd.dot(F::BITS, weights, &x[t].quants.as_chunks::<16>().0[HALF]);
            totals[t] = simd.mul_add(dot, simd.mul(scale, simd.splat(x[t].scale)), totals[t]);
            if F::MINIMUM != Minimum::None {
                totals[t] = simd.mul_add(minimum, simd.splat(x[t].sums[HALF]), totals[t]);
            }
        }
    }
}

struct Widen<'a, F> {
    group: Group<'a, F>,
    n_cols: usize,
    out: &'a mut [f32],
}

impl<F: Format> Kernel for Widen<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (block_idx, lanes) in self.group.lanes.chunks_exact(F::BITS).enumerate() {
            for half in 0..2 {
                let (scale, minimum) = self.group.scale(simd, block_idx, half);
                let (mut scales, mut minima) = ([0.0; GROUP], [0.0; GROUP]);
                simd.store(scale, &mut scales);
                simd.store(minimum, &mut minima);
                let column = block_idx * BLOCK + half * 16;
                for (i, bytes) in Group::<F>::quants(simd, lanes, half).into_iter().enumerate() {
                    let mut quants = [0; 32];
                    simd.store_bytes(bytes, &mut quants);
                    for (row, out) in self.out.chunks_exact_mut(self.n_cols).enumerate() {
                        for c in 0..4 {
                            let byte = quants[4 * row + c];
                            let quant =
                                if F::BITS == 8 { f32::from(byte as i8) } else { f32::from(byte) };
                            out[column + 4 * i + c] = quant * scales[row] + minima[row];
                        }
                    }
                }
            }
        }
    }
}
