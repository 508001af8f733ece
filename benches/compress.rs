//! What a compaction of one layer costs, by budget and by kind of keys, after a few compactions
//! have gone before as in a running session; and what redundancy costs by pairs.
//!
//! The shape is that of Qwen2.5-0.5B: two KV heads, seven query heads each, 64 dimensions.

use std::hint::black_box;
use std::sync::Arc;

use attar::cache::compress::Scratch;
use attar::cache::kv::Rotate;
use attar::cache::policy::rkv::Rkv;
use attar::cache::policy::{NAMES, Policy, by_name};
use attar::cache::redundancy::{self, RedundancyWork, redundancy, redundancy_pairwise};
use attar::cache::{Budget, CacheShape, KvCache};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use half::f16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHAPE: CacheShape = CacheShape { n_layers: 1, n_kv_heads: 2, n_groups: 7, head_dim: 64 };
const N_BUFFER: usize = 128;

/// Queries are made after rotation.
struct Still;

impl Rotate for Still {
    fn rotate(&self, _head: &mut [f32], _position: u32) {}
}

/// Where keys lie.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Around 32 centres: most keys have a match, and it is often recent.
    Clustered,
    /// Around one centre: every key matches every other.
    Similar,
    /// Nowhere near each other: the search for a match goes through all keys.
    Unlike,
}

fn key(kind: Kind, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let centre_idx = match kind {
        Kind::Clustered => rng.random_range(0..32),
        Kind::Similar => 0,
        Kind::Unlike => return (0..SHAPE.head_dim).map(|_| rng.random_range(-1.0..1.0)).collect(),
    };
    let mut centre = ChaCha8Rng::seed_from_u64(centre_idx);
    (0..SHAPE.head_dim)
        .map(|_| centre.random_range(-1.0..1.0) + 0.5 * rng.random_range(-1.0f32..1.0))
        .collect()
}

fn decode(cache: &mut KvCache<f16>, kind: Kind, rng: &mut ChaCha8Rng) {
    let keys: Vec<f32> = (0..SHAPE.n_kv_heads).flat_map(|_| key(kind, rng)).collect();
    let n_query = SHAPE.n_heads() * SHAPE.head_dim;
    let query: Vec<f32> = (0..n_query).map(|_| rng.random_range(-1.0..1.0)).collect();
    let position = cache.logical() as u32;
    cache.layer_mut(0).observe(&query, 1, position);
    cache.push(0, &keys, &keys);
    cache.advance(1);
}

/// A cache that is full after four compactions.
fn full_cache(policy: Arc<dyn Policy>, n_slots: usize, kind: Kind) -> KvCache<f16> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let scratch = Scratch::default();
    let mut cache = KvCache::new(SHAPE, Budget { n_slots, n_buffer: N_BUFFER }, policy);
    for _ in 0..n_slots + 5 * N_BUFFER {
        if cache.is_full() {
            cache.compact(&Still, &scratch);
        }
        decode(&mut cache, kind, &mut rng);
    }
    assert!(cache.is_full());
    cache
}

fn compact(c: &mut Criterion) {
    let mut by_budget = c.benchmark_group("compact_rkv");
    by_budget.sample_size(20);
    for kind in [Kind::Clustered, Kind::Similar, Kind::Unlike] {
        for n_slots in [512, 1024, 2048, 4096, 8192, 16384] {
            let cache = full_cache(Arc::new(Rkv::default()), n_slots, kind);
            let scratch = Scratch::default();
            by_budget.bench_function(BenchmarkId::new(format!("{kind:?}"), n_slots), |b| {
                b.iter_batched_ref(
                    || cache.clone(),
                    |cache| cache.compact(&Still, &scratch),
                    BatchSize::LargeInput,
                );
            });
        }
    }
    by_budget.finish();

    let mut by_policy = c.benchmark_group("compact_1024");
    for name in NAMES.into_iter().filter(|&name| name != "full") {
        let policy = by_name(name).expect("the name comes from the table");
        let cache = full_cache(policy, 1024, Kind::Clustered);
        let scratch = Scratch::default();
        by_policy.bench_function(name, |b| {
            b.iter_batched_ref(
                || cache.clone(),
                |cache| cache.compact(&Still, &scratch),
                BatchSize::LargeInput,
            );
        });
    }
}

fn redundancy_of_one_head(c: &mut Criterion) {
    let mut group = c.benchmark_group("redundancy");
    group.sample_size(10);
    for n_slots in [512, 1024, 2048, 4096] {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let n = n_slots + N_BUFFER;
        let keys: Vec<f32> = (0..n).flat_map(|_| key(Kind::Unlike, &mut rng)).collect();
        let mut work = RedundancyWork::default();
        let mut matches = vec![redundancy::UNKNOWN; n_slots];
        redundancy(&keys[..n_slots * SHAPE.head_dim], SHAPE.head_dim, &mut matches, &mut work);
        matches.resize(n, redundancy::UNKNOWN);
        group.bench_function(BenchmarkId::new("linear", n_slots), |b| {
            b.iter_batched_ref(
                || matches.clone(),
                |matches| black_box(redundancy(&keys, SHAPE.head_dim, matches, &mut work)[0]),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(BenchmarkId::new("pairs", n_slots), |b| {
            b.iter(|| redundancy_pairwise(black_box(&keys), SHAPE.head_dim));
        });
    }
}

criterion_group!(benches, compact, redundancy_of_one_head);
criterion_main!(benches);
