//! Cache images: chunks in two alternating slots each, and a manifest that says which slot counts.
//!
//! A save writes every changed chunk into the slot that the standing manifest does not name, in
//! batches of a few MiB; the last batch carries the new manifest. Until then the old image stands
//! whole, from then on the new one. An unchanged chunk costs nothing, and keys are reused instead
//! of being made and deleted at each save, which keeps sled's file small.

use std::collections::{HashMap, HashSet};
use std::mem;

use serde::{Deserialize, Serialize};

use super::record::{self, VERSION, base, damaged, versioned};
use super::records::{Batch, Durability, Records, keys};
use super::{ImageSource, MAX_CHUNK_BYTES, Piece, StoreError};

const MANIFESTS: char = 'm';
const CHUNKS: char = 'c';
const USES: char = 'u';

/// Slots of a chunk.
const N_SLOTS: u8 = 2;
/// Disk that a byte of an image comes to take: two slots, and what sled's log leaves for reuse.
/// Measured at 4.7 to 5.4 for eight images of 64 MiB, each saved six times.
const DISK_FACTOR: u64 = 5;
/// Bytes written in one batch; sled holds its lock over a batch.
const BATCH_BYTES: usize = 4 << 20;

/// All sessions' images.
pub struct Images {
    records: Box<dyn Records>,
    /// Bytes that all images may take on disk.
    limit: u64,
    uses: HashMap<String, Use>,
    /// Counts uses; a time would run backwards when the machine's clock is set.
    clock: u64,
    /// Sessions whose image was read back since the store was opened.
    checked: HashSet<String>,
}

/// When an image was last used, and its size.
#[derive(Clone, Copy)]
struct Use {
    at: u64,
    n_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    generation: u64,
    /// Entries of text that there were when the image was written.
    n_entries: u64,
    fingerprint: String,
    meta: Vec<u8>,
    chunks: Vec<Chunk>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Chunk {
    key: u64,
    slot: u8,
    n_bytes: u32,
    hash: [u8; 32],
}

/// What a save wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saved {
    pub n_bytes: u64,
    pub n_chunks: usize,
}

impl Images {
    /// Prefix of the keys that are read when the store is opened.
    pub const PROBE: &[u8] = b"u/";

    pub fn open(records: Box<dyn Records>, limit: u64) -> Result<Self, StoreError> {
        let mut uses = HashMap::new();
        records.visit(Self::PROBE, &mut |key, value| {
            let id = String::from_utf8_lossy(&key[2..key.len() - 1]).into_owned();
            uses.insert(id, Use::from_bytes(value));
        })?;
        let clock = uses.values().map(|used: &Use| used.at).max().unwrap_or(0);
        Ok(Self { records, limit, uses, clock, checked: HashSet::new() })
    }

