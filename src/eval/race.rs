//! A full cache and several bounded ones on their way through one stream, side by side.

use std::sync::Arc;

use super::lane::{Lane, Machine, Step};
use super::stream::Stream;
use crate::cache::policy::full::Full;
use crate::cache::{Budget, Policy};
use crate::model::ModelError;

/// A policy under a budget.
#[derive(Clone)]
pub struct Contender {
    pub policy: Arc<dyn Policy>,
    pub budget: Budget,
}

impl Contender {
    /// Whether the policy remembers something of tokens that it has not evicted yet, so that its
    /// cache is none that was begun under another policy.
    fn gathers(&self) -> bool {
        self.policy.accumulates_attention() || self.policy.keeps_bank()
    }

    fn lane(&self, stream: &Stream, machine: &Machine) -> Lane {
        machine.lane(Arc::clone(&self.policy), self.budget, &stream.notes)
    }
}

/// A full cache, and one for each contender.
///
/// What comes before the first eviction is read once, by the full cache, and forked, but for
/// policies that must see every token.
pub struct Race<'a> {
    stream: &'a Stream,
    contenders: &'a [Contender],
    pub full: Lane,
    /// One for each contender, none as long as it is the same as the full one.
    pub lanes: Vec<Option<Lane>>,
}

impl<'a> Race<'a> {
    pub fn new(stream: &'a Stream, contenders: &'a [Contender], machine: &Machine) -> Self {
        let unbounded = Budget { n_slots: usize::MAX / 2, n_buffer: 1 };
        let own =
            |contender: &Contender| contender.gathers().then(|| contender.lane(stream, machine));
        Self {
            stream,
            contenders,
            full: machine.lane(Arc::new(Full), unbounded, &stream.notes),
            lanes: contenders.iter().map(own).collect(),
        }
    }

    /// Reads a step of the stream into all caches. `wants` says of each contender whether
    /// its logits are wanted; the full cache's are where any are. `progress` is told how many
    /// tokens each cache has read.
    ///
    /// # Errors
    /// Where the stream is longer than the model's context.
    pub fn read(
        &mut self,
        step: &Step,
        wants: &[bool],
        machine: &mut Machine,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        for (lane, contender) in self.lanes.iter_mut().zip(self.contenders) {
            let Budget { n_slots, n_buffer } = contender.budget;
            // A tool call makes room as soon as the buffer is half full.
            if lane.is_none() && step.tokens.end > n_slots + n_buffer / 2 {
                let policy = Arc::clone(&contender.policy);
                *lane = Some(self.full.fork(policy, contender.budget, machine));
            }
        }
        self.read_full(step, wants.contains(&true), machine, progress)?;
        for (lane, wants) in self.lanes.iter_mut().zip(wants) {
            if let Some(lane) = lane {
                lane.read(step, &self.stream.tokens, *wants, machine)?;
                progress(step.tokens.len());
            }
        }
        Ok(())
    }

    /// Reads a step into the full cache alone.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_full(
        &mut self,
        step: &Step,
        wants_logits: bool,
        machine: &mut Machine,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        self.full.read(step, &self.stream.tokens, wants_logits, machine)?;
        progress(step.tokens.len());
        Ok(())
    }
}
