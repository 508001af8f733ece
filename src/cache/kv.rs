//! Slots of keys and values, their positions, and how they grow.
//!
//! A slot is a place in a layer, a position a token's index in its session. After a compaction
//! they differ: [`KvCache::logical`] gives the next position, [`KvCache::kept`] the next slot.
//! Keys are stored rotated at their position and are never rotated again.

use std::sync::Arc;

use bytemuck::Pod;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::bank::{Origin, QueryBank};
use super::budget::Budget;
use super::compress::{Compaction, Scratch};
use super::notes::Notes;
use super::plan::{PINS_PART, SessionView, SpanPlan};
use super::policy::{Policy, WINDOW};
use super::redundancy::UNKNOWN;

mod layer;
mod staging;
mod synthetic;
mod window;

pub(super) use layer::HeadSlots;
pub use layer::{LayerCache, Slots};
pub use staging::Staging;
pub use window::QueryWindow;

/// The number type that keys and values are held in.
pub trait KvElement: Pod + Default + Send + Sync {
    /// Names the type in a snapshot's identity.
    const NAME: &'static str;
    /// Rounds `from` into `to`, which is as long.
    fn narrow(from: &[f32], to: &mut [Self]);
    /// Widens `from` into `to`, which is as long.
    fn widen(from: &[Self], to: &mut [f32]);
}

impl KvElement for f16 {
    const NAME: &'static str = "f16";

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl KvElement for f32 {
    const NAME: &'static str = "f32";

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

/// Turns a vector of the model's head dimension to a position (RoPE).
pub trait Rotate: Sync {
    /// Rotates one head, `[D]`, in place.
    fn rotate(&self, head: &mut [f32], position: u32);
}

/// The shape of a model's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CacheShape {
    /// `L`
    pub n_layers: usize,
    /// `H`
    pub n_kv_heads: usize,
    /// `G`
    pub n_groups: usize,
    /// `D`
    pub head_dim: usize,
}

impl CacheShape {
    /// Query heads of a layer, `H * G`.
    pub fn n_heads(&self) -> usize {
        self.n_kv_heads * self.n_groups
    }

    /// Bytes that one slot costs in all layers together, bookkeeping included.
    pub fn slot_bytes<E: KvElement>(&self) -> usize {
        self.n_layers * self.layer_slot_bytes::<E>()
    }

    /// Bytes that one slot costs in one layer.
    pub(super) fn layer_slot_bytes<E: KvElement>(&self) -> usize {
        let vectors = 2 * self.head_dim * size_of::<E>();
        let notes = size_of::<u32>() + size_of::<f32>() + size_of::<i32>();
        self.n_kv_heads * (vectors + notes)
    }
}

/// A session's cache: one [`LayerCache`] a layer, all with the same number of slots between steps.
#[derive(Clone)]
pub struct KvCache<E> {
    pub(super) shape: CacheShape,
    pub(super) budget: Budget,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) layers: Vec<LayerCache<E>>,
    pub(super) notes: Notes,
    /// Of the compaction under way, while a block is absorbed layer by layer.
    plan: SpanPlan,
    pub(super) logical: usize,
    pub(super) n_compactions: u64,
}

impl<E: KvElement> KvCache<E> {
    pub fn new(shape: CacheShape, budget: Budget, policy: Arc<dyn Policy>) -> Self {
        let layers = (0..shape.n_layers).map(|_| LayerCache::empty()).collect();
        let (notes, plan) = (Notes::default(), SpanPlan::default());
        Self { shape, budget, policy, layers, notes, plan, logical: 0, n_compactions: 0 }
    }

    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    pub fn budget(&self) -> Budget {
        self.budget
    }

    pub fn policy(&self) -> &Arc<dyn Policy> {
        &self.policy
    }

    /// What is known of the tokens. It is no part of a frozen cache.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// What is known of the tokens from now on.
    pub fn set_notes(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// Tokens seen so far: the next token's position.
    pub fn logical(&self) -> usize {
        self.logical
    }

    /// Live slots of every head of every layer.
    pub fn kept(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.n_slots)
    }

    pub fn n_compactions(&self) -> u64 {
        self.n_compactions
    }

    pub fn layers(&self) -> &[LayerCache<E>] {
        &self.layers
    }

    pub fn layer_mut(&mut self, layer_idx: usize) -> &mut LayerCache<E> {
        &mut self.layers[layer_idx]
    }

