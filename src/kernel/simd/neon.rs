//! Lanes as pairs of NEON registers, with or without the dot product instructions of Armv8.2.

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use super::{Kernel, Simd};

/// NEON, which every AArch64 machine has; `DOT` is the proof that `sdot` is there too, and only
/// [`Neon::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Neon<const DOT: bool>(());

impl Neon<false> {
    pub const BASE: Self = Self(());
}

impl Neon<true> {
    #[inline]
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }

    /// Runs a kernel compiled for these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        fn with_features<K: Kernel>(simd: Neon<true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves the features.
        unsafe { with_features(self, kernel) }
    }
}

// SAFETY of every block below: AArch64 code may count on NEON, `DOT` proves `sdot`, and memory is
// only touched through references to arrays of the width that is loaded or stored.
impl<const DOT: bool> Simd for Neon<DOT> {
    type Floats = [float32x4_t; 2];
    type Bytes = [uint8x16_t; 2];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(value); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vld1q_f32(from.as_ptr()), vld1q_f32(from[4..].as_ptr())] }
    }

    #[inline(always)]
    fn store(self, [low, high]: Self::Floats, to: &mut [f32; 8]) {
        // SAFETY: see above.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), low);
            vst1q_f32(to[4..].as_mut_ptr(), high);
        }
    }

    #[inline(always)]
    fn widen_f16(self, from: &[f16; 8]) -> Self::Floats {
        // SAFETY: see above; the instructions touch nothing but their registers.
        unsafe {
            let halves = vld1q_u16(from.as_ptr().cast());
            let (low, high): (float32x4_t, float32x4_t);
            // The intrinsics for it take a type of half floats that is not stable.
            asm!("fcvtl {low:v}.4s, {halves:v}.4h", "fcvtl2 {high:v}.4s, {halves:v}.8h",
                low = out(vreg) low, high = lateout(vreg) high, halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
            [low, high]
        }
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[bf16; 8]) -> Self::Floats {
        // SAFETY: see above.
        unsafe {
            let high_parts = vld1q_u16(from.as_ptr().cast());
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high_parts))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(high_parts))),
            ]
        }
    }

    #[inline(always)]
    fn widen_i8(self, from: &[i8; 8]) -> Self::Floats {
        // SAFETY: see above.
        unsafe {
            let wide = vmovl_s8(vld1_s8(from.as_ptr()));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))),
            ]
        }
    }

    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: see above.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    fn sums(self, vectors: [Self::Floats; 4]) -> [f32; 4] {
        // SAFETY: see above; the store goes to an array of four floats.
        unsafe {
            let [a, b, c, d] = vectors.map(|[low, high]| vaddq_f32(low, high));
            let mut out = [0.0; 4];
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
            out
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 32]) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { [vld1q_u8(from.as_ptr()), vld1q_u8(from[16..].as_ptr())] }
    }

    #[inline(always)]
    fn store_bytes(self, [low, high]: Self::Bytes, to: &mut [u8; 32]) {
        // SAFETY: see above.
        unsafe {
            vst1q_u8(to.as_mut_ptr(), low);
            vst1q_u8(to[16..].as_mut_ptr(), high);
        }
    }

    #[inline(always)]
    fn bits(self, bytes: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes {
        // SAFETY: see above.
        unsafe {
            let left = vdupq_n_s8(-shift as i8);
            let mask = vdupq_n_u8(mask);
            bytes.map(|bytes| vandq_u8(vshlq_u8(bytes, left), mask))
        }
    }

    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: see above.
        unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
    }

    #[inline(always)]
    fn dot<const L: usize>(
        self,
        _bits: usize,
        weights: [Self::Bytes; L],
        x: &[[i8; 4]; L],
    ) -> Self::Floats {
        // Weights of fewer than 8 bits are the same signed and unsigned.
        // SAFETY: see above.
        unsafe {
            let mut sums = [vdupq_n_s32(0); 2];
            for (weights, x) in weights.into_iter().zip(x) {
                let x = i32::from_ne_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8]);
                let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    let weights = vreinterpretq_s8_u8(weights);
                    *sum = if DOT { dot(*sum, weights, x) } else { multiply(*sum, weights, x) };
                }
            }
            [vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])]
        }
    }
}

/// Adds the products of four bytes to each of four sums. The machine must have `sdot`.
#[inline(always)]
unsafe fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // The intrinsic is not stable.
    // SAFETY: the caller proves the instruction; it touches nothing but its registers.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// The same with what every machine has. Two products fit 16 bits: 2 * 128 * 127.
#[inline(always)]
unsafe fn multiply(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: AArch64 code may count on NEON.
    unsafe {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        let high = vmull_high_s8(a, b);
        vpadalq_s16(sums, vpaddq_s16(low, high))
    }
}
