//! Which keys repeat others.
//!
//! R-KV calls a slot redundant whose key is like many others of its head: with unit keys `k̂`, the
//! mean over rows `i` of `k̂ᵢ · k̂ⱼ`, its own entry left out, and in each row also the newest match
//! (the largest `j` with a cosine above [`THRESHOLD`]), so that the latest copy of what repeats
//! looks less redundant than its elders. A row without a match leaves column 0 out instead, as the
//! authors' code does. A softmax over all slots follows.
//!
//! Column sums need no pairs: column `j` sums to `k̂ⱼ · s − k̂ⱼ · k̂ⱼ` with `s = Σ k̂ᵢ`. Only the
//! newest match of each row does, and it is kept between compactions. A new key is tried first;
//! where a match has been evicted the search goes on below it. Each pair is thus met about once in
//! a session (a cosine serves both of its rows), and a compaction costs `O(new slots · S · D)` instead of `O(S² · D)`.
//!
//! # Encoding of `matches`
//! | code | meaning |
//! |---|---|
//! | `j >= 0` | slot `j` is the newest match among the slots tried so far |
//! | `-1` | none of the slots tried so far matches |
//! | `-2 - b` | the match has been evicted; only slots below `b` have not been tried |
//! | [`UNKNOWN`] | the slot is new: nothing has been tried, and no older row has tried it |

use crate::kernel::norm::softmax;
use crate::kernel::panels::{LANES, Panels, dot, dot_f64};
use crate::kernel::simd::{Kernel, Simd, dispatch};

/// A slot whose match has never been looked for.
pub const UNKNOWN: i32 = i32::MIN;

/// Cosine above which two keys match.
pub const THRESHOLD: f32 = 0.5;

/// Old rows that meet a panel together.
const ROWS: usize = 3;

/// Nothing that has been tried matches.
pub(super) const NONE: i32 = -1;

/// Buffers of [`redundancy`], reused.
#[derive(Default)]
pub struct RedundancyWork {
    panels: Panels,
    /// Unit keys, `[S, D]`.
    unit: Vec<f32>,
    sum: Vec<f64>,
    result: Vec<f32>,
}

impl RedundancyWork {
    pub(super) fn bytes(&self) -> usize {
        let Self { panels, unit, sum, result } = self;
        let numbers = unit.capacity() + result.capacity();
        panels.bytes() + numbers * size_of::<f32>() + sum.capacity() * size_of::<f64>()
    }
}

/// The redundancy of each slot of one head, `[S]`, summing to one. `keys` are `[S, D]`; `matches`,
/// `[S]`, are brought up to date.
pub fn redundancy<'a>(
    keys: &[f32],
    head_dim: usize,
    matches: &mut [i32],
    work: &'a mut RedundancyWork,
) -> &'a [f32] {
    let RedundancyWork { panels, unit, sum, result } = work;
    dispatch(Normalise { keys, head_dim, unit });
    panels.fill(unit, head_dim);
    dispatch(FindMatches { unit, head_dim, panels, matches });
    dispatch(ColumnMeans { unit, head_dim, matches, sum, means: result });
    softmax(result);
    result
}

/// The mean of each column of cosines without what is exempt, from the sum of all unit keys.
struct ColumnMeans<'a> {
    unit: &'a [f32],
    head_dim: usize,
    matches: &'a [i32],
    sum: &'a mut Vec<f64>,
    /// `[S]`
    means: &'a mut Vec<f32>,
}

impl Kernel for ColumnMeans<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { unit, head_dim, matches, sum, means } = self;
        sum.clear();
        sum.resize(head_dim, 0.0);
        for key in unit.chunks_exact(head_dim) {
            for (sum, &x) in sum.iter_mut().zip(key) {
                *sum += f64::from(x);
            }
        }
        means.clear();
        means.resize(matches.len(), 0.0);
        for (mean, key) in means.iter_mut().zip(unit.chunks_exact(head_dim)) {
            *mean = dot_f64(sum, key) as f32 - dot(key, key);
        }
        let key_of = |slot_idx: usize| &unit[slot_idx * head_dim..(slot_idx + 1) * head_dim];
        for (row_idx, &code) in matches.iter().enumerate() {
            let column_idx = code.max(0) as usize;
            if column_idx != row_idx {
                means[column_idx] -= dot(key_of(row_idx), key_of(column_idx));
            }
        }
        let n_slots = means.len() as f32;
        for mean in means {
            *mean /= n_slots;
        }
    }
}

