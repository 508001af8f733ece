//! A session while the engine works on it.

use std::collections::VecDeque;
use std::time::Instant;

use super::plan::Pending;
use super::{CacheStats, FinishReason, Finished, Generate, Reply, Resident, Timing, Verdict};

/// What is to be read into a cache, and what that is wanted for.
pub(super) struct Sequence {
    pub(super) pending: Pending,
    /// The cache's next position.
    pub(super) position: usize,
    pub(super) job: Job,
}

/// Who waits for a sequence.
pub(super) enum Job {
    /// Nobody: the cache rests, under this number, and is lent for each block.
    Ahead(u64),
    /// All whole blocks of pending tokens are to be read.
    Reading(Resident, Reply<Resident>),
    Generating(Box<Generation>),
}

impl Sequence {
    /// Whether someone waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self.job, Job::Ahead(_))
    }

    /// Whether the last, short block is to be read too.
    pub(super) fn is_forced(&self) -> bool {
        matches!(self.job, Job::Generating(_))
    }

    pub(super) fn can_read(&self) -> bool {
        self.pending.is_ready(self.position, self.is_forced())
    }

    pub(super) fn can_decode(&self) -> bool {
        self.pending.is_empty() && self.is_forced()
    }
}

/// A generation under way.
pub(super) struct Generation {
    pub(super) resident: Resident,
    request: Generate,
    pub(super) reply: Reply<Box<Finished>>,
    /// All tokens chosen; the last is not in the cache yet.
    tokens: Vec<u32>,
    /// Tokens that come next whatever the logits say.
    forced: VecDeque<u32>,
    n_prompt: usize,
    pub(super) started_at: Option<Instant>,
    pub(super) timing: Timing,
}

impl Generation {
    pub(super) fn new(
        resident: Resident,
        request: Generate,
        reply: Reply<Box<Finished>>,
        n_prompt: usize,
    ) -> Self {
        Self {
            resident,
            request,
            reply,
            tokens: Vec::new(),
            forced: VecDeque::new(),
            n_prompt,
            started_at: None,
            timing: Timing::default(),
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
            self.timing.queue = self.request.asked_at.elapsed();
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
    pub(super) fn finish(self, reason: FinishReason, n_pending: usize) {
        let Self { resident, request, reply, tokens, timing, .. } = self;
        // The listener gives out its last words before anyone hears of the end.
        drop(request);
        let stats = CacheStats { pending: n_pending, ..CacheStats::of(&resident.cache) };
        let finished = Finished { tokens, reason, resident: Some(resident), stats, timing };
        // Who asked may be gone: then nobody stores this, and the stored state stands.
        let _ = reply.send(Ok(Box::new(finished)));
    }
}
