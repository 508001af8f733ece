//! A cache to bytes and back.
//!
//! A frozen cache is a short description and a list of chunks, each under a key that names what
//! it holds: `kind << 56 | layer << 32 | part`, ascending in the list. Slots come in segments of
//! a fixed number of slots, with all heads and all that is known of them, so a cache that has only
//! grown since it was last frozen differs in its last segment of each layer and in what lies
//! behind; a store need not write the others again. A segment holds, for each head in turn, keys
//! `[n, D]`, values `[n, D]`, positions, importance and matches (`[n]` each); a window its
//! positions, `[n]`, then its queries; a bank likewise. All numbers are little-endian.

use std::sync::Arc;

use bytemuck::{Pod, cast_slice};
use half::f16;
use serde::{Deserialize, Serialize};

use super::bank::n_remembered;
use super::budget::Budget;
use super::kv::{CacheShape, KvCache, KvElement, LayerCache};
use super::policy::{Policy, WINDOW};
use super::redundancy;

/// Most bytes of a chunk (a single slot's, where these are more).
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Version of the format; others are refused.
pub const VERSION: u32 = 2;

const SLOTS: u64 = 0;
const QUERIES: u64 = 1;
const BANKS: u64 = 2;

const _: () = assert!(cfg!(target_endian = "little"), "chunks are copied as they lie in memory");

/// A cache as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// What the chunks belong to, read before any of them.
    pub meta: Vec<u8>,
    /// Keys, ascending, and bytes.
    pub chunks: Vec<(u64, Vec<u8>)>,
}

/// Why bytes did not become a cache. Nothing is lost by it: a cache can be computed again.
#[derive(Debug, thiserror::Error)]
pub enum ThawError {
    #[error("frozen cache has format version {found}, this build reads {VERSION}")]
    Version { found: u32 },
    #[error("description of the frozen cache is damaged: {0}")]
    Meta(#[from] postcard::Error),
    #[error("description of the frozen cache has {0} bytes too many")]
    TrailingMeta(usize),
    #[error("frozen cache has {what} {found}, this session has {expected}")]
    Mismatch { what: &'static str, found: String, expected: String },
    #[error(
        "frozen cache claims {kept} slots, {n_queries} queries and {n_met} of the model's own of \
         {logical} tokens"
    )]
    Counts { kept: u64, n_queries: u64, n_met: u64, logical: u64 },
    #[error("frozen cache has {found} bytes in chunks instead of {expected}")]
    Length { found: u64, expected: u64 },
    #[error("frozen cache lacks chunk {key:#x}")]
    ChunkMissing { key: u64 },
    #[error("frozen cache has chunk {key:#x} behind its last")]
    ChunkExtra { key: u64 },
    #[error("frozen cache has chunk {found:#x} where {expected:#x} belongs")]
    ChunkKey { found: u64, expected: u64 },
    #[error("chunk {key:#x} of the frozen cache has {found} bytes instead of {expected}")]
    ChunkLength { key: u64, found: usize, expected: usize },
    #[error("{what} of layer {layer_idx} of the frozen cache make no sense")]
    Content { what: &'static str, layer_idx: usize },
}

#[derive(Serialize, Deserialize)]
struct Meta {
    shape: CacheShape,
    element: String,
    budget: Budget,
    policy: String,
    policy_version: u32,
    logical: u64,
    kept: u64,
    n_compactions: u64,
    n_queries: u64,
    /// Assistant's tokens that the banks have met.
    n_met: u64,
}

/// What decides how many bytes a frozen cache has.
#[derive(Clone, Copy)]
struct Sizes {
    n_slots: usize,
    n_queries: usize,
    n_bank: usize,
}

impl Sizes {
    /// Bytes of all chunks together.
    fn bytes<E: KvElement>(self, shape: &CacheShape) -> u64 {
        let row = shape.n_heads() * shape.head_dim;
        let slots = (self.n_slots as u64).saturating_mul(shape.slot_bytes::<E>() as u64);
        let queries = self.n_queries * query_bytes(row) + self.n_bank * remembered_bytes(row);
        slots.saturating_add((shape.n_layers * queries) as u64)
    }
}

/// A chunk's key and length, and the slots or bytes of its layer that it holds.
struct Part {
    key: u64,
    n_bytes: usize,
    layer_idx: usize,
    range: std::ops::Range<usize>,
}

impl<E: KvElement> KvCache<E> {
    /// The cache as bytes. To be called between steps, when all layers have the same tokens.
    pub fn freeze(&self) -> Frozen {
        Frozen { meta: self.frozen_meta(), chunks: self.frozen_chunks().collect() }
    }

