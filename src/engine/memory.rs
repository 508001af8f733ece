//! The one account of all KV bytes, and the caches that nobody works on.
//!
//! Whoever works on a cache first asks for all that it may come to take, so nobody ever holds
//! memory and waits for more. Who asks in vain waits in line. A cache that nobody works on rests
//! here, where any engine's need may have it dropped, least recently used first: the store, or
//! the text, can give it again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::f16;
use tokio::sync::{Notify, oneshot};

use super::{CacheStats, EngineError, SequenceId};
use crate::cache::KvCache;
use crate::model::decoder::BLOCK;

type Cache = Box<KvCache<f16>>;

/// Names an engine in the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineId(u64);

/// What work on a cache takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the cache itself at its largest.
    pub cache: usize,
    /// Bytes of buffers beside it, which an engine has once, however many caches it works on.
    pub working: usize,
}

impl Need {
    /// What reading on to `n_tokens` in all takes; `compacts` where the cache is to be compacted
    /// in any case.
    pub fn of(cache: &KvCache<f16>, n_tokens: usize, compacts: bool) -> Self {
        Self {
            cache: cache.bytes_after(n_tokens.saturating_sub(cache.logical())),
            working: cache.working_bytes(n_tokens, BLOCK, compacts),
        }
    }

    /// All of it.
    pub fn bytes(self) -> usize {
        self.cache.saturating_add(self.working)
    }
}

/// A limit over the KV bytes of all sessions and models.
pub struct KvMemory {
    limit: usize,
    state: Mutex<State>,
    /// A lent cache came back.
    returned: Notify,
}

#[derive(Default)]
struct State {
    /// Bytes of caches, resting ones included.
    caches: usize,
    /// Working bytes of each piece of work under way; an engine takes the most of its own.
    working: BTreeMap<(EngineId, u64), usize>,
    peak: usize,
    /// Counts uses.
    clock: u64,
    resting: HashMap<SequenceId, Place>,
    waiting: VecDeque<Waiter>,
}

/// A cache that rests, or that its engine has for one block.
struct Place {
    /// None while it is lent.
    cache: Option<Cache>,
    taken: Taken,
    last_used: u64,
    stats: CacheStats,
    /// It is to be dropped once it is back.
    is_forgotten: bool,
}

struct Waiter {
    id: SequenceId,
    engine: EngineId,
    need: Need,
    grant: oneshot::Sender<Granted>,
}

/// What is noted in the account for one piece of work.
#[derive(Clone, Copy)]
struct Taken {
    cache: usize,
    working: (EngineId, u64),
}

/// Memory that was granted; it is given back when this is dropped.
struct Charge {
    memory: Arc<KvMemory>,
    /// None once another keeper has it.
    taken: Option<Taken>,
}

/// Leave to hold a cache: one that was resting, or room for one.
pub struct Granted {
    charge: Charge,
    /// The cache, unless it has to be made anew.
    pub cache: Option<Cache>,
}

impl Granted {
    /// The resting cache, or one that `make` gives; it must need no more than was asked for.
    pub fn or_make(self, make: impl FnOnce() -> Cache) -> Resident {
        Resident { cache: self.cache.unwrap_or_else(make), charge: self.charge }
    }
}

/// A cache together with the memory that it may take.
pub struct Resident {
    pub cache: Cache,
    charge: Charge,
}

impl Place {
    fn is_lent(&self) -> bool {
        self.cache.is_none()
    }
}

impl State {
    fn used(&self) -> usize {
        self.caches + self.working_bytes(None, |_| true)
    }

