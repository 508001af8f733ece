//! The next token from its logits.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Candidates looked at first when only the likeliest few can matter.
const FIRST_LOOK: usize = 256;

/// A token less likely than the likeliest by this factor (e^-30) is never drawn: a whole
/// vocabulary of such tokens weighs less than a weight's own rounding.
const NEGLIGIBLE: f32 = 30.0;

/// How tokens are drawn. The default is what DeepSeek-R1's authors recommend for reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the likeliest token, and everything below but the penalty is without effect.
    pub temperature: f32,
    /// The likeliest tokens that together reach this probability may be drawn; 1 for all.
    pub top_p: f32,
    /// So many of the likeliest tokens may be drawn; 0 for all.
    pub top_k: usize,
    /// A token may be drawn if it is at least so likely relative to the likeliest; 0 for all.
    pub min_p: f32,
    pub seed: u64,
    /// Makes tokens that stand in the text already less likely (CTRL, arXiv 1909.05858); 1 for
    /// no change.
    pub repetition_penalty: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
        }
    }
}

/// A setting outside its range.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{name} is {value}; it must be {range}")]
pub struct SamplingError {
    pub name: &'static str,
    pub value: f32,
    pub range: &'static str,
}

/// Draws tokens. It has no state: the same settings, seed, position and logits give the same
/// token, so a session that was stored goes on as if it had not been.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    sampling: Sampling,
}

/// A token with its logit, later its weight: its probability relative to the likeliest token's.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    weight: f32,
}

