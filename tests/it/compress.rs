//! A cache keeps its bound and its order, and every policy keeps what its formula says.

use std::f32::consts::TAU;
use std::sync::Arc;

use attar::cache::bank::{BANK, Origin};
use attar::cache::compress::Scratch;
use attar::cache::importance::{Group, Keys, Pool};
use attar::cache::kv::{Rotate, Staging};
use attar::cache::policy::random::Random;
use attar::cache::policy::snapkv::SnapKv;
use attar::cache::policy::{HeadMemory, HeadView, NAMES, Policy, WINDOW, Work, by_name};
use attar::cache::redundancy::{UNKNOWN, redundancy_pairwise};
use attar::cache::{Budget, CacheShape, KvCache, Notes, SpanPlan};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHAPE: CacheShape = CacheShape { n_layers: 2, n_kv_heads: 2, n_groups: 3, head_dim: 16 };

/// Turns the first two dimensions.
struct Spin;

impl Rotate for Spin {
    fn rotate(&self, head: &mut [f32], position: u32) {
        let (sin, cos) = (position as f32 * 0.3 % TAU).sin_cos();
        (head[0], head[1]) = (head[0] * cos - head[1] * sin, head[0] * sin + head[1] * cos);
    }
}

/// One token of one layer, as a model would hand it over.
#[derive(Clone)]
struct Token {
    /// `[H, D]`
    key: Vec<f32>,
    /// `[H, D]`
    value: Vec<f32>,
    /// `[H * G, D]`, before rotation
    query: Vec<f32>,
    /// What it receives of each head's attention in all, where a policy asks, `[H]`.
    attention: Vec<f32>,
}

/// A session that reads made tokens, and remembers all of them.
struct Session {
    cache: KvCache<f32>,
    scratch: Scratch,
    staging: Staging<f32>,
    rng: ChaCha8Rng,
    /// `[L][position]`
    tokens: Vec<Vec<Token>>,
}

impl Session {
    fn new(policy: Arc<dyn Policy>, n_slots: usize, n_buffer: usize) -> Self {
        Self {
            cache: KvCache::new(SHAPE, Budget { n_slots, n_buffer }, policy),
            scratch: Scratch::default(),
            staging: Staging::default(),
            rng: ChaCha8Rng::seed_from_u64(7),
            tokens: vec![Vec::new(); SHAPE.n_layers],
        }
    }

    fn made_token(&mut self) -> Token {
        let centre = self.rng.random_range(0..4u64);
        let mut of = |n: usize, spread: f32| -> Vec<f32> {
            (0..n).map(|_| self.rng.random_range(-spread..spread)).collect()
        };
        let (noise, value) = (of(SHAPE.n_kv_heads * SHAPE.head_dim, 1.0), of(32, 1.0));
        let (query, attention) = (of(SHAPE.n_heads() * SHAPE.head_dim, 2.0), of(2, 1.0));
        let mut centre = ChaCha8Rng::seed_from_u64(centre);
        let key = noise.iter().map(|x| x + centre.random_range(-1.0..1.0)).collect();
        Token { key, value, query, attention }
    }

    /// Decodes a token, compacting before it where the cache is full.
    fn decode(&mut self) {
        let tokens: Vec<Token> = (0..SHAPE.n_layers).map(|_| self.made_token()).collect();
        self.decode_these(tokens);
    }

    fn decode_these(&mut self, tokens: Vec<Token>) {
        if self.cache.is_full() {
            self.cache.compact(&Spin, &self.scratch);
        }
        for (layer_idx, token) in tokens.into_iter().enumerate() {
            self.cache.observe(layer_idx, &token.query, 1, Origin::Written);
            self.cache.push(layer_idx, &token.key, &token.value);
            if self.cache.policy().accumulates_attention() {
                let (slots, importance) = self.cache.layer_mut(layer_idx).slots_and_importance();
                for (head_idx, attention) in token.attention.iter().enumerate() {
                    importance[head_idx * slots.stride + slots.n_slots - 1] += attention;
                }
            }
            self.tokens[layer_idx].push(token);
        }
        self.cache.advance(1);
    }

