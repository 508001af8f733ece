//! The quantised formats of GGUF files: what their blocks hold.
//!
//! Every weight is `scale * quant + minimum`. Layouts are those of ggml's `ggml-common.h` and
//! `ggml-quants.c`.

use half::f16;

/// Most columns of a block, those of the K formats.
pub(super) const WIDEST: usize = 256;

/// Where a weight's minimum comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Minimum {
    /// It is 0.
    None,
    /// It is this many times the scale.
    Scales(i8),
    /// It is stored.
    Stored,
}

/// One block of one row, read from a file.
pub(super) struct Block {
    /// Quants in the order of the columns; signed where [`Format::BITS`] is 8.
    pub quants: [u8; WIDEST],
    pub scale: f16,
    pub minimum: f16,
    /// Multiples of `scale` and of `minimum`, where [`Format::STEPS`].
    pub scale_steps: [i8; 16],
    pub minimum_steps: [i8; 16],
}

impl Block {
    pub const EMPTY: Self = Self {
        quants: [0; WIDEST],
        scale: f16::ZERO,
        minimum: f16::ZERO,
        scale_steps: [0; 16],
        minimum_steps: [0; 16],
    };
}

/// A format and how its blocks are read.
pub(super) trait Format: Send + Sync {
    /// Bits that a quant is held in: 4, 5, 6 or 8.
    const BITS: usize;
    const MINIMUM: Minimum;
    /// Columns of a block.
    const COLUMNS: usize = 32;
    /// Bytes of a block.
    const BYTES: usize;
    /// True where scales (and minima) are small multiples of the block's.
    const STEPS: bool = Self::COLUMNS == WIDEST;
    /// Scales for 32 columns, 1 or 2.
    const SCALES: usize = 1;

    /// Reads a block of `BYTES`.
    fn read(bytes: &[u8], block: &mut Block);
}

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Nibbles of 16 bytes: the low ones are the first 16 columns. `high` holds a fifth bit for each.
fn nibbles(nibbles: &[u8], high: &[u8], quants: &mut [u8]) {
    let high = high.try_into().map_or(0, u32::from_le_bytes);
    for (c, byte) in nibbles.iter().enumerate() {
        quants[c] = (byte & 15) | (((high >> c) & 1) << 4) as u8;
        quants[c + 16] = (byte >> 4) | (((high >> (c + 16)) & 1) << 4) as u8;
    }
}

pub(super) struct Q4_0;

impl Format for Q4_0 {
    const BITS: usize = 4;
    const MINIMUM: Minimum = Minimum::Scales(-8);
    const BYTES: usize = 18;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        nibbles(&bytes[2..18], &[], &mut block.quants);
    }
}

pub(super) struct Q4_1;

impl Format for Q4_1 {
    const BITS: usize = 4;
    const MINIMUM: Minimum = Minimum::Stored;
    const BYTES: usize = 20;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.minimum = half_at(bytes, 2);
        nibbles(&bytes[4..20], &[], &mut block.quants);
    }
}

pub(super) struct Q5_0;

impl Format for Q5_0 {
    const BITS: usize = 5;
    const MINIMUM: Minimum = Minimum::Scales(-16);
    const BYTES: usize = 22;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        nibbles(&bytes[6..22], &bytes[2..6], &mut block.quants);
    }
}

pub(super) struct Q5_1;

impl Format for Q5_1 {
    const BITS: usize = 5;
    const MINIMUM: Minimum = Minimum::Stored;
    const BYTES: usize = 24;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.minimum = half_at(bytes, 2);
        nibbles(&bytes[8..24], &bytes[4..8], &mut block.quants);
    }
}

pub(super) struct Q8_0;

impl Format for Q8_0 {
    const BITS: usize = 8;
    const MINIMUM: Minimum = Minimum::None;
    const BYTES: usize = 34;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.quants[..32].copy_from_slice(&bytes[2..34]);
    }
}

/// As [`Q8_0`], with a sum that is not needed here.
pub(super) struct Q8_1;

impl Format for Q8_1 {
    const BITS: usize = 8;
    const MINIMUM: Minimum = Minimum::None;
    const BYTES: usize = 36;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.quants[..32].copy_from_slice(&bytes[4..36]);
    }
}

pub(super) struct Q2K;

impl Format for Q2K {
    const BITS: usize = 4;
    const MINIMUM: Minimum = Minimum::Stored;
    const COLUMNS: usize = WIDEST;
    const BYTES: usize = 84;
    const SCALES: usize = 2;

