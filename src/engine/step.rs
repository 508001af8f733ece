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
use crate::model::ModelError;
use crate::model::decoder::{Decoder, Workspace};

/// What the engine thread owns.
pub(super) struct Loop {
    decoder: Arc<Decoder>,
    memory: Arc<KvMemory>,
    tool_call_token: Option<u32>,
    inbox: mpsc::Receiver<Command>,
    sequences: BTreeMap<SequenceId, Sequence>,
    work: Workspace<f16>,
    logits: Vec<f32>,
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
            last_read: SequenceId(0),
        }
    }

    /// Works until the last [`super::Engine`] is gone or one says stop.
    pub(super) fn run(mut self) {
        'work: loop {
            self.finish_cancelled();
            if !self.sequences.values().any(|s| s.can_read() || s.can_decode()) {
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
            self.fail(id, EngineError::Stopped);
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
        match command {
            Command::ReadAhead { id, sequence } => {
                self.sequences.insert(id, sequence);
            }
            Command::Read { feed: Feed { id, resident, runs }, reply } => {
                let position = resident.cache.logical();
                let pending = Pending::of(runs);
                if pending.is_ready(position, false) {
                    let job = Job::Reading(resident, reply);
                    self.sequences.insert(id, Sequence { pending, position, job });
                } else {
                    // Who asked may have gone away: nothing hangs on the answer.
                    drop(reply.send(Ok(resident)));
                }
            }
            Command::Generate { feed: Feed { id, resident, runs }, generate, reply } => {
                let position = resident.cache.logical();
                let pending = Pending::of(runs);
                if pending.is_empty() {
                    drop(reply.send(Err(EngineError::EmptyPrompt)));
                    return;
                }
                let generation = Generation::new(resident, *generate, reply, pending.len());
                let job = Job::Generating(Box::new(generation));
                self.sequences.insert(id, Sequence { pending, position, job });
            }
            Command::Configure { mut resident, budget, policy, reply } => {
                let (rope, scratch) = (self.decoder.rope(), &self.work.scratch);
                resident.cache.configure(budget, policy, rope, scratch);
                self.work.release();
                drop(reply.send(Ok(resident)));
            }
            Command::Stop => unreachable!("the loop ends at this command"),
        }
    }

    /// Ends work on a sequence. What it needed beside its cache goes before its memory does.
    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        self.work.release();
        self.sequences.remove(&id)
    }

    /// Ends a sequence's job with an error. Its cache may be half-written, so it goes too.
    fn fail(&mut self, id: SequenceId, error: EngineError) {
        match self.remove(id).map(|sequence| sequence.job) {
            Some(Job::Ahead(since)) => self.memory.abandon(id, since),
            Some(Job::Reading(resident, reply)) => {
                drop(resident);
                drop(reply.send(Err(error)));
            }
            Some(Job::Generating(generation)) => {
                let Generation { resident, reply, .. } = *generation;
                drop(resident);
                drop(reply.send(Err(error)));
            }
            None => {}
        }
    }

    fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        let Some(Sequence { pending, job, .. }) = self.remove(id) else { return };
        if let Job::Generating(generation) = job {
            generation.finish(reason, pending.len());
        }
    }

    /// Reads one block, or replays one token, of the next sequence in turn. Those that someone
    /// waits for come before others.
    fn read_one(&mut self) {
        let readable =
            |(id, s): (&SequenceId, &Sequence)| s.can_read().then_some((*id, s.is_awaited()));
        let candidates: Vec<_> = self.sequences.iter().filter_map(readable).collect();
        let is_any_awaited = candidates.iter().any(|(_, awaited)| *awaited);
        let mut in_turn = candidates.iter().filter(|(_, awaited)| *awaited == is_any_awaited);
        let next = in_turn.clone().find(|(id, _)| *id > self.last_read).or_else(|| in_turn.next());
        let Some(&(id, _)) = next else { return };
        self.last_read = id;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let forced = sequence.is_forced();
        let mut lent = match sequence.job {
            Job::Ahead(since) => match self.memory.lend(id, since) {
                Some(cache) => Some(cache),
                None => {
                    // Parked, or taken by its owner.
                    self.remove(id);
                    return;
                }
            },
            Job::Reading(..) | Job::Generating(_) => None,
        };
        let cache = match (&mut sequence.job, &mut lent) {
            (Job::Reading(resident, _), _) => &mut resident.cache,
            (Job::Generating(generation), _) => {
                generation.start();
                &mut generation.resident.cache
            }
            (Job::Ahead(_), Some(cache)) => cache,
            (Job::Ahead(_), None) => return,
        };
        let Some(next) = sequence.pending.take(sequence.position, forced) else { return };
        let wants_logits = forced && sequence.pending.is_empty() && matches!(next, Next::Block(_));
        let (decoder, work, logits) = (&self.decoder, &mut self.work, &mut self.logits);
        let tool_call_token = self.tool_call_token;
        let read = catch_unwind(AssertUnwindSafe(|| match next {
            Next::Block(tokens) => {
                decoder.prefill(&tokens, cache, work, wants_logits.then_some(logits))
            }
            Next::Replay(token) => {
                make_room_for(token, tool_call_token, cache, decoder, work);
                decoder.decode(&[token], &mut [&mut **cache], work, None)
            }
        }));
        let is_whole = matches!(read, Ok(Ok(())));
        sequence.position = cache.logical();
        if let Some(cache) = lent.filter(|_| is_whole) {
            let is_done = !sequence.can_read();
            // Once it is back it may be parked at any time, and its share of the buffers with it.
            self.work.release();
            if is_done {
                self.sequences.remove(&id);
            }
            self.memory.give_back(id, cache, is_done);
        }
        match read {
            Ok(Ok(())) => self.after_reading(id, wants_logits),
            Ok(Err(error)) => self.fail_step(&[id], &error),
            Err(panic) => self.recover(&[id], &*panic),
        }
    }

    fn after_reading(&mut self, id: SequenceId, has_logits: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let (position, n_pending) = (sequence.position, sequence.pending.len());
        match &mut sequence.job {
            Job::Ahead(_) => {}
            Job::Reading(..) if sequence.pending.is_ready(position, false) => {}
            Job::Reading(..) => {
                if let Some(Job::Reading(resident, reply)) = self.remove(id).map(|s| s.job) {
                    drop(reply.send(Ok(resident)));
                }
            }
            Job::Generating(generation) => {
                generation.progress(n_pending);
                generation.timing.prefill =
                    generation.started_at.map_or_else(Default::default, |at| at.elapsed());
                if has_logits && let Some(reason) = generation.choose(&mut self.logits, position) {
                    self.finish(id, reason);
                }
            }
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
        let is_at_end = |s: &Sequence| s.can_decode() && s.position == context;
        let full = self.sequences.iter().filter(|(_, s)| is_at_end(s));
        for id in full.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.finish(id, FinishReason::Length);
        }
        let (mut batch, mut tokens, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        let (decoder, work, logits) = (&self.decoder, &mut self.work, &mut self.logits);
        for (id, sequence) in self.sequences.iter_mut().filter(|(_, s)| s.can_decode()) {
            let Job::Generating(generation) = &mut sequence.job else { continue };
            let Some(token) = generation.last_token() else { continue };
            let cache = &mut generation.resident.cache;
            let before = Instant::now();
            make_room_for(token, self.tool_call_token, cache, decoder, work);
            generation.timing.compaction += before.elapsed();
            sequence.position += 1;
            batch.push(*id);
            tokens.push(token);
            caches.push(&mut **cache);
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
            Ok(Err(error)) => self.fail_step(&batch, &error),
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
            let position = sequence.position;
            let Job::Generating(generation) = &mut sequence.job else { continue };
            generation.timing.decode += started.elapsed();
            if let Some(reason) = generation.choose(row, position) {
                self.finish(*id, reason);
            }
        }
        self.logits = logits;
    }

    fn fail_step(&mut self, ids: &[SequenceId], error: &ModelError) {
        ids.iter().for_each(|id| self.fail(*id, EngineError::Step(error.to_string())));
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
pub(crate) fn make_room_for(
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
