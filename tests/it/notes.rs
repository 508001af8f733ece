//! Notes move what a cache keeps, within its bound and whatever the schedule.

use std::ops::Range;
use std::sync::Arc;

use attar::cache::bank::Origin;
use attar::cache::compress::Scratch;
use attar::cache::kv::{Rotate, Staging};
use attar::cache::notes::{Event, Kind, Notes, Priors, Span, What};
use attar::cache::policy::{NAMES, by_name};
use attar::cache::{Budget, CacheShape, KvCache};
use half::f16;
use proptest::prelude::*;

const SHAPE: CacheShape = CacheShape { n_layers: 2, n_kv_heads: 2, n_groups: 2, head_dim: 8 };
const BUDGET: Budget = Budget { n_slots: 256, n_buffer: 40 };

struct Still;

impl Rotate for Still {
    fn rotate(&self, _head: &mut [f32], _position: u32) {}
}

/// One step of a session: a block that is read, or so many tokens that are written.
#[derive(Clone, Copy, Debug)]
struct Step {
    n_tokens: usize,
    is_read: bool,
}

fn made(position: usize, layer_idx: usize, n: usize) -> impl Iterator<Item = f32> {
    (0..n).map(move |i| ((position * 31 + i * 7 + layer_idx * 13) as f32 * 0.37).sin())
}

fn take(cache: &mut KvCache<f16>, step: Step) {
    let scratch = Scratch::default();
    let (n_query, n_key) = (SHAPE.n_heads() * SHAPE.head_dim, SHAPE.n_kv_heads * SHAPE.head_dim);
    if step.is_read {
        let first = cache.logical();
        let positions = first..first + step.n_tokens;
        for layer_idx in 0..SHAPE.n_layers {
            let of = |n| positions.clone().flat_map(move |p| made(p, layer_idx, n)).collect();
            let (queries, keys): (Vec<f32>, Vec<f32>) = (of(n_query), of(n_key));
            let mut staging = Staging::default();
            staging.fill(&SHAPE, &keys, &keys, step.n_tokens);
            cache.observe(layer_idx, &queries, step.n_tokens, Origin::Read);
            cache.absorb(layer_idx, &staging, &Still, &scratch);
        }
        cache.advance(step.n_tokens);
        return;
    }
    for _ in 0..step.n_tokens {
        if cache.is_full() {
            cache.compact(&Still, &scratch);
        }
        for layer_idx in 0..SHAPE.n_layers {
            let query: Vec<f32> = made(cache.logical(), layer_idx, n_query).collect();
            let key: Vec<f32> = made(cache.logical(), layer_idx, n_key).collect();
            cache.observe(layer_idx, &query, 1, Origin::Written);
            cache.push(layer_idx, &key, &key);
        }
        cache.advance(1);
    }
}

fn empty(policy: &str) -> KvCache<f16> {
    KvCache::new(SHAPE, BUDGET, by_name(policy).unwrap())
}

/// The steps of a session, and for each what is known with it: of a block's tokens as it is read,
/// of written ones once they are written; and events about anything before.
fn session() -> impl Strategy<Value = Vec<(Step, Notes)>> {
    let kind = prop::sample::select(vec![
        Kind::System,
        Kind::Instruction,
        Kind::Task,
        Kind::Thought,
        Kind::ToolCall,
        Kind::View,
        Kind::Log,
    ]);
    let what = prop::sample::select(vec![
        What::Pin,
        What::Unpin,
        What::Stale,
        What::Repeated,
        What::Evidence,
    ]);
    let step = (1usize..256, any::<bool>());
    let events = prop::collection::vec((any::<u16>(), 0u32..200, what), 0..4);
    prop::collection::vec((step, kind, any::<i8>(), events), 1..16).prop_map(|steps| {
        let mut read = 0u32;
        steps
            .into_iter()
            .map(|((n_tokens, is_read), kind, prior, events)| {
                let tokens = read..read + n_tokens as u32;
                let at = if is_read { tokens.start } else { tokens.end };
                read = tokens.end;
                let event = |(from, n, what)| {
                    let start = u32::from(from) % tokens.end;
                    Event { at, tokens: start..start + n, what }
                };
                let notes = Notes {
                    spans: vec![Span { tokens: tokens.clone(), at, kind, source: 0, turn: 0 }],
                    priors: vec![Priors { first: tokens.start, at, values: vec![prior; n_tokens] }],
                    events: events.into_iter().map(event).collect(),
                    lines: Vec::new(),
                };
                (Step { n_tokens, is_read }, notes)
            })
            .collect()
    })
}