    /// Working bytes of all engines for the work under way that `counts`, and for some more.
    fn working_bytes(
        &self,
        more: Option<(EngineId, usize)>,
        counts: impl Fn(&(EngineId, u64)) -> bool,
    ) -> usize {
        let mut most: BTreeMap<EngineId, usize> = BTreeMap::new();
        let now = self.working.iter().filter(|(work, _)| counts(work));
        for (engine, bytes) in now.map(|((engine, _), bytes)| (*engine, *bytes)).chain(more) {
            let entry = most.entry(engine).or_default();
            *entry = bytes.max(*entry);
        }
        most.values().sum()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn note(&mut self, engine: EngineId, need: Need) -> Taken {
        let working = (engine, self.tick());
        self.caches += need.cache;
        self.working.insert(working, need.working);
        self.peak = self.peak.max(self.used());
        Taken { cache: need.cache, working }
    }

    fn give_back(&mut self, taken: Taken) {
        self.caches -= taken.cache;
        self.working.remove(&taken.working);
    }

    /// Takes the memory if it is there, or parking brings it about; `parked` has what to drop.
    fn grant(
        &mut self,
        limit: usize,
        id: SequenceId,
        engine: EngineId,
        need: Need,
        parked: &mut Vec<Cache>,
    ) -> Option<(Taken, Option<Cache>)> {
        if self.resting.get(&id).is_some_and(Place::is_lent) {
            return None;
        }
        let more = Some((engine, need.working));
        let idle = || self.resting.values().filter(|place| !place.is_lent());
        let idle_bytes: usize = idle().map(|place| place.taken.cache).sum();
        let is_idle: BTreeSet<_> = idle().map(|place| place.taken.working).collect();
        let working = self.working_bytes(more, |work| !is_idle.contains(work));
        if self.caches - idle_bytes + need.cache + working > limit {
            return None;
        }
        let own = self.remove(id);
        while self.caches + need.cache + self.working_bytes(more, |_| true) > limit {
            let idle = self.resting.iter().filter(|(_, place)| !place.is_lent());
            let Some((&id, _)) = idle.min_by_key(|(_, place)| place.last_used) else { break };
            tracing::debug!(sequence = id.0, "an idle session's cache is parked");
            parked.extend(self.remove(id));
        }
        Some((self.note(engine, need), own))
    }

    /// Takes a place out of the account.
    fn remove(&mut self, id: SequenceId) -> Option<Cache> {
        let place = self.resting.remove(&id)?;
        self.give_back(place.taken);
        place.cache
    }

    /// Notes that a piece of work is over, and what its cache has come to.
    fn settle_for(&mut self, taken: &mut Taken, cache: usize) {
        self.caches = self.caches - taken.cache + cache;
        self.working.remove(&taken.working);
        self.peak = self.peak.max(self.used());
        taken.cache = cache;
    }
}

impl KvMemory {
    /// A limit in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), returned: Notify::new() }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// The most bytes that were ever in use at once.
    pub fn peak(&self) -> usize {
        self.state().peak
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between two changes that belong together can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an engine.
    pub(super) fn enter(&self) -> EngineId {
        EngineId(self.state().tick())
    }

    /// Takes memory for work on a cache, and the cache itself if it rests here; waits in line
    /// until there is as much.
    ///
    /// # Errors
    /// [`EngineError::KvMemory`] where there never will be.
    pub(super) async fn admit(
        self: &Arc<Self>,
        id: SequenceId,
        engine: EngineId,
        need: Need,
    ) -> Result<Granted, EngineError> {
        if need.bytes() > self.limit {
            return Err(EngineError::KvMemory { needed: need.bytes(), limit: self.limit });
        }
        let (grant, granted) = oneshot::channel();
        self.state().waiting.push_back(Waiter { id, engine, need, grant });
        // Whoever goes away may have held up those behind.
        let _leaving = OnDrop(|| self.settle());
        self.settle();
        granted.await.map_err(|_| EngineError::Stopped)
    }

    /// The same, if the memory is there now and nobody waits for it.
    pub(super) async fn try_admit(
        self: &Arc<Self>,
        id: SequenceId,
        engine: EngineId,
        need: Need,
    ) -> Option<Granted> {
        let mut parked = Vec::new();
        let mut state = self.state_with_returned(id).await;
        if !state.waiting.is_empty() {
            return None;
        }
        let (taken, cache) = state.grant(self.limit, id, engine, need, &mut parked)?;
        drop(parked);
        drop(state);
        Some(Granted { charge: self.charge(taken), cache })
    }

    /// Takes out a cache that rests here, with no more memory than it has.
    pub(super) async fn take(self: &Arc<Self>, id: SequenceId) -> Option<Resident> {
        let place = self.state_with_returned(id).await.resting.remove(&id)?;
        let charge = self.charge(place.taken);
        Some(Resident { cache: place.cache?, charge })
    }

    fn charge(self: &Arc<Self>, taken: Taken) -> Charge {
        Charge { memory: Arc::clone(self), taken: Some(taken) }
    }

    /// The account once no engine has the cache for a block.
    async fn state_with_returned(&self, id: SequenceId) -> MutexGuard<'_, State> {
        loop {
            let returned = self.returned.notified();
            tokio::pin!(returned);
            returned.as_mut().enable();
            {
                let state = self.state();
                if !state.resting.get(&id).is_some_and(Place::is_lent) {
                    return state;
                }
            }
            returned.await;
        }
    }