    /// Replaces the image of session `id`, whose text has `n_entries` entries.
    pub fn save(
        &mut self,
        id: &str,
        n_entries: u64,
        image: &dyn ImageSource,
    ) -> Result<Saved, StoreError> {
        let n_bytes = image.n_bytes();
        if n_bytes * DISK_FACTOR > self.limit {
            let bytes = n_bytes * DISK_FACTOR;
            return Err(StoreError::ImageTooLarge { bytes, limit: self.limit });
        }
        let standing = match self.manifest(id) {
            Err(StoreError::Damaged { .. }) => None,
            standing => standing?,
        };
        let generation = standing.as_ref().map_or(0, |manifest| manifest.generation + 1);
        let standing: HashMap<u64, Chunk> = standing
            .into_iter()
            .flat_map(|manifest| manifest.chunks)
            .map(|chunk| (chunk.key, chunk))
            .collect();

        let mut saved = Saved::default();
        let mut batch = Batch::default();
        let mut chunks = Vec::with_capacity(standing.len());
        let mut seen = HashSet::new();
        for (key, bytes) in image.chunks() {
            if bytes.len() > MAX_CHUNK_BYTES {
                return Err(StoreError::ChunkTooLarge { key, bytes: bytes.len() });
            }
            if !seen.insert(key) {
                return Err(StoreError::ChunkTwice { key });
            }
            let hash = *blake3::hash(&bytes).as_bytes();
            let old = standing.get(&key);
            if let Some(old) = old.filter(|old| old.hash == hash) {
                chunks.push(old.clone());
                continue;
            }
            let slot = old.map_or(0, |old| 1 - old.slot);
            chunks.push(Chunk { key, slot, n_bytes: bytes.len() as u32, hash });
            batch.put(chunk_key(id, key, slot), [&[VERSION], &bytes[..]].concat());
            saved.n_chunks += 1;
            if batch.n_bytes >= BATCH_BYTES {
                saved.n_bytes += batch.n_bytes as u64;
                self.records.commit(mem::take(&mut batch))?;
            }
        }

        let manifest = Manifest {
            generation,
            n_entries,
            fingerprint: image.fingerprint().to_owned(),
            meta: image.meta().to_vec(),
            chunks,
        };
        let bytes = postcard::to_stdvec(&manifest)
            .map_err(|err| damaged("the new manifest", &format!("cannot be written: {err}")))?;
        record::replace(&*self.records, &mut batch, &base(MANIFESTS, id), &bytes)?;
        let used = self.tick(n_bytes);
        batch.put(base(USES, id), used.to_bytes());
        saved.n_bytes += batch.n_bytes as u64;
        self.records.commit(batch)?;
        self.uses.insert(id.to_owned(), used);

        let is_first = !self.checked.contains(id);
        self.sweep(id, &manifest, &standing, is_first)?;
        self.records.persist(Durability::Power)?;
        if is_first {
            if !self.reads_back(id, n_entries, image)? {
                self.remove(id)?;
                return Err(damaged("the new cache", "does not read back as it was written"));
            }
            self.checked.insert(id.to_owned());
        }
        self.make_room(id)?;
        Ok(saved)
    }

    /// Gives the image of a session with `n_known` text entries to `each`, until that returns
    /// false; false where there is none. One that is damaged, or was written for more entries, is
    /// dropped: its good chunks would otherwise be taken for unchanged by the next save.
    pub fn load(
        &mut self,
        id: &str,
        n_known: u64,
        each: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let loaded = self.read(id, n_known, each);
        match &loaded {
            Ok(true) => {
                let used = self.tick(self.bytes(id));
                self.uses.insert(id.to_owned(), used);
                let mut batch = Batch::default();
                batch.put(base(USES, id), used.to_bytes());
                // An image that was read is not refused because its use cannot be noted.
                _ = self.records.commit(batch);
                _ = self.records.persist(Durability::Process);
            }
            Err(StoreError::Damaged { what }) => {
                tracing::warn!(session = id, what, "stored cache is damaged and is dropped");
                // The damage is the news; a failure to clear it away shows at the next save.
                _ = self.remove(id);
            }
            Ok(false) | Err(_) => {}
        }
        loaded
    }

