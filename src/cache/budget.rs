//! Who stays: counting, protection and ties, once for all policies.

use super::policy::Protection;

/// How many slots a head may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Budget {
    /// `B`: slots that stay at a compaction.
    pub n_slots: usize,
    /// Slots beyond the budget that may fill before the next compaction.
    pub n_buffer: usize,
}

/// Picks the slots of one head that stay, ascending, `budget` of them (all where there are fewer).
///
/// Sinks come first, then the recent slots, then the highest `scores`, `[S]`. Of equal scores the
/// newer slot stays; a score that is not a number ranks lowest.
pub fn survivors(scores: &[f32], budget: usize, protection: Protection, kept: &mut Vec<u32>) {
    let n_slots = scores.len() as u32;
    let budget = (budget as u32).min(n_slots);
    let n_sinks = (protection.n_sinks as u32).min(budget);
    let n_recent = (protection.n_recent as u32).min(budget - n_sinks);
    let n_chosen = (budget - n_sinks - n_recent) as usize;

    kept.clear();
    kept.extend(n_sinks..n_slots - n_recent);
    if n_chosen < kept.len() {
        let rank = |slot_idx: u32| (comparable(scores[slot_idx as usize]), slot_idx);
        kept.select_nth_unstable_by(n_chosen, |&a, &b| {
            let ((score_a, slot_a), (score_b, slot_b)) = (rank(a), rank(b));
            score_b.total_cmp(&score_a).then(slot_b.cmp(&slot_a))
        });
        kept.truncate(n_chosen);
    }
    kept.extend(0..n_sinks);
    kept.extend(n_slots - n_recent..n_slots);
    kept.sort_unstable();
}

/// A number that `total_cmp` ranks as `<` would: one zero, and nothing below what is no number.
fn comparable(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(scores: &[f32], budget: usize, n_sinks: usize, n_recent: usize) -> Vec<u32> {
        let mut kept = vec![7; 3];
        survivors(scores, budget, Protection { n_sinks, n_recent }, &mut kept);
        kept
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

    proptest! {
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
