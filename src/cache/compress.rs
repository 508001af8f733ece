//! One compaction of one layer: score, pick, gather in place.
//!
//! Heads are independent and run side by side. No buffer is allocated once the scratch has grown.

use std::sync::{Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::bank::{BANK, QueryBank};
use super::budget::{Budget, Ranked, SurvivorWork, survivors};
use super::kv::{CacheShape, HeadSlots, KvElement, LayerCache, QueryWindow, Rotate, Staging};
use super::notes::Notes;
use super::plan::SpanPlan;
use super::policy::{HeadMemory, HeadView, Policy, WINDOW, Work};
use super::redundancy::{UNKNOWN, remap};
use crate::kernel::panels::LANES;

/// Working memory of compactions, reused by all sessions: as much as heads are scored at a time.
#[derive(Default)]
pub struct Scratch {
    idle: Mutex<Vec<HeadScratch>>,
}

impl Scratch {
    fn take(&self) -> HeadScratch {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give(&self, head: HeadScratch) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    }

    /// Bytes that are held now, between compactions.
    pub fn bytes(&self) -> usize {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.iter().map(HeadScratch::bytes).sum()
    }

    /// The most bytes that compactions of heads of `n_slots` slots come to hold.
    pub fn most_bytes(shape: &CacheShape, policy: &dyn Policy, n_slots: usize) -> usize {
        let CacheShape { n_layers, n_kv_heads, n_groups, head_dim } = *shape;
        let n_at_once = if policy.shares_survivors() {
            n_kv_heads
        } else {
            rayon::current_num_threads().min(n_layers * n_kv_heads)
        };
        // Keys, values, unit keys and two layouts in panels; a row of weights for each query head
        // of each query; some twelve numbers for each slot; queries and sums.
        let n_queries = WINDOW + if policy.keeps_bank() { BANK } else { 0 };
        let of_slot = 5 * head_dim + n_queries * n_groups + 12;
        let others = n_queries * n_groups * head_dim + 4 * head_dim;
        // A buffer that has to grow doubles.
        2 * n_at_once * (n_slots.next_multiple_of(LANES) * of_slot + others) * size_of::<f32>()
    }
}

/// What scoring sees of one head, in f32, a staged block included.
#[derive(Default)]
struct HeadScratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    bank: Vec<f32>,
    positions: Vec<u32>,
    importance: Vec<f32>,
    matches: Vec<i32>,
    scores: Vec<f32>,
    choosing: SurvivorWork,
    kept: Vec<u32>,
    n_below: Vec<u32>,
    work: Work,
}

/// What all layers of a compaction have in common.
#[derive(Clone, Copy)]
pub struct Compaction<'a> {
    pub shape: &'a CacheShape,
    pub budget: Budget,
    pub policy: &'a dyn Policy,
    pub notes: &'a Notes,
    pub plan: &'a SpanPlan,
    pub rope: &'a dyn Rotate,
    pub scratch: &'a Scratch,
}

