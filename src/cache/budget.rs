//! Who stays: counting, protection and ties, once for all policies.

use std::ops::Range;

use super::plan::{Quota, SpanPlan, slots_of};
use super::policy::Protection;

/// How many slots a head may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Budget {
    /// `B`: slots that stay at a compaction.
    pub n_slots: usize,
    /// Slots beyond the budget that may fill before the next compaction.
    pub n_buffer: usize,
}

/// The slots of one head, and what is known of them.
#[derive(Clone, Copy)]
pub struct Ranked<'a> {
    /// Higher stays longer, `[S]`.
    pub scores: &'a [f32],
    /// Token position of each slot, ascending, `[S]`.
    pub positions: &'a [u32],
    pub protection: Protection,
    pub plan: &'a SpanPlan,
}

/// Buffers of [`survivors`], reused.
#[derive(Default)]
pub struct SurvivorWork {
    /// Whether each slot stays, goes first, or neither, `[S]`.
    fates: Vec<Fate>,
    run: Vec<u32>,
}

impl SurvivorWork {
    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.fates.capacity() * size_of::<Fate>() + self.run.capacity() * size_of::<u32>()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Leaves,
    Open,
    Stays,
}

/// Picks the slots of one head that stay, ascending, `budget` of them (all where there are fewer).
///
/// Sinks come first, then what is pinned, the recent slots, what the plan protects, the shares of
/// its spans, and then the highest scores; slots of spans that leave come last. Of equal scores
/// the newer slot stays; a score that is not a number ranks lowest.
pub fn survivors(head: Ranked<'_>, budget: usize, work: &mut SurvivorWork, kept: &mut Vec<u32>) {
    let n_slots = head.scores.len();
    work.fates.clear();
    work.fates.resize(n_slots, Fate::Open);
    let SpanPlan { pins, protected, quotas, leaving, .. } = head.plan;
    let mut choice = Choice { head, n_left: budget.min(n_slots), work };

    let n_sinks = head.protection.n_sinks.min(choice.n_left);
    choice.take(0..n_sinks, usize::MAX);
    for pin in pins {
        choice.take(slots_of(head.positions, pin), usize::MAX);
    }
    choice.take_newest(head.protection.n_recent);
    for class in protected {
        let mut cap = class.cap;
        for run in &class.runs {
            cap -= choice.take(slots_of(head.positions, run), cap);
        }
    }
    let wanted: usize = quotas.iter().map(|quota| choice.lacking(quota)).sum();
    let n_shared = choice.n_left.min(wanted);
    for quota in quotas {
        let share = choice.lacking(quota) * n_shared / wanted.max(1);
        choice.take(slots_of(head.positions, &quota.tokens), share);
    }
    for run in leaving {
        let fates = &mut choice.work.fates[slots_of(head.positions, run)];
        fates
            .iter_mut()
            .for_each(|fate| *fate = if *fate == Fate::Open { Fate::Leaves } else { *fate });
    }
    choice.take(0..n_slots, usize::MAX);
    kept.clear();
    kept.extend(
        (0..n_slots as u32).filter(|&slot| choice.work.fates[slot as usize] == Fate::Stays),
    );
}

/// A choice under way.
struct Choice<'a, 'w> {
    head: Ranked<'a>,
    /// Slots that may still be taken.
    n_left: usize,
    work: &'w mut SurvivorWork,
}

impl Choice<'_, '_> {
    /// Takes the best of these slots that are not taken yet, at most `cap` and as there is room
    /// for, and tells how many.
    fn take(&mut self, slots: Range<usize>, cap: usize) -> usize {
        let SurvivorWork { fates, run } = &mut *self.work;
        run.clear();
        run.extend(
            (slots.start as u32..slots.end as u32)
                .filter(|&slot| fates[slot as usize] != Fate::Stays),
        );
        let n_taken = cap.min(self.n_left).min(run.len());
        if n_taken == 0 {
            return 0;
        }
        if n_taken < run.len() {
            let rank = |slot: u32| {
                let score = comparable(self.head.scores[slot as usize]);
                (fates[slot as usize], score, slot)
            };
            run.select_nth_unstable_by(n_taken, |&a, &b| {
                let ((fate_a, score_a, slot_a), (fate_b, score_b, slot_b)) = (rank(a), rank(b));
                fate_b.cmp(&fate_a).then(score_b.total_cmp(&score_a)).then(slot_b.cmp(&slot_a))
            });
        }
        run[..n_taken].iter().for_each(|&slot| fates[slot as usize] = Fate::Stays);
        self.n_left -= n_taken;
        n_taken
    }