    /// Slots that a head may hold between steps; `usize::MAX` for a policy that never evicts.
    pub fn limit(&self) -> usize {
        if self.policy.evicts() { self.budget.n_slots + self.budget.n_buffer } else { usize::MAX }
    }

    /// Bytes that the cache holds in memory now, observed queries included.
    pub fn bytes(&self) -> usize {
        let n_slots = self.layers.iter().map(|layer| layer.capacity).sum::<usize>();
        let queries = self.layers.iter().map(|layer| layer.window.bytes() + layer.bank.bytes());
        n_slots * self.shape.layer_slot_bytes::<E>() + queries.sum::<usize>()
    }

    /// Bytes that the cache will hold at most once `n_tokens` more have been read.
    pub fn bytes_after(&self, n_tokens: usize) -> usize {
        // A layer of one slot less than asked for is the largest that still has to grow.
        let n_slots = (self.kept() + n_tokens).min(self.limit());
        let capacity = self.layers.first().map_or(0, |layer| layer.capacity);
        let capacity = if n_slots <= capacity {
            capacity
        } else {
            layer::grown(n_slots - 1, n_slots, self.limit())
        };
        let row = self.shape.n_heads() * self.shape.head_dim;
        let window = WINDOW * (row * size_of::<f32>() + size_of::<u32>());
        let bank = if self.policy.keeps_bank() { QueryBank::max_bytes(row) } else { 0 };
        capacity * self.shape.slot_bytes::<E>() + self.shape.n_layers * (window + bank)
    }

    /// Takes in the queries of `n_tokens` from [`Self::logical`] on, `[n, H * G, D]` before RoPE,
    /// for scoring: those of the last tokens, and some of what the model writes.
    pub fn observe(&mut self, layer_idx: usize, queries: &[f32], n_tokens: usize, origin: Origin) {
        let (first, layer) = (self.logical as u32, &mut self.layers[layer_idx]);
        layer.window.observe(queries, n_tokens, first);
        if self.policy.keeps_bank() {
            layer.bank.observe(queries, n_tokens, first, origin, &self.notes);
        }
    }

    /// The most bytes that steps hold beside the cache while it grows to `n_tokens`: a staged
    /// block of `n_block`, buffers of compactions, and a layer's old keys while they are moved.
    /// `compacts` where it is to be compacted whatever its length.
    pub fn working_bytes(&self, n_tokens: usize, n_block: usize, compacts: bool) -> usize {
        let n_slots = n_tokens.min(self.limit());
        let moved = self.shape.n_kv_heads * n_slots * self.shape.head_dim * size_of::<E>();
        let is_compacted = compacts || (self.policy.evicts() && n_tokens > self.budget.n_slots);
        let scratch = if is_compacted {
            let n_scored = n_tokens.min(self.limit().saturating_add(n_block)).max(self.kept());
            Scratch::most_bytes(&self.shape, &*self.policy, n_scored)
        } else {
            0
        };
        Staging::<E>::most_bytes(&self.shape, n_block.min(n_tokens)) + moved + scratch
    }

    /// Appends one token's key and value to one layer, both `[H, D]`, the key rotated.
    /// Its position is [`Self::logical`]; call [`Self::advance`] once all layers have it.
    pub fn push(&mut self, layer_idx: usize, key: &[f32], value: &[f32]) {
        let limit = self.limit();
        let (shape, dim) = (self.shape, self.shape.head_dim);
        let layer = &mut self.layers[layer_idx];
        layer.reserve(&shape, layer.n_slots + 1, limit);
        for head_idx in 0..shape.n_kv_heads {
            let slot = head_idx * layer.capacity + layer.n_slots;
            let from = head_idx * dim..(head_idx + 1) * dim;
            let to = slot * dim..(slot + 1) * dim;
            E::narrow(&key[from.clone()], &mut layer.keys[to.clone()]);
            E::narrow(&value[from], &mut layer.values[to]);
            layer.positions[slot] = self.logical as u32;
            layer.importance[slot] = 0.0;
            layer.matches[slot] = UNKNOWN;
        }
        layer.n_slots += 1;
    }

