//! The token that TCP and HTTP clients show; a Unix socket needs none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// File in the data folder that holds the token.
pub const FILE: &str = "token";

/// Bytes of randomness in a token; its text is twice as long.
const N_BYTES: usize = 32;

/// A secret of the daemon's user; never printed by `Debug`.
#[derive(Clone)]
pub struct Token(String);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read or make the token file {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "token file {path} belongs to or is open to others (mode {mode:o}, uid {uid}); run `chmod 600` on it, or delete it to get a new one"
    )]
    NotPrivate { path: PathBuf, mode: u32, uid: u32 },
    #[error("token file {path} does not hold {} hexadecimal digits; delete it to get a new one", 2 * N_BYTES)]
    Damaged { path: PathBuf },
}

impl Token {
    /// The token in `data_dir`, made on first use and readable by its owner only.
    ///
    /// # Errors
    /// The file is damaged, open to others, or cannot be read or written.
    pub fn load_or_create(data_dir: &Path) -> Result<Self, TokenError> {
        let path = data_dir.join(FILE);
        match create(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(TokenError::Io { path, source })
            }
            _ => Self::load(data_dir),
        }
    }

    /// The token in `data_dir`, as a client on the same machine reads it.
    ///
    /// # Errors
    /// The file is missing, damaged, open to others, or cannot be read.
    pub fn load(data_dir: &Path) -> Result<Self, TokenError> {
        let path = data_dir.join(FILE);
        let read = || Ok((fs::symlink_metadata(&path)?, fs::read_to_string(&path)?));
        let (metadata, text) = match read() {
            Ok(found) => found,
            Err(source) => return Err(TokenError::Io { path, source }),
        };
        let (mode, uid) = (metadata.mode() & 0o7777, metadata.uid());
        if !metadata.is_file() || mode & 0o077 != 0 || uid != rustix::process::geteuid().as_raw() {
            return Err(TokenError::NotPrivate { path, mode, uid });
        }
        let text = text.trim();
        if text.len() != 2 * N_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(TokenError::Damaged { path });
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether `given` is this token, in time that does not depend on where they differ.
    pub fn matches(&self, given: &str) -> bool {
        // Hashes of equal length, which blake3 compares in constant time.
        blake3::hash(self.0.as_bytes()) == blake3::hash(given.as_bytes())
    }

    /// The text that a client sends.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Writes a new token beside `path` and links it there, so that no one ever sees half of it.
fn create(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut bytes = [0; N_BYTES];
    getrandom::fill(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let unlinked = path.with_extension(format!("new{}", std::process::id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unlinked)?;
    let linked = writeln!(file, "{text}")
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&unlinked, path));
    fs::remove_file(&unlinked)?;
    linked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_token_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::load_or_create(dir.path()).unwrap();
        assert!(token.matches(Token::load_or_create(dir.path()).unwrap().as_str()));
        assert!(token.matches(Token::load(dir.path()).unwrap().as_str()));
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(!token.matches("") && !token.matches(&token.as_str()[1..]));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_damaged_or_public_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert!(matches!(Token::load(dir.path()), Err(TokenError::Io { .. })));
        Token::load_or_create(dir.path()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let public = Token::load_or_create(dir.path());
        assert!(matches!(public, Err(TokenError::NotPrivate { mode: 0o644, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(matches!(Token::load(dir.path()), Err(TokenError::Damaged { .. })));
    }
}