    /// Reads a block of tokens at once.
    fn prefill(&mut self, n_tokens: usize) {
        for layer_idx in 0..SHAPE.n_layers {
            let block: Vec<Token> = (0..n_tokens).map(|_| self.made_token()).collect();
            let joined = |part: fn(&Token) -> &[f32]| -> Vec<f32> {
                block.iter().flat_map(part).copied().collect()
            };
            let (keys, values) = (joined(|t| &t.key), joined(|t| &t.value));
            self.staging.fill(&SHAPE, &keys, &values, n_tokens);
            if self.cache.policy().accumulates_attention() {
                for head_idx in 0..SHAPE.n_kv_heads {
                    for (i, token) in block.iter().enumerate() {
                        let slot = head_idx * n_tokens + i;
                        self.staging.importance[slot] = token.attention[head_idx];
                    }
                }
            }
            let queries = joined(|t| &t.query);
            self.cache.observe(layer_idx, &queries, n_tokens, Origin::Read);
            self.cache.absorb(layer_idx, &self.staging, &Spin, &self.scratch);
            self.tokens[layer_idx].extend(block);
        }
        self.cache.advance(n_tokens);
    }

    fn kept(&self, layer_idx: usize, head_idx: usize) -> Vec<u32> {
        self.cache.layers()[layer_idx].positions(head_idx).to_vec()
    }

    /// The invariants that hold between any two steps.
    #[track_caller]
    fn check(&self) {
        let Budget { n_slots, n_buffer } = self.cache.budget();
        assert!(!self.cache.policy().evicts() || self.cache.kept() <= n_slots + n_buffer);
        let dim = SHAPE.head_dim;
        for (layer, tokens) in self.cache.layers().iter().zip(&self.tokens) {
            let slots = layer.slots();
            assert_eq!(slots.n_slots, self.cache.kept());
            for head_idx in 0..SHAPE.n_kv_heads {
                let positions = layer.positions(head_idx);
                assert!(positions.is_sorted_by(|a, b| a < b), "positions must ascend");
                for (slot_idx, &position) in positions.iter().enumerate() {
                    let at = (head_idx * slots.stride + slot_idx) * dim..;
                    let of = head_idx * dim..(head_idx + 1) * dim;
                    let token = &tokens[position as usize];
                    assert_eq!(slots.keys[at.clone()][..dim], token.key[of.clone()]);
                    assert_eq!(slots.values[at][..dim], token.value[of]);
                }
            }
        }
    }
}

/// One head as the oracles see it: the slots before a compaction, and the queries.
struct Head<'a> {
    session: &'a Session,
    layer_idx: usize,
    head_idx: usize,
    positions: Vec<u32>,
}

impl Head<'_> {
    fn key(&self, position: u32) -> &[f32] {
        let token = &self.session.tokens[self.layer_idx][position as usize];
        &token.key[self.head_idx * SHAPE.head_dim..][..SHAPE.head_dim]
    }

    /// Logits over `keys` of one of the last queries, counted from the newest; of one query head.
    fn logits(&self, back: usize, group_idx: usize, keys: &[u32]) -> Vec<f64> {
        let position = self.session.tokens[self.layer_idx].len() - 1 - back;
        self.logits_at(position, position, group_idx, keys)
    }

    /// Logits over `keys` of the query of the token at `position`, as if it were asked `at`
    /// another one.
    fn logits_at(&self, position: usize, at: usize, group_idx: usize, keys: &[u32]) -> Vec<f64> {
        let tokens = &self.session.tokens[self.layer_idx];
        let row = self.head_idx * SHAPE.n_groups + group_idx;
        let mut query = tokens[position].query[row * SHAPE.head_dim..][..SHAPE.head_dim].to_vec();
        Spin.rotate(&mut query, at as u32);
        keys.iter()
            .map(|&key| {
                if key as usize > at {
                    return f64::NEG_INFINITY;
                }
                let products = query.iter().zip(self.key(key));
                let dot: f64 = products.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                dot / (SHAPE.head_dim as f64).sqrt()
            })
            .collect()
    }

    fn redundancy(&self) -> Vec<f64> {
        let keys: Vec<f32> = self.positions.iter().flat_map(|&p| self.key(p).to_vec()).collect();
        redundancy_pairwise(&keys, SHAPE.head_dim).into_iter().map(f64::from).collect()
    }

    fn past(&self) -> &[u32] {
        &self.positions[..self.positions.len() - WINDOW]
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    logits.iter().map(|x| (x - max).exp() / sum).collect()
}