/// Every signal that speaks of notes, whatever the defaults.
const ALL_SIGNALS: &str = "agent:structure=0.5;staleness=0.5;repetition=0.5;evidence=0.5;\
                           call_part=0.1;task_part=0.1;evidence_part=0.25";

/// Adds to what is known.
fn note(cache: &mut KvCache<f16>, new: Notes) {
    let mut notes = cache.notes().clone();
    notes.extend(new);
    cache.set_notes(notes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_schedule_of_notes_and_restarts_make_no_difference(
        steps in session(),
        restart in any::<prop::sample::Index>(),
    ) {
        let all = || {
            let mut all = Notes::default();
            steps.iter().for_each(|(_, notes)| all.extend(notes.clone()));
            all
        };
        for policy in ["rkv", "rkv+protected", "agent", ALL_SIGNALS] {
            // In time: with a block, or behind what was written.
            let mut in_time = empty(policy);
            for (step, notes) in &steps {
                if step.is_read {
                    note(&mut in_time, notes.clone());
                    take(&mut in_time, *step);
                } else {
                    take(&mut in_time, *step);
                    note(&mut in_time, notes.clone());
                }
            }
            let mut rebuilt = empty(policy);
            note(&mut rebuilt, all());
            for (i, (step, _)) in steps.iter().enumerate() {
                if i == restart.index(steps.len()) {
                    let policy = Arc::clone(rebuilt.policy());
                    rebuilt = KvCache::thaw(&rebuilt.freeze(), SHAPE, BUDGET, policy).unwrap();
                    note(&mut rebuilt, all());
                }
                take(&mut rebuilt, *step);
            }
            prop_assert_eq!(in_time.freeze(), rebuilt.freeze(), "{}", policy);
        }
    }

    #[test]
    fn no_note_passes_the_bound_and_pins_within_their_part_stay(
        steps in session(),
        pins in prop::collection::vec((any::<u16>(), 1u32..40), 0..3),
    ) {
        for policy in NAMES.into_iter().filter(|&name| name != "full").chain([ALL_SIGNALS]) {
            let mut cache = empty(policy);
            let mut pinned: Vec<Range<u32>> = Vec::new();
            for (step, notes) in &steps {
                let events = notes.events.iter().filter(|event| {
                    !matches!(event.what, What::Pin | What::Unpin)
                });
                let events = events.cloned().collect();
                note(&mut cache, Notes { events, ..notes.clone() });
                take(&mut cache, *step);
                // Pinned as soon as they are there, as a session does.
                let read = cache.logical() as u32;
                let n_kept = cache.kept() as u32;
                for &(from, n) in pins.iter().skip(pinned.len()) {
                    let start = read.saturating_sub(n_kept.min(200)) + u32::from(from) % 100;
                    let fits = cache.layers().iter().all(|layer| {
                        let held = |p| (0..2).all(|head_idx| layer.positions(head_idx).contains(&p));
                        (start..start + n).all(held)
                    });
                    let n_pinned: usize = pinned.iter().map(|pin| pin.len()).sum();
                    if fits && n_pinned + n as usize <= BUDGET.n_slots / 4 {
                        pinned.push(start..start + n);
                        let tokens = start..start + n;
                        let pin = Event { at: read, tokens, what: What::Pin };
                        note(&mut cache, Notes { events: vec![pin], ..Notes::default() });
                    } else {
                        break;
                    }
                }
                prop_assert!(cache.kept() <= BUDGET.n_slots + BUDGET.n_buffer);
                for layer in cache.layers() {
                    for head_idx in 0..SHAPE.n_kv_heads {
                        let positions = layer.positions(head_idx);
                        prop_assert!(positions.is_sorted_by(|a, b| a < b));
                        for position in pinned.iter().cloned().flatten() {
                            prop_assert!(positions.contains(&position), "{} {:?}", policy, pinned);
                        }
                    }
                }
            }
        }
    }
}
