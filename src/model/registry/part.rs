//! A file that is not whole yet, hashed while it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::progress::Progress;
use super::{SourceError, StorageError};

const CHUNK: usize = 256 * 1024;

/// What is known of a file before it is here.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    pub(super) n_bytes: Option<u64>,
    pub(super) sha256: Option<String>,
}

/// `NAME.gguf.part`: the first bytes of a model's file.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    n_bytes: u64,
}

/// Which side of a copy failed.
pub(super) enum CopyError {
    Read(io::Error),
    Write(StorageError),
}

impl Part {
    /// Opens the part at `path`, with what an earlier pull left there.
    pub(super) fn open(path: &Path) -> Result<Self, StorageError> {
        let open = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.read(true).write(true).create(true).truncate(false).open(path)?;
            let mut hasher = Sha256::new();
            let mut buffer = vec![0; CHUNK];
            let mut n_bytes = 0;
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    n => {
                        hasher.update(&buffer[..n]);
                        n_bytes += n as u64;
                    }
                }
            }
            Ok(Self { path: path.to_owned(), file, hasher, n_bytes })
        };
        open().map_err(StorageError::at(path))
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Asks the disk whether the part can grow to `n_bytes`.
    pub(super) fn ensure_room(&self, n_bytes: u64) -> Result<(), StorageError> {
        let needed = n_bytes.saturating_sub(self.n_bytes);
        let stat = rustix::fs::fstatvfs(&self.file).map_err(io::Error::from);
        let stat = stat.map_err(StorageError::at(&self.path))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            return Err(StorageError::NoRoom { path: self.path.clone(), needed, free });
        }
        Ok(())
    }

    /// Forgets all bytes.
    pub(super) fn restart(&mut self) -> Result<(), StorageError> {
        let restart =
            self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)).map(drop));
        restart.map_err(StorageError::at(&self.path))?;
        self.hasher = Sha256::new();
        self.n_bytes = 0;
        Ok(())
    }

    /// Appends everything that `reader` has; what was read before an error is kept.
    pub(super) fn append(
        &mut self,
        mut reader: impl Read,
        progress: &mut Progress,
    ) -> Result<(), CopyError> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(CopyError::Read(error)),
            };
            let write = self.file.write_all(&buffer[..n]).map_err(StorageError::at(&self.path));
            write.map_err(CopyError::Write)?;
            self.hasher.update(&buffer[..n]);
            self.n_bytes += n as u64;
            progress.at(self.n_bytes);
        }
    }

    /// Proves that the file is whole and gives it its name.
    ///
    /// A part that is too short stays, to be resumed; one that is wrong is deleted.
    pub(super) fn finish(
        mut self,
        name: &Path,
        expected: &Expected,
        origin: &str,
    ) -> Result<(), SourceError> {
        if let Err(error) = self.verify(expected, origin) {
            if expected.n_bytes.is_none_or(|n_bytes| self.n_bytes >= n_bytes) {
                std::fs::remove_file(&self.path).map_err(StorageError::at(&self.path))?;
            }
            return Err(error);
        }
        let rename = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, name));
        Ok(rename.map_err(StorageError::at(name))?)
    }

    fn verify(&mut self, expected: &Expected, origin: &str) -> Result<(), SourceError> {
        let origin = origin.to_owned();
        let wrong = |what, expected: &dyn ToString, found: &dyn ToString| {
            let (expected, found) = (expected.to_string(), found.to_string());
            Err(SourceError::WrongFile { origin: origin.clone(), what, expected, found })
        };
        match expected.n_bytes {
            Some(n_bytes) if self.n_bytes < n_bytes => {
                let reason = format!("{n_bytes} bytes were promised");
                return Err(SourceError::Cut { host: origin, at: self.n_bytes, reason });
            }
            Some(n_bytes) if self.n_bytes > n_bytes => {
                return wrong("size", &n_bytes, &self.n_bytes);
            }
            _ => {}
        }
        if let Some(expected) = &expected.sha256 {
            let digest = self.hasher.clone().finalize();
            let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            if *expected != found {
                return wrong("SHA-256", expected, &found);
            }
        }
        let mut magic = Vec::new();
        let read = self.file.rewind().and_then(|()| (&self.file).take(4).read_to_end(&mut magic));
        read.map_err(StorageError::at(&self.path))?;
        if magic != b"GGUF" {
            return wrong("kind", &"GGUF", &format!("`{}`", magic.escape_ascii()));
        }
        Ok(())
    }
}
