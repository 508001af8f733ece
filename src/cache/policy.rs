//! Ranking of slots: one file a policy, one trait between them and the cache.
//!
//! A policy only scores. Counting, protecting, ties and gathering happen once, in
//! [`super::budget`] and [`super::compress`], for all policies alike. A new policy is a file and
//! its line in the table below.

use std::sync::Arc;

use agent::asked::AskedWork;
use agent::likeness::LikenessWork;
use rkv::{Protects, Rkv};

use super::importance::ImportanceWork;
use super::notes::Notes;
use super::plan::{SessionView, SpanPlan};
use super::redundancy::RedundancyWork;

pub mod agent;
pub mod full;
pub mod gkv;
pub mod h2o;
pub mod keydiff;
pub mod longflow;
pub mod random;
pub mod rkv;
pub mod snapkv;
pub mod streaming;
pub mod tova;

type Make = fn() -> Arc<dyn Policy>;

const TABLE: &[(&str, Make)] = &[
    ("full", || Arc::new(full::Full)),
    ("streaming", || Arc::new(streaming::Streaming::default())),
    ("random", || Arc::new(random::Random::default())),
    ("h2o", || Arc::new(h2o::H2o)),
    ("tova", || Arc::new(tova::Tova)),
    ("longflow", || Arc::new(longflow::LongFlow)),
    ("snapkv", || Arc::new(snapkv::SnapKv::default())),
    ("keydiff", || Arc::new(keydiff::KeyDiff)),
    ("rkv", || Arc::new(rkv::Rkv::default())),
    ("rkv+sinks", || Arc::new(Rkv { protects: Protects::Sinks, ..Rkv::default() })),
    ("rkv+protected", || Arc::new(Rkv { protects: Protects::AsAgent, ..Rkv::default() })),
    ("gkv", || Arc::new(gkv::Gkv::default())),
    ("agent", || Arc::new(agent::Agent::default())),
];

/// The names of all policies.
pub const NAMES: [&str; TABLE.len()] = {
    let mut names = [""; TABLE.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = TABLE[i].0;
        i += 1;
    }
    names
};

/// Queries kept for scoring: the last `W` tokens' queries of every query head.
pub const WINDOW: usize = 8;

/// What a policy may see of one KV head of one layer.
///
/// Slots are in ascending position; the newest is last.
pub struct HeadView<'a> {
    /// Rotated keys, `[S, D]`.
    pub keys: &'a [f32],
    /// Values, `[S, D]`; empty unless [`Policy::needs_values`].
    pub values: &'a [f32],
    /// The last `W` tokens' rotated queries of this KV head's group, `[W, G, D]`, oldest first.
    /// Fewer than `WINDOW` rows while the session is shorter than that.
    pub queries: &'a [f32],
    /// Token position of each row of queries, `[W]`.
    pub query_positions: &'a [u32],
    /// Token position of each slot, `[S]`.
    pub positions: &'a [u32],
    pub n_slots: usize,
    pub n_groups: usize,
    pub head_dim: usize,
    pub n_queries: usize,
    /// Queries of the session's [`super::bank::QueryBank`], rotated as if they were asked now,
    /// `[n, G, D]`; empty unless [`Policy::keeps_bank`].
    pub bank: &'a [f32],
    /// What was decided for all heads alike.
    pub plan: &'a SpanPlan,
    /// What is known of the tokens; [`SpanPlan::n_read`] says what of it holds.
    pub notes: &'a Notes,
    /// Which layer and KV head this is, for policies that draw random numbers.
    pub layer_idx: usize,
    pub head_idx: usize,
}

/// What a policy remembers of each slot between compactions; moved along with the slots.
pub struct HeadMemory<'a> {
    /// One number a slot, `[S]`: accumulated attention (`h2o`) or decayed importance (`gkv`).
    /// New slots begin at 0 (or at what [`Policy::accumulates_attention`] has gathered).
    pub importance: &'a mut [f32],
    /// Newest match of each row for [`super::redundancy`], `[S]`; see there for the encoding.
    /// New slots begin at [`super::redundancy::UNKNOWN`].
    pub matches: &'a mut [i32],
}

