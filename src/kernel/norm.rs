//! The small element-wise loops of a decoder.

use rayon::prelude::*;

use super::simd::{Kernel, LANES, Simd, dispatch};

/// Elements that are worth a task of their own.
const TASK: usize = 16 * 1024;

/// `out = x / sqrt(mean(x^2) + eps) * weight` for each row.
///
/// `x` and `out` are `[T, n]`, `weight` is `[n]`. Source: Zhang and Sennrich, 2019.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm reads and writes as many numbers");
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        dispatch(RmsNorm { x, weight, eps, out });
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (whole, rest) = self.x.as_chunks::<LANES>();
        let mut squares = [0.0; LANES];
        for chunk in whole {
            for (sum, x) in squares.iter_mut().zip(chunk) {
                *sum += x * x;
            }
        }
        let total = squares.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
        let scale = 1.0 / (total / self.x.len() as f32 + self.eps).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

/// Turns logits into weights that sum to one.
pub fn softmax(row: &mut [f32]) {
    dispatch(Softmax { row });
}

struct Softmax<'a> {
    row: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mut tops = [f32::NEG_INFINITY; LANES];
        let (whole, rest) = self.row.as_chunks_mut::<LANES>();
        for chunk in &*whole {
            for (top, x) in tops.iter_mut().zip(chunk) {
                *top = if *x > *top { *x } else { *top };
            }
        }
        let max = tops.iter().chain(&*rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let mut sums = [0f64; LANES];
        for chunk in &mut *whole {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *x = exp(*x - max);
                *sum += f64::from(*x);
            }
        }
        for (sum, x) in sums.iter_mut().zip(&mut *rest) {
            *x = exp(*x - max);
            *sum += f64::from(*x);
        }
        let scale = (1.0 / sums.iter().sum::<f64>()) as f32;
        self.row.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `gate = silu(gate) * up`, both of one length.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up are of one length");
    gate.par_chunks_mut(TASK)
        .zip(up.par_chunks(TASK))
        .for_each(|(gate, up)| dispatch(SiluMul { gate, up }));
}

struct SiluMul<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = *gate / (1.0 + exp(-*gate)) * up;
        }
    }
}

/// `acc += x`, both of one length.
pub fn add(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "sums are of one length");
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += x;
    }
}

/// Adds `bias`, `[n]`, to each of `rows`, `[T, n]`.
pub fn add_bias(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        add(row, bias);
    }
}

/// `e^x` within 2e-7 of it, for `x` between -87 and 88; beyond, the value at that end.
///
/// Straight-line arithmetic, so that loops over it become vectors (polynomial: Cephes, `expf`).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    // ln 2 in two parts, the first with so few bits that the product is exact.
    let rest = x - power * 0.693_359_4 - power * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p * rest + coefficient;
    }
    let fraction = p * rest * rest + rest + 1.0;
    let two_to_power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()));
    fraction * two_to_power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_softmax_sum_to_one_and_keep_their_ratios() {
        for n in [1, 7, 8, 21] {
            let logits: Vec<f32> = (0..n).map(|i| (i * 37 % 11) as f32 - 90.0).collect();
            let mut row = logits.clone();
            softmax(&mut row);
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            for (weight, logit) in row.iter().zip(&logits) {
                let ratio = (logit - logits[0]).exp();
                assert!((weight / row[0] / ratio - 1.0).abs() < 1e-6, "{n}");
            }
        }
    }

    #[test]
    fn exp_is_within_two_in_ten_million() {
        for step in -870_000..=880_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}) is off by {error:e}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
    }
}