    /// What the chunks belong to.
    pub fn frozen_meta(&self) -> Vec<u8> {
        let sizes = self.sizes();
        let meta = Meta {
            shape: self.shape,
            element: E::NAME.to_owned(),
            budget: self.budget,
            policy: self.policy.name().to_owned(),
            policy_version: self.policy.version(),
            logical: self.logical as u64,
            kept: self.kept() as u64,
            n_compactions: self.n_compactions,
            n_queries: sizes.n_queries as u64,
            n_met: self.layers.first().map_or(0, |layer| layer.bank.n_met),
        };
        postcard::to_stdvec(&(VERSION, meta))
            .expect("a struct of numbers and short strings serialises")
    }

    /// The chunks, each made as it is asked for, so that no second copy of the cache is held.
    pub fn frozen_chunks(&self) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        all_parts::<E>(self.shape, self.sizes()).map(|part| {
            let layer = &self.layers[part.layer_idx];
            let mut bytes = Vec::with_capacity(part.n_bytes);
            match part.key >> 56 {
                SLOTS => layer.write_slots(&self.shape, part.range, &mut bytes),
                QUERIES => {
                    let window = &layer.window;
                    let parts = [cast_slice(&window.positions), cast_slice(&window.queries)];
                    write_range(parts, part.range, &mut bytes);
                }
                _ => {
                    let bank = &layer.bank;
                    let parts = [cast_slice(&bank.positions), cast_slice(&bank.queries)];
                    write_range(parts, part.range, &mut bytes);
                }
            }
            (part.key, bytes)
        })
    }

    /// Bytes of all chunks together.
    pub fn frozen_bytes(&self) -> u64 {
        self.sizes().bytes::<E>(&self.shape)
    }

    fn sizes(&self) -> Sizes {
        let first = self.layers.first();
        Sizes {
            n_slots: self.kept(),
            n_queries: first.map_or(0, |layer| layer.window.positions.len()),
            n_bank: first.map_or(0, |layer| layer.bank.positions.len()),
        }
    }

    /// The cache that was frozen, if it fits this model, budget and policy.
    ///
    /// # Errors
    /// As [`Thaw::begin`], [`Thaw::take`] and [`Thaw::finish`].
    pub fn thaw(
        frozen: &Frozen,
        shape: CacheShape,
        budget: Budget,
        policy: Arc<dyn Policy>,
    ) -> Result<Self, ThawError> {
        let n_bytes = frozen.chunks.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let empty = Self::new(shape, budget, policy);
        let mut thaw = Thaw::begin(&frozen.meta, n_bytes, u32::MAX as usize, empty)?;
        for (key, bytes) in &frozen.chunks {
            thaw.take(*key, bytes)?;
        }
        thaw.finish()
    }
}

/// A frozen cache on its way back, chunk by chunk.
pub struct Thaw<E> {
    cache: KvCache<E>,
    /// Chunks that have not come yet.
    expected: Box<dyn Iterator<Item = Part> + Send>,
    sizes: Sizes,
    /// What has come of one layer's window or bank.
    queries: Vec<u8>,
}

