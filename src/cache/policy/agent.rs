//! `agent`: what a coding agent will come back to.
//!
//! A slot's score is its importance, asked of queries of what the model wrote itself
//! ([`asked`]), less its redundancy ([`likeness`]), plus what is known of its token
//! ([`spans`]), all in the spread that importance has over the unprotected slots of a head. What
//! stays whatever its score is decided once a compaction, by what a span is. [`Settings`] has
//! every signal's weight.

use std::ops::Range;

use super::{HeadMemory, HeadView, Policy, Protection, Work};
use crate::cache::plan::{SessionView, SpanPlan};

pub mod asked;
pub mod likeness;
pub mod settings;
pub mod spans;

pub use settings::Settings;

/// Slots at the front of each head that stay.
pub const SINKS: usize = 4;

/// Slots at the end of each head that stay.
pub const RECENT: usize = 64;

/// Importance asked of the right witnesses, beside what is known of spans.
#[derive(Default)]
pub struct Agent {
    pub settings: Settings,
}

impl Policy for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn plan(&self, session: &SessionView<'_>) -> SpanPlan {
        SpanPlan {
            protected: spans::protected(&self.settings, session),
            shifts: spans::shifts(&self.settings, session),
            ..SpanPlan::default()
        }
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, work: &mut Work, scores: &mut [f32]) {
        let Settings { window, redundancy, structure, .. } = self.settings;
        let open = SINKS.min(scores.len())..scores.len().saturating_sub(RECENT);
        asked::asked(head, window, &mut work.asked, scores);
        standardise(scores, open.clone());
        if redundancy != 0.0 {
            let alike = likeness::likeness(head, &mut work.likeness);
            standardise(alike, open);
            scores.iter_mut().zip(alike).for_each(|(score, alike)| *score -= redundancy * *alike);
        }
        if structure != 0.0 {
            head.notes.add_priors(head.plan.n_read, head.positions, structure, scores);
        }
        head.plan.add_shifts(head.positions, scores);
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: SINKS, n_recent: RECENT }
    }

    fn keeps_bank(&self) -> bool {
        true
    }
}

/// Brings `values` to mean 0 and spread 1, both taken over the slots in `of`: what is protected,
/// sinks above all, would set any mean and spread. Nothing happens where `of` is empty.
fn standardise(values: &mut [f32], of: Range<usize>) {
    let of = values.get(of).unwrap_or(&[]);
    if of.is_empty() {
        return;
    }
    let n = of.len() as f64;
    let mean = of.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = of.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance.sqrt() + 1e-6);
    values.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) * scale) as f32);
}
