//! Sessions on disk: what was said, and the cache that saves reading it again.
//!
//! The store knows records and bytes, not their meaning. Text and caches live in two databases,
//! so that damage to a cache never costs text:
//!
//! ```text
//! lock             held while a store is open; names the process
//! history/         a header and numbered entries a session, an unfinished turn      text.rs
//! cache/           one image a session: a manifest and chunks in two slots          chunk.rs
//! cache.damaged-1  a database that could not be read; set aside, never deleted      sled.rs
//! ```
//!
//! All calls block, and take turns.

mod chunk;
mod error;
mod export;
mod memory;
mod record;
mod records;
mod sled;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::chunk::Images;
pub use self::error::{ImageError, StoreError};
use self::memory::Memory;
pub use self::records::Durability;
use self::records::Records;
use self::sled::{Opened, SledRecords};
use self::text::Texts;

/// What images may take on disk unless another limit is given.
pub const DEFAULT_LIMIT_BYTES: u64 = 8 << 30;
/// The largest chunk of an image.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024;
/// The longest id, in bytes: room for a session's own and what is appended to it.
const MAX_ID_BYTES: usize = 256;

/// A session's cache as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// What the cache was computed with; the store only hands it back.
    pub fingerprint: String,
    /// Whatever is small and changes at each save.
    pub meta: Vec<u8>,
    /// Keyed pieces of at most [`MAX_CHUNK_BYTES`]. A key whose bytes have not changed since the
    /// last save is not written again.
    pub chunks: Vec<(u64, Vec<u8>)>,
}

/// An image as a save reads it: chunk by chunk, so that no second copy of it need be held.
pub trait ImageSource {
    fn fingerprint(&self) -> &str;
    fn meta(&self) -> &[u8];
    /// The chunks, the same at every call.
    fn chunks(&self) -> Box<dyn Iterator<Item = (u64, Cow<'_, [u8]>)> + '_>;
    /// Bytes of all chunks and of `meta`.
    fn n_bytes(&self) -> u64;
}

impl ImageSource for Image {
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn meta(&self) -> &[u8] {
        &self.meta
    }

    fn chunks(&self) -> Box<dyn Iterator<Item = (u64, Cow<'_, [u8]>)> + '_> {
        Box::new(self.chunks.iter().map(|(key, bytes)| (*key, Cow::Borrowed(&bytes[..]))))
    }

    fn n_bytes(&self) -> u64 {
        let chunks: usize = self.chunks.iter().map(|(_, bytes)| bytes.len()).sum();
        (chunks + self.meta.len()) as u64
    }
}

/// A piece of an image that is read: its head, and then its chunks.
#[derive(Debug)]
pub enum Piece<'a> {
    Head {
        fingerprint: &'a str,
        meta: &'a [u8],
        /// Bytes of all chunks.
        n_bytes: u64,
    },
    Chunk(u64, &'a [u8]),
}

/// What one turn adds to a session.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// Replaces the session's header.
    pub header: &'a [u8],
    /// The number of the first of `entries`: how many the session has.
    pub first_entry: u64,
    pub entries: &'a [Vec<u8>],
    /// Replaces the session's image; `None` leaves the one that is there.
    pub image: Option<&'a dyn ImageSource>,
}

/// What a commit wrote.
#[derive(Debug, Default)]
pub struct Written {
    /// Bytes handed to the databases.
    pub bytes: u64,
    /// Chunks of the image among them; unchanged ones are not written.
    pub chunks: usize,
    /// Why the image could not be kept. The text is safe; the cache will have to be rebuilt.
    pub image_error: Option<StoreError>,
}

/// How much a session takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub n_entries: u64,
    pub text_bytes: u64,
    pub image_bytes: u64,
}

/// The sessions' text and images. Clones share one store.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Mutex<Parts>,
    set_aside: Vec<PathBuf>,
    /// Freed after the databases are closed.
    _lock: Option<File>,
}

struct Parts {
    texts: Texts,
    images: Images,
}