impl<E: KvElement> Thaw<E> {
    /// Makes `empty`, a cache of the shape, the budget and the policy that are asked for, ready
    /// for chunks of `n_bytes` in all, made from `n_tokens` at most.
    ///
    /// # Errors
    /// Says what differs, or what is damaged. Nothing is allocated on the word of a length that
    /// `n_bytes` does not bear out.
    pub fn begin(
        meta: &[u8],
        n_bytes: u64,
        n_tokens: usize,
        empty: KvCache<E>,
    ) -> Result<Self, ThawError> {
        let (found, rest) = postcard::take_from_bytes::<u32>(meta)?;
        if found != VERSION {
            return Err(ThawError::Version { found });
        }
        let (meta, rest) = postcard::take_from_bytes::<Meta>(rest)?;
        if !rest.is_empty() {
            return Err(ThawError::TrailingMeta(rest.len()));
        }
        let mut cache = empty;
        let (shape, limit) = (cache.shape, cache.limit());
        same("shape", meta.shape, shape)?;
        same("element type", meta.element.as_str(), E::NAME)?;
        same("budget", meta.budget, cache.budget)?;
        same("policy", meta.policy.as_str(), cache.policy.name())?;
        same("policy version", meta.policy_version, cache.policy.version())?;
        let Meta { kept, n_queries, n_met, logical, n_compactions, .. } = meta;
        let n_met_max = if cache.policy.keeps_bank() { logical } else { 0 };
        let may_be_fewer = cache.policy.evicts();
        if logical > n_tokens.min(u32::MAX as usize) as u64
            || kept > logical
            || kept > limit as u64
            || (kept < logical && !may_be_fewer)
            || n_queries > logical.min(WINDOW as u64)
            || n_met > n_met_max
        {
            return Err(ThawError::Counts { kept, n_queries, n_met, logical });
        }
        // All are below 2^32.
        let sizes = Sizes {
            n_slots: kept as usize,
            n_queries: n_queries as usize,
            n_bank: n_remembered(n_met) as usize,
        };
        let expected = sizes.bytes::<E>(&shape);
        if n_bytes != expected {
            return Err(ThawError::Length { found: n_bytes, expected });
        }
        cache.logical = logical as usize;
        cache.n_compactions = n_compactions;
        for layer in &mut cache.layers {
            layer.reserve(&shape, sizes.n_slots, limit);
            layer.n_slots = sizes.n_slots;
            layer.bank.n_met = n_met;
        }
        let expected = Box::new(all_parts::<E>(shape, sizes));
        Ok(Self { cache, expected, sizes, queries: Vec::new() })
    }

    /// Tokens that the cache has read.
    pub fn logical(&self) -> usize {
        self.cache.logical
    }

    /// Takes the next chunk; they come in the order of their keys.
    ///
    /// # Errors
    /// Where another one belongs there, or it is not as long as it must be.
    pub fn take(&mut self, key: u64, bytes: &[u8]) -> Result<(), ThawError> {
        let part = self.expected.next().ok_or(ThawError::ChunkExtra { key })?;
        if part.key != key {
            return Err(ThawError::ChunkKey { found: key, expected: part.key });
        }
        if part.n_bytes != bytes.len() {
            let (found, expected) = (bytes.len(), part.n_bytes);
            return Err(ThawError::ChunkLength { key, found, expected });
        }
        let shape = self.cache.shape;
        let row = shape.n_heads() * shape.head_dim;
        let layer = &mut self.cache.layers[part.layer_idx];
        if key >> 56 == SLOTS {
            layer.read_slots(&shape, part.range, bytes);
            return Ok(());
        }
        self.queries.extend_from_slice(bytes);
        let Sizes { n_queries, n_bank, .. } = self.sizes;
        let is_window = key >> 56 == QUERIES;
        let n_bytes =
            if is_window { n_queries * query_bytes(row) } else { n_bank * remembered_bytes(row) };
        if self.queries.len() == n_bytes {
            let mut from = self.queries.as_slice();
            if is_window {
                layer.window.positions = vec![0; n_queries];
                layer.window.queries = vec![0.0; n_queries * row];
                read(&mut from, &mut layer.window.positions);
                read(&mut from, &mut layer.window.queries);
            } else {
                layer.bank.positions.resize(n_bank, 0);
                layer.bank.queries.resize(n_bank * row, f16::ZERO);
                read(&mut from, &mut layer.bank.positions);
                read(&mut from, &mut layer.bank.queries);
            }
            self.queries.clear();
        }
        Ok(())
    }