impl Compaction<'_> {
    /// Brings a layer, with a staged block and its first position behind it if there is one, down
    /// to the budget. The layer's capacity must hold the slots that stay.
    pub fn run<E: KvElement>(
        &self,
        layer_idx: usize,
        layer: &mut LayerCache<E>,
        staged: Option<(&Staging<E>, u32)>,
    ) {
        let Self { shape, budget, policy, plan, scratch, .. } = *self;
        let n_live = layer.n_slots;
        let n_slots = n_live + staged.map_or(0, |(staged, _)| staged.n_tokens);
        let protection = policy.protection(budget.n_slots);
        let (asking, slots) = layer.asking_and_heads(shape);
        let score = |head_idx: usize, slots: &HeadSlots<'_, E>, head: &mut HeadScratch| {
            head.load(shape, slots, n_live, policy.needs_values());
            if let Some((staged, first_position)) = staged {
                head.load_staged(shape, head_idx, staged, first_position, policy.needs_values());
            }
            head.load_queries(self, head_idx, asking);
            head.score(self, layer_idx, head_idx, &asking.0.positions);
        };
        let gather = |head_idx: usize, slots: HeadSlots<'_, E>, head: &mut HeadScratch| {
            let HeadScratch { scores, positions, choosing, kept, .. } = head;
            let ranked = Ranked { scores, positions, protection, plan };
            survivors(ranked, budget.n_slots, choosing, kept);
            head.gather(shape, head_idx, slots, n_live, staged.map(|(staged, _)| staged));
        };

        if policy.shares_survivors() {
            let mut heads: Vec<_> = slots
                .enumerate()
                .map(|(head_idx, slots)| {
                    let mut head = scratch.take();
                    score(head_idx, &slots, &mut head);
                    (slots, head)
                })
                .collect();
            share_scores(&mut heads);
            heads.into_par_iter().enumerate().for_each(|(head_idx, (slots, mut head))| {
                gather(head_idx, slots, &mut head);
                scratch.give(head);
            });
        } else {
            slots.enumerate().for_each(|(head_idx, slots)| {
                let mut head = scratch.take();
                score(head_idx, &slots, &mut head);
                gather(head_idx, slots, &mut head);
                scratch.give(head);
            });
        }
        layer.n_slots = n_slots.min(budget.n_slots);
    }
}

impl HeadScratch {
    fn bytes(&self) -> usize {
        let Self {
            keys,
            values,
            queries,
            bank,
            positions,
            importance,
            matches,
            scores,
            choosing,
            kept,
            n_below,
            work,
        } = self;
        let floats = [keys, values, queries, bank, importance, scores].map(Vec::capacity);
        let integers = [positions, kept, n_below].map(Vec::capacity);
        let numbers: usize = floats.iter().chain(&integers).sum();
        (numbers + matches.capacity()) * size_of::<f32>() + choosing.bytes() + work.bytes()
    }

    fn load<E: KvElement>(
        &mut self,
        shape: &CacheShape,
        slots: &HeadSlots<'_, E>,
        n_live: usize,
        needs_values: bool,
    ) {
        let size = n_live * shape.head_dim;
        self.keys.resize(size, 0.0);
        E::widen(&slots.keys[..size], &mut self.keys);
        self.values.clear();
        if needs_values {
            self.values.resize(size, 0.0);
            E::widen(&slots.values[..size], &mut self.values);
        }
        replace(&mut self.positions, &slots.positions[..n_live]);
        replace(&mut self.importance, &slots.importance[..n_live]);
        replace(&mut self.matches, &slots.matches[..n_live]);
    }

    fn load_staged<E: KvElement>(
        &mut self,
        shape: &CacheShape,
        head_idx: usize,
        staged: &Staging<E>,
        first_position: u32,
        needs_values: bool,
    ) {
        let (n_live, n_new) = (self.positions.len(), staged.n_tokens);
        let tokens = head_idx * n_new..(head_idx + 1) * n_new;
        let vectors = tokens.start * shape.head_dim..tokens.end * shape.head_dim;
        let widen = |from: &[E], to: &mut Vec<f32>| {
            to.resize((n_live + n_new) * shape.head_dim, 0.0);
            E::widen(&from[vectors.clone()], &mut to[n_live * shape.head_dim..]);
        };
        widen(&staged.keys, &mut self.keys);
        if needs_values {
            widen(&staged.values, &mut self.values);
        }
        self.positions.extend(first_position..first_position + n_new as u32);
        self.importance.extend_from_slice(&staged.importance[tokens]);
        self.matches.resize(n_live + n_new, UNKNOWN);
    }