    /// Removes the image of session `id`, if there is one.
    pub fn remove(&mut self, id: &str) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        for table in [MANIFESTS, USES, CHUNKS] {
            for key in keys(&*self.records, &base(table, id))? {
                batch.delete(key);
            }
        }
        self.uses.remove(id);
        self.checked.remove(id);
        self.records.commit(batch)?;
        self.records.persist(Durability::Process)
    }

    /// Bytes of the image of session `id`; 0 without one.
    pub fn bytes(&self, id: &str) -> u64 {
        self.uses.get(id).map_or(0, |used| used.n_bytes)
    }

    pub fn size_on_disk(&self) -> u64 {
        self.records.size_on_disk()
    }

    fn manifest(&self, id: &str) -> Result<Option<Manifest>, StoreError> {
        let what = format!("the manifest of session {id}");
        let Some(bytes) = record::get(&*self.records, &base(MANIFESTS, id), &what)? else {
            return Ok(None);
        };
        let manifest: Manifest = postcard::from_bytes(&bytes)
            .map_err(|err| damaged(&what, &format!("cannot be read: {err}")))?;
        match manifest.chunks.iter().find(|chunk| chunk.slot >= N_SLOTS) {
            Some(chunk) => Err(damaged(&what, &format!("names slot {}", chunk.slot))),
            None => Ok(Some(manifest)),
        }
    }

    fn read(
        &self,
        id: &str,
        n_known: u64,
        each: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let Some(manifest) = self.manifest(id)? else { return Ok(false) };
        let Manifest { n_entries, fingerprint, meta, chunks, .. } = &manifest;
        if *n_entries > n_known {
            let what = format!("was written for {n_entries} entries and there are {n_known}");
            return Err(damaged("the image", &what));
        }
        let n_bytes = chunks.iter().map(|chunk| u64::from(chunk.n_bytes)).sum();
        if !each(Piece::Head { fingerprint, meta, n_bytes }) {
            return Ok(true);
        }
        for chunk in chunks {
            let what = format!("chunk {} of session {id}", chunk.key);
            let value = self
                .records
                .get(&chunk_key(id, chunk.key, chunk.slot))?
                .ok_or_else(|| damaged(&what, "is missing"))?;
            let bytes = versioned(&value, &what)?;
            if bytes.len() != chunk.n_bytes as usize || blake3::hash(bytes) != chunk.hash {
                return Err(damaged(&what, "does not have the hash it was written with"));
            }
            if !each(Piece::Chunk(chunk.key, bytes)) {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Whether an image is there as it was given.
    fn reads_back(
        &self,
        id: &str,
        n_entries: u64,
        image: &dyn ImageSource,
    ) -> Result<bool, StoreError> {
        let mut chunks = image.chunks();
        let mut is_same = true;
        let is_there = self.read(id, n_entries, &mut |piece| {
            is_same &= match piece {
                Piece::Head { fingerprint, meta, .. } => {
                    fingerprint == image.fingerprint() && meta == image.meta()
                }
                Piece::Chunk(key, bytes) => {
                    chunks.next().is_some_and(|(k, b)| k == key && *b == *bytes)
                }
            };
            is_same
        })?;
        Ok(is_there && is_same && chunks.next().is_none())
    }

    /// Deletes the chunks that the new manifest no longer has. After a crash there may be some
    /// that no manifest ever named, so the first save looks at what is really there.
    fn sweep(
        &self,
        id: &str,
        manifest: &Manifest,
        standing: &HashMap<u64, Chunk>,
        is_first: bool,
    ) -> Result<(), StoreError> {
        let kept: HashSet<u64> = manifest.chunks.iter().map(|chunk| chunk.key).collect();
        let mut batch = Batch::default();
        if is_first {
            let base = base(CHUNKS, id);
            for key in keys(&*self.records, &base)? {
                let number = key[base.len()..].first_chunk().map(|key| u64::from_be_bytes(*key));
                if number.is_none_or(|number| !kept.contains(&number)) {
                    batch.delete(key);
                }
            }
        } else {
            for key in standing.keys().filter(|key| !kept.contains(key)) {
                batch.delete(chunk_key(id, *key, 0));
                batch.delete(chunk_key(id, *key, 1));
            }
        }
        if batch.writes.is_empty() { Ok(()) } else { self.records.commit(batch) }
    }

    /// Drops the images that were not used for longest until the limit holds; `but` stays.
    fn make_room(&mut self, but: &str) -> Result<(), StoreError> {
        while self.uses.values().map(|used| used.n_bytes * DISK_FACTOR).sum::<u64>() > self.limit {
            let oldest = self.uses.iter().filter(|(id, _)| *id != but).min_by_key(|(_, u)| u.at);
            let Some(id) = oldest.map(|(id, _)| id.clone()) else { break };
            tracing::info!(session = id, "stored cache is dropped to hold the store's limit");
            self.remove(&id)?;
        }
        Ok(())
    }

    fn tick(&mut self, n_bytes: u64) -> Use {
        self.clock += 1;
        Use { at: self.clock, n_bytes }
    }
}

impl Use {
    fn to_bytes(self) -> Vec<u8> {
        [&[VERSION][..], &self.at.to_le_bytes(), &self.n_bytes.to_le_bytes()].concat()
    }

    /// An unreadable record of use only makes its image the first to go.
    fn from_bytes(value: &[u8]) -> Self {
        let number =
            |at: usize| value.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match (value.first(), number(1), number(9)) {
            (Some(&VERSION), Some(at), Some(n_bytes)) => Self { at, n_bytes },
            _ => Self { at: 0, n_bytes: 0 },
        }
    }
}

fn chunk_key(id: &str, key: u64, slot: u8) -> Vec<u8> {
    [&base(CHUNKS, id)[..], &key.to_be_bytes(), &[slot]].concat()
}