    /// A cache in numbers, if it is here.
    pub fn stats(&self, id: SequenceId) -> Option<CacheStats> {
        let state = self.state();
        let place = state.resting.get(&id).filter(|place| !place.is_forgotten)?;
        Some(place.stats)
    }

    /// Drops a cache that rests here; one that is lent, once it is back.
    pub fn forget(self: &Arc<Self>, id: SequenceId) {
        let mut state = self.state();
        let cache = match state.resting.get_mut(&id) {
            Some(place) if place.is_lent() => {
                place.is_forgotten = true;
                None
            }
            _ => state.remove(id),
        };
        // Before the account has it again for others.
        drop(cache);
        drop(state);
        self.settle();
    }

    /// Lets a cache rest, with no more memory than it has grown to.
    pub fn rest(self: &Arc<Self>, id: SequenceId, resident: Resident) {
        self.put(id, resident, true);
    }

    /// Lets a cache rest with all the memory that was granted, to be read into block by block.
    /// Gives a number that names this rest to [`Self::lend`].
    pub(super) fn rest_granted(self: &Arc<Self>, id: SequenceId, resident: Resident) -> u64 {
        self.put(id, resident, false)
    }

    fn put(self: &Arc<Self>, id: SequenceId, resident: Resident, is_done: bool) -> u64 {
        let Resident { cache, mut charge } = resident;
        let mut state = self.state();
        let before = state.remove(id);
        let last_used = state.tick();
        if let Some(mut taken) = charge.taken.take() {
            if is_done {
                state.settle_for(&mut taken, cache.bytes());
            }
            let stats = CacheStats::of(&cache);
            let cache = Some(cache);
            let place = Place { cache, taken, last_used, stats, is_forgotten: false };
            state.resting.insert(id, place);
        }
        drop(before);
        drop(state);
        self.settle();
        last_used
    }

    /// Lends a cache for one block, if it has rested here since [`Self::rest_granted`] said so.
    pub(super) fn lend(&self, id: SequenceId, since: u64) -> Option<Cache> {
        let mut state = self.state();
        state.resting.get_mut(&id).filter(|place| place.last_used == since)?.cache.take()
    }

    /// Drops the cache that has rested here since [`Self::rest_granted`] said so, or was lent.
    pub(super) fn abandon(self: &Arc<Self>, id: SequenceId, since: u64) {
        let mut state = self.state();
        if state.resting.get(&id).is_some_and(|place| place.last_used == since) {
            drop(state.remove(id));
        }
        drop(state);
        self.settle();
        self.returned.notify_waiters();
    }

    /// Takes back what was lent; with `is_done` it keeps no more memory than it has grown to.
    pub(super) fn give_back(self: &Arc<Self>, id: SequenceId, cache: Cache, is_done: bool) {
        let mut state = self.state();
        match state.resting.remove(&id) {
            Some(mut place) if !place.is_forgotten => {
                if is_done {
                    state.settle_for(&mut place.taken, cache.bytes());
                }
                place.stats = CacheStats::of(&cache);
                place.cache = Some(cache);
                state.resting.insert(id, place);
            }
            forgotten => {
                // Before the account has its bytes again for others.
                drop(cache);
                if let Some(place) = forgotten {
                    state.give_back(place.taken);
                }
            }
        }
        drop(state);
        self.settle();
        self.returned.notify_waiters();
    }

    /// Admits those first in line for whom there is memory.
    fn settle(self: &Arc<Self>) {
        let (mut granted, mut parked) = (Vec::new(), Vec::new());
        let mut state = self.state();
        while let Some(first) = state.waiting.front() {
            let (id, engine, need) = (first.id, first.engine, first.need);
            let is_gone = first.grant.is_closed();
            let admitted = match is_gone {
                true => None,
                false => state.grant(self.limit, id, engine, need, &mut parked),
            };
            if admitted.is_none() && !is_gone {
                break;
            }
            granted.extend(state.waiting.pop_front().zip(admitted));
        }
        drop(parked);
        drop(state);
        for (waiter, (taken, cache)) in granted {
            let granted = Granted { charge: self.charge(taken), cache };
            if let Err(Granted { charge, cache: Some(cache) }) = waiter.grant.send(granted) {
                // Who asked has gone away just now.
                self.rest(waiter.id, Resident { cache, charge });
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.memory.state().give_back(taken);
            self.memory.settle();
        }
    }
}

/// Does something at the end of a scope.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