    /// Gives one layer's staged block its slots, compacting the layer where the bound asks for it.
    /// The block's queries must have been observed before. Once every layer has absorbed the
    /// block, call [`Self::advance`].
    pub fn absorb(
        &mut self,
        layer_idx: usize,
        staged: &Staging<E>,
        rope: &dyn Rotate,
        scratch: &Scratch,
    ) {
        let limit = self.limit();
        let first_position = self.logical as u32;
        if self.layers[layer_idx].n_slots + staged.n_tokens <= limit {
            let layer = &mut self.layers[layer_idx];
            layer.reserve(&self.shape, layer.n_slots + staged.n_tokens, limit);
            layer.append(&self.shape, staged, first_position);
            return;
        }
        if layer_idx == 0 {
            self.plan = self.planned(staged.n_tokens);
        }
        let compaction = Compaction {
            shape: &self.shape,
            budget: self.budget,
            policy: &*self.policy,
            notes: &self.notes,
            plan: &self.plan,
            rope,
            scratch,
        };
        let layer = &mut self.layers[layer_idx];
        layer.reserve(&self.shape, limit, limit);
        compaction.run(layer_idx, layer, Some((staged, first_position)));
        if layer_idx + 1 == self.shape.n_layers {
            self.n_compactions += 1;
            self.plan = SpanPlan::default();
        }
    }

    /// Counts tokens that every layer has taken in.
    pub fn advance(&mut self, n_tokens: usize) {
        self.logical += n_tokens;
    }

    /// True where no further token fits before a compaction.
    pub fn is_full(&self) -> bool {
        self.kept() == self.limit()
    }

    /// Goes on under another budget and policy. What the old policy remembered of the slots is
    /// forgotten; where they are more than the new bound allows, they are compacted. Memory beyond
    /// the new bound is given back.
    pub fn configure(
        &mut self,
        budget: Budget,
        policy: Arc<dyn Policy>,
        rope: &dyn Rotate,
        scratch: &Scratch,
    ) {
        if policy.name() != self.policy.name() {
            for layer in &mut self.layers {
                layer.importance.fill(0.0);
                layer.matches.fill(UNKNOWN);
                layer.bank = QueryBank::default();
            }
        }
        self.budget = budget;
        self.policy = policy;
        if self.kept() > self.limit() {
            self.compact(rope, scratch);
        }
        let limit = self.limit();
        self.layers.iter_mut().for_each(|layer| layer.shrink(&self.shape, limit));
    }

    /// Compacts every layer to the budget; nothing happens where they are within it already.
    pub fn compact(&mut self, rope: &dyn Rotate, scratch: &Scratch) {
        if !self.policy.evicts() || self.kept() <= self.budget.n_slots {
            return;
        }
        let compaction = Compaction {
            shape: &self.shape,
            budget: self.budget,
            policy: &*self.policy,
            notes: &self.notes,
            plan: &self.planned(0),
            rope,
            scratch,
        };
        let compact = |(layer_idx, layer): (usize, &mut LayerCache<E>)| {
            compaction.run(layer_idx, layer, None);
        };
        if self.policy.shares_survivors() {
            // Each layer needs buffers for all of its heads at once.
            self.layers.iter_mut().enumerate().for_each(compact);
        } else {
            // All layers in one parallel region, so that the last heads of one wait for nobody.
            self.layers.par_iter_mut().enumerate().for_each(compact);
        }
        self.n_compactions += 1;
    }

