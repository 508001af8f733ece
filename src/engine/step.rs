//! The loop: take commands, read one block, decode one step for all who generate, hand out.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use half::f16;
use tokio::sync::mpsc;

use super::memory::KvMemory;
use super::plan::{Next, Pending};
use super::sequence::{Generation, Job, Sequence};
use super::{Command, EngineError, Feed, FinishReason, SequenceId};
use crate::cache::KvCache;
use crate::model::decoder::{BLOCK, Decoder, Workspace};

/// What the engine thread owns.
pub(super) struct Loop {
    decoder: Arc<Decoder>,
    memory: Arc<KvMemory>,
    tool_call_token: Option<u32>,
    inbox: mpsc::Receiver<Command>,
    sequences: BTreeMap<SequenceId, Sequence>,
    work: Workspace<f16>,
    logits: Vec<f32>,
    /// Counts uses, for parking the least recently used.
    clock: u64,
    /// Whose block was read last; the next in order has its turn.
    last_read: SequenceId,
}

impl Loop {
    pub(super) fn new(
        decoder: Arc<Decoder>,
        memory: Arc<KvMemory>,
        tool_call_token: Option<u32>,
        inbox: mpsc::Receiver<Command>,
    ) -> Self {
        Self {
            decoder,
            memory,
            tool_call_token,
            inbox,
            sequences: BTreeMap::new(),
            work: Workspace::default(),
            logits: Vec::new(),
            clock: 0,
            last_read: SequenceId(0),
        }
    }

    /// Works until the last [`super::Engine`] is gone or one says stop.
    pub(super) fn run(mut self) {
        'work: loop {
            self.finish_cancelled();
            if !self.sequences.values().any(|s| s.can_read() || s.can_decode()) {
                if self.refuse_a_starved() {
                    continue;
                }
                match self.inbox.blocking_recv() {
                    Some(Command::Stop) | None => break 'work,
                    Some(command) => self.guarded(|own| own.handle(command)),
                }
            }
            loop {
                match self.inbox.try_recv() {
                    Ok(Command::Stop) | Err(mpsc::error::TryRecvError::Disconnected) => {
                        break 'work;
                    }
                    Ok(command) => self.guarded(|own| own.handle(command)),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                }
            }
            self.guarded(Self::work_in_turn);
        }
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// One block, and then as much time for those who generate, since a block takes as long as
    /// many steps.
    fn work_in_turn(&mut self) {
        let started = Instant::now();
        self.read_one();
        let reading = started.elapsed();
        let decoding = Instant::now();
        while self.decode_all() && decoding.elapsed() < reading && self.inbox.is_empty() {
            self.finish_cancelled();
        }
    }

