//! How far one next-token distribution is from another, and how sure a mean is.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Resamples behind an interval.
const RESAMPLES: usize = 2_000;

/// The distribution that others are compared with.
pub struct Reference {
    logits: Vec<f32>,
    /// `[vocab]`, they sum to one.
    probabilities: Vec<f32>,
    log_sum: f64,
    best: usize,
}

impl Reference {
    /// Takes one row of logits.
    pub fn new(logits: &[f32]) -> Self {
        let log_sum = log_sum_exp(logits);
        let probability = |logit: &f32| (f64::from(*logit) - log_sum).exp() as f32;
        Self {
            probabilities: logits.iter().map(probability).collect(),
            logits: logits.to_vec(),
            log_sum,
            best: argmax(logits),
        }
    }

    /// Compares another row of logits, given that `token` was written.
    pub fn compare(&self, logits: &[f32], token: u32) -> Sums {
        let log_sum = log_sum_exp(logits);
        let nll = |logits: &[f32], log_sum: f64| log_sum - f64::from(logits[token as usize]);
        // The expected difference of the logits, and not of two logarithms: equal rows give 0.
        let pairs = self.logits.iter().zip(logits).zip(&self.probabilities);
        let shift: f64 = pairs.map(|((a, b), p)| f64::from(*p) * f64::from(a - b)).sum();
        Sums {
            tokens: 1,
            extra_nll: nll(logits, log_sum) - nll(&self.logits, self.log_sum),
            kl: shift + log_sum - self.log_sum,
            agreed: usize::from(argmax(logits) == self.best),
        }
    }
}

/// The logarithm of what the exponentials sum to.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    f64::from(max) + sum.ln()
}

/// The first of the greatest.
pub fn argmax(logits: &[f32]) -> usize {
    let best = |best: (usize, f32), (i, &logit): (usize, &f32)| {
        if logit > best.1 { (i, logit) } else { best }
    };
    logits.iter().enumerate().fold((0, f32::NEG_INFINITY), best).0
}

/// Comparisons of several tokens, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    pub tokens: usize,
    /// Negative log-likelihood of the written tokens beyond the reference's, in nats.
    pub extra_nll: f64,
    /// KL(reference ‖ other), in nats.
    pub kl: f64,
    /// Tokens for which both think the same likeliest.
    pub agreed: usize,
}

impl Sums {
    /// A mean over the tokens; zero where there are none.
    pub fn mean(&self, of: impl Fn(&Self) -> f64) -> f64 {
        if self.tokens == 0 { 0.0 } else { of(self) / self.tokens as f64 }
    }
}

impl std::ops::AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.extra_nll += other.extra_nll;
        self.kl += other.kl;
        self.agreed += other.agreed;
    }
}

impl<'a> std::iter::Sum<&'a Sums> for Sums {
    fn sum<I: Iterator<Item = &'a Sums>>(all: I) -> Self {
        let mut sum = Sums::default();
        all.for_each(|one| sum += *one);
        sum
    }
}

/// The middle 95 % of `statistic` over samples of `n_items` items, drawn with replacement; no
/// numbers where there are fewer than three items. Equal seeds and counts draw the same samples,
/// so that intervals of paired figures can be compared.
pub fn bootstrap(n_items: usize, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> [f64; 2] {
    if n_items < 3 {
        return [f64::NAN; 2];
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut figures: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sample: Vec<_> = (0..n_items).map(|_| random.random_range(0..n_items)).collect();
            statistic(&sample)
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| figures[((RESAMPLES - 1) as f64 * share).round() as usize];
    [at(0.025), at(0.975)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() + 3.0).collect()
    }

    #[test]
    fn figures_are_those_computed_by_hand() {
        let reference = Reference::new(&logits(&[0.5, 0.25, 0.25]));
        let sums = reference.compare(&logits(&[0.25, 0.5, 0.25]), 0);
        // ln(0.5 / 0.25), and 0.5 ln 2 + 0.25 ln 0.5 + 0.
        assert!((sums.extra_nll - 2.0f64.ln()).abs() < 1e-6, "{sums:?}");
        assert!((sums.kl - 0.25 * 2.0f64.ln()).abs() < 1e-6, "{sums:?}");
        assert_eq!((sums.tokens, sums.agreed), (1, 0));
        let likelier = reference.compare(&logits(&[0.25, 0.5, 0.25]), 1);
        assert!((likelier.extra_nll + 2.0f64.ln()).abs() < 1e-6, "{likelier:?}");
    }

    #[test]
    fn equal_rows_differ_by_exactly_nothing() {
        let row = [1.5, -70.25, 88.0, 3.0e-3, 0.0];
        let sums = Reference::new(&row).compare(&row, 3);
        assert_eq!(sums, Sums { tokens: 1, extra_nll: 0.0, kl: 0.0, agreed: 1 });
    }

    #[test]
    fn means_are_over_tokens() {
        let a = Sums { tokens: 3, extra_nll: 1.0, kl: 2.0, agreed: 3 };
        let b = Sums { tokens: 1, extra_nll: 1.0, kl: 0.0, agreed: 0 };
        let sum: Sums = [a, b].iter().sum();
        assert_eq!(sum.mean(|s| s.extra_nll), 0.5);
        assert_eq!(sum.mean(|s| s.agreed as f64), 0.75);
        assert_eq!(Sums::default().mean(|s| s.kl), 0.0);
    }

    #[test]
    fn an_interval_holds_the_mean_and_narrows_with_more_items() {
        let mean = |values: &[f64], sample: &[usize]| {
            sample.iter().map(|&i| values[i]).sum::<f64>() / sample.len() as f64
        };
        let width = |n: usize| {
            let values: Vec<f64> = (0..n).map(|i| (i % 2) as f64).collect();
            let [low, high] = bootstrap(n, 1, |sample| mean(&values, sample));
            assert!(low <= 0.5 && 0.5 <= high, "{low} {high}");
            high - low
        };
        assert!(width(400) < width(40) / 2.0);
        assert_eq!(bootstrap(5, 1, |_| 0.25), [0.25; 2]);
        assert!(bootstrap(2, 1, |_| 0.0)[0].is_nan());
    }
}
