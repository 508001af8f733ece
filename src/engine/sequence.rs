//! A session while the engine holds it.

use std::collections::VecDeque;
use std::time::Instant;

use half::f16;

use super::plan::Pending;
use super::{CacheStats, FinishReason, Finished, Generate, Reply, Timing, Verdict};
use crate::cache::KvCache;

/// A cache, what is to be read into it, and what it is wanted for.
pub(super) struct Sequence {
    pub(super) cache: Box<KvCache<f16>>,
    /// Bytes taken for it from the KV memory.
    pub(super) charged: usize,
    pub(super) pending: Pending,
    pub(super) job: Job,
    /// Waits for memory that others hold.
    pub(super) stalled: bool,
    /// When it was last asked for, on the engine's own counter.
    pub(super) last_used: u64,
}

/// Who waits for a sequence.
pub(super) enum Job {
    Idle,
    /// All whole blocks of pending tokens are to be read.
    Reading(Reply<CacheStats>),
    Generating(Box<Generation>),
}

impl Sequence {
    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            logical: self.cache.logical(),
            kept: self.cache.kept(),
            pending: self.pending.len(),
            compactions: self.cache.n_compactions(),
            bytes: self.cache.bytes(),
        }
    }

    /// Whether someone waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self.job, Job::Idle)
    }

    /// Whether the last, short block is to be read too.
    pub(super) fn is_forced(&self) -> bool {
        matches!(self.job, Job::Generating(_))
    }

    pub(super) fn can_read(&self) -> bool {
        !self.stalled && self.pending.is_ready(self.cache.logical(), self.is_forced())
    }

    pub(super) fn can_decode(&self) -> bool {
        !self.stalled && self.pending.is_empty() && matches!(self.job, Job::Generating(_))
    }
}

/// A generation under way.
pub(super) struct Generation {
    request: Generate,
    pub(super) reply: Reply<Box<Finished>>,
    /// All tokens chosen; the last is not in the cache yet.
    tokens: Vec<u32>,
    /// Tokens that come next whatever the logits say.
    forced: VecDeque<u32>,
    asked_at: Instant,
    n_prompt: usize,
    pub(super) started_at: Option<Instant>,
    pub(super) timing: Timing,
}

impl Generation {
    pub(super) fn new(request: Generate, reply: Reply<Box<Finished>>, n_prompt: usize) -> Self {
        Self {
            request,
            reply,
            tokens: Vec::new(),
            forced: VecDeque::new(),
            asked_at: Instant::now(),
            n_prompt,
            started_at: None,
            timing: Timing { prefill_tokens: n_prompt, ..Timing::default() },
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.request.cancel.is_cancelled()
    }

    /// The token to be read next.
    pub(super) fn last_token(&self) -> Option<u32> {
        self.tokens.last().copied()
    }

    /// The first piece of work on this generation begins.
    pub(super) fn start(&mut self) {
        if self.started_at.is_none() {
            self.started_at = Some(Instant::now());
            self.timing.queue = self.asked_at.elapsed();
        }
    }

    pub(super) fn progress(&mut self, n_pending: usize) {
        self.request.listener.progress(self.n_prompt - n_pending.min(self.n_prompt), self.n_prompt);
    }

    /// Chooses the token at `position`; tells why the generation ends with it, if it does.
    pub(super) fn choose(&mut self, logits: &mut [f32], position: usize) -> Option<FinishReason> {
        let token = self
            .forced
            .pop_front()
            .unwrap_or_else(|| self.request.sampler.sample(logits, &self.tokens, position as u64));
        self.tokens.push(token);
        match self.request.listener.token(token) {
            Verdict::Stop(reason) => return Some(reason),
            Verdict::Force(tokens) => self.forced.extend(tokens),
            Verdict::Continue => {}
        }
        (self.tokens.len() >= self.request.max_tokens).then_some(FinishReason::Length)
    }

    /// Ends in good order.
    pub(super) fn finish(self, reason: FinishReason, cache: &KvCache<f16>, stats: CacheStats) {
        let Self { request, reply, tokens, timing, .. } = self;
        // The listener gives out its last words before anyone hears of the end.
        drop(request);
        let finished = Finished { tokens, reason, frozen: cache.freeze(), stats, timing };
        // Who asked may be gone: then nobody stores this, and the stored state stands.
        let _ = reply.send(Ok(Box::new(finished)));
    }
}