/// A whole session, as it is copied, exported and imported.
struct Session {
    header: Vec<u8>,
    entries: Vec<Vec<u8>>,
    image: Option<Image>,
}

impl Store {
    /// Opens the store in `dir`, or makes one; images may take `limit_bytes` on disk, those used
    /// least recently go first.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another process has it open. A damaged database is no error:
    /// see [`Store::set_aside`].
    pub fn open(dir: &Path, limit_bytes: u64) -> Result<Self, StoreError> {
        Self::open_with(dir, limit_bytes, Durability::Power)
    }

    /// [`Store::open`] where turns outlive no more than `durability`: [`Durability::Process`]
    /// spares the waits for the disk and may lose the last turns when power fails.
    pub fn open_with(
        dir: &Path,
        limit_bytes: u64,
        durability: Durability,
    ) -> Result<Self, StoreError> {
        make_dir(dir).map_err(|source| StoreError::Io { path: dir.to_owned(), source })?;
        let lock = lock(dir)?;
        let mut set_aside = Vec::new();
        let mut open = |name, probe, is_expendable| -> Result<Box<dyn Records>, StoreError> {
            match SledRecords::open(&dir.join(name), durability, probe, is_expendable)? {
                Opened::AsItWas(records) => Ok(Box::new(records)),
                Opened::Anew(records, aside) => {
                    tracing::error!(aside = %aside.display(), "damaged database was set aside");
                    set_aside.push(aside);
                    Ok(Box::new(records))
                }
            }
        };
        let texts = Texts::new(open("history", Texts::PROBE, false)?);
        let images = Images::open(open("cache", Images::PROBE, true)?, limit_bytes)?;
        Ok(Self::new(texts, images, set_aside, Some(lock)))
    }

    /// A store that is gone with the process.
    pub fn in_memory() -> Self {
        let texts = Texts::new(Box::new(Memory::default()));
        let images = Images::open(Box::new(Memory::default()), DEFAULT_LIMIT_BYTES)
            .expect("reading from memory does not fail");
        Self::new(texts, images, Vec::new(), None)
    }

    fn new(texts: Texts, images: Images, set_aside: Vec<PathBuf>, lock: Option<File>) -> Self {
        let parts = Mutex::new(Parts { texts, images });
        Self { inner: Arc::new(Inner { parts, set_aside, _lock: lock }) }
    }

