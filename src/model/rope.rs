//! Rotary position embedding (RoPE, arXiv 2104.09864) and its scalings.

use std::f32::consts::{PI, TAU};

use serde::Serialize;

use crate::cache::kv::Rotate;

/// Which numbers of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pairing {
    /// `i` and `i + dim / 2`: Hugging Face's order, called NeoX in GGUF.
    Half,
    /// `2i` and `2i + 1`: the order of llama weights in GGUF.
    Interleaved,
}

/// How frequencies are bent for contexts longer than the trained one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Scaling {
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        factor: f32,
    },
    /// Low frequencies are divided by `factor`, high ones stay, those between are blended
    /// (Llama 3.1). GGUF files hold the outcome as [`RopeConfig::divisors`] instead.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context: usize,
    },
    /// YaRN (arXiv 2309.00071): a ramp between kept and divided frequencies; queries and keys
    /// are both scaled by `attention_factor`.
    Yarn {
        factor: f32,
        original_context: usize,
        attention_factor: f32,
        beta_fast: f32,
        beta_slow: f32,
    },
}

impl Scaling {
    /// YaRN's attention factor where a file names none: `0.1 ln(factor) + 1`.
    pub fn yarn_attention_factor(factor: f32) -> f32 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }
}

/// Everything that a model file says about RoPE.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeConfig {
    pub theta: f32,
    /// Numbers of a head that turn; those behind them stay as they are.
    pub dim: usize,
    pub pairing: Pairing,
    pub scaling: Scaling,
    /// One divisor a frequency (GGUF's `rope_freqs`), `[dim / 2]`, or empty.
    pub divisors: Vec<f32>,
}

/// The rotations of one model.
pub struct Rope {
    /// Radians a position, `[dim / 2]`.
    frequencies: Vec<f32>,
    /// Length of a vector after the rotation over its length before it.
    scale: f32,
    pairing: Pairing,
}

impl Rope {
    pub fn new(config: &RopeConfig) -> Self {
        let mut frequencies: Vec<f32> = (0..config.dim / 2)
            .map(|i| (f64::from(config.theta)).powf(-2.0 * i as f64 / config.dim as f64) as f32)
            .collect();
        for (frequency, divisor) in frequencies.iter_mut().zip(&config.divisors) {
            *frequency /= divisor;
        }
        let mut scale = 1.0;
        match config.scaling {
            Scaling::None => {}
            Scaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                for frequency in &mut frequencies {
                    let n_turns = original_context as f32 * *frequency / TAU;
                    let kept = (n_turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    *frequency = blend(*frequency, factor, kept);
                }
            }
            Scaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
                let dim = config.dim as f32;
                // The pair that makes `n_turns` turns within the trained context.
                let pair_of = |n_turns: f32| {
                    dim * (original_context as f32 / (n_turns * 2.0 * PI)).ln()
                        / (2.0 * config.theta.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(dim - 1.0);
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    let kept = 1.0 - (i as f32 - low) / (high - low).max(0.001);
                    *frequency = blend(*frequency, factor, kept);
                }
                scale = attention_factor;
            }
        }
        Self { frequencies, scale, pairing: config.pairing }
    }

    /// Pairs of numbers that turn in each head.
    pub fn n_pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Writes cosine and sine of each pair's turn at `position`, both times the scale, `[n_pairs]`.
    pub fn turns(&self, position: u32, turns: &mut [[f32; 2]]) {
        for (turn, frequency) in turns.iter_mut().zip(&self.frequencies) {
            *turn = self.turn(position, *frequency);
        }
    }

    /// Rotates a token's heads, `[n, head_dim]`, in place by what [`Self::turns`] gave.
    pub fn apply(&self, heads: &mut [f32], head_dim: usize, turns: &[[f32; 2]]) {
        for head in heads.chunks_exact_mut(head_dim) {
            self.apply_to_head(head, turns.iter().copied());
        }
    }

    fn apply_to_head(&self, head: &mut [f32], turns: impl Iterator<Item = [f32; 2]>) {
        let head = &mut head[..2 * self.frequencies.len()];
        match self.pairing {
            Pairing::Half => {
                let (firsts, seconds) = head.split_at_mut(self.frequencies.len());
                for ((a, b), turn) in firsts.iter_mut().zip(seconds).zip(turns) {
                    rotate_pair(a, b, turn);
                }
            }
            Pairing::Interleaved => {
                for ([a, b], turn) in head.as_chunks_mut().0.iter_mut().zip(turns) {
                    rotate_pair(a, b, turn);
                }
            }
        }
    }