    /// What is decided on spans before a compaction of the slots and `n_staged` tokens behind them.
    fn planned(&self, n_staged: usize) -> SpanPlan {
        let n_read = (self.logical + n_staged) as u32;
        let (notes, budget) = (&self.notes, self.budget);
        let view = SessionView { notes, n_read, budget, n_slots: self.kept() + n_staged };
        let pins = notes.pins(n_read, budget.n_slots / PINS_PART);
        SpanPlan { pins, n_read, ..self.policy.plan(&view) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::policy::{NAMES, by_name};

    const SHAPE: CacheShape = CacheShape { n_layers: 3, n_kv_heads: 2, n_groups: 2, head_dim: 4 };

    struct Still;

    impl Rotate for Still {
        fn rotate(&self, _head: &mut [f32], _position: u32) {}
    }

    fn read(cache: &mut KvCache<f16>, n_tokens: usize, scratch: &Scratch) {
        let keys = vec![0.5; n_tokens * SHAPE.n_kv_heads * SHAPE.head_dim];
        let queries = vec![0.5; n_tokens * SHAPE.n_heads() * SHAPE.head_dim];
        let mut staging = Staging::default();
        staging.fill(&SHAPE, &keys, &keys, n_tokens);
        let first = cache.logical() as u32;
        for layer_idx in 0..SHAPE.n_layers {
            cache.layer_mut(layer_idx).observe(&queries, n_tokens, first);
            if n_tokens == 1 {
                cache.push(layer_idx, &keys, &keys);
            } else {
                cache.absorb(layer_idx, &staging, &Still, scratch);
            }
        }
        cache.advance(n_tokens);
        if cache.is_full() {
            cache.compact(&Still, scratch);
        }
    }

    /// What the vectors of a cache take from the allocator.
    fn allocated(cache: &KvCache<f16>) -> usize {
        let of = |layer: &LayerCache<f16>| {
            (layer.keys.capacity() + layer.values.capacity()) * size_of::<f16>()
                + layer.positions.capacity() * size_of::<u32>()
                + layer.importance.capacity() * size_of::<f32>()
                + layer.matches.capacity() * size_of::<i32>()
                + layer.window.positions.capacity() * size_of::<u32>()
                + layer.window.queries.capacity() * size_of::<f32>()
                + layer.bank.bytes()
        };
        cache.layers.iter().map(of).sum()
    }

    proptest! {
        #[test]
        fn bytes_are_what_is_allocated_and_never_more_than_was_announced(
            blocks in prop::collection::vec(prop_oneof![1usize..4, 1usize..300], 1..40),
            evicting in any::<bool>(),
        ) {
            let policy = by_name(if evicting { "streaming" } else { "full" }).unwrap();
            let budget = Budget { n_slots: 300, n_buffer: 50 };
            let mut cache = KvCache::<f16>::new(SHAPE, budget, policy);
            let scratch = Scratch::default();
            let announced = cache.bytes_after(blocks.iter().sum());
            for n_tokens in blocks {
                let next = cache.bytes_after(n_tokens);
                read(&mut cache, n_tokens, &scratch);
                prop_assert_eq!(cache.bytes(), allocated(&cache));
                prop_assert!(cache.bytes() <= next);
            }
            prop_assert!(cache.bytes() <= announced);
        }
    }

    #[test]
    fn compactions_hold_no_more_than_was_announced() {
        for name in NAMES {
            let budget = Budget { n_slots: 300, n_buffer: 50 };
            let mut cache = KvCache::<f16>::new(SHAPE, budget, by_name(name).unwrap());
            let scratch = Scratch::default();
            for n_tokens in [200, 100, 1, 60, 256, 3, 256, 256] {
                let announced = cache.working_bytes(cache.logical() + n_tokens, 256, false);
                read(&mut cache, n_tokens, &scratch);
                assert!(scratch.bytes() <= announced, "{name}: {} B", scratch.bytes());
            }
            assert_eq!(scratch.bytes() > 0, cache.policy().evicts(), "{name}");
        }
    }

    #[test]
    fn a_smaller_budget_gives_memory_back() {
        let budget = Budget { n_slots: 1_000, n_buffer: 50 };
        let mut cache = KvCache::<f16>::new(SHAPE, budget, by_name("rkv").unwrap());
        let scratch = Scratch::default();
        read(&mut cache, 256, &scratch);
        read(&mut cache, 256, &scratch);
        let before: Vec<u32> = cache.layers()[2].positions(1)[412..].to_vec();
        let smaller = Budget { n_slots: 300, n_buffer: 20 };
        cache.configure(smaller, by_name("streaming").unwrap(), &Still, &scratch);
        assert_eq!((cache.kept(), cache.logical()), (300, 512));
        assert!(cache.bytes() <= cache.bytes_after(0));
        assert_eq!(cache.bytes(), allocated(&cache));
        assert_eq!(cache.layers()[2].positions(1)[200..], before, "the newest stay");
        assert_eq!(cache.layers()[2].capacity, 320);
    }

    #[test]
    fn the_query_window_holds_the_last_eight_tokens_in_order() {
        let mut window = QueryWindow::default();
        let mut position = 0;
        for n_tokens in [1, 3, 2, 5, 8, 20, 1, 0, 7] {
            let queries: Vec<f32> =
                (position..position + n_tokens).flat_map(|p| [p as f32, -(p as f32)]).collect();
            window.observe(&queries, n_tokens as usize, position);
            position += n_tokens;
            let expected: Vec<u32> = (position.saturating_sub(WINDOW as u32)..position).collect();
            assert_eq!(window.positions, expected);
            let expected = expected.iter().flat_map(|&p| [p as f32, -(p as f32)]);
            assert!(window.queries.iter().copied().eq(expected));
        }
    }
}
