//! The one account of all KV bytes, asked before anything grows.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit over the KV bytes of all sessions and models.
#[derive(Debug)]
pub struct KvMemory {
    limit: usize,
    used: AtomicUsize,
}

impl KvMemory {
    /// A limit in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` from the account; false, and nothing taken, where they are not there.
    pub fn take(&self, bytes: usize) -> bool {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .is_ok()
    }

    /// Gives back what was taken.
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
