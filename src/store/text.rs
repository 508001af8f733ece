//! What was said: a header and numbered entries a session, and the turn that is being generated.

use super::StoreError;
use super::record::{self, base, damaged};
use super::records::{Batch, Durability, Records, keys};

const HEADERS: char = 'h';
const ENTRIES: char = 'e';
const PARTIALS: char = 'p';
const PARTIAL_HEADS: char = 'q';
/// Tables of what an unfinished turn has come to.
const UNFINISHED: [char; 2] = [PARTIALS, PARTIAL_HEADS];

/// The sessions' text.
pub struct Texts {
    records: Box<dyn Records>,
}

/// What a session's header record holds.
///
/// `n_entries u64 | n_bytes u64 | header`: a count, so that a lost last entry is noticed.
pub struct Head {
    pub n_entries: u64,
    /// Bytes of all entries.
    pub n_bytes: u64,
    /// The caller's part.
    pub header: Vec<u8>,
}

impl Head {
    fn to_bytes(&self) -> Vec<u8> {
        [&self.n_entries.to_le_bytes(), &self.n_bytes.to_le_bytes(), &self.header[..]].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (n_entries, rest) = bytes.split_first_chunk()?;
        let (n_bytes, header) = rest.split_first_chunk()?;
        Some(Self {
            n_entries: u64::from_le_bytes(*n_entries),
            n_bytes: u64::from_le_bytes(*n_bytes),
            header: header.to_vec(),
        })
    }
}

impl Texts {
    /// Prefix of the keys that are read when the store is opened.
    pub const PROBE: &[u8] = b"h/";

    pub fn new(records: Box<dyn Records>) -> Self {
        Self { records }
    }

    pub fn head(&self, id: &str) -> Result<Option<Head>, StoreError> {
        let what = format!("the header of session {id}");
        let Some(bytes) = record::get(&*self.records, &base(HEADERS, id), &what)? else {
            return Ok(None);
        };
        Head::from_bytes(&bytes).ok_or_else(|| damaged(&what, "is cut short")).map(Some)
    }

    pub fn entries(&self, id: &str) -> Result<Vec<Vec<u8>>, StoreError> {
        let n_entries = self.head(id)?.map_or(0, |head| head.n_entries);
        let entry = |entry_idx| {
            let what = format!("entry {entry_idx} of session {id}");
            record::get(&*self.records, &entry_base(id, entry_idx), &what)?
                .ok_or_else(|| damaged(&what, "is missing"))
        };
        (0..n_entries).map(entry).collect()
    }

    /// Replaces the header, appends `entries` and clears the partial, all or nothing, and returns
    /// the bytes written once they outlive a loss of power.
    pub fn append(
        &self,
        id: &str,
        header: &[u8],
        first_entry: u64,
        entries: &[Vec<u8>],
    ) -> Result<u64, StoreError> {
        let (n_entries, n_bytes) =
            self.head(id)?.map_or((0, 0), |head| (head.n_entries, head.n_bytes));
        if first_entry != n_entries {
            let id = id.to_owned();
            return Err(StoreError::OutOfOrder { id, expected: n_entries, given: first_entry });
        }
        let head = Head {
            n_entries: n_entries + entries.len() as u64,
            n_bytes: n_bytes + entries.iter().map(|entry| entry.len() as u64).sum::<u64>(),
            header: header.to_vec(),
        };
        let mut batch = Batch::default();
        record::replace(&*self.records, &mut batch, &base(HEADERS, id), &head.to_bytes())?;
        for (entry_idx, entry) in (first_entry..).zip(entries) {
            record::put(&mut batch, &entry_base(id, entry_idx), entry);
        }
        for table in UNFINISHED {
            record::delete(&*self.records, &mut batch, &base(table, id))?;
        }
        let n_written = batch.n_bytes as u64;
        self.records.commit(batch)?;
        self.records.persist(Durability::Power)?;
        Ok(n_written)
    }

    /// Puts other text in the place of all of a session's, all or nothing.
    pub fn overwrite(
        &self,
        id: &str,
        header: &[u8],
        entries: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let head = Head {
            n_entries: entries.len() as u64,
            n_bytes: entries.iter().map(|entry| entry.len() as u64).sum(),
            header: header.to_vec(),
        };
        let mut batch = Batch::default();
        for table in [HEADERS, ENTRIES, PARTIALS, PARTIAL_HEADS] {
            for key in keys(&*self.records, &base(table, id))? {
                batch.delete(key);
            }
        }
        // A key's last write in a batch is the one that counts.
        record::put(&mut batch, &base(HEADERS, id), &head.to_bytes());
        for (entry_idx, entry) in (0..).zip(entries) {
            record::put(&mut batch, &entry_base(id, entry_idx), entry);
        }
        self.records.commit(batch)?;
        self.records.persist(Durability::Power)
    }

    /// Keeps what stays the same of a running generation, and forgets what one before had come to.
    pub fn begin_partial(&self, id: &str, head: &[u8]) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        record::replace(&*self.records, &mut batch, &base(PARTIAL_HEADS, id), head)?;
        record::delete(&*self.records, &mut batch, &base(PARTIALS, id))?;
        self.records.commit(batch)?;
        self.records.persist(Durability::Process)
    }

    /// Keeps what a running generation has come to; outlives the process, not a loss of power,
    /// because it is written many times a turn.
    pub fn set_partial(&self, id: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        record::replace(&*self.records, &mut batch, &base(PARTIALS, id), bytes)?;
        self.records.commit(batch)?;
        self.records.persist(Durability::Process)
    }

    pub fn partial(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let what = format!("the unfinished turn of session {id}");
        record::get(&*self.records, &base(PARTIALS, id), &what)
    }

    pub fn partial_head(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let what = format!("the beginning of the unfinished turn of session {id}");
        record::get(&*self.records, &base(PARTIAL_HEADS, id), &what)
    }

    pub fn clear_partial(&self, id: &str) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        for table in UNFINISHED {
            record::delete(&*self.records, &mut batch, &base(table, id))?;
        }
        self.records.commit(batch)?;
        self.records.persist(Durability::Process)
    }

    /// Ids of all sessions, sorted.
    pub fn ids(&self) -> Result<Vec<String>, StoreError> {
        let mut ids: Vec<String> = Vec::new();
        self.records.visit(Self::PROBE, &mut |key, _| {
            let id = key[2..].split(|&byte| byte == b'/').next().unwrap_or_default();
            let id = String::from_utf8_lossy(id);
            if ids.last().is_none_or(|last| *last != id) {
                ids.push(id.into_owned());
            }
        })?;
        // In keys an id is followed by `/`, which sorts after `-` and `.`.
        ids.sort_unstable();
        Ok(ids)
    }

    /// Removes all of a session's text at once. False where there was none.
    pub fn delete(&self, id: &str) -> Result<bool, StoreError> {
        let mut batch = Batch::default();
        for table in [HEADERS, ENTRIES, PARTIALS, PARTIAL_HEADS] {
            for key in keys(&*self.records, &base(table, id))? {
                batch.delete(key);
            }
        }
        let existed = !batch.writes.is_empty();
        self.records.commit(batch)?;
        self.records.persist(Durability::Power)?;
        Ok(existed)
    }

    pub fn size_on_disk(&self) -> u64 {
        self.records.size_on_disk()
    }
}

fn entry_base(id: &str, entry_idx: u64) -> Vec<u8> {
    [&base(ENTRIES, id)[..], &entry_idx.to_be_bytes()].concat()
}