    /// The angle is taken in f64: at position 100,000 an f32 product is wrong by 0.004 radians.
    fn turn(&self, position: u32, frequency: f32) -> [f32; 2] {
        let (sin, cos) = (f64::from(position) * f64::from(frequency)).sin_cos();
        [cos as f32 * self.scale, sin as f32 * self.scale]
    }
}

impl Rotate for Rope {
    fn rotate(&self, head: &mut [f32], position: u32) {
        self.apply_to_head(head, self.frequencies.iter().map(|f| self.turn(position, *f)));
    }
}

fn rotate_pair(a: &mut f32, b: &mut f32, [cos, sin]: [f32; 2]) {
    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
}

/// A frequency of which the share `kept` (cut to 0..=1) stays and the rest is divided.
fn blend(frequency: f32, factor: f32, kept: f32) -> f32 {
    let kept = kept.clamp(0.0, 1.0);
    kept * frequency + (1.0 - kept) * frequency / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(pairing: Pairing, scaling: Scaling) -> Rope {
        Rope::new(&RopeConfig { theta: 10_000.0, dim: 8, pairing, scaling, divisors: Vec::new() })
    }

    #[test]
    fn position_zero_changes_nothing() {
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rope(Pairing::Half, Scaling::None).rotate(&mut head, 0);
        assert_eq!(head, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn pairings_are_the_same_rotation_in_another_order() {
        let mut half = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let mut interleaved = [1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 8.0];
        rope(Pairing::Half, Scaling::None).rotate(&mut half, 77);
        rope(Pairing::Interleaved, Scaling::None).rotate(&mut interleaved, 77);
        for i in 0..4 {
            assert_eq!(half[i], interleaved[2 * i]);
            assert_eq!(half[i + 4], interleaved[2 * i + 1]);
        }
    }

    #[test]
    fn dot_products_depend_on_distance_only() {
        let rope = rope(Pairing::Half, Scaling::None);
        let dot = |at: u32, distance: u32| {
            let mut q = [0.3, -1.0, 0.5, 0.2, 0.9, -0.4, 0.1, 0.7];
            let mut k = [-0.6, 0.8, 0.4, 1.0, 0.2, 0.5, -0.9, 0.3];
            rope.rotate(&mut q, at + distance);
            rope.rotate(&mut k, at);
            q.iter().zip(&k).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((dot(0, 5) - dot(30_000, 5)).abs() < 1e-5);
    }

    #[test]
    fn linear_scaling_stretches_positions() {
        let (mut near, mut far) = ([1.0; 8], [1.0; 8]);
        rope(Pairing::Half, Scaling::None).rotate(&mut near, 6);
        rope(Pairing::Half, Scaling::Linear { factor: 4.0 }).rotate(&mut far, 24);
        near.iter().zip(far).for_each(|(a, b)| assert!((a - b).abs() < 1e-6));
    }

    /// Expected values: `_compute_yarn_parameters` of Hugging Face transformers worked by hand for
    /// dim 8, theta 10,000, factor 4, 32 trained positions.
    #[test]
    fn yarn_keeps_fast_pairs_divides_slow_ones_and_scales() {
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original_context: 32,
            attention_factor: Scaling::yarn_attention_factor(4.0),
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        let rope = rope(Pairing::Half, scaling);
        // low = floor(8 ln(32 / 64π) / 2 ln 10⁴) = -1 → 0, high = ceil(0.71) = 1.
        let expected = [1.0, 0.1 / 4.0, 0.01 / 4.0, 0.001 / 4.0];
        rope.frequencies.iter().zip(expected).for_each(|(f, e)| assert!((f - e).abs() < 1e-7));
        assert!((rope.scale - 1.138_629).abs() < 1e-5);
        let mut head = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        rope.rotate(&mut head, 3);
        let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - rope.scale).abs() < 1e-6);
    }

    #[test]
    fn divisors_divide_frequencies() {
        let divisors = vec![1.0, 2.0, 4.0, 8.0];
        let config = RopeConfig {
            theta: 10_000.0,
            dim: 8,
            pairing: Pairing::Half,
            scaling: Scaling::None,
            divisors: divisors.clone(),
        };
        let plain = rope(Pairing::Half, Scaling::None);
        for ((f, plain), d) in
            Rope::new(&config).frequencies.iter().zip(plain.frequencies).zip(divisors)
        {
            assert_eq!(*f, plain / d);
        }
    }

    #[test]
    fn numbers_behind_the_rotary_ones_stay() {
        let mut head = [1.0; 10];
        rope(Pairing::Half, Scaling::None).rotate(&mut head, 9);
        assert_eq!(head[8..], [1.0, 1.0]);
        assert_ne!(head[0], 1.0);
    }
}