    /// Copies the queries of this head's group and rotates each: those of the window to their own
    /// position, those of the bank to the newest slot's.
    fn load_queries(
        &mut self,
        compaction: &Compaction<'_>,
        head_idx: usize,
        (window, bank): (&QueryWindow, &QueryBank),
    ) {
        let Compaction { shape, policy, rope, .. } = *compaction;
        let dim = shape.head_dim;
        let (token, group) = (shape.n_heads() * dim, shape.n_groups * dim);
        let group = head_idx * group..(head_idx + 1) * group;
        self.queries.clear();
        for (token, &position) in window.queries.chunks_exact(token).zip(&window.positions) {
            let start = self.queries.len();
            self.queries.extend_from_slice(&token[group.clone()]);
            self.queries[start..].chunks_exact_mut(dim).for_each(|q| rope.rotate(q, position));
        }
        self.bank.clear();
        let Some(&now) = self.positions.last().filter(|_| policy.keeps_bank()) else { return };
        for token in bank.queries.chunks_exact(token) {
            let start = self.bank.len();
            self.bank.resize(start + group.len(), 0.0);
            token[group.clone()].convert_to_f32_slice(&mut self.bank[start..]);
            self.bank[start..].chunks_exact_mut(dim).for_each(|q| rope.rotate(q, now));
        }
    }

    fn score(
        &mut self,
        compaction: &Compaction<'_>,
        layer_idx: usize,
        head_idx: usize,
        query_positions: &[u32],
    ) {
        let n_slots = self.positions.len();
        self.scores.resize(n_slots, 0.0);
        let view = HeadView {
            keys: &self.keys,
            values: &self.values,
            queries: &self.queries,
            query_positions,
            positions: &self.positions,
            n_slots,
            n_groups: compaction.shape.n_groups,
            head_dim: compaction.shape.head_dim,
            n_queries: query_positions.len(),
            bank: &self.bank,
            plan: compaction.plan,
            notes: compaction.notes,
            layer_idx,
            head_idx,
        };
        let memory = HeadMemory { importance: &mut self.importance, matches: &mut self.matches };
        compaction.policy.score(&view, memory, &mut self.work, &mut self.scores);
    }

    /// Moves the survivors to the front. They ascend, so no slot is written before it is read.
    fn gather<E: KvElement>(
        &mut self,
        shape: &CacheShape,
        head_idx: usize,
        slots: HeadSlots<'_, E>,
        n_live: usize,
        staged: Option<&Staging<E>>,
    ) {
        let dim = shape.head_dim;
        let vector = |slot_idx: usize| slot_idx * dim..(slot_idx + 1) * dim;
        remap(&mut self.matches, &self.kept, &mut self.n_below);
        for (to, &from) in self.kept.iter().enumerate() {
            let from = from as usize;
            slots.positions[to] = self.positions[from];
            slots.importance[to] = self.importance[from];
            slots.matches[to] = self.matches[to];
            match staged {
                Some(staged) if from >= n_live => {
                    let from = vector(head_idx * staged.n_tokens + from - n_live);
                    slots.keys[vector(to)].copy_from_slice(&staged.keys[from.clone()]);
                    slots.values[vector(to)].copy_from_slice(&staged.values[from]);
                }
                _ if from != to => {
                    slots.keys.copy_within(vector(from), to * dim);
                    slots.values.copy_within(vector(from), to * dim);
                }
                _ => {}
            }
        }
    }
}

/// Gives every head the mean over the heads of each slot's score.
fn share_scores<E>(heads: &mut [(HeadSlots<'_, E>, HeadScratch)]) {
    let n_heads = heads.len() as f32;
    let Some(((_, first), rest)) = heads.split_first_mut() else { return };
    first.scores.iter_mut().for_each(|mean| *mean /= n_heads);
    for (_, head) in &*rest {
        for (mean, score) in first.scores.iter_mut().zip(&head.scores) {
            *mean += score / n_heads;
        }
    }
    for (_, head) in rest {
        head.scores.copy_from_slice(&first.scores);
    }
}

fn replace<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}
