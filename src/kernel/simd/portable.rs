//! Lanes as arrays, for machines without an implementation of their own.

use std::array::from_fn;

use half::{bf16, f16};

use super::Simd;

/// No instruction set in particular.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Simd for Portable {
    type Floats = [f32; 8];
    type Bytes = [u8; 32];

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> [f32; 8] {
        *from
    }

    #[inline(always)]
    fn store(self, value: [f32; 8], to: &mut [f32; 8]) {
        *to = value;
    }

    #[inline(always)]
    fn widen_f16(self, from: &[f16; 8]) -> [f32; 8] {
        from_fn(|i| from[i].to_f32())
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[bf16; 8]) -> [f32; 8] {
        from_fn(|i| from[i].to_f32())
    }

    #[inline(always)]
    fn widen_i8(self, from: &[i8; 8]) -> [f32; 8] {
        from_fn(|i| f32::from(from[i]))
    }

    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sums(self, vectors: [[f32; 8]; 4]) -> [f32; 4] {
        vectors.map(|v| v.iter().sum())
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 32]) -> [u8; 32] {
        *from
    }

    #[inline(always)]
    fn store_bytes(self, value: [u8; 32], to: &mut [u8; 32]) {
        *to = value;
    }

    #[inline(always)]
    fn bits(self, bytes: [u8; 32], shift: i32, mask: u8) -> [u8; 32] {
        bytes.map(|b| if shift < 0 { b << -shift } else { b >> shift } & mask)
    }

    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn dot<const L: usize>(
        self,
        bits: usize,
        weights: [[u8; 32]; L],
        x: &[[i8; 4]; L],
    ) -> [f32; 8] {
        from_fn(|row| {
            let mut sum = 0;
            for (lane, x) in weights.iter().zip(x) {
                for (&byte, &x) in lane[4 * row..4 * row + 4].iter().zip(x) {
                    let weight = if bits == 8 { i32::from(byte as i8) } else { i32::from(byte) };
                    sum += weight * i32::from(x);
                }
            }
            sum as f32
        })
    }
}