    fn read(bytes: &[u8], block: &mut Block) {
        let (steps, quants) = (&bytes[..16], &bytes[16..80]);
        block.scale = half_at(bytes, 80);
        block.minimum = -half_at(bytes, 82);
        for (i, step) in steps.iter().enumerate() {
            block.scale_steps[i] = (step & 15) as i8;
            block.minimum_steps[i] = (step >> 4) as i8;
        }
        for (c, quant) in block.quants.iter_mut().enumerate() {
            *quant = quants[c / 128 * 32 + c % 32] >> (c % 128 / 32 * 2) & 3;
        }
    }
}

pub(super) struct Q3K;

impl Format for Q3K {
    const BITS: usize = 4;
    const MINIMUM: Minimum = Minimum::Scales(-4);
    const COLUMNS: usize = WIDEST;
    const BYTES: usize = 110;
    const SCALES: usize = 2;

    fn read(bytes: &[u8], block: &mut Block) {
        let (high, quants, steps) = (&bytes[..32], &bytes[32..96], &bytes[96..108]);
        block.scale = half_at(bytes, 108);
        for (i, step) in block.scale_steps.iter_mut().enumerate() {
            let low = steps[i % 8] >> (i / 8 * 4) & 15;
            let top = steps[8 + i % 4] >> (i / 4 * 2) & 3;
            *step = (low | top << 4) as i8 - 32;
        }
        for (c, quant) in block.quants.iter_mut().enumerate() {
            let low = quants[c / 128 * 32 + c % 32] >> (c % 128 / 32 * 2) & 3;
            *quant = low | (high[c % 32] >> (c / 32) & 1) << 2;
        }
    }
}

/// The eight 6-bit scales and minima of [`Q4K`] and [`Q5K`].
fn read_steps(bytes: &[u8], block: &mut Block) {
    for i in 0..8 {
        let (scale, minimum) = if i < 4 {
            (bytes[i] & 63, bytes[i + 4] & 63)
        } else {
            let (low, scale_top, minimum_top) = (bytes[i + 4], bytes[i - 4] >> 6, bytes[i] >> 6);
            (low & 15 | scale_top << 4, low >> 4 | minimum_top << 4)
        };
        block.scale_steps[i] = scale as i8;
        block.minimum_steps[i] = minimum as i8;
    }
}

pub(super) struct Q4K;

impl Format for Q4K {
    const BITS: usize = 4;
    const MINIMUM: Minimum = Minimum::Stored;
    const COLUMNS: usize = WIDEST;
    const BYTES: usize = 144;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.minimum = -half_at(bytes, 2);
        read_steps(&bytes[4..16], block);
        for (c, quant) in block.quants.iter_mut().enumerate() {
            *quant = bytes[16 + c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15;
        }
    }
}

pub(super) struct Q5K;

impl Format for Q5K {
    const BITS: usize = 5;
    const MINIMUM: Minimum = Minimum::Stored;
    const COLUMNS: usize = WIDEST;
    const BYTES: usize = 176;

    fn read(bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, 0);
        block.minimum = -half_at(bytes, 2);
        read_steps(&bytes[4..16], block);
        for (c, quant) in block.quants.iter_mut().enumerate() {
            let low = bytes[48 + c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15;
            *quant = low | (bytes[16 + c % 32] >> (c / 32) & 1) << 4;
        }
    }
}

pub(super) struct Q6K;

impl Format for Q6K {
    const BITS: usize = 6;
    const MINIMUM: Minimum = Minimum::Scales(-32);
    const COLUMNS: usize = WIDEST;
    const BYTES: usize = 210;
    const SCALES: usize = 2;

    fn read(bytes: &[u8], block: &mut Block) {
        let (low, high, steps) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
        block.scale = half_at(bytes, 208);
        for (to, step) in block.scale_steps.iter_mut().zip(steps) {
            *to = *step as i8;
        }
        for (c, quant) in block.quants.iter_mut().enumerate() {
            let (part, place) = (c / 128, c % 128);
            let nibble = low[part * 64 + place % 64] >> (place / 64 * 4) & 15;
            let top = high[part * 32 + place % 32] >> (place / 32 * 2) & 3;
            *quant = nibble | top << 4;
        }
    }
}

/// Q8_K, which ggml uses for activations and no model file for weights.
pub(super) fn read_q8k(bytes: &[u8]) -> Vec<f32> {
    const BYTES: usize = 4 + WIDEST + WIDEST / 16 * 2;
    let mut values = Vec::with_capacity(bytes.len() / BYTES * WIDEST);
    for block in bytes.as_chunks::<BYTES>().0 {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        values.extend(block[4..4 + WIDEST].iter().map(|&quant| scale * f32::from(quant as i8)));
    }
    values
}
