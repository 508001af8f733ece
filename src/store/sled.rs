//! Records in a sled database, with the care that sled 0.34 needs.

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sled::{Config, Db};

use super::StoreError;
use super::records::{Batch, Durability, Records};

/// Fixed when a database is made. With the default of 512 KiB, a leaf of 64 KiB values spills into
/// files that sled neither syncs nor always removes.
const SEGMENT_BYTES: usize = 8 << 20;
/// sled keeps nearly every page it touches in memory, whatever it is told, and after a crash reads
/// all of the log since it was last opened. So a database is closed once this much has passed
/// through it, and opened again when it is next used.
const RESIDENT_BYTES: usize = 128 << 20;
/// A write that finds less than this free, besides three times its own size, is refused. sled
/// itself does not recover from a full disk without being opened again.
const SPARE_BYTES: u64 = 3 * SEGMENT_BYTES as u64;
/// Left in a database that failed while it ran, so that the next opening looks at all of it.
const SUSPECT: &str = "suspect";

/// One database folder.
pub struct SledRecords {
    /// `None` while closed.
    db: Mutex<Option<Db>>,
    /// sled's own file once more: its flush does not reach the disk, ours does.
    file: File,
    dir: PathBuf,
    durability: Durability,
    /// Bytes read and written since the database was opened.
    n_passed: AtomicUsize,
}

/// How a database was brought up.
pub enum Opened {
    AsItWas(SledRecords),
    /// It could not be read: the old folder was renamed to the path, and an empty one took its place.
    Anew(SledRecords, PathBuf),
}

impl SledRecords {
    /// Opens the database in `dir`, or makes one, and reads all keys that begin with `probe`. The
    /// caller holds a lock that keeps every other process away. Nothing is synced beyond
    /// `durability`.
    ///
    /// A database that cannot be read is first read again without sled's snapshot of it, which is
    /// only a shortcut through the log, and then set aside, never deleted. One that was found
    /// damaged while it ran is set aside at once where it `is_expendable`.
    pub fn open(
        dir: &Path,
        durability: Durability,
        probe: &[u8],
        is_expendable: bool,
    ) -> Result<Opened, StoreError> {
        let is_suspect = dir.join(SUSPECT).exists();
        remove_snapshots(dir, is_suspect)?;
        let n_attempts = if is_suspect && is_expendable { 0 } else { 2 };
        for _ in 0..n_attempts {
            match Self::open_as_is(dir, durability, probe) {
                Err(StoreError::Damaged { what }) => {
                    tracing::error!(what, "database cannot be opened");
                    remove_snapshots(dir, true)?;
                }
                opened => return opened.map(Opened::AsItWas),
            }
        }
        let aside = set_aside(dir)?;
        Ok(Opened::Anew(Self::open_as_is(dir, durability, probe)?, aside))
    }

    fn open_as_is(dir: &Path, durability: Durability, probe: &[u8]) -> Result<Self, StoreError> {
        let db = open_db(dir)?;
        let io = |source| StoreError::Io { path: dir.to_owned(), source };
        let file = File::open(dir.join("db")).map_err(io)?;
        if durability == Durability::Power {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)?;
        }
        // sled opens a log that is shorter than its snapshot says, and fails at reading it.
        guarded(dir, || db.scan_prefix(probe).try_for_each(|pair| pair.map(drop)))?;
        _ = fs::remove_file(dir.join(SUSPECT));
        let (db, n_passed) = (Mutex::new(Some(db)), AtomicUsize::new(0));
        Ok(Self { db, file, dir: dir.to_owned(), durability, n_passed })
    }

    /// Runs a call into sled, `n_bytes` of which pass through; damage that it meets is noted for
    /// the next opening.
    fn call<T>(
        &self,
        n_bytes: usize,
        f: impl FnOnce(&Db) -> sled::Result<T>,
    ) -> Result<T, StoreError> {
        self.n_passed.fetch_add(n_bytes, Relaxed);
        let mut db = self.db.lock().unwrap_or_else(PoisonError::into_inner);
        let res = match &*db {
            Some(db) => guarded(&self.dir, || f(db)),
            None => {
                let opened = open_db(&self.dir);
                opened.and_then(|opened| guarded(&self.dir, || f(db.insert(opened))))
            }
        };
        if let Err(StoreError::Damaged { what }) = &res {
            tracing::error!(what, "database is damaged");
            // Without the note the same is found again later, which is all that can be done.
            _ = fs::write(self.dir.join(SUSPECT), what);
        }
        res
    }

    fn check_space(&self, batch: &Batch) -> Result<(), StoreError> {
        let needed = SPARE_BYTES + 3 * batch.n_bytes as u64;
        // A file system that cannot say how full it is gets the benefit of the doubt.
        let Ok(fs) = rustix::fs::statvfs(&self.dir) else { return Ok(()) };
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        if free >= needed {
            return Ok(());
        }
        Err(StoreError::DiskFull { dir: self.dir.clone(), needed, free })
    }
}