/// Buffers that scoring reuses, so that it allocates nothing once they have grown. What they hold
/// means nothing from one call to the next.
#[derive(Default)]
pub struct Work {
    pub importance: ImportanceWork,
    pub redundancy: RedundancyWork,
    pub asked: AskedWork,
    pub likeness: LikenessWork,
    /// One direction, `[D]`.
    pub anchor: Vec<f32>,
}

impl Work {
    /// Bytes that the buffers hold.
    pub(super) fn bytes(&self) -> usize {
        let Self { importance, redundancy, asked, likeness, anchor } = self;
        let anchor = anchor.capacity() * size_of::<f32>();
        let agent = asked.bytes() + likeness.bytes();
        importance.bytes() + redundancy.bytes() + agent + anchor
    }
}

/// Which slots a policy never gives up, besides what its scores say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Slots at the front of each head.
    pub n_sinks: usize,
    /// Slots at the end of each head.
    pub n_recent: usize,
}

/// A ranking of the slots of one head.
pub trait Policy: Send + Sync {
    /// The name by which users select it.
    fn name(&self) -> &'static str;

    /// Changes when the same input may score otherwise than before; part of a snapshot's identity.
    fn version(&self) -> u32 {
        1
    }

    /// Decides on spans, once a compaction, for all heads of all layers.
    fn plan(&self, _session: &SessionView<'_>) -> SpanPlan {
        SpanPlan::default()
    }

    /// Writes a finite score for every slot, `[S]`; higher stays longer. What the scores of
    /// protected slots are does not matter.
    fn score(
        &self,
        head: &HeadView<'_>,
        memory: HeadMemory<'_>,
        work: &mut Work,
        scores: &mut [f32],
    );

    /// What is protected when `budget` slots stay.
    fn protection(&self, budget: usize) -> Protection;

    /// False only for `full`, which never evicts.
    fn evicts(&self) -> bool {
        true
    }

    /// True where [`HeadView::values`] is read.
    fn needs_values(&self) -> bool {
        false
    }

    /// True where [`HeadView::bank`] is read.
    fn keeps_bank(&self) -> bool {
        false
    }

    /// True where the attention every token pays is to be added to [`HeadMemory::importance`]
    /// (softmax weights, summed over the group).
    fn accumulates_attention(&self) -> bool {
        false
    }

    /// True where all KV heads of a layer keep the same slots (`tova`): scores of the heads are
    /// then averaged before the survivors are picked.
    fn shares_survivors(&self) -> bool {
        false
    }
}

/// The policy called `name`, with its published default settings; `agent:NAME=VALUE;…` is `agent`
/// with other [`agent::Settings`], for measurements.
///
/// # Errors
/// Names the known policies, or settings, where `name` is none of them.
pub fn by_name(name: &str) -> Result<Arc<dyn Policy>, UnknownPolicy> {
    if let Some(changes) = name.strip_prefix("agent:") {
        return Ok(Arc::new(agent::Agent { settings: agent::Settings::parse(changes)? }));
    }
    let found = TABLE.iter().find(|(known, _)| *known == name);
    let (_, make) = found
        .ok_or_else(|| UnknownPolicy::Name { name: name.to_owned(), known: NAMES.to_vec() })?;
    Ok(make())
}

/// A policy's name that is not in the table.
#[derive(Debug, thiserror::Error)]
pub enum UnknownPolicy {
    #[error("unknown policy `{name}`; known are {}", known.join(", "))]
    Name { name: String, known: Vec<&'static str> },
    #[error(transparent)]
    Setting(#[from] agent::settings::SettingError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_under_its_own_name() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = by_name("lru").err().unwrap().to_string();
        assert!(error.starts_with("unknown policy `lru`; known are full, streaming, "), "{error}");
    }
}
