//! Eight lanes of numbers: what the kernels ask of a machine, and who answers.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;

/// Lanes of a vector of floats.
pub const LANES: usize = 8;

/// An instruction set. A value of the type is the proof that the machine has it.
pub trait Simd: Copy {
    /// Eight `f32`.
    type Floats: Copy;
    /// Thirty-two bytes.
    type Bytes: Copy;

    fn splat(self, value: f32) -> Self::Floats;
    fn load(self, from: &[f32; 8]) -> Self::Floats;
    fn store(self, value: Self::Floats, to: &mut [f32; 8]);
    fn widen_f16(self, from: &[f16; 8]) -> Self::Floats;
    fn widen_bf16(self, from: &[bf16; 8]) -> Self::Floats;
    fn widen_i8(self, from: &[i8; 8]) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`; whether the product is rounded is up to the machine.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The sum of each vector's lanes.
    fn sums(self, vectors: [Self::Floats; 4]) -> [f32; 4];

    fn load_bytes(self, from: &[u8; 32]) -> Self::Bytes;
    fn store_bytes(self, value: Self::Bytes, to: &mut [u8; 32]);
    /// The bits of each byte that `mask` names, after a shift to the right by `shift` bits
    /// (to the left where it is negative). No bit of the mask may come from a neighbour.
    fn bits(self, bytes: Self::Bytes, shift: i32, mask: u8) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Eight dot products of `4 * L` columns, 32 at most: lane `r` is the sum over `j` and `c` of
    /// `weights[j][4 * r + c] * x[j][c]`, exactly. Weights are unsigned and below `2^bits`, or
    /// signed where `bits` is 8, a constant; `x` is never -128.
    fn dot<const L: usize>(
        self,
        bits: usize,
        weights: [Self::Bytes; L],
        x: &[[i8; 4]; L],
    ) -> Self::Floats;
    /// Rounds numbers to `-127..=127` times a scale, which is returned with the sums of the first
    /// and of the second sixteen integers. Where a number is no finite one, some are wrong.
    #[inline(always)]
    fn round(self, values: &[f32; 32], quants: &mut [[i8; 4]; 8]) -> (f32, [i32; 2]) {
        let top = values.iter().fold(0f32, |top, x| if x.abs() > top { x.abs() } else { top });
        let inverse = if top > 0.0 { 127.0 / top } else { 0.0 };
        let mut sums = [0; 2];
        for (i, (quant, x)) in quants.as_flattened_mut().iter_mut().zip(values).enumerate() {
            *quant = (x * inverse).round_ties_even() as i8;
            sums[i / 16] += i32::from(*quant);
        }
        (top / 127.0, sums)
    }
}

/// A loop written for any instruction set. `run` and all it calls must be `#[inline(always)]`,
/// or it is compiled for the wrong one.
pub trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel with the best instructions of this machine.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = Avx2::detect() {
        return avx2.run(kernel);
    }
    #[cfg(target_arch = "aarch64")]
    return match Neon::detect() {
        Some(neon) => neon.run(kernel),
        None => kernel.run(Neon::BASE),
    };
    #[cfg(not(target_arch = "aarch64"))]
    kernel.run(Portable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Numbers = [[f32; 8]; 4];

    /// What a kernel gives with each of this machine's instruction sets.
    fn on_each<K: Kernel + Copy>(kernel: K) -> Vec<K::Output> {
        let _ = kernel;
        #[cfg(target_arch = "x86_64")]
        return Avx2::detect().map(|avx2| avx2.run(kernel)).into_iter().collect();
        #[cfg(target_arch = "aarch64")]
        return [kernel.run(Neon::BASE)]
            .into_iter()
            .chain(Neon::detect().map(|neon| neon.run(kernel)))
            .collect();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Vec::new()
    }

    /// Every operation on floats, one result a row.
    #[derive(Clone, Copy)]
    struct Floats(Numbers, [f16; 8], [bf16; 8], [i8; 8]);

    impl Kernel for Floats {
        type Output = Vec<[f32; 8]>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<[f32; 8]> {
            let Self([a, b, c, d], half, brain, bytes) = self;
            let [va, vb, vc, vd] = [simd.load(&a), simd.load(&b), simd.load(&c), simd.load(&d)];
            let mut rows = Vec::new();
            for value in [
                va,
                simd.splat(a[3]),
                simd.mul(va, vb),
                simd.mul_add(va, vb, vc),
                simd.widen_f16(&half),
                simd.widen_bf16(&brain),
                simd.widen_i8(&bytes),
            ] {
                let mut row = [0.0; 8];
                simd.store(value, &mut row);
                rows.push(row);
            }
            let mut row = [0.0; 8];
            row[..4].copy_from_slice(&simd.sums([va, vb, vc, vd]));
            rows.push(row);
            rows
        }
    }

    #[derive(Clone, Copy)]
    struct Round([f32; 32]);

    impl Kernel for Round {
        type Output = ([[i8; 4]; 8], f32, [i32; 2]);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut quants = [[0; 4]; 8];
            let (scale, sums) = simd.round(&self.0, &mut quants);
            (quants, scale, sums)
        }
    }