    /// The cache, once all chunks have come.
    ///
    /// # Errors
    /// Where one is missing, or what they hold makes no sense.
    pub fn finish(mut self) -> Result<KvCache<E>, ThawError> {
        if let Some(part) = self.expected.next() {
            return Err(ThawError::ChunkMissing { key: part.key });
        }
        let Self { cache, .. } = self;
        for (layer_idx, layer) in cache.layers.iter().enumerate() {
            layer
                .check(&cache.shape, cache.logical)
                .map_err(|what| ThawError::Content { what, layer_idx })?;
        }
        Ok(cache)
    }
}

impl<E: KvElement> LayerCache<E> {
    fn write_slots(&self, shape: &CacheShape, slots: std::ops::Range<usize>, to: &mut Vec<u8>) {
        let dim = shape.head_dim;
        for head_idx in 0..shape.n_kv_heads {
            let first = head_idx * self.capacity;
            let range = first + slots.start..first + slots.end;
            let vectors = range.start * dim..range.end * dim;
            to.extend_from_slice(bytemuck::cast_slice(&self.keys[vectors.clone()]));
            to.extend_from_slice(bytemuck::cast_slice(&self.values[vectors]));
            to.extend_from_slice(bytemuck::cast_slice(&self.positions[range.clone()]));
            to.extend_from_slice(bytemuck::cast_slice(&self.importance[range.clone()]));
            to.extend_from_slice(bytemuck::cast_slice(&self.matches[range]));
        }
    }

    /// Reads what [`Self::write_slots`] has written; the length has been checked.
    fn read_slots(&mut self, shape: &CacheShape, slots: std::ops::Range<usize>, from: &[u8]) {
        let dim = shape.head_dim;
        let mut from = from;
        for head_idx in 0..shape.n_kv_heads {
            let first = head_idx * self.capacity;
            let range = first + slots.start..first + slots.end;
            let vectors = range.start * dim..range.end * dim;
            read(&mut from, &mut self.keys[vectors.clone()]);
            read(&mut from, &mut self.values[vectors]);
            read(&mut from, &mut self.positions[range.clone()]);
            read(&mut from, &mut self.importance[range.clone()]);
            read(&mut from, &mut self.matches[range]);
        }
    }

    /// Says what cannot be in a layer, if anything.
    fn check(&self, shape: &CacheShape, logical: usize) -> Result<(), &'static str> {
        if !ascends_below(&self.window.positions, logical) {
            return Err("query positions");
        }
        if !ascends_below(&self.bank.positions, logical) {
            return Err("remembered queries");
        }
        for head_idx in 0..shape.n_kv_heads {
            let first = head_idx * self.capacity;
            let range = first..first + self.n_slots;
            if !ascends_below(&self.positions[range.clone()], logical) {
                return Err("positions");
            }
            if self.importance[range.clone()].iter().any(|x| x.is_nan()) {
                return Err("importances");
            }
            let mut matches = self.matches[range].iter().enumerate();
            if !matches.all(|(i, &code)| redundancy::is_valid(code, i, self.n_slots)) {
                return Err("matches");
            }
        }
        Ok(())
    }
}

/// How the slots of all layers are cut into chunks.
fn slot_parts<E: KvElement>(
    shape: CacheShape,
    n_slots: usize,
) -> impl Iterator<Item = Part> + use<E> {
    let slot_bytes = shape.layer_slot_bytes::<E>();
    let per_chunk = (CHUNK_BYTES / slot_bytes.max(1)).max(1);
    parts(SLOTS, shape.n_layers, n_slots, per_chunk, slot_bytes)
}

