//! A session as one file: self-contained, versioned, and refused unless it is whole.
//!
//! ```text
//! "attar session\n" | version u8 | field .. | 'z' | blake3 [32] of all before
//! field: tag u8 | length u64 little-endian | bytes
//! ```
//!
//! Tags are `i` id, `h` header, `e` entry (in order) and, if there is an image, `f` fingerprint,
//! `m` meta and `c` chunk (key u64 little-endian, then its bytes).

use std::io::{self, Read, Write};

use super::record::{VERSION, damaged};
use super::{Image, Session, StoreError};

const MAGIC: &[u8] = b"attar session\n";
const WHAT: &str = "the exported session";

/// Writes `session` to `to`.
pub fn write(id: &str, session: &Session, to: &mut dyn Write) -> io::Result<()> {
    let mut to = Hashed { inner: to, hasher: blake3::Hasher::new() };
    to.write_all(MAGIC)?;
    to.write_all(&[VERSION])?;
    field(&mut to, b'i', &[id.as_bytes()])?;
    field(&mut to, b'h', &[&session.header])?;
    for entry in &session.entries {
        field(&mut to, b'e', &[entry])?;
    }
    if let Some(image) = &session.image {
        field(&mut to, b'f', &[image.fingerprint.as_bytes()])?;
        field(&mut to, b'm', &[&image.meta])?;
        for (key, bytes) in &image.chunks {
            field(&mut to, b'c', &[&key.to_le_bytes(), bytes])?;
        }
    }
    to.write_all(b"z")?;
    let hash = to.hasher.finalize();
    to.inner.write_all(hash.as_bytes())?;
    to.inner.flush()
}

/// Reads a session and its id.
///
/// # Errors
/// [`StoreError::Damaged`] where it is not, byte for byte, what [`write`] wrote.
pub fn read(from: &mut dyn Read) -> Result<(String, Session), StoreError> {
    let mut from = Hashed { inner: from, hasher: blake3::Hasher::new() };
    if take(&mut from, MAGIC.len() as u64)? != MAGIC {
        return Err(damaged("the file", "is not an exported session"));
    }
    let [version] = array(&mut from)?;
    if version != VERSION {
        let what = WHAT.to_owned();
        return Err(StoreError::UnsupportedVersion { what, found: version, known: VERSION });
    }

    let (mut id, mut header, mut entries) = (None, None, Vec::new());
    let (mut fingerprint, mut meta, mut chunks) = (None, None, Vec::new());
    loop {
        let [tag] = array(&mut from)?;
        if tag == b'z' {
            break;
        }
        let n_bytes = u64::from_le_bytes(array(&mut from)?);
        let bytes = take(&mut from, n_bytes)?;
        match tag {
            b'i' => id = Some(text(bytes)?),
            b'h' => header = Some(bytes),
            b'e' => entries.push(bytes),
            b'f' => fingerprint = Some(text(bytes)?),
            b'm' => meta = Some(bytes),
            b'c' => {
                let (key, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
                chunks.push((u64::from_le_bytes(*key), bytes.to_vec()));
            }
            tag => return Err(damaged(WHAT, &format!("holds a field of unknown kind {tag}"))),
        }
    }
    let expected = from.hasher.finalize();
    if expected != array(&mut from)? || from.read(&mut [0]).map_err(io_error)? != 0 {
        return Err(damaged(WHAT, "does not have the hash it was written with"));
    }

    let image =
        fingerprint.zip(meta).map(|(fingerprint, meta)| Image { fingerprint, meta, chunks });
    let (Some(id), Some(header)) = (id, header) else {
        return Err(damaged(WHAT, "has no id or no header"));
    };
    Ok((id, Session { header, entries, image }))
}

/// Hashes what passes through.
struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl Write for Hashed<&mut dyn Write> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..n_written]);
        Ok(n_written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Read for Hashed<&mut dyn Read> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..n_read]);
        Ok(n_read)
    }
}

fn field(to: &mut dyn Write, tag: u8, bytes: &[&[u8]]) -> io::Result<()> {
    let n_bytes: usize = bytes.iter().map(|bytes| bytes.len()).sum();
    to.write_all(&[tag])?;
    to.write_all(&(n_bytes as u64).to_le_bytes())?;
    bytes.iter().try_for_each(|bytes| to.write_all(bytes))
}

/// Reads `n_bytes`; a length that lies allocates no more than the file holds.
fn take(from: &mut dyn Read, n_bytes: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    from.take(n_bytes).read_to_end(&mut bytes).map_err(io_error)?;
    if bytes.len() as u64 == n_bytes { Ok(bytes) } else { Err(cut()) }
}

fn array<const N: usize>(from: &mut dyn Read) -> Result<[u8; N], StoreError> {
    let bytes = take(from, N as u64)?;
    Ok(*bytes.first_chunk().expect("take returns as many bytes as were asked for"))
}

fn text(bytes: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(bytes).map_err(|_| damaged(WHAT, "holds text that is not UTF-8"))
}

fn cut() -> StoreError {
    damaged(WHAT, "is cut short")
}

fn io_error(source: io::Error) -> StoreError {
    StoreError::Io { path: WHAT.into(), source }
}