fn max_of(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows[0].len()).map(|j| rows.iter().map(|r| r[j]).fold(f64::MIN, f64::max)).collect()
}

fn mean_of(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..rows[0].len()).map(|j| rows.iter().map(|r| r[j]).sum::<f64>() / rows.len() as f64).collect()
}

fn pooled(values: &[f64], width: usize, pool: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let half = width / 2;
    (0..values.len())
        .map(|i| pool(&values[i.saturating_sub(half)..values.len().min(i + half + 1)]))
        .collect()
}

/// R-KV's importance: the group's maximum of the logits, softmax over the past, mean over the
/// window, max-pool 7.
fn rkv_importance(head: &Head<'_>) -> Vec<f64> {
    let rows: Vec<_> = (0..WINDOW)
        .map(|back| {
            let group: Vec<_> =
                (0..SHAPE.n_groups).map(|g| head.logits(back, g, head.past())).collect();
            softmax(&max_of(&group))
        })
        .collect();
    pooled(&mean_of(&rows), 7, |near| near.iter().copied().fold(f64::MIN, f64::max))
}

/// Causal weights of one of the last queries, `[G][S]`.
fn causal_weights(head: &Head<'_>, back: usize) -> Vec<Vec<f64>> {
    (0..SHAPE.n_groups).map(|g| softmax(&head.logits(back, g, &head.positions))).collect()
}