/// How the slots, windows and banks of all layers are cut into chunks.
fn all_parts<E: KvElement>(shape: CacheShape, sizes: Sizes) -> impl Iterator<Item = Part> + use<E> {
    let row = shape.n_heads() * shape.head_dim;
    let n_layers = shape.n_layers;
    slot_parts::<E>(shape, sizes.n_slots)
        .chain(parts(QUERIES, n_layers, sizes.n_queries * query_bytes(row), CHUNK_BYTES, 1))
        .chain(parts(BANKS, n_layers, sizes.n_bank * remembered_bytes(row), CHUNK_BYTES, 1))
}

/// Bytes of one token's queries in a layer's window, `row` numbers, and of its position.
fn query_bytes(row: usize) -> usize {
    size_of::<u32>() + row * size_of::<f32>()
}

/// Bytes of one token's queries in a layer's bank, and of its position.
fn remembered_bytes(row: usize) -> usize {
    size_of::<u32>() + row * size_of::<f16>()
}

fn parts(
    kind: u64,
    n_layers: usize,
    n_units: usize,
    per_chunk: usize,
    unit_bytes: usize,
) -> impl Iterator<Item = Part> {
    let layers = 0..n_layers;
    layers.flat_map(move |layer_idx| {
        (0..n_units.div_ceil(per_chunk)).map(move |part_idx| {
            let range = part_idx * per_chunk..n_units.min((part_idx + 1) * per_chunk);
            let key = kind << 56 | (layer_idx as u64) << 32 | part_idx as u64;
            Part { key, n_bytes: range.len() * unit_bytes, layer_idx, range }
        })
    })
}

/// Appends the bytes in `range` of `parts`, one behind the other.
fn write_range<const N: usize>(parts: [&[u8]; N], range: std::ops::Range<usize>, to: &mut Vec<u8>) {
    let mut first = 0;
    for part in parts {
        let within = |at: usize| at.clamp(first, first + part.len()) - first;
        to.extend_from_slice(&part[within(range.start)..within(range.end)]);
        first += part.len();
    }
}

fn read<T: Pod>(from: &mut &[u8], to: &mut [T]) {
    let (head, rest) = from.split_at(size_of_val(to));
    bytemuck::cast_slice_mut(to).copy_from_slice(head);
    *from = rest;
}

