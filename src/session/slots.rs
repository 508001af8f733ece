//! Who may touch a session now: one slot a session, one task a slot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMappedMutexGuard, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::error::SessionError;
use super::generation::Stream;
use super::live::Session;

/// An open session in the hands of one task.
pub type Guard = OwnedMappedMutexGuard<Option<Session>, Session>;

/// A generation that has begun.
#[derive(Clone)]
pub struct Started {
    pub stream: Arc<Stream>,
    pub cancel: CancellationToken,
}

/// Where a session is while it is open.
#[derive(Default)]
pub(super) struct Slot {
    /// None while it is opened, and once it is closed.
    session: Arc<AsyncMutex<Option<Session>>>,
    /// The generation that runs, or the last one.
    generation: Mutex<Option<Started>>,
    is_generating: AtomicBool,
}

impl Slot {
    /// Waits for other short work on the session; a generation is not waited for.
    async fn lock(&self, id: &str) -> Result<OwnedMutexGuard<Option<Session>>, SessionError> {
        self.refuse_while_generating(id)?;
        let mut session = Arc::clone(&self.session).lock_owned().await;
        self.refuse_while_generating(id)?;
        if session.as_ref().is_some_and(Session::is_stale) {
            // What is stored is the truth; it is read when the session is opened again.
            if let Some(stale) = session.take() {
                stale.leave_memory();
            }
        }
        Ok(session)
    }

    fn refuse_while_generating(&self, id: &str) -> Result<(), SessionError> {
        if self.is_generating.load(Ordering::Acquire) {
            return Err(SessionError::Busy(id.to_owned()));
        }
        Ok(())
    }

    fn latest(&self) -> MutexGuard<'_, Option<Started>> {
        // Replaced as a whole, so a panic elsewhere cannot have left it half-written.
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation that runs, or the last one.
    pub(super) fn generation(&self) -> Option<Started> {
        self.latest().clone()
    }

    /// Marks the session as generating, for the task that has its guard.
    pub(super) fn begin(&self, started: Started) {
        *self.latest() = Some(started);
        self.is_generating.store(true, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.is_generating.store(false, Ordering::Release);
    }

    /// Cancels the generation that runs; false where none does.
    pub(super) fn cancel(&self) -> bool {
        let is_running = self.is_generating.load(Ordering::Acquire);
        if let Some(started) = self.latest().as_ref().filter(|_| is_running) {
            started.cancel.cancel();
        }
        is_running
    }

    /// Closes a session that may be in disorder: what is stored of it stands.
    pub(super) async fn evict(&self) {
        if let Some(session) = self.session.lock().await.take() {
            session.leave_memory();
        }
    }
}

/// A slot, and the sole right to what is in it.
pub(super) struct Place {
    pub(super) slot: Arc<Slot>,
    pub(super) session: OwnedMutexGuard<Option<Session>>,
}

/// The slots of all open sessions. The map is never locked across an await: that would hold up
/// every session for one, and whoever holds a session could wait for the map in vain.
#[derive(Default)]
pub(super) struct Slots(Mutex<HashMap<String, Arc<Slot>>>);

impl Slots {
    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        // Each change is one call on the map, so a panic elsewhere spoils nothing here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Slot>> {
        self.map().get(id).cloned()
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.map().keys().cloned().collect()
    }

    /// The place of session `id`, open or not; give it to [`Self::settle`] in the end.
    pub(super) async fn hold(&self, id: &str) -> Result<Place, SessionError> {
        loop {
            let slot = Arc::clone(self.map().entry(id.to_owned()).or_default());
            let session = slot.lock(id).await?;
            // Whoever had it before may have closed it.
            if self.get(id).is_some_and(|current| Arc::ptr_eq(&current, &slot)) {
                return Ok(Place { slot, session });
            }
        }
    }

    /// The place of session `id` where that is open.
    pub(super) async fn held(&self, id: &str) -> Result<Option<Place>, SessionError> {
        while let Some(slot) = self.get(id) {
            let session = slot.lock(id).await?;
            if session.is_some() {
                return Ok(Some(Place { slot, session }));
            }
            if self.get(id).is_some_and(|current| Arc::ptr_eq(&current, &slot)) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Gives a place back; an empty one is removed.
    pub(super) fn settle(&self, id: &str, place: Place) {
        if place.session.is_none() {
            self.map().remove(id);
        }
    }
}