    /// Takes the newest `n` slots, so far as there is room, those taken already among them.
    fn take_newest(&mut self, n: usize) {
        for fate in self.work.fates.iter_mut().rev().take(n).filter(|fate| **fate != Fate::Stays) {
            if self.n_left == 0 {
                return;
            }
            *fate = Fate::Stays;
            self.n_left -= 1;
        }
    }

    /// Slots that a span lacks for its minimum.
    fn lacking(&self, quota: &Quota) -> usize {
        let slots = slots_of(self.head.positions, &quota.tokens);
        let n_min = quota.n_min.min(slots.len());
        let is_taken = |fate: &&Fate| **fate == Fate::Stays;
        n_min.saturating_sub(self.work.fates[slots].iter().filter(is_taken).count())
    }
}

/// A number that `total_cmp` ranks as `<` would: one zero, and nothing below what is no number.
fn comparable(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
}

#[cfg(test)]
// One run of tokens is what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::plan::Protected;

    fn kept(scores: &[f32], budget: usize, n_sinks: usize, n_recent: usize) -> Vec<u32> {
        planned(scores, budget, n_sinks, n_recent, &SpanPlan::default())
    }

    fn planned(
        scores: &[f32],
        budget: usize,
        n_sinks: usize,
        n_recent: usize,
        plan: &SpanPlan,
    ) -> Vec<u32> {
        let mut kept = vec![7; 3];
        // Every other token is gone already.
        let positions: Vec<u32> = (0..scores.len() as u32).map(|slot| 2 * slot).collect();
        let protection = Protection { n_sinks, n_recent };
        let head = Ranked { scores, positions: &positions, protection, plan };
        survivors(head, budget, &mut SurvivorWork::default(), &mut kept);
        kept
    }

    fn protected(runs: &[Range<u32>], cap: usize) -> Protected {
        Protected { runs: runs.to_vec(), cap }
    }

    #[test]
    fn the_best_stay_in_ascending_order() {
        assert_eq!(kept(&[0.1, 0.9, 0.2, 0.8, 0.3], 3, 0, 0), [1, 3, 4]);
    }

    #[test]
    fn of_equals_the_newer_stays() {
        assert_eq!(kept(&[1.0; 6], 2, 0, 0), [4, 5]);
        assert_eq!(kept(&[0.0, -0.0, 0.0, -0.0], 2, 0, 0), [2, 3]);
    }

    #[test]
    fn the_bound_wins_over_protection_and_sinks_over_the_recent() {
        assert_eq!(kept(&[0.0; 10], 5, 4, 8), [0, 1, 2, 3, 9]);
        assert_eq!(kept(&[0.0; 10], 3, 4, 8), [0, 1, 2]);
        assert_eq!(kept(&[0.0; 10], 0, 4, 8), [] as [u32; 0]);
    }

    #[test]
    fn what_is_no_number_ranks_lowest() {
        assert_eq!(kept(&[f32::NAN, 0.0, -f32::NAN, -1.0], 2, 0, 0), [1, 3]);
    }

    #[test]
    fn pins_come_before_the_recent_and_what_is_protected_after_it() {
        let plan = SpanPlan {
            pins: vec![4..8],
            protected: vec![protected(&[8..12], 9), protected(&[12..16], 9)],
            ..SpanPlan::default()
        };
        let kept = |budget| planned(&[0.0; 12], budget, 1, 2, &plan);
        assert_eq!(kept(3), [0, 2, 3]);
        assert_eq!(kept(5), [0, 2, 3, 10, 11]);
        assert_eq!(kept(8), [0, 2, 3, 4, 5, 7, 10, 11]);
    }

    #[test]
    fn of_what_passes_its_cap_the_first_runs_and_the_best_slots_stay() {
        let scores = [0.9, 0.1, 0.2, 0.8, 0.3, 0.7, 0.6, 0.5];
        let plan = |runs: &[Range<u32>], cap| SpanPlan {
            protected: vec![protected(runs, cap)],
            ..SpanPlan::default()
        };
        assert_eq!(planned(&scores, 3, 0, 0, &plan(&[2..10], 2)), [0, 3, 4]);
        assert_eq!(planned(&scores, 2, 0, 0, &plan(&[2..6, 8..10], 2)), [1, 2]);
    }

    #[test]
    fn a_span_gets_its_share_and_one_that_leaves_goes_first() {
        let scores = [0.9, 0.8, 0.7, 0.6, 0.3, 0.2, 0.1, 0.0];
        let quotas = vec![Quota { tokens: 8..12, n_min: 1 }, Quota { tokens: 12..16, n_min: 2 }];
        let plan = SpanPlan { quotas, ..SpanPlan::default() };
        assert_eq!(planned(&scores, 5, 0, 0, &plan), [0, 1, 4, 6, 7]);
        assert_eq!(planned(&scores, 2, 0, 0, &plan), [0, 6], "shares shrink with the room");
        let plan = SpanPlan { leaving: vec![0..4], ..SpanPlan::default() };
        assert_eq!(planned(&scores, 5, 0, 0, &plan), [2, 3, 4, 5, 6]);
        assert_eq!(planned(&scores, 7, 0, 0, &plan), [0, 2, 3, 4, 5, 6, 7]);
    }

    fn runs() -> impl Strategy<Value = Vec<Range<u32>>> {
        let run = (0u32..200, 0u32..60).prop_map(|(start, n)| start..start + n);
        prop::collection::vec(run, 0..5)
    }

    proptest! {
        #[test]
        fn no_plan_passes_the_bound_or_leaves_room_unused(
            scores in prop::collection::vec(-1.0f32..1.0, 0..90),
            budget in 0usize..100,
            n_sinks in 0usize..6,
            n_recent in 0usize..40,
            pins in runs(),
            classes in prop::collection::vec((runs(), 0usize..40), 0..4),
            quotas in prop::collection::vec((0u32..200, 0u32..60, 0usize..40), 0..5),
            leaving in runs(),
        ) {
            let plan = SpanPlan {
                pins: pins.clone(),
                protected: classes.iter().map(|(runs, cap)| protected(runs, *cap)).collect(),
                quotas: quotas
                    .iter()
                    .map(|&(start, n, n_min)| Quota { tokens: start..start + n, n_min })
                    .collect(),
                leaving,
                ..SpanPlan::default()
            };
            let kept = planned(&scores, budget, n_sinks, n_recent, &plan);
            prop_assert_eq!(kept.len(), budget.min(scores.len()));
            prop_assert!(kept.is_sorted_by(|a, b| a < b));
            prop_assert!((0..n_sinks.min(kept.len()) as u32).all(|slot| kept.contains(&slot)));
            let is_pinned = |slot: &u32| pins.iter().any(|pin| pin.contains(&(2 * slot)));
            let n_pinned = (n_sinks as u32..scores.len() as u32).filter(is_pinned).count();
            if n_sinks.min(scores.len()) + n_pinned <= budget {
                let mut slots = 0..scores.len() as u32;
                prop_assert!(slots.all(|slot| !is_pinned(&slot) || kept.contains(&slot)));
            }
        }

        #[test]
        fn survivors_are_the_top_of_a_full_sort(
            scores in prop::collection::vec(prop_oneof![Just(0.0f32), Just(f32::NAN), -1.0f32..1.0], 0..80),
            budget in 0usize..90,
            n_sinks in 0usize..6,
            n_recent in 0usize..12,
        ) {
            let found = kept(&scores, budget, n_sinks, n_recent);
            let n = scores.len();
            let mut order: Vec<usize> = (0..n).collect();
            let class = |i: usize| if i < n_sinks { 0 } else { usize::from(i + n_recent < n) + 1 };
            order.sort_by(|&a, &b| {
                let score = |i: usize| if scores[i].is_nan() { f32::NEG_INFINITY } else { scores[i] };
                class(a).cmp(&class(b))
                    .then_with(|| match class(a) {
                        0 => a.cmp(&b),
                        1 => b.cmp(&a),
                        _ => score(b).partial_cmp(&score(a)).unwrap().then(b.cmp(&a)),
                    })
            });
            let mut expected: Vec<u32> = order.iter().take(budget).map(|&i| i as u32).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