fn ascends_below(positions: &[u32], end: usize) -> bool {
    positions.is_sorted_by(|a, b| a < b)
        && positions.last().is_none_or(|&last| (last as usize) < end)
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    found: T,
    expected: T,
) -> Result<(), ThawError> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
    Err(ThawError::Mismatch { what, found, expected })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::bank::Origin;
    use crate::cache::compress::Scratch;
    use crate::cache::kv::Rotate;
    use crate::cache::policy::by_name;

    const SHAPE: CacheShape = CacheShape { n_layers: 2, n_kv_heads: 2, n_groups: 3, head_dim: 32 };
    const BUDGET: Budget = Budget { n_slots: 300, n_buffer: 60 };

    struct Still;

    impl Rotate for Still {
        fn rotate(&self, _head: &mut [f32], _position: u32) {}
    }

    /// Decodes made tokens, the same for the same positions.
    fn decode(cache: &mut KvCache<f16>, n_tokens: usize) {
        let scratch = Scratch::default();
        for _ in 0..n_tokens {
            if cache.is_full() {
                cache.compact(&Still, &scratch);
            }
            let position = cache.logical();
            let made = |n: usize| -> Vec<f32> {
                (0..n).map(|i| ((position * 31 + i * 7) as f32 * 0.37).sin()).collect()
            };
            for layer_idx in 0..SHAPE.n_layers {
                let queries = made(SHAPE.n_heads() * SHAPE.head_dim);
                cache.observe(layer_idx, &queries, 1, Origin::Written);
                let key = made(SHAPE.n_kv_heads * SHAPE.head_dim);
                cache.push(layer_idx, &key, &key);
            }
            cache.advance(1);
        }
    }

    fn cache_of(n_tokens: usize, policy: &str) -> KvCache<f16> {
        let mut cache = KvCache::new(SHAPE, BUDGET, by_name(policy).unwrap());
        decode(&mut cache, n_tokens);
        cache
    }

    fn thaw(frozen: &Frozen, policy: &str) -> Result<KvCache<f16>, ThawError> {
        KvCache::thaw(frozen, SHAPE, BUDGET, by_name(policy).unwrap())
    }

    /// A description with every number in the caller's hands.
    fn meta(logical: u64, kept: u64, n_queries: u64) -> Vec<u8> {
        let meta = Meta {
            shape: SHAPE,
            element: "f16".to_owned(),
            budget: BUDGET,
            policy: "rkv".to_owned(),
            policy_version: 1,
            logical,
            kept,
            n_compactions: 0,
            n_queries,
            n_met: 0,
        };
        postcard::to_stdvec(&(VERSION, meta)).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_thawed_cache_goes_on_as_the_frozen_one_would_have(
            n_before in 0usize..700,
            n_after in 0usize..150,
            policy in prop::sample::select(vec!["full", "rkv", "gkv", "agent"]),
        ) {
            let mut cache = cache_of(n_before, policy);
            let frozen = cache.freeze();
            prop_assert!(frozen.chunks.iter().all(|(_, bytes)| bytes.len() <= CHUNK_BYTES));
            prop_assert!(frozen.chunks.is_sorted_by(|(a, _), (b, _)| a < b));
            let mut thawed = thaw(&frozen, policy).unwrap();
            prop_assert_eq!(thawed.freeze(), frozen);
            decode(&mut cache, n_after);
            decode(&mut thawed, n_after);
            prop_assert_eq!(thawed.freeze(), cache.freeze());
        }

        #[test]
        fn damage_is_an_error_or_another_sound_cache_but_never_a_panic(
            n_tokens in 0usize..500,
            blow in (0usize..6, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()),
        ) {
            let (kind, chunk, byte, value) = blow;
            let mut frozen = cache_of(n_tokens, "rkv").freeze();
            let spoil = |bytes: &mut Vec<u8>| match kind {
                0 if !bytes.is_empty() => {
                    let i = byte.index(bytes.len());
                    bytes[i] = value;
                }
                1 => bytes.truncate(byte.index(bytes.len() + 1)),
                _ => bytes.push(value),
            };
            let n_chunks = frozen.chunks.len();
            match kind {
                0..3 if n_chunks > 0 && chunk.index(n_chunks + 1) < n_chunks => {
                    spoil(&mut frozen.chunks[chunk.index(n_chunks + 1)].1);
                }
                0..3 => spoil(&mut frozen.meta),
                3 if n_chunks > 0 => drop(frozen.chunks.remove(chunk.index(n_chunks))),
                4 if n_chunks > 0 => frozen.chunks[chunk.index(n_chunks)].0 ^= 1 << (value % 64),
                _ => frozen.chunks.push((u64::from(value), vec![value])),
            }
            if let Ok(mut cache) = thaw(&frozen, "rkv") {
                for layer in cache.layers() {
                    for head_idx in 0..SHAPE.n_kv_heads {
                        prop_assert!(layer.positions(head_idx).is_sorted_by(|a, b| a < b));
                    }
                }
                decode(&mut cache, 130);
            }
        }
    }

    #[test]
    fn growth_changes_the_last_segment_of_each_layer_and_nothing_before_it() {
        let mut cache = cache_of(250, "rkv");
        let before = cache.freeze();
        decode(&mut cache, 100);
        let after = cache.freeze();
        let per_chunk = CHUNK_BYTES / SHAPE.layer_slot_bytes::<f16>();
        let whole_segments = 250 / per_chunk;
        assert!(whole_segments > 0);
        for layer_idx in 0..SHAPE.n_layers as u64 {
            for part_idx in 0..whole_segments as u64 {
                let of = |frozen: &Frozen| {
                    let key = layer_idx << 32 | part_idx;
                    frozen.chunks.iter().find(|(found, _)| *found == key).unwrap().1.clone()
                };
                assert_eq!(of(&before), of(&after));
            }
        }
    }

    #[test]
    fn another_session_or_version_is_refused_by_name() {
        let frozen = cache_of(20, "rkv").freeze();
        let shape = CacheShape { n_layers: 3, ..SHAPE };
        let rkv = || by_name("rkv").unwrap();
        let error = |result: Result<KvCache<f16>, ThawError>| result.err().unwrap().to_string();
        let found = error(KvCache::thaw(&frozen, shape, BUDGET, rkv()));
        assert!(found.contains("frozen cache has shape"), "{found}");
        let budget = Budget { n_slots: 301, ..BUDGET };
        let found = error(KvCache::thaw(&frozen, SHAPE, budget, rkv()));
        assert!(found.contains("frozen cache has budget"), "{found}");
        assert_eq!(
            error(thaw(&frozen, "gkv")),
            r#"frozen cache has policy "rkv", this session has "gkv""#
        );
        let found = KvCache::<f32>::thaw(&frozen, SHAPE, BUDGET, rkv()).err().unwrap().to_string();
        assert_eq!(found, r#"frozen cache has element type "f16", this session has "f32""#);
        let newer = Frozen { meta: vec![3, 9, 9], chunks: Vec::new() };
        assert!(matches!(thaw(&newer, "rkv"), Err(ThawError::Version { found: 3 })));
    }

    #[test]
    fn counts_that_lie_are_refused_before_anything_is_allocated() {
        let refused = |logical, kept, n_queries| {
            let frozen = Frozen { meta: meta(logical, kept, n_queries), chunks: Vec::new() };
            thaw(&frozen, "rkv").err().unwrap()
        };
        assert!(matches!(refused(u64::MAX, 1, 0), ThawError::Counts { .. }));
        assert!(matches!(refused(1 << 32, u64::MAX, 0), ThawError::Counts { .. }));
        assert!(matches!(refused(1000, 361, 8), ThawError::Counts { .. }));
        assert!(matches!(refused(5, 6, 0), ThawError::Counts { .. }));
        assert!(matches!(refused(500, 100, 9), ThawError::Counts { .. }));
        assert!(matches!(refused(500, 100, u64::MAX), ThawError::Counts { .. }));
        assert!(matches!(refused(500, 300, 8), ThawError::Length { found: 0, .. }));
        let frozen = Frozen { meta: meta(u64::from(u32::MAX), 300, 8), chunks: Vec::new() };
        assert!(matches!(thaw(&frozen, "full"), Err(ThawError::Mismatch { .. })));
    }

    #[test]
    fn positions_that_do_not_ascend_and_matches_out_of_range_are_refused() {
        let frozen = cache_of(40, "rkv").freeze();
        let vectors = 2 * 40 * SHAPE.head_dim * size_of::<f16>();
        let spoiled = |at: usize, word: u32| {
            let mut frozen = frozen.clone();
            frozen.chunks[0].1[at..at + 4].copy_from_slice(&word.to_le_bytes());
            thaw(&frozen, "rkv").err().map(|error| error.to_string())
        };
        let said = |what| Some(format!("{what} of layer 0 of the frozen cache make no sense"));
        assert_eq!(spoiled(vectors + 4, 0), said("positions"));
        assert_eq!(spoiled(vectors + 39 * 4, 40), said("positions"));
        assert_eq!(spoiled(vectors + 40 * 4, f32::NAN.to_bits()), said("importances"));
        assert_eq!(spoiled(vectors + 80 * 4, 40), said("matches"));
        assert_eq!(spoiled(vectors + 80 * 4, 0), said("matches"));
        assert_eq!(spoiled(vectors + 80 * 4, 1), None);
    }
}