    /// Where databases went that could not be read when the store was opened. A set-aside cache
    /// costs time, a set-aside history the sessions in it.
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.inner.set_aside
    }

    /// The session's header; `None` where there is no such session.
    pub fn header(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.parts(id)?.texts.head(id)?.map(|head| head.header))
    }

    /// All entries in order; none where there is no such session.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] names the entry that is missing or has changed.
    pub fn entries(&self, id: &str) -> Result<Vec<Vec<u8>>, StoreError> {
        self.parts(id)?.texts.entries(id)
    }

    /// Adds a turn and clears the partial. Returns once it outlives a loss of power: the text
    /// first, all or nothing, then the image.
    ///
    /// # Errors
    /// Where the text could not be kept: then the session is as it was before, or, where only the
    /// disk's confirmation failed, as it is after; [`Store::entries`] tells. An image that could
    /// not be kept is told in [`Written::image_error`], and the former one stands.
    pub fn commit(&self, id: &str, turn: Turn<'_>) -> Result<Written, StoreError> {
        self.parts(id)?.commit(id, turn)
    }

    /// The session's image; `None` where there is none.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] where anything of it differs from what was written, or where it
    /// was written for more text than there is; it is dropped then.
    pub fn image(&self, id: &str) -> Result<Option<Image>, ImageError> {
        self.parts(id)?.image(id)
    }

    /// Gives the session's image piece by piece, until `each` returns false; false where there is
    /// none.
    ///
    /// # Errors
    /// As [`Store::image`]; what was given before is not to be trusted then.
    pub fn read_image(
        &self,
        id: &str,
        each: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Result<bool, ImageError> {
        self.parts(id)?.read_image(id, each)
    }

    /// Keeps what does not change of an unfinished turn, before what it comes to.
    pub fn begin_partial(&self, id: &str, head: &[u8]) -> Result<(), StoreError> {
        self.parts(id)?.texts.begin_partial(id, head)
    }

    /// Keeps what an unfinished turn has come to. It outlives the process, but not a loss of
    /// power, because it is written many times a turn.
    pub fn set_partial(&self, id: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.parts(id)?.texts.set_partial(id, bytes)
    }

    /// What an unfinished turn had come to, if one was interrupted.
    pub fn partial(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.parts(id)?.texts.partial(id)
    }

    /// What an unfinished turn began with.
    pub fn partial_head(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.parts(id)?.texts.partial_head(id)
    }

    pub fn clear_partial(&self, id: &str) -> Result<(), StoreError> {
        self.parts(id)?.texts.clear_partial(id)
    }

    /// Ids and headers of all sessions, by id. A session whose header is damaged is left out,
    /// with a warning, so that it does not hide the others.
    pub fn list(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let parts = self.lock();
        let mut sessions = Vec::new();
        for id in parts.texts.ids()? {
            match parts.texts.head(&id) {
                Ok(head) => sessions.extend(head.map(|head| (id, head.header))),
                Err(err @ StoreError::Damaged { .. }) => tracing::warn!(%err, "session left out"),
                Err(err) => return Err(err),
            }
        }
        Ok(sessions)
    }

    /// Removes all of a session.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] where there is nothing of it.
    pub fn delete(&self, id: &str) -> Result<(), StoreError> {
        let mut parts = self.parts(id)?;
        parts.images.remove(id)?;
        if parts.texts.delete(id)? { Ok(()) } else { Err(StoreError::NotFound { id: id.into() }) }
    }

    /// Copies header, entries and image of session `from` to a new session `to`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and [`StoreError::Exists`] where `to` is taken.
    pub fn copy(&self, from: &str, to: &str) -> Result<(), StoreError> {
        check_id(to)?;
        let mut parts = self.parts(from)?;
        let session = parts.read(from)?;
        parts.create(to, &session)
    }

    /// Puts other text in the place of all of a session's, all or nothing; its image goes.
    ///
    /// # Errors
    /// Where the text could not be kept: then it is as it was.
    pub fn overwrite(
        &self,
        id: &str,
        header: &[u8],
        entries: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let mut parts = self.parts(id)?;
        // Without its image a session costs time; with the image of another text it were wrong.
        parts.images.remove(id)?;
        parts.texts.overwrite(id, header, entries)
    }

    /// Makes session `to` what session `from` is.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] where there is no `from`; on any error the text of `to` is as it
    /// was. An image that could not be kept is logged, and computed again.
    pub fn replace(&self, from: &str, to: &str) -> Result<(), StoreError> {
        check_id(to)?;
        let mut parts = self.parts(from)?;
        let session = parts.read(from)?;
        parts.images.remove(to)?;
        parts.texts.overwrite(to, &session.header, &session.entries)?;
        if let Some(image) = &session.image
            && let Err(err) = parts.images.save(to, session.entries.len() as u64, image)
        {
            tracing::warn!(session = to, %err, "cache could not be stored");
        }
        Ok(())
    }

    /// Writes the whole session to `to`, as [`Store::import`] reads it.
    pub fn export(&self, id: &str, to: &mut dyn Write) -> Result<(), StoreError> {
        let session = self.parts(id)?.read(id)?;
        export::write(id, &session, to)
            .map_err(|source| StoreError::Io { path: "the exported session".into(), source })
    }

    /// Reads a session that [`Store::export`] wrote, under `new_id` or the one it had, and
    /// returns its id.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the file is not whole, [`StoreError::Exists`] where the id
    /// is taken; nothing is written then.
    pub fn import(&self, from: &mut dyn Read, new_id: Option<&str>) -> Result<String, StoreError> {
        let (id, session) = export::read(from)?;
        let id = new_id.map_or(id, str::to_owned);
        self.parts(&id)?.create(&id, &session)?;
        Ok(id)
    }

    /// How much the session takes, without what the databases keep for reuse.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] where there is no such session.
    pub fn stats(&self, id: &str) -> Result<Stats, StoreError> {
        let parts = self.parts(id)?;
        let head = parts.texts.head(id)?.ok_or_else(|| StoreError::NotFound { id: id.into() })?;
        let image_bytes = parts.images.bytes(id);
        Ok(Stats { n_entries: head.n_entries, text_bytes: head.n_bytes, image_bytes })
    }

    /// Bytes of both databases on disk. What is removed is reused, and seldom given back.
    pub fn size_on_disk(&self) -> u64 {
        let parts = self.lock();
        parts.texts.size_on_disk() + parts.images.size_on_disk()
    }

    fn parts(&self, id: &str) -> Result<MutexGuard<'_, Parts>, StoreError> {
        check_id(id)?;
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        // What a panic interrupted was either committed or not; the records tell.
        self.inner.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parts {
    fn commit(&mut self, id: &str, turn: Turn<'_>) -> Result<Written, StoreError> {
        let bytes = self.texts.append(id, turn.header, turn.first_entry, turn.entries)?;
        let mut written = Written { bytes, ..Written::default() };
        let Some(image) = turn.image else { return Ok(written) };
        let n_entries = turn.first_entry + turn.entries.len() as u64;
        match self.images.save(id, n_entries, image) {
            Ok(saved) => {
                written.bytes += saved.n_bytes;
                written.chunks = saved.n_chunks;
            }
            Err(err) => {
                tracing::warn!(session = id, %err, "cache could not be stored");
                written.image_error = Some(err);
            }
        }
        Ok(written)
    }

    fn image(&mut self, id: &str) -> Result<Option<Image>, ImageError> {
        let mut image = Image::default();
        let is_there = self.read_image(id, &mut |piece| {
            match piece {
                Piece::Head { fingerprint, meta, .. } => {
                    image.fingerprint = fingerprint.to_owned();
                    image.meta = meta.to_vec();
                }
                Piece::Chunk(key, bytes) => image.chunks.push((key, bytes.to_vec())),
            }
            true
        })?;
        Ok(is_there.then_some(image))
    }

    fn read_image(
        &mut self,
        id: &str,
        each: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Result<bool, ImageError> {
        let n_known = self.texts.head(id).map_err(ImageError::Store)?.map_or(0, |h| h.n_entries);
        Ok(self.images.load(id, n_known, each)?)
    }

    /// All of session `id`. A damaged image is left out, as if it had been dropped for space.
    fn read(&mut self, id: &str) -> Result<Session, StoreError> {
        let head = self.texts.head(id)?.ok_or_else(|| StoreError::NotFound { id: id.into() })?;
        let image = match self.image(id) {
            Ok(image) => image,
            Err(ImageError::Damaged { .. }) => None,
            Err(ImageError::Store(err)) => return Err(err),
        };
        Ok(Session { header: head.header, entries: self.texts.entries(id)?, image })
    }

    fn create(&mut self, id: &str, session: &Session) -> Result<(), StoreError> {
        if self.texts.head(id)?.is_some() {
            return Err(StoreError::Exists { id: id.into() });
        }
        let Session { header, entries, image } = session;
        let image = image.as_ref().map(|image| image as &dyn ImageSource);
        self.commit(id, Turn { header, first_entry: 0, entries, image })?;
        Ok(())
    }
}

fn check_id(id: &str) -> Result<(), StoreError> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(is_legal) {
        return Ok(());
    }
    Err(StoreError::BadId { id: id.chars().take(MAX_ID_BYTES).collect() })
}

/// Makes the store's folder. What agents say is nobody else's business.
fn make_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Locks the store in `dir` until the file is closed, by the process's death at the latest.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let io = |source| StoreError::Io { path: path.clone(), source };
    let mut options = OpenOptions::new();
    let mut file =
        options.create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok());
            return Err(StoreError::Locked { dir: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(io(source)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io)?;
    Ok(file)
}
