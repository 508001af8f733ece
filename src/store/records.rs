//! The joint between the store and what keeps its bytes.

use super::StoreError;

/// What a write has to outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of this process, however sudden.
    Process,
    /// Loss of power, where the file system honours fsync.
    Power,
}

/// An ordered map from keys to values of at most about 64 KiB.
pub trait Records: Send + Sync {
    /// The value at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Shows every key that begins with `prefix` and its value, in ascending order.
    fn visit(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError>;

    /// Applies all of `batch` or nothing. After a crash the batches that are found are the first
    /// ones, in order; without [`Records::persist`] the last ones may be missing.
    fn commit(&self, batch: Batch) -> Result<(), StoreError>;

    /// Returns when all that was committed outlives what `durability` names.
    fn persist(&self, durability: Durability) -> Result<(), StoreError>;

    /// Bytes the records take on disk, those that wait for reuse included.
    fn size_on_disk(&self) -> u64;
}

/// Writes that happen together.
#[derive(Debug, Default)]
pub struct Batch {
    /// A key and its new value, `None` to delete it.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Bytes of all values.
    pub n_bytes: usize,
}

impl Batch {
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.n_bytes += value.len();
        self.writes.push((key, Some(value)));
    }

    pub fn delete(&mut self, key: Vec<u8>) {
        self.writes.push((key, None));
    }
}

/// All keys that begin with `prefix`.
pub fn keys(records: &dyn Records, prefix: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut keys = Vec::new();
    records.visit(prefix, &mut |key, _| keys.push(key.to_vec()))?;
    Ok(keys)
}