impl Records for SledRecords {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.call(0, |db| Ok(db.get(key)?.map(|value| value.to_vec())))?;
        self.n_passed.fetch_add(value.as_ref().map_or(0, Vec::len), Relaxed);
        Ok(value)
    }

    fn visit(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.call(0, |db| {
            for pair in db.scan_prefix(prefix) {
                let (key, value) = pair?;
                self.n_passed.fetch_add(value.len(), Relaxed);
                each(&key, &value);
            }
            Ok(())
        })
    }

    fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.check_space(&batch)?;
        let mut writes = sled::Batch::default();
        for (key, value) in batch.writes {
            match value {
                Some(value) => writes.insert(key, value),
                None => writes.remove(key),
            }
        }
        self.call(batch.n_bytes, |db| db.apply_batch(writes))
    }

    fn persist(&self, durability: Durability) -> Result<(), StoreError> {
        self.call(0, |db| db.flush())?;
        if durability.min(self.durability) == Durability::Power {
            let io = |source| StoreError::Io { path: self.dir.join("db"), source };
            self.file.sync_data().map_err(io)?;
        }
        // Only here, where nothing waits to be written: closing swallows errors.
        if self.n_passed.load(Relaxed) >= RESIDENT_BYTES {
            self.n_passed.store(0, Relaxed);
            *self.db.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(())
    }

    fn size_on_disk(&self) -> u64 {
        self.call(0, |db| db.size_on_disk()).unwrap_or(0)
    }
}

fn open_db(dir: &Path) -> Result<Db, StoreError> {
    let config = Config::new().path(dir).segment_size(SEGMENT_BYTES).cache_capacity(1 << 20);
    // A database that was closed a moment ago may still be held by its last thread.
    let mut patience = 200;
    loop {
        match guarded(dir, || config.open().map_err(unsupported_is_damage)) {
            Err(StoreError::Database { message, .. })
                if message.contains("could not acquire lock") && patience > 0 =>
            {
                patience -= 1;
                thread::sleep(Duration::from_millis(10));
            }
            opened => return opened,
        }
    }
}

/// Calls into sled, which panics at some of the damage it meets and reports the rest.
fn guarded<T>(dir: &Path, f: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    let damaged = |how: &dyn std::fmt::Display| StoreError::Damaged {
        what: format!("database {} is damaged ({how})", dir.display()),
    };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(err))) if err.kind() == io::ErrorKind::UnexpectedEof => {
            Err(damaged(&"it is cut short"))
        }
        Ok(Err(sled::Error::Io(err))) if err.kind() == io::ErrorKind::StorageFull => {
            Err(StoreError::DiskFull { dir: dir.to_owned(), needed: SPARE_BYTES, free: 0 })
        }
        Ok(Err(err @ (sled::Error::Corruption { .. } | sled::Error::ReportableBug(_)))) => {
            Err(damaged(&err))
        }
        Ok(Err(err)) => Err(StoreError::Database { dir: dir.to_owned(), message: err.to_string() }),
        Err(panic) => Err(damaged(&panic_text(&*panic))),
    }
}

/// Every database here was made by this version of sled with these settings: one that asks for
/// others has a damaged `conf`.
fn unsupported_is_damage(err: sled::Error) -> sled::Error {
    match err {
        sled::Error::Unsupported(what) => sled::Error::ReportableBug(what),
        err => err,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

/// Removes the unfinished snapshots that a killed process leaves and that make sled fail; with
/// `all` also the finished ones, upon which sled reads its whole log.
fn remove_snapshots(dir: &Path, all: bool) -> Result<(), StoreError> {
    let io = |source| StoreError::Io { path: dir.to_owned(), source };
    let files = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files.map_err(io)?,
    };
    for file in files {
        let file = file.map_err(io)?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && (all || name.ends_with(".generating")) {
            fs::remove_file(file.path()).map_err(io)?;
        }
    }
    Ok(())
}

/// Renames `dir` to the first free `dir.damaged-N`.
fn set_aside(dir: &Path) -> Result<PathBuf, StoreError> {
    let name = |n: u32| dir.with_extension(format!("damaged-{n}"));
    let aside = (1..).map(name).find(|aside| !aside.exists()).unwrap_or_else(|| name(0));
    fs::rename(dir, &aside).map_err(|source| StoreError::Io { path: dir.to_owned(), source })?;
    Ok(aside)
}
