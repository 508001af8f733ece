//! Records that live as long as the process, for tests and for sessions that are not to be kept.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::StoreError;
use super::records::{Batch, Durability, Records};

/// The in-memory twin of [`super::sled::SledRecords`].
#[derive(Debug, Default)]
pub struct Memory {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Memory {
    fn map(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// A copy that changes on its own.
    #[cfg(test)]
    pub fn snapshot(&self) -> Self {
        Self { map: Mutex::new(self.map().clone()) }
    }
}

impl Records for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map().get(key).cloned())
    }

    fn visit(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        for (key, value) in
            self.map().range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(prefix))
        {
            each(key, value);
        }
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let mut map = self.map();
        for (key, value) in batch.writes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn persist(&self, _: Durability) -> Result<(), StoreError> {
        Ok(())
    }

    fn size_on_disk(&self) -> u64 {
        self.map().iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }
}