    /// Every operation on bytes.
    #[derive(Clone, Copy)]
    struct Bytes([[u8; 32]; 4], [[i8; 4]; 8]);

    impl Kernel for Bytes {
        type Output = (Vec<[u8; 32]>, Vec<[f32; 8]>);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let [a, b, c, d] = self.0;
            let mut bytes = Vec::new();
            for (shift, mask) in [(-4, 16), (-1, 16), (-4, 48), (0, 15), (2, 48), (4, 15), (3, 16)]
            {
                let value =
                    simd.or(simd.load_bytes(&a), simd.bits(simd.load_bytes(&b), shift, mask));
                let mut row = [0; 32];
                simd.store_bytes(value, &mut row);
                bytes.push(row);
            }
            let mut dots = Vec::new();
            for (n_bits, mask) in [(4, 15), (5, 31), (6, 63), (8, 255)] {
                let lane = |bytes| simd.bits(simd.load_bytes(bytes), 0, mask);
                let half = [lane(&a), lane(&b), lane(&c), lane(&d)];
                let whole =
                    [half[0], half[1], half[2], half[3], half[0], half[2], half[1], half[3]];
                let x = &self.1;
                for dot in
                    [simd.dot(n_bits, half, &x.as_chunks::<4>().0[1]), simd.dot(n_bits, whole, x)]
                {
                    let mut row = [0.0; 8];
                    simd.store(dot, &mut row);
                    dots.push(row);
                }
            }
            (bytes, dots)
        }
    }

    fn bytes() -> impl Strategy<Value = [u8; 32]> {
        // The ends of the range, where 16-bit sums would overflow first, are drawn often.
        prop::array::uniform32(prop_oneof![any::<u8>(), Just(255), Just(128), Just(127)])
    }

    proptest! {
        #[test]
        fn each_agrees_with_portable_on_bytes_exactly(
            weights in [bytes(), bytes(), bytes(), bytes()],
            x in prop::array::uniform8(prop::array::uniform4(
                prop_oneof![-127i8..=127, Just(127), Just(-127)],
            )),
        ) {
            let portable = Bytes(weights, x).run(Portable);
            for found in on_each(Bytes(weights, x)) {
                prop_assert_eq!(&found, &portable);
            }
        }

        #[test]
        fn each_rounds_as_portable_does(
            numbers in prop::array::uniform32(prop_oneof![-9f32..9.0, Just(0.0), Just(2.5)]),
            size in prop_oneof![Just(0.0), Just(1e-30), Just(1.0), Just(1e30)],
        ) {
            let numbers = numbers.map(|x| x * size);
            let portable = Round(numbers).run(Portable);
            for found in on_each(Round(numbers)) {
                prop_assert_eq!(&found, &portable);
            }
        }

        #[test]
        fn each_agrees_with_portable_on_floats_within_rounding(
            numbers in prop::array::uniform4(prop::array::uniform8(-1f32..1.0)),
            bits in prop::array::uniform8(any::<u16>()),
            small: [i8; 8],
        ) {
            let half = bits.map(f16::from_bits);
            let brain = bits.map(bf16::from_bits);
            let floats = Floats(numbers, half, brain, small);
            let portable = floats.run(Portable);
            for found in on_each(floats) {
                for (found, expected) in found.iter().flatten().zip(portable.iter().flatten()) {
                    let both_nan = found.is_nan() && expected.is_nan();
                    let is_same = found == expected || both_nan;
                    let is_close = (found - expected).abs() <= 1e-6;
                    prop_assert!(is_same || is_close, "{found} for {expected}");
                }
            }
        }
    }
}
