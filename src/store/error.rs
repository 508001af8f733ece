//! What can go wrong between a record and the disk.

use std::io;
use std::path::PathBuf;

use super::MAX_CHUNK_BYTES;

/// Why the store could not do what was asked; nothing that was stored before is lost by it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("session id {id:?} is not legal; use 1 to 256 characters of A-Z a-z 0-9 . _ : -")]
    BadId { id: String },
    #[error("there is no session {id}")]
    NotFound { id: String },
    #[error("session {id} exists already; delete it or choose another id")]
    Exists { id: String },
    #[error("store {} is in use{}; stop that process or choose another folder", dir.display(), by(*holder))]
    Locked { dir: PathBuf, holder: Option<u32> },
    #[error("{what}")]
    Damaged { what: String },
    #[error("{what} has format version {found}, this program reads {known}; use a newer program")]
    UnsupportedVersion { what: String, found: u8, known: u8 },
    #[error("session {id} has {expected} entries, so the next is {expected} and not {given}")]
    OutOfOrder { id: String, expected: u64, given: u64 },
    #[error("chunk {key} has {bytes} bytes; a chunk holds at most {MAX_CHUNK_BYTES}")]
    ChunkTooLarge { key: u64, bytes: usize },
    #[error("chunk {key} is given twice in one image")]
    ChunkTwice { key: u64 },
    #[error(
        "a cache that takes {bytes} bytes on disk passes the store's limit of {limit}; raise the limit"
    )]
    ImageTooLarge { bytes: u64, limit: u64 },
    #[error("disk full: {needed} bytes are needed at {} and {free} are free; free some space", dir.display())]
    DiskFull { dir: PathBuf, needed: u64, free: u64 },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("database {}: {message}", dir.display())]
    Database { dir: PathBuf, message: String },
}

/// Why a cache image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image cannot be trusted and has been dropped; the cache must be rebuilt from the text.
    #[error("stored cache is damaged: {what}; it is rebuilt from the text")]
    Damaged { what: String },
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for ImageError {
    fn from(err: StoreError) -> Self {
        match err {
            StoreError::Damaged { what } => Self::Damaged { what },
            err => Self::Store(err),
        }
    }
}

fn by(holder: Option<u32>) -> String {
    holder.map_or_else(|| " by another process".to_owned(), |pid| format!(" by process {pid}"))
}