/// The same from all pairs and without memory, in `O(S² · D)`: the definition that [`redundancy`]
/// is held against.
pub fn redundancy_pairwise(keys: &[f32], head_dim: usize) -> Vec<f32> {
    let mut unit = Vec::new();
    dispatch(Normalise { keys, head_dim, unit: &mut unit });
    let n_slots = keys.len() / head_dim;
    let mut result = vec![0.0; n_slots];
    let mut cosines = vec![0.0; n_slots];
    for (row_idx, row) in unit.chunks_exact(head_dim).enumerate() {
        for (cosine, key) in cosines.iter_mut().zip(unit.chunks_exact(head_dim)) {
            *cosine = dot(row, key);
        }
        cosines[row_idx] = 0.0;
        let newest = cosines.iter().rposition(|&cosine| cosine > THRESHOLD);
        cosines[newest.unwrap_or(0)] = 0.0;
        result.iter_mut().zip(&cosines).for_each(|(sum, cosine)| *sum += cosine / n_slots as f32);
    }
    softmax(&mut result);
    result
}

/// Moves the matches of the slots that stay to the front and makes them speak of the slots as they
/// will be numbered. `kept` ascends; `n_below` is a buffer.
pub fn remap(matches: &mut [i32], kept: &[u32], n_below: &mut Vec<u32>) {
    // How many survivors lie below each slot: the new index of one that stays, the bound of the
    // search for a row whose match goes.
    n_below.clear();
    for (new_idx, &slot_idx) in kept.iter().enumerate() {
        n_below.resize(slot_idx as usize + 1, new_idx as u32);
    }
    n_below.resize(matches.len() + 1, kept.len() as u32);
    let below = |slot_idx: usize| n_below[slot_idx.min(n_below.len() - 1)];
    for (new_idx, &slot_idx) in kept.iter().enumerate() {
        matches[new_idx] = match matches[slot_idx as usize] {
            code @ (UNKNOWN | NONE) => code,
            code @ 0.. => match below(code as usize) {
                bound if below(code as usize + 1) > bound => bound as i32,
                bound => evicted(bound as usize),
            },
            code => evicted(below(bound(code)) as usize),
        };
    }
}

/// True where `code` is one that a slot of `n_slots` may have.
pub(super) fn is_valid(code: i32, slot_idx: usize, n_slots: usize) -> bool {
    match code {
        UNKNOWN | NONE => true,
        0.. => (code as usize) < n_slots && code as usize != slot_idx,
        _ => bound(code) <= n_slots,
    }
}

fn evicted(bound: usize) -> i32 {
    -2 - bound as i32
}

fn bound(evicted: i32) -> usize {
    (-2 - evicted) as usize
}

/// Writes the unit keys, `[S, D]`.
struct Normalise<'a> {
    keys: &'a [f32],
    head_dim: usize,
    unit: &'a mut Vec<f32>,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { keys, head_dim, unit } = self;
        unit.clear();
        unit.resize(keys.len(), 0.0);
        let units = unit.chunks_exact_mut(head_dim);
        for (key, unit) in keys.chunks_exact(head_dim).zip(units) {
            let scale = 1.0 / (dot(key, key).sqrt() + 1e-8);
            for (unit, x) in unit.iter_mut().zip(key) {
                *unit = x * scale;
            }
        }
    }
}

/// Brings every row's newest match up to date.
struct FindMatches<'a> {
    unit: &'a [f32],
    head_dim: usize,
    panels: &'a Panels,
    matches: &'a mut [i32],
}

impl Kernel for FindMatches<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { unit, head_dim, panels, matches } = self;
        let n_slots = matches.len();
        let n_old = matches.iter().position(|&code| code == UNKNOWN).unwrap_or(n_slots);
        let row = |row_idx: usize| &unit[row_idx * head_dim..(row_idx + 1) * head_dim];
        let mut n_open = 0;
        for (row_idx, code) in matches.iter_mut().enumerate().skip(n_old) {
            let found = newest_match(simd, row(row_idx), row_idx, panels, n_old..n_slots);
            n_open += usize::from(found.is_none());
            *code = found.unwrap_or(UNKNOWN);
        }
        // An old row meets the new columns, and by the same products the new rows that are still
        // open meet it: from the newest old one down, so the first to match is the newest.
        let mut n_left = n_old;
        while n_left > 0 {
            // Rows that share the loads of a panel, the newest first.
            let n_rows = n_left.min(ROWS);
            let rows: [usize; ROWS] = std::array::from_fn(|i| n_left.saturating_sub(1 + i));
            let mut found = [None; ROWS];
            for panel_idx in (n_old / LANES..n_slots.div_ceil(LANES)).rev() {
                let first = panel_idx * LANES;
                let columns = first.max(n_old)..n_slots.min(first + LANES);
                if found[..n_rows].iter().all(Option::is_some)
                    && (n_open == 0 || !matches[columns.clone()].contains(&UNKNOWN))
                {
                    continue;
                }
                let cosines = panels.dots_of(simd, rows.map(row), panel_idx);
                for (i, cosines) in cosines[..n_rows].iter().enumerate() {
                    if !is_any_above_threshold(cosines) {
                        continue;
                    }
                    for column_idx in columns.clone().rev() {
                        if cosines[column_idx - first] > THRESHOLD {
                            found[i] = found[i].or(Some(column_idx as i32));
                            if matches[column_idx] == UNKNOWN {
                                matches[column_idx] = rows[i] as i32;
                                n_open -= 1;
                            }
                        }
                    }
                }
            }
            for (&row_idx, found) in rows[..n_rows].iter().zip(found) {
                matches[row_idx] = match (found, matches[row_idx]) {
                    (Some(found), _) => found,
                    (None, code @ NONE..) => code,
                    (None, evicted) => {
                        let below = 0..bound(evicted);
                        newest_match(simd, row(row_idx), row_idx, panels, below).unwrap_or(NONE)
                    }
                };
            }
            n_left -= n_rows;
        }
        for code in &mut matches[n_old..] {
            *code = if *code == UNKNOWN { NONE } else { *code };
        }
    }
}

