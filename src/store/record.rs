//! Records of any length over values of a bounded one.
//!
//! A record is split into parts under `base + part number`. Every part begins with the format's
//! version; the first also holds the record's length and hash:
//!
//! ```text
//! part 0     version u8 | blake3 [32] | length u64 | bytes
//! part 1..   version u8 | bytes
//! ```
//!
//! Numbers in values are little-endian, numbers in keys big-endian (they sort). All parts of a
//! record are written in one batch.

use super::StoreError;
use super::records::{Batch, Records};

/// The format of records, chunks and manifests that this program writes and reads.
pub const VERSION: u8 = 1;

/// Bytes of a record in one part. sled moves larger values into files that it never syncs.
const PART_BYTES: usize = 64 * 1024 - 64;
const HASH_BYTES: usize = 32;

/// `table/id/`, under which all keys of a session in one table begin. An id has no slash.
pub fn base(table: char, id: &str) -> Vec<u8> {
    format!("{table}/{id}/").into_bytes()
}

/// Takes the version off a value of the record `what`.
///
/// # Errors
/// Refuses every version but [`VERSION`]; a guess could read garbage as a conversation.
pub fn versioned<'a>(value: &'a [u8], what: &str) -> Result<&'a [u8], StoreError> {
    match value.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((&found, _)) => {
            Err(StoreError::UnsupportedVersion { what: what.to_owned(), found, known: VERSION })
        }
        None => Err(damaged(what, "is empty")),
    }
}

/// Says that the record `what` is damaged, and `how`.
pub fn damaged(what: &str, how: &str) -> StoreError {
    StoreError::Damaged { what: format!("{what} {how}") }
}

/// Writes `bytes` as a new record.
pub fn put(batch: &mut Batch, base: &[u8], bytes: &[u8]) {
    let (first, rest) = bytes.split_at(bytes.len().min(PART_BYTES));
    let mut value = vec![VERSION];
    value.extend_from_slice(blake3::hash(bytes).as_bytes());
    value.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    value.extend_from_slice(first);
    batch.put(part_key(base, 0), value);
    for (part_idx, part) in (1..).zip(rest.chunks(PART_BYTES)) {
        batch.put(part_key(base, part_idx), [&[VERSION], part].concat());
    }
}

/// Writes `bytes` in place of the record that may be there.
pub fn replace(
    records: &dyn Records,
    batch: &mut Batch,
    base: &[u8],
    bytes: &[u8],
) -> Result<(), StoreError> {
    let n_parts = n_parts(bytes.len());
    for part_idx in n_parts.. {
        let key = part_key(base, part_idx);
        if records.get(&key)?.is_none() {
            break;
        }
        batch.delete(key);
    }
    put(batch, base, bytes);
    Ok(())
}

/// Deletes the record, if there is one.
pub fn delete(records: &dyn Records, batch: &mut Batch, base: &[u8]) -> Result<(), StoreError> {
    for part_idx in 0.. {
        let key = part_key(base, part_idx);
        if records.get(&key)?.is_none() {
            break;
        }
        batch.delete(key);
    }
    Ok(())
}

/// The record at `base`; `what` names it in errors.
///
/// # Errors
/// [`StoreError::Damaged`] where a part is missing or the hash differs.
pub fn get(records: &dyn Records, base: &[u8], what: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(first) = records.get(&part_key(base, 0))? else { return Ok(None) };
    let rest = versioned(&first, what)?;
    let cut = || damaged(what, "is cut short");
    let (hash, rest) = rest.split_first_chunk::<HASH_BYTES>().ok_or_else(cut)?;
    let (len, first) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let len = u64::from_le_bytes(*len);

    // The stated length is only believed once the hash agrees: nothing is allocated by it.
    let mut bytes = first.to_vec();
    for part_idx in 1.. {
        if bytes.len() as u64 >= len {
            break;
        }
        let part = records.get(&part_key(base, part_idx))?.ok_or_else(cut)?;
        bytes.extend_from_slice(versioned(&part, what)?);
    }
    if bytes.len() as u64 != len || blake3::hash(&bytes) != *hash {
        return Err(damaged(what, "does not have the hash it was written with"));
    }
    Ok(Some(bytes))
}

fn n_parts(len: usize) -> u32 {
    len.div_ceil(PART_BYTES).max(1) as u32
}

fn part_key(base: &[u8], part_idx: u32) -> Vec<u8> {
    [base, &part_idx.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::memory::Memory;
    use super::*;

    fn write(records: &Memory, bytes: &[u8]) {
        let mut batch = Batch::default();
        replace(records, &mut batch, b"e/a/", bytes).unwrap();
        records.commit(batch).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_last_of_two_records_is_read_back(lens in [0_usize..300_000, 0_usize..300_000]) {
            let records = Memory::default();
            for len in lens {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
                write(&records, &bytes);
                prop_assert_eq!(get(&records, b"e/a/", "entry").unwrap(), Some(bytes));
            }
            prop_assert_eq!(records.len(), n_parts(lens[1]) as usize, "old parts are left over");
        }

        #[test]
        fn a_changed_byte_is_never_taken_for_text(part in 0_u32..3, at in any::<prop::sample::Index>()) {
            let records = Memory::default();
            write(&records, &[7; 150_000]);
            let key = part_key(b"e/a/", part);
            let mut value = records.get(&key).unwrap().unwrap();
            let at = at.index(value.len());
            value[at] ^= 0x40;
            let mut batch = Batch::default();
            batch.put(key, value);
            records.commit(batch).unwrap();
            prop_assert!(get(&records, b"e/a/", "entry").is_err());
        }
    }

    #[test]
    fn no_value_passes_64_kib() {
        let mut batch = Batch::default();
        put(&mut batch, b"e/a/", &vec![1; 1 << 20]);
        assert!(batch.writes.iter().flat_map(|(_, v)| v).all(|value| value.len() <= 64 * 1024));
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let records = Memory::default();
        let mut batch = Batch::default();
        batch.put(part_key(b"e/a/", 0), vec![2; 100]);
        records.commit(batch).unwrap();
        let err = get(&records, b"e/a/", "entry 0 of a").unwrap_err();
        assert_eq!(
            err.to_string(),
            "entry 0 of a has format version 2, this program reads 1; use a newer program"
        );
    }
}