    /// Does some work; where it panics outside a step, nobody knows whose cache is whole, so all
    /// go. Their owners have them, or the text they are made from.
    fn guarded(&mut self, work: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let all: Vec<_> = self.sequences.keys().copied().collect();
            self.recover(&all, &*panic);
        }
    }

    fn handle(&mut self, command: Command) {
        self.clock += 1;
        match command {
            Command::Read { feed, wait, reply } => match self.accept(feed, false) {
                Ok(sequence) if wait && sequence.can_read() => {
                    sequence.job = Job::Reading(reply);
                }
                // Who asked may have gone away: nothing hangs on these answers.
                Ok(sequence) => drop(reply.send(Ok(sequence.stats()))),
                Err(error) => drop(reply.send(Err(error))),
            },
            Command::Generate { feed, generate, reply } => match self.accept(feed, true) {
                Ok(sequence) if sequence.pending.is_empty() => {
                    drop(reply.send(Err(EngineError::EmptyPrompt)));
                }
                Ok(sequence) => {
                    let n_prompt = sequence.pending.len();
                    let generation = Generation::new(*generate, reply, n_prompt);
                    sequence.job = Job::Generating(Box::new(generation));
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Command::Freeze { id, reply } => {
                let frozen = self.resident(id).map(|s| (s.cache.freeze(), s.stats()));
                drop(reply.send(frozen));
            }
            Command::Positions { id, layer_idx, head_idx, reply } => {
                let positions = self.resident(id).map(|s| {
                    let layer = s.cache.layers().get(layer_idx);
                    let is_head = head_idx < s.cache.shape().n_kv_heads;
                    layer.filter(|_| is_head).map_or(Vec::new(), |l| l.positions(head_idx).to_vec())
                });
                drop(reply.send(positions));
            }
            Command::Configure { id, budget, policy, reply } => {
                let scratch = &self.work.scratch;
                let configured = self.sequences.get_mut(&id).map(|sequence| {
                    sequence.cache.configure(budget, policy, self.decoder.rope(), scratch);
                    (sequence.cache.freeze(), sequence.cache.logical())
                });
                drop(reply.send(configured.ok_or(EngineError::NotResident)));
            }
            Command::Stats { id, reply } => drop(reply.send(self.resident(id).map(|s| s.stats()))),
            Command::Drop { id } => self.remove(id),
            Command::Stop => unreachable!("the loop ends at this command"),
        }
    }

    fn resident(&self, id: SequenceId) -> Result<&Sequence, EngineError> {
        self.sequences.get(&id).ok_or(EngineError::NotResident)
    }

    /// Takes tokens, and a cache where there is one, into the engine's keeping.
    ///
    /// One that finds no room is refused, or, where it `waits`, paid for before its first step.
    fn accept(&mut self, feed: Feed, waits: bool) -> Result<&mut Sequence, EngineError> {
        if let Some(cache) = feed.cache {
            self.remove(feed.id);
            let mut charged = cache.bytes();
            if !self.make_room(feed.id, charged) {
                if !waits {
                    return Err(self.out_of_memory(&cache));
                }
                charged = 0;
            }
            let sequence = Sequence {
                cache,
                charged,
                pending: Pending::default(),
                job: Job::Idle,
                stalled: false,
                last_used: self.clock,
            };
            self.sequences.insert(feed.id, sequence);
        }
        let clock = self.clock;
        let sequence = self.sequences.get_mut(&feed.id).ok_or(EngineError::NotResident)?;
        sequence.last_used = clock;
        sequence.stalled = false;
        feed.runs.into_iter().for_each(|run| sequence.pending.push(run));
        Ok(sequence)
    }

    fn out_of_memory(&self, cache: &KvCache<f16>) -> EngineError {
        let needed = cache.bytes_after(BLOCK).max(cache.bytes());
        EngineError::KvMemory { needed, limit: self.memory.limit() }
    }

    /// Takes memory, parking idle sequences, least recently used first, until it is there. A
    /// parked sequence is stored by its owner, who hands it over again when it is wanted.
    fn make_room(&mut self, asking: SequenceId, bytes: usize) -> bool {
        let held = self.sequences.get(&asking).map_or(0, |s| s.charged);
        if held + bytes > self.memory.limit() {
            // Nobody's parking would help.
            return false;
        }
        while !self.memory.take(bytes) {
            let idle = self
                .sequences
                .iter()
                .filter(|(id, s)| **id != asking && matches!(s.job, Job::Idle))
                .min_by_key(|(_, s)| s.last_used);
            match idle {
                Some((&id, _)) => self.remove(id),
                None => return false,
            }
        }
        true
    }

    /// Takes the memory that `n_tokens` more need; where others hold it, the sequence waits.
    fn charge(&mut self, id: SequenceId, n_tokens: usize) -> bool {
        let Some(sequence) = self.sequences.get(&id) else { return false };
        let wanted = sequence.cache.bytes_after(n_tokens).saturating_sub(sequence.charged);
        let granted = self.make_room(id, wanted);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.stalled = !granted;
            if granted {
                sequence.charged += wanted;
            }
        }
        granted
    }

    /// Nobody runs, so no memory will come free: of those who wait for it the last to come is
    /// told so, and the others try again.
    fn refuse_a_starved(&mut self) -> bool {
        let starved = self.sequences.iter().filter(|(_, s)| s.is_awaited());
        let Some((&id, sequence)) = starved.max_by_key(|(_, s)| s.last_used) else { return false };
        let error = self.out_of_memory(&sequence.cache);
        self.fail(id, error);
        true
    }

    fn remove(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.memory.give(sequence.charged);
            self.wake_all();
        }
    }

    fn wake_all(&mut self) {
        self.sequences.values_mut().for_each(|s| s.stalled = false);
    }

    /// Ends a sequence's job with an error. Its cache may be half-written, so it goes too.
    fn fail(&mut self, id: SequenceId, error: EngineError) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            match std::mem::replace(&mut sequence.job, Job::Idle) {
                Job::Idle => {}
                Job::Reading(reply) => drop(reply.send(Err(error))),
                Job::Generating(generation) => drop(generation.reply.send(Err(error))),
            }
        }
        self.remove(id);
    }

    fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            let stats = sequence.stats();
            if let Job::Generating(generation) = std::mem::replace(&mut sequence.job, Job::Idle) {
                generation.finish(reason, &sequence.cache, stats);
            }
            self.wake_all();
        }
    }

    /// Reads one block, or replays one token, of the next sequence in turn. Those that someone
    /// waits for come before idle ones.
    fn read_one(&mut self) {
        let readable =
            |(id, s): (&SequenceId, &Sequence)| s.can_read().then_some((*id, s.is_awaited()));
        let candidates: Vec<_> = self.sequences.iter().filter_map(readable).collect();
        let is_any_awaited = candidates.iter().any(|(_, awaited)| *awaited);
        let mut in_turn = candidates.iter().filter(|(_, awaited)| *awaited == is_any_awaited);
        let next = in_turn.clone().find(|(id, _)| *id > self.last_read).or_else(|| in_turn.next());
        let Some(&(id, _)) = next else { return };
        self.last_read = id;
        if !self.charge(id, BLOCK) {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let (logical, forced) = (sequence.cache.logical(), sequence.is_forced());
        let Some(next) = sequence.pending.take(logical, forced) else { return };
        let wants_logits = matches!(sequence.job, Job::Generating(_))
            && sequence.pending.is_empty()
            && matches!(next, Next::Block(_));
        if let Job::Generating(generation) = &mut sequence.job {
            generation.start();
        }
        let (decoder, work, logits) = (&self.decoder, &mut self.work, &mut self.logits);
        let tool_call_token = self.tool_call_token;
        let read = catch_unwind(AssertUnwindSafe(|| match next {
            Next::Block(tokens) => {
                let logits = wants_logits.then_some(logits);
                decoder.prefill(&tokens, &mut sequence.cache, work, logits)
            }
            Next::Replay(token) => {
                make_room_for(token, tool_call_token, &mut sequence.cache, decoder, work);
                decoder.decode(&[token], &mut [&mut *sequence.cache], work, None)
            }
        }));
        match read {
            Ok(Ok(())) => self.after_reading(id, wants_logits),
            Ok(Err(error)) => self.fail(id, EngineError::Step(error.to_string())),
            Err(panic) => self.recover(&[id], &*panic),
        }
    }

    fn after_reading(&mut self, id: SequenceId, has_logits: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let position = sequence.cache.logical();
        let is_done = !sequence.pending.is_ready(position, false);
        let mut finished = None;
        match &mut sequence.job {
            Job::Idle => {}
            Job::Reading(_) if is_done => {
                let stats = sequence.stats();
                if let Job::Reading(reply) = std::mem::replace(&mut sequence.job, Job::Idle) {
                    drop(reply.send(Ok(stats)));
                }
                self.wake_all();
            }
            Job::Reading(_) => {}
            Job::Generating(generation) => {
                generation.progress(sequence.pending.len());
                generation.timing.prefill =
                    generation.started_at.map_or_else(Default::default, |at| at.elapsed());
                if has_logits {
                    finished = generation.choose(&mut self.logits, position);
                }
            }
        }
        if let Some(reason) = finished {
            self.finish(id, reason);
        }
    }

    /// Ends the generations that nobody wants any more, those that wait for memory too.
    fn finish_cancelled(&mut self) {
        let is_cancelled = |s: &Sequence| matches!(&s.job, Job::Generating(g) if g.is_cancelled());
        let cancelled = self.sequences.iter().filter(|(_, s)| is_cancelled(s));
        for id in cancelled.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.finish(id, FinishReason::Cancelled);
        }
    }

    /// One decode step for every sequence that generates and has read its prompt. False where
    /// there is none.
    fn decode_all(&mut self) -> bool {
        let context = self.decoder.config().context_length;
        let waiting: Vec<_> =
            self.sequences.iter().filter(|(_, s)| s.can_decode()).map(|(id, _)| *id).collect();
        let mut batch = Vec::with_capacity(waiting.len());
        for id in waiting {
            if self.sequences[&id].cache.logical() == context {
                self.finish(id, FinishReason::Length);
            } else if self.charge(id, 1) {
                batch.push(id);
            }
        }
        // Parking for one may have taken nobody who generates, so the batch still stands.
        let mut tokens = Vec::with_capacity(batch.len());
        let mut caches = Vec::with_capacity(batch.len());
        let (decoder, work, logits) = (&self.decoder, &mut self.work, &mut self.logits);
        for (id, sequence) in &mut self.sequences {
            if !batch.contains(id) {
                continue;
            }
            let Job::Generating(generation) = &mut sequence.job else { continue };
            let Some(token) = generation.last_token() else { continue };
            let before = Instant::now();
            make_room_for(token, self.tool_call_token, &mut sequence.cache, decoder, work);
            generation.timing.compaction += before.elapsed();
            tokens.push(token);
            caches.push(&mut *sequence.cache);
        }
        if tokens.is_empty() {
            return false;
        }
        let started = Instant::now();
        let step = catch_unwind(AssertUnwindSafe(|| {
            decoder.decode(&tokens, &mut caches, work, Some(logits))
        }));
        match step {
            Ok(Ok(())) => self.hand_out(&batch, started),
            Ok(Err(error)) => {
                let error = error.to_string();
                batch.iter().for_each(|id| self.fail(*id, EngineError::Step(error.clone())));
            }
            Err(panic) => self.recover(&batch, &*panic),
        }
        true
    }

    /// Chooses each sequence's next token from its row of the logits.
    fn hand_out(&mut self, batch: &[SequenceId], started: Instant) {
        let mut logits = std::mem::take(&mut self.logits);
        let n_vocab = logits.len() / batch.len();
        for (id, row) in batch.iter().zip(logits.chunks_exact_mut(n_vocab)) {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            let position = sequence.cache.logical();
            let Job::Generating(generation) = &mut sequence.job else { continue };
            generation.timing.decode += started.elapsed();
            if let Some(reason) = generation.choose(row, position) {
                self.finish(*id, reason);
            }
        }
        self.logits = logits;
    }

    /// A step panicked: the sequences in it end, the engine goes on with fresh buffers.
    fn recover(&mut self, ids: &[SequenceId], panic: &(dyn std::any::Any + Send)) {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown panic");
        tracing::error!(message, "a model step panicked");
        self.work = Workspace::default();
        for id in ids {
            self.fail(*id, EngineError::Step(format!("internal error: {message}")));
        }
    }
}

/// Compacts where `token` would find no slot, and early before a tool call, so that none of the
/// call's own tokens falls behind a compaction in its middle. Depends on nothing but the tokens.
fn make_room_for(
    token: u32,
    tool_call_token: Option<u32>,
    cache: &mut KvCache<f16>,
    decoder: &Decoder,
    work: &mut Workspace<f16>,
) {
    let budget = cache.budget();
    let opens_tool_call = Some(token) == tool_call_token;
    let is_half_full = cache.kept() > budget.n_slots + budget.n_buffer / 2;
    if cache.is_full() || (opens_tool_call && is_half_full) {
        cache.compact(decoder.rope(), &work.scratch);
    }
}