#[inline(always)]
fn is_any_above_threshold(cosines: &[f32; LANES]) -> bool {
    cosines.iter().fold(false, |any, &cosine| any | (cosine > THRESHOLD))
}

#[inline(always)]
fn newest_match<S: Simd>(
    simd: S,
    row: &[f32],
    row_idx: usize,
    panels: &Panels,
    columns: std::ops::Range<usize>,
) -> Option<i32> {
    for panel_idx in (columns.start / LANES..columns.end.div_ceil(LANES)).rev() {
        let cosines = panels.dots(simd, row, panel_idx);
        if !is_any_above_threshold(&cosines) {
            continue;
        }
        for lane in (0..LANES).rev() {
            let column_idx = panel_idx * LANES + lane;
            if cosines[lane] > THRESHOLD && column_idx != row_idx && columns.contains(&column_idx) {
                return Some(column_idx as i32);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIM: usize = 6;

    /// What happens to a head between two scorings.
    #[derive(Clone, Debug)]
    struct Round {
        appended: Vec<[f32; DIM]>,
        /// Of each slot, in eighths: below the second number it goes.
        fates: Vec<u8>,
        evicted_eighths: u8,
    }

    /// Keys spread evenly, around three centres, all equal, or zero.
    fn key() -> impl Strategy<Value = [f32; DIM]> {
        let centre = |i: usize| std::array::from_fn(|d| if d == i { 4.0 } else { 0.1 });
        let around = move |(i, noise): (usize, [f32; DIM])| {
            let centre: [f32; DIM] = centre(i);
            std::array::from_fn(|d| centre[d] + noise[d])
        };
        prop_oneof![
            prop::array::uniform6(-1.0f32..1.0),
            (0usize..3, prop::array::uniform6(-1.0f32..1.0)).prop_map(around),
            Just([0.5; DIM]),
            Just([0.0; DIM]),
        ]
    }

    fn round() -> impl Strategy<Value = Round> {
        let appended = prop_oneof![
            prop::collection::vec(key(), 1..24),
            (key(), 1usize..24).prop_map(|(key, n)| vec![key; n]),
        ];
        (appended, prop::collection::vec(0u8..8, 200), 0u8..8).prop_map(
            |(appended, fates, evicted_eighths)| Round { appended, fates, evicted_eighths },
        )
    }

    proptest! {
        #[test]
        fn linear_time_changes_nothing_over_any_history(
            history in prop::collection::vec(round(), 1..8),
        ) {
            let mut keys: Vec<f32> = Vec::new();
            let mut matches = Vec::new();
            let mut work = RedundancyWork::default();
            for round in history {
                keys.extend(round.appended.iter().flatten());
                matches.resize(keys.len() / DIM, UNKNOWN);
                let found = redundancy(&keys, DIM, &mut matches, &mut work);
                let expected = redundancy_pairwise(&keys, DIM);
                for (found, expected) in found.iter().zip(&expected) {
                    prop_assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
                }
                for (i, &code) in matches.iter().enumerate() {
                    prop_assert!(is_valid(code, i, matches.len()));
                }

                let kept: Vec<u32> = (0..matches.len() as u32)
                    .filter(|&i| round.fates[i as usize] >= round.evicted_eighths)
                    .collect();
                remap(&mut matches, &kept, &mut Vec::new());
                matches.truncate(kept.len());
                keys = kept.iter().flat_map(|&i| keys[i as usize * DIM..][..DIM].to_vec()).collect();
            }
        }
    }

    #[test]
    fn a_match_follows_its_slot_and_leaves_a_bound_when_it_goes() {
        let mut matches = [UNKNOWN, 3, 4, NONE, evicted(3), 1];
        remap(&mut matches, &[1, 2, 3, 4], &mut Vec::new());
        assert_eq!(matches[..4], [2, 3, NONE, evicted(2)]);
        remap(&mut matches[..4], &[0, 1], &mut Vec::new());
        assert_eq!(matches[..2], [evicted(2), evicted(2)]);
    }
}
