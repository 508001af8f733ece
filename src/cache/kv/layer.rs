//! Slots of one layer.

use std::ops::Range;

use rayon::prelude::*;

use super::{CacheShape, KvElement, QueryWindow, Staging};
use crate::cache::bank::QueryBank;
use crate::cache::redundancy::UNKNOWN;

/// Slots by which a layer grows.
const GROWTH: usize = 256;

/// Keys and values of one layer as attention reads them.
#[derive(Clone, Copy)]
pub struct Slots<'a, E> {
    /// Rotated keys, `[H, stride, D]`; each head's first `n_slots` are live.
    pub keys: &'a [E],
    /// Values, `[H, stride, D]`.
    pub values: &'a [E],
    pub n_slots: usize,
    /// Slots from one head's first to the next head's first.
    pub stride: usize,
}

/// One layer's slots. Every head holds the same count.
#[derive(Clone)]
pub struct LayerCache<E> {
    /// Rotated keys, `[H, capacity, D]`.
    pub(in crate::cache) keys: Vec<E>,
    /// Values, `[H, capacity, D]`.
    pub(in crate::cache) values: Vec<E>,
    /// Position of each slot, ascending in each head, `[H, capacity]`.
    pub(in crate::cache) positions: Vec<u32>,
    /// See [`super::policy::HeadMemory`], `[H, capacity]`.
    pub(in crate::cache) importance: Vec<f32>,
    /// See [`super::policy::HeadMemory`], `[H, capacity]`.
    pub(in crate::cache) matches: Vec<i32>,
    pub(in crate::cache) window: QueryWindow,
    pub(in crate::cache) bank: QueryBank,
    pub(in crate::cache) n_slots: usize,
    pub(in crate::cache) capacity: usize,
}

impl<E: KvElement> LayerCache<E> {
    pub(in crate::cache) fn empty() -> Self {
        Self {
            keys: Vec::new(),
            values: Vec::new(),
            positions: Vec::new(),
            importance: Vec::new(),
            matches: Vec::new(),
            window: QueryWindow::default(),
            bank: QueryBank::default(),
            n_slots: 0,
            capacity: 0,
        }
    }

    pub fn slots(&self) -> Slots<'_, E> {
        Slots {
            keys: &self.keys,
            values: &self.values,
            n_slots: self.n_slots,
            stride: self.capacity,
        }
    }

    /// The slots beside the numbers that accumulated attention is added to, `[H, stride]`.
    pub fn slots_and_importance(&mut self) -> (Slots<'_, E>, &mut [f32]) {
        let slots = Slots {
            keys: &self.keys,
            values: &self.values,
            n_slots: self.n_slots,
            stride: self.capacity,
        };
        (slots, &mut self.importance)
    }

    /// Positions of one head's live slots.
    pub fn positions(&self, head_idx: usize) -> &[u32] {
        let start = head_idx * self.capacity;
        &self.positions[start..start + self.n_slots]
    }

    pub fn window(&self) -> &QueryWindow {
        &self.window
    }

    /// Takes in queries for scoring, see [`QueryWindow::observe`].
    pub fn observe(&mut self, queries: &[f32], n_tokens: usize, first_position: u32) {
        self.window.observe(queries, n_tokens, first_position);
    }

    /// Makes room for `n_slots` in each head, at most `limit` of them.
    pub(in crate::cache) fn reserve(&mut self, shape: &CacheShape, n_slots: usize, limit: usize) {
        assert!(n_slots <= limit, "{n_slots} slots pass the bound of {limit}");
        if n_slots <= self.capacity {
            return;
        }
        self.resize(shape, grown(self.capacity, n_slots, limit));
    }

    /// Gives back what lies beyond `limit` slots; there must be no more live ones.
    pub(in crate::cache) fn shrink(&mut self, shape: &CacheShape, limit: usize) {
        assert!(self.n_slots <= limit, "{} slots pass the bound of {limit}", self.n_slots);
        if self.capacity > limit {
            self.resize(shape, limit);
        }
    }

    fn resize(&mut self, shape: &CacheShape, capacity: usize) {
        let dim = shape.head_dim;
        let heads = shape.n_kv_heads;
        let old = self.capacity;
        self.keys = restride(&self.keys, heads, old * dim, capacity * dim);
        self.values = restride(&self.values, heads, old * dim, capacity * dim);
        self.positions = restride(&self.positions, heads, old, capacity);
        self.importance = restride(&self.importance, heads, old, capacity);
        self.matches = restride(&self.matches, heads, old, capacity);
        self.capacity = capacity;
    }

    /// The observed and the remembered queries beside the slots of each head.
    pub(in crate::cache) fn asking_and_heads(
        &mut self,
        shape: &CacheShape,
    ) -> ((&QueryWindow, &QueryBank), impl IndexedParallelIterator<Item = HeadSlots<'_, E>>) {
        let vectors = self.capacity * shape.head_dim;
        let heads = (
            self.keys.par_chunks_exact_mut(vectors),
            self.values.par_chunks_exact_mut(vectors),
            self.positions.par_chunks_exact_mut(self.capacity),
            self.importance.par_chunks_exact_mut(self.capacity),
            self.matches.par_chunks_exact_mut(self.capacity),
        )
            .into_par_iter()
            .map(|(keys, values, positions, importance, matches)| HeadSlots {
                keys,
                values,
                positions,
                importance,
                matches,
            });
        ((&self.window, &self.bank), heads)
    }

    /// Appends a staged block behind the live slots; room must have been made.
    pub(super) fn append(&mut self, shape: &CacheShape, staged: &Staging<E>, first_position: u32) {
        let (dim, n_new) = (shape.head_dim, staged.n_tokens);
        for head_idx in 0..shape.n_kv_heads {
            let from = head_idx * n_new..(head_idx + 1) * n_new;
            let start = head_idx * self.capacity + self.n_slots;
            let to = start..start + n_new;
            let vectors = |slots: &Range<usize>| slots.start * dim..slots.end * dim;
            self.keys[vectors(&to)].copy_from_slice(&staged.keys[vectors(&from)]);
            self.values[vectors(&to)].copy_from_slice(&staged.values[vectors(&from)]);
            for (position, new) in self.positions[to.clone()].iter_mut().zip(first_position..) {
                *position = new;
            }
            self.importance[to.clone()].copy_from_slice(&staged.importance[from]);
            self.matches[to].fill(UNKNOWN);
        }
        self.n_slots += n_new;
    }
}

/// One head's slots of a layer, each slice as long as the layer's capacity.
pub(in crate::cache) struct HeadSlots<'a, E> {
    pub(in crate::cache) keys: &'a mut [E],
    pub(in crate::cache) values: &'a mut [E],
    pub(in crate::cache) positions: &'a mut [u32],
    pub(in crate::cache) importance: &'a mut [f32],
    pub(in crate::cache) matches: &'a mut [i32],
}

/// The capacity that a layer of `capacity` slots grows to when it must hold `n_slots`.
pub(super) fn grown(capacity: usize, n_slots: usize, limit: usize) -> usize {
    n_slots.max(capacity + capacity / 4).next_multiple_of(GROWTH).min(limit)
}

fn restride<T: Copy + Default>(old: &[T], n_heads: usize, from: usize, to: usize) -> Vec<T> {
    let mut new = vec![T::default(); n_heads * to];
    let n = from.min(to);
    for head_idx in 0..n_heads {
        new[head_idx * to..head_idx * to + n]
            .copy_from_slice(&old[head_idx * from..head_idx * from + n]);
    }
    new
}