/// Runs a session under `policy` and checks at each compaction that what is kept are the slots
/// with the highest scores that `oracle` gives to the unprotected ones; where scores are as good
/// as equal any may stay. `oracle` sees a head, and what it remembered of it the last time: a
/// number a position.
fn check_against(policy: Arc<dyn Policy>, oracle: impl Fn(&Head<'_>, &mut Vec<f64>) -> Vec<f64>) {
    check_at(48, policy, oracle);
}

/// [`check_against`] with a budget.
fn check_at(
    n_slots: usize,
    policy: Arc<dyn Policy>,
    oracle: impl Fn(&Head<'_>, &mut Vec<f64>) -> Vec<f64>,
) {
    let n_buffer = 16;
    let mut session = Session::new(policy.clone(), n_slots, n_buffer);
    let n_heads = SHAPE.n_layers * SHAPE.n_kv_heads;
    let mut memories = vec![vec![0.0; 1000]; n_heads];
    for step in 0..5 {
        while !session.cache.is_full() {
            session.decode();
        }
        let mut expected = Vec::new();
        for (i, memory) in memories.iter_mut().enumerate() {
            let (layer_idx, head_idx) = (i / SHAPE.n_kv_heads, i % SHAPE.n_kv_heads);
            let positions = session.kept(layer_idx, head_idx);
            let head = Head { session: &session, layer_idx, head_idx, positions };
            let scores = oracle(&head, memory);
            expected.push((head.positions, scores));
        }
        session.decode();
        session.check();
        let protection = policy.protection(n_slots);
        for (i, (positions, mut scores)) in expected.into_iter().enumerate() {
            let mut kept = session.kept(i / SHAPE.n_kv_heads, i % SHAPE.n_kv_heads);
            kept.pop();
            assert_eq!(kept.len(), n_slots);
            scores.resize(positions.len(), f64::NAN);
            for j in (0..protection.n_sinks)
                .chain(positions.len() - protection.n_recent..positions.len())
            {
                scores[j] = f64::INFINITY;
                assert!(kept.contains(&positions[j]), "slot {j} is protected");
            }
            let (mut worst_kept, mut best_gone) = (f64::INFINITY, f64::NEG_INFINITY);
            for (position, &score) in positions.iter().zip(&scores) {
                if kept.contains(position) {
                    worst_kept = worst_kept.min(score);
                } else {
                    best_gone = best_gone.max(score);
                }
            }
            assert!(
                worst_kept >= best_gone - 1e-5 * best_gone.abs(),
                "{} step {step} head {i}: {best_gone} went and {worst_kept} stayed",
                policy.name(),
            );
        }
    }
}

#[test]
fn rkv_keeps_what_its_formula_says_over_many_compactions() {
    check_against(by_name("rkv").unwrap(), |head, _| {
        let importance = rkv_importance(head);
        let redundancy = head.redundancy();
        importance.iter().zip(redundancy).map(|(i, r)| 0.1 * i - 0.9 * r).collect()
    });
}

#[test]
fn snapkv_keeps_what_its_window_attends_to() {
    check_against(by_name("snapkv").unwrap(), |head, _| rkv_importance(head));
}

#[test]
fn snapkv_with_a_causal_softmax_and_means_is_kvpress() {
    let variant = SnapKv {
        window: WINDOW,
        keys: Keys::Causal,
        group: Group::MeanWeight,
        pool: Pool::Mean(5),
    };
    check_against(Arc::new(variant), |head, _| {
        let rows: Vec<_> = (0..WINDOW).map(|back| mean_of(&causal_weights(head, back))).collect();
        let past = &mean_of(&rows)[..head.past().len()];
        pooled(past, 5, |near| near.iter().sum::<f64>() / 5.0)
    });
}

#[test]
fn gkv_remembers_importance_and_mixes_it_evenly_with_redundancy() {
    check_against(by_name("gkv").unwrap(), |head, memory| {
        let rows: Vec<_> = (0..WINDOW).map(|back| max_of(&causal_weights(head, back))).collect();
        let importance = mean_of(&rows);
        let max = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
        let redundancy = head.redundancy();
        let n_past = head.past().len();
        let (most, most_redundant) = (max(&importance[..n_past]), max(&redundancy[..n_past]));
        (0..n_past)
            .map(|j| {
                let old = &mut memory[head.positions[j] as usize];
                *old = (0.8 * *old).max(importance[j] / most);
                0.5 * *old - 0.5 * redundancy[j] / most_redundant
            })
            .collect()
    });
}

/// Mean 0 and spread 1 over the slots that `agent` does not protect.
fn standardised(values: &[f64]) -> Vec<f64> {
    let open = &values[4..values.len() - 64];
    let mean = open.iter().sum::<f64>() / open.len() as f64;
    let variance = open.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / open.len() as f64;
    values.iter().map(|x| (x - mean) / (variance.sqrt() + 1e-6)).collect()
}

#[test]
fn agent_asks_what_was_written_and_what_was_written_last_and_takes_off_likeness() {
    check_at(150, by_name("agent:window=0.5;redundancy=0.25").unwrap(), |head, _| {
        // All tokens here were written.
        let n_written = head.session.tokens[0].len();
        let stride = n_written.div_ceil(BANK).next_power_of_two();
        let now = n_written - 1;
        let asked: Vec<_> = (0..n_written)
            .step_by(stride)
            .map(|position| {
                let of = |g| softmax(&head.logits_at(position, now, g, &head.positions));
                max_of(&(0..SHAPE.n_groups).map(of).collect::<Vec<_>>())
            })
            .collect();
        let seen: Vec<_> = (0..WINDOW).map(|back| max_of(&causal_weights(head, back))).collect();
        let squares: Vec<Vec<f64>> =
            asked.iter().map(|row| row.iter().map(|x| x * x).collect()).collect();
        let importance: Vec<f64> = mean_of(&squares)
            .iter()
            .zip(mean_of(&seen))
            .map(|(square, seen)| (square.sqrt() + 1e-6).ln() + 0.5 * (seen + 1e-6).ln())
            .collect();

        let keys: Vec<Vec<f64>> = (head.positions.iter())
            .map(|&p| head.key(p).iter().map(|&x| f64::from(x)).collect())
            .collect();
        let mean = mean_of(&keys);
        let unit = |key: &Vec<f64>| -> Vec<f64> {
            let centred: Vec<f64> = key.iter().zip(&mean).map(|(x, mean)| x - mean).collect();
            let norm = centred.iter().map(|x| x * x).sum::<f64>().sqrt();
            centred.iter().map(|x| x / norm).collect()
        };
        let units: Vec<Vec<f64>> = keys.iter().map(unit).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let alike: Vec<f64> =
            units.iter().map(|a| units.iter().map(|b| dot(a, b)).sum::<f64>()).collect();
        let both = standardised(&importance).into_iter().zip(standardised(&alike));
        both.map(|(importance, alike)| importance - 0.25 * alike).collect()
    });
}

#[test]
fn tova_keeps_the_same_slots_in_all_heads_by_the_last_query() {
    check_against(by_name("tova").unwrap(), |head, _| {
        let heads = (0..SHAPE.n_kv_heads)
            .map(|head_idx| Head {
                session: head.session,
                layer_idx: head.layer_idx,
                head_idx,
                positions: head.session.kept(head.layer_idx, head_idx),
            })
            .map(|head| mean_of(&causal_weights(&head, 0)));
        mean_of(&heads.collect::<Vec<_>>())
    });
    let mut session = Session::new(by_name("tova").unwrap(), 32, 8);
    (0..200).for_each(|_| session.decode());
    assert_eq!(session.kept(0, 0), session.kept(0, 1));
    assert_ne!(session.kept(0, 0), session.kept(1, 0));
}

#[test]
fn longflow_keeps_what_the_last_query_takes_most_from() {
    check_against(by_name("longflow").unwrap(), |head, _| {
        let heads: Vec<_> = (0..SHAPE.n_kv_heads)
            .map(|head_idx| {
                let positions = head.session.kept(head.layer_idx, head_idx);
                let head = Head { head_idx, positions, ..*head };
                let weights = mean_of(&causal_weights(&head, 0));
                let sizes = head.positions.iter().map(|&position| {
                    let token = &head.session.tokens[head.layer_idx][position as usize];
                    let value = &token.value[head_idx * SHAPE.head_dim..][..SHAPE.head_dim];
                    value.iter().map(|x| f64::from(x.abs())).sum::<f64>() / value.len() as f64
                });
                weights.iter().zip(sizes).map(|(weight, size)| weight * size).collect()
            })
            .collect();
        mean_of(&heads)
    });
}

#[test]
fn h2o_keeps_the_recent_half_and_the_heavy_hitters() {
    check_against(by_name("h2o").unwrap(), |head, _| {
        let tokens = &head.session.tokens[head.layer_idx];
        let received = |&p: &u32| f64::from(tokens[p as usize].attention[head.head_idx]);
        head.positions.iter().map(received).collect()
    });
    assert_eq!(by_name("h2o").unwrap().protection(48).n_recent, 24);
}

#[test]
fn h2o_counts_attention_within_a_staged_block() {
    let mut session = Session::new(by_name("h2o").unwrap(), 32, 8);
    session.prefill(20);
    session.prefill(28);
    let received = |p: &u32| session.tokens[0][*p as usize].attention[0];
    let (mut kept, mut old) = (session.kept(0, 0), (0..32).collect::<Vec<u32>>());
    kept.truncate(16);
    old.sort_by(|a, b| received(b).total_cmp(&received(a)));
    old.truncate(16);
    old.sort_unstable();
    assert_eq!(kept, old);
}

#[test]
fn keydiff_keeps_keys_unlike_the_mean() {
    check_against(by_name("keydiff").unwrap(), |head, _| {
        let unit = |&p: &u32| -> Vec<f64> {
            let key: Vec<f64> = head.key(p).iter().map(|&x| f64::from(x)).collect();
            let norm = key.iter().map(|x| x * x).sum::<f64>().sqrt();
            key.iter().map(|x| x / norm).collect()
        };
        let units: Vec<_> = head.positions.iter().map(unit).collect();
        let mean = mean_of(&units);
        let norm = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        let cosine =
            |unit: &Vec<f64>| unit.iter().zip(&mean).map(|(x, m)| x * m).sum::<f64>() / norm;
        units.iter().map(|unit| -cosine(unit)).collect()
    });
}

#[test]
fn streaming_keeps_four_sinks_and_the_latest() {
    let mut session = Session::new(by_name("streaming").unwrap(), 32, 8);
    session.prefill(30);
    for n_tokens in 31..300u32 {
        session.decode();
        session.check();
        let kept = session.kept(1, 1);
        assert_eq!(kept[..4], [0, 1, 2, 3]);
        let latest = n_tokens + 4 - kept.len() as u32..n_tokens;
        assert!(kept[4..].iter().copied().eq(latest), "{kept:?}");
    }
}

#[test]
fn random_draws_once_for_each_slot_by_its_seed() {
    let run = |seed| {
        let mut session = Session::new(Arc::new(Random { seed }), 64, 16);
        (0..400).for_each(|_| session.decode());
        session
    };
    let (one, again, other) = (run(1), run(1), run(2));
    assert_eq!(one.kept(1, 0), again.kept(1, 0));
    assert_ne!(one.kept(1, 0), other.kept(1, 0));
    assert_ne!(one.kept(1, 0), one.kept(1, 1));
    assert_ne!(one.kept(0, 0), one.kept(1, 0));
}

#[test]
fn a_budget_beyond_the_session_changes_no_bit() {
    for name in NAMES {
        let run = |name: &str| {
            let mut session = Session::new(by_name(name).unwrap(), 400, 16);
            session.prefill(256);
            session.prefill(100);
            (0..44).for_each(|_| session.decode());
            session.cache.compact(&Spin, &session.scratch);
            session.check();
            session
        };
        let (session, full) = (run(name), run("full"));
        assert_eq!(session.cache.n_compactions(), 0, "{name}");
        for head_idx in 0..SHAPE.n_kv_heads {
            assert!(session.kept(0, head_idx).into_iter().eq(0..400), "{name}");
            assert_eq!(session.kept(0, head_idx), full.kept(0, head_idx), "{name}");
        }
        let (ours, theirs) = (session.cache.layers()[1].slots(), full.cache.layers()[1].slots());
        for head_idx in 0..SHAPE.n_kv_heads {
            let live = |stride: usize| {
                let first = head_idx * stride * SHAPE.head_dim;
                first..first + 400 * SHAPE.head_dim
            };
            assert_eq!(ours.keys[live(ours.stride)], theirs.keys[live(theirs.stride)]);
            assert_eq!(ours.values[live(ours.stride)], theirs.values[live(theirs.stride)]);
        }
    }
}

#[test]
fn bound_and_order_hold_through_a_hundred_compactions_of_every_policy() {
    for name in NAMES.into_iter().filter(|&name| name != "full") {
        let mut session = Session::new(by_name(name).unwrap(), 40, 12);
        for step in 0.. {
            match step % 7 {
                0 => session.prefill(256),
                3 => session.prefill(13),
                _ => (0..9).for_each(|_| session.decode()),
            }
            session.check();
            if session.cache.n_compactions() >= 100 {
                break;
            }
        }
        assert_eq!(session.cache.logical(), session.tokens[0].len());
    }
}

#[test]
fn a_budget_within_the_window_keeps_the_newest_of_it() {
    for name in ["rkv", "snapkv", "gkv"] {
        let mut session = Session::new(by_name(name).unwrap(), 5, 2);
        (0..60).for_each(|_| session.decode());
        session.check();
        session.cache.compact(&Spin, &session.scratch);
        assert_eq!(session.kept(0, 0), [55, 56, 57, 58, 59], "{name}");
    }
}

#[test]
fn a_cache_without_queries_is_compacted_all_the_same() {
    for name in NAMES.into_iter().filter(|&name| name != "full") {
        let mut session = Session::new(by_name(name).unwrap(), 20, 10);
        for _ in 0..30 {
            let token = session.made_token();
            for layer_idx in 0..SHAPE.n_layers {
                session.cache.push(layer_idx, &token.key, &token.value);
                session.tokens[layer_idx].push(token.clone());
            }
            session.cache.advance(1);
        }
        session.cache.compact(&Spin, &session.scratch);
        session.check();
        assert_eq!(session.cache.kept(), 20, "{name}");
    }
}

#[test]
fn scores_are_finite_where_all_keys_are_equal_or_zero() {
    let n_slots = 30;
    let positions: Vec<u32> = (0..n_slots as u32).collect();
    let queries = vec![1.0; WINDOW * SHAPE.n_groups * SHAPE.head_dim];
    for (name, key) in NAMES.into_iter().flat_map(|name| [(name, 0.0), (name, 1.0)]) {
        for n_queries in [0, 3, WINDOW] {
            let view = HeadView {
                keys: &vec![key; n_slots * SHAPE.head_dim],
                values: &[],
                queries: &queries[..n_queries * SHAPE.n_groups * SHAPE.head_dim],
                query_positions: &positions[n_slots - n_queries..],
                positions: &positions,
                n_slots,
                n_groups: SHAPE.n_groups,
                head_dim: SHAPE.head_dim,
                n_queries,
                bank: &[],
                plan: &SpanPlan::default(),
                notes: &Notes::default(),
                layer_idx: 0,
                head_idx: 0,
            };
            let memory = HeadMemory {
                importance: &mut vec![0.0; n_slots],
                matches: &mut vec![UNKNOWN; n_slots],
            };
            let mut scores = vec![f32::NAN; n_slots];
            by_name(name).unwrap().score(&view, memory, &mut Work::default(), &mut scores);
            assert!(scores.iter().all(|score| score.is_finite()), "{name}: {scores:?}");
        }
    }
}

#[test]
fn equal_keys_and_values_leave_the_newest() {
    for name in ["keydiff", "tova", "snapkv"] {
        let mut session = Session::new(by_name(name).unwrap(), 24, 8);
        for _ in 0..100 {
            let mut token = session.made_token();
            token.key.fill(0.0);
            session.decode_these(vec![token; SHAPE.n_layers]);
        }
        session.cache.compact(&Spin, &session.scratch);
        assert!(session.kept(0, 0).into_iter().eq(76..100), "{name}");
    }
}

#[test]
fn rkv_keeps_the_newest_of_each_group_of_duplicates() {
    let n_groups = SHAPE.head_dim;
    let mut session = Session::new(by_name("rkv").unwrap(), n_groups, 64);
    for i in 0..4 * n_groups {
        let mut token = session.made_token();
        for key in token.key.chunks_exact_mut(SHAPE.head_dim) {
            key.fill(0.0);
            key[i % n_groups] = 1.0;
        }
        token.query.fill(0.0);
        session.decode_these(vec![token; SHAPE.n_layers]);
    }
    session.cache.compact(&Spin, &session.scratch);
    for layer_idx in 0..SHAPE.n_layers {
        for head_idx in 0..SHAPE.n_kv_heads {
            let newest = 3 * n_groups as u32..4 * n_groups as u32;
            assert!(session.kept(layer_idx, head_idx).into_iter().eq(newest));
        }
    }
}

#[test]
fn compaction_is_the_same_whatever_the_scratch_has_seen() {
    let run = |scratch: Scratch| {
        let mut session = Session::new(by_name("gkv").unwrap(), 40, 16);
        session.scratch = scratch;
        session.prefill(100);
        (0..100).for_each(|_| session.decode());
        session
    };
    let mut used = run(Scratch::default());
    let again = run(std::mem::take(&mut used.scratch));
    for head_idx in 0..SHAPE.n_kv_heads {
        assert_eq!(used.kept(1, head_idx), again.kept(1, head_idx));
    }
}