impl Sampler {
    /// # Errors
    /// Where a setting is not a number of its range.
    pub fn new(sampling: Sampling) -> Result<Self, SamplingError> {
        let within = |name, value: f32, is_legal: bool, range| {
            if is_legal { Ok(()) } else { Err(SamplingError { name, value, range }) }
        };
        let Sampling { temperature, top_p, min_p, repetition_penalty, .. } = sampling;
        within("temperature", temperature, (0.0..=100.0).contains(&temperature), "within 0..=100")?;
        within("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
        within("min_p", min_p, (0.0..=1.0).contains(&min_p), "within 0..=1")?;
        let is_legal = repetition_penalty > 0.0 && repetition_penalty <= 100.0;
        within("repetition_penalty", repetition_penalty, is_legal, "above 0 and at most 100")?;
        Ok(Self { sampling })
    }

    /// The token that stands at `position`. `recent` are the tokens that the penalty is for.
    /// Logits, `[vocabulary]`, are changed; one that is not a number is never drawn.
    pub fn sample(&self, logits: &mut [f32], recent: &[u32], position: u64) -> u32 {
        for logit in logits.iter_mut() {
            *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
        }
        self.penalise(logits, recent);
        let likeliest = argmax(logits);
        if self.sampling.temperature == 0.0 || logits.is_empty() {
            return likeliest;
        }
        let max = logits[likeliest as usize];
        if max == f32::NEG_INFINITY {
            return likeliest;
        }
        let candidates = self.candidates(logits, max);
        let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
        let mut left = total * self.uniform(position);
        let drawn = candidates.iter().find(|candidate| {
            left -= f64::from(candidate.weight);
            left < 0.0
        });
        drawn.map_or(likeliest, |candidate| candidate.id)
    }

    fn penalise(&self, logits: &mut [f32], recent: &[u32]) {
        let penalty = self.sampling.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut recent = recent.to_vec();
        recent.sort_unstable();
        recent.dedup();
        for id in recent {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    /// The tokens that may be drawn, in an order that only the logits decide.
    fn candidates(&self, logits: &[f32], max: f32) -> Vec<Candidate> {
        let Sampling { temperature, top_p, top_k, min_p, .. } = self.sampling;
        let least = max - NEGLIGIBLE * temperature;
        let mut candidates: Vec<_> = (0..)
            .zip(logits)
            .filter(|&(_, &weight)| weight >= least)
            .map(|(id, &weight)| Candidate { id, weight })
            .collect();
        if top_k > 0 && top_k < candidates.len() {
            keep_likeliest(&mut candidates, top_k);
        }
        for candidate in &mut candidates {
            candidate.weight = ((candidate.weight - max) / temperature).exp();
        }
        candidates.retain(|candidate| candidate.weight >= min_p);
        if top_p < 1.0 {
            nucleus(&mut candidates, top_p);
        }
        candidates
    }

    /// A number of 0..1 that only the seed and the position decide.
    fn uniform(&self, position: u64) -> f64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.sampling.seed);
        // Each position has two of the generator's 32-bit words.
        rng.set_word_pos(u128::from(position) * 2);
        (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The likeliest token; of equals, the one with the lowest id.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn likelier(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

/// Brings the `n` likeliest to the front, in order.
fn order_likeliest(candidates: &mut [Candidate], n: usize) {
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n, likelier);
    }
    candidates[..n].sort_unstable_by(likelier);
}

fn keep_likeliest(candidates: &mut Vec<Candidate>, n: usize) {
    order_likeliest(candidates, n);
    candidates.truncate(n);
}

/// Keeps the likeliest candidates that together have a share of `top_p`, and at least one.
fn nucleus(candidates: &mut Vec<Candidate>, top_p: f32) {
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    let mut n = FIRST_LOOK;
    loop {
        n = n.min(candidates.len());
        order_likeliest(candidates, n);
        let mut sum = 0.0;
        let last = candidates[..n].iter().position(|candidate| {
            sum += f64::from(candidate.weight);
            sum >= total * f64::from(top_p)
        });
        match last {
            Some(last) => return candidates.truncate(last + 1),
            None if n == candidates.len() => return,
            None => n *= 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Sampling = Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: 7,
        repetition_penalty: 1.0,
    };

    fn draw(sampling: Sampling, logits: &[f32], position: u64) -> u32 {
        Sampler::new(sampling).unwrap().sample(&mut logits.to_vec(), &[], position)
    }

    /// How often each of `logits` is drawn in `n` positions.
    fn shares(sampling: Sampling, logits: &[f32], n: u64) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for position in 0..n {
            counts[draw(sampling, logits, position) as usize] += 1.0 / n as f64;
        }
        counts
    }

    #[test]
    fn temperature_zero_takes_the_likeliest_and_the_lowest_of_equals() {
        let greedy = Sampling { temperature: 0.0, ..PLAIN };
        assert_eq!(draw(greedy, &[1.0, 3.0, 3.0, f32::NAN], 0), 1);
        assert_eq!(draw(greedy, &[f32::NAN, f32::NEG_INFINITY, -2.0], 0), 2);
        assert_eq!(draw(greedy, &[0.0, f32::INFINITY], 0), 1);
        assert_eq!(draw(greedy, &[], 0), 0);
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.1_f32.ln(), 0.2_f32.ln(), 0.7_f32.ln()];
        for (share, expected) in shares(PLAIN, &logits, 20_000).iter().zip([0.1, 0.2, 0.7]) {
            assert!((share - expected).abs() < 0.015, "{share} is not {expected}");
        }
        // Temperature 0.5 squares the odds: 1, 4 and 49 of 54.
        let cold = Sampling { temperature: 0.5, ..PLAIN };
        for (share, odds) in shares(cold, &logits, 20_000).iter().zip([1.0, 4.0, 49.0]) {
            assert!((share - odds / 54.0).abs() < 0.015, "{share} is not {odds} of 54");
        }
    }

    #[test]
    fn limits_leave_out_the_unlikely() {
        let logits = [0.05_f32.ln(), 0.15_f32.ln(), 0.3_f32.ln(), 0.5_f32.ln()];
        let drawn = |sampling| -> Vec<bool> {
            shares(sampling, &logits, 2_000).iter().map(|share| *share > 0.0).collect()
        };
        assert_eq!(drawn(PLAIN), [true, true, true, true]);
        assert_eq!(drawn(Sampling { top_k: 2, ..PLAIN }), [false, false, true, true]);
        assert_eq!(drawn(Sampling { top_p: 0.7, ..PLAIN }), [false, false, true, true]);
        assert_eq!(drawn(Sampling { top_p: 0.01, ..PLAIN }), [false, false, false, true]);
        assert_eq!(drawn(Sampling { min_p: 0.25, ..PLAIN }), [false, true, true, true]);
    }

    #[test]
    fn a_wide_nucleus_is_found_past_the_first_look() {
        let flat = vec![0.0; 4 * FIRST_LOOK];
        let wide = shares(Sampling { top_p: 0.9, ..PLAIN }, &flat, 8_000);
        assert!(wide[2 * FIRST_LOOK..].iter().sum::<f64>() > 0.3);
        assert!(wide[4 * FIRST_LOOK * 92 / 100..].iter().all(|share| *share == 0.0));
    }

    #[test]
    fn the_penalty_counts_a_token_once() {
        let sampling = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..PLAIN };
        let sampler = Sampler::new(sampling).unwrap();
        let mut logits = [4.0, 3.0, -1.0];
        assert_eq!(sampler.sample(&mut logits, &[0, 0, 2, 99], 0), 1);
        assert_eq!(logits, [2.0, 3.0, -2.0]);
    }

    #[test]
    fn seed_and_position_decide() {
        let logits = vec![0.0; 1000];
        let draws = |seed: u64| -> Vec<u32> {
            (0..8).map(|position| draw(Sampling { seed, ..PLAIN }, &logits, position)).collect()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert_ne!(draws(1)[0], draws(1)[1]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (name, sampling) in [
            ("temperature", Sampling { temperature: f32::NAN, ..PLAIN }),
            ("temperature", Sampling { temperature: -1.0, ..PLAIN }),
            ("top_p", Sampling { top_p: 0.0, ..PLAIN }),
            ("min_p", Sampling { min_p: 1.5, ..PLAIN }),
            ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..PLAIN }),
        ] {
            assert_eq!(Sampler::new(sampling).unwrap_err().name, name);
        }
        assert!(Sampler::new(Sampling::default()).is_ok());
    }

    proptest! {
        #[test]
        fn any_logits_give_a_token_that_can_be_drawn(
            logits in prop::collection::vec(prop::num::f32::ANY, 1..600),
            (temperature, top_p, top_k, min_p) in (0.0..3.0_f32, 0.01..=1.0_f32, 0..50_usize, 0.0..=1.0_f32),
            position in any::<u64>(),
        ) {
            let sampling = Sampling { temperature, top_p, top_k, min_p, ..PLAIN };
            let id = draw(sampling, &logits, position) as usize;
            prop_assert!(id < logits.len());
            let drawable = |logit: &f32| !logit.is_nan() && *logit > f32::NEG_INFINITY;
            prop_assert!(drawable(&logits[id]) || !logits.iter().any(drawable));
        }
    }
}
