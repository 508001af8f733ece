//! The daemon's Unix socket: where it lies, who may use it, and that there is only one.
//!
//! The lock file beside the socket decides who is the daemon. Only its holder looks at what lies
//! at the socket's path, so a stale socket is told from a live one without a race.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, UnixStream, lookup_host};

/// Most bytes of a socket's path: `sun_path` less its closing NUL.
pub const MAX_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "socket path {path} has {len} bytes, over the system's {MAX_PATH}; give a shorter one with --socket"
    )]
    PathTooLong { path: PathBuf, len: usize },
    #[error("{} holds {path} already; stop it or give another --socket", process(*.pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{path} is not a socket; move it away or give another --socket")]
    NotASocket { path: PathBuf },
    #[error("folder {path} {why}; remove it or give another --socket")]
    NotPrivate { path: PathBuf, why: &'static str },
    #[error("{addr} is not a loopback address; use 127.0.0.1 or [::1]")]
    NotLoopback { addr: SocketAddr },
    #[error("cannot listen on {place}: {source}")]
    Io { place: String, source: io::Error },
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Where the daemon listens and clients look unless told otherwise:
/// `$XDG_RUNTIME_DIR/attar/attar.sock`, else `attar-<uid>/attar.sock` in the temp folder.
pub fn default_path() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(dir) => dir.join("attar"),
        None => env::temp_dir().join(format!("attar-{}", our_uid())),
    };
    folder.join("attar.sock")
}

/// Whether a process of the user `uid` may talk to ours: it is the same user, or root.
pub fn is_trusted(uid: u32) -> bool {
    uid == our_uid() || uid == 0
}

fn our_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A bound socket; its file is removed when this is dropped, unless another has taken its place.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file we made.
    file: (u64, u64),
    /// Held for life; the file stays, since removing it would let two daemons lock two files.
    _lock: File,
}

impl Socket {
    /// Listens at [`default_path`], in a folder that no other user can enter.
    ///
    /// # Errors
    /// As [`Self::bind`], and a folder that is a link, another user's, or open to others.
    pub async fn bind_default() -> Result<Self, ListenError> {
        let path = default_path();
        private_folder(path.parent().expect("the default path has a folder"))?;
        Self::bind(&path).await
    }

    /// Listens at `path`; a missing folder is made, a stale socket is replaced.
    ///
    /// # Errors
    /// A path too long for a socket, taken by a live daemon or by another kind of file, or not
    /// writable.
    pub async fn bind(path: &Path) -> Result<Self, ListenError> {
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(ListenError::PathTooLong { path: path.to_owned(), len });
        }
        let fault = |source| ListenError::Io { place: path.display().to_string(), source };
        if let Some(folder) = path.parent() {
            make_folder(folder).map_err(fault)?;
        }
        let lock = lock(path)?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(fault)?;
        // Whoever connects between these two lines still has to pass `is_trusted`.
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(fault)?;
        let file = identity(path).map_err(fault)?;
        Ok(Self { listener, path: path.to_owned(), file, _lock: lock })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // Best effort: what is left is stale, and the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a loopback `addr`, given as `HOST:PORT`.
///
/// # Errors
/// An address that is not loopback, unknown, or taken.
pub async fn bind_tcp(addr: &str) -> Result<TcpListener, ListenError> {
    let fault = |source| ListenError::Io { place: addr.to_owned(), source };
    let addrs: Vec<SocketAddr> = lookup_host(addr).await.map_err(fault)?.collect();
    if let Some(&addr) = addrs.iter().find(|addr| !addr.ip().is_loopback()) {
        return Err(ListenError::NotLoopback { addr });
    }
    TcpListener::bind(&addrs[..]).await.map_err(fault)
}

/// Makes `folder` for our user alone, or checks that it is so.
fn private_folder(folder: &Path) -> Result<(), ListenError> {
    let made = make_folder(folder).and_then(|()| fs::symlink_metadata(folder));
    let metadata =
        made.map_err(|source| ListenError::Io { place: folder.display().to_string(), source })?;
    let why = if metadata.is_symlink() {
        "is a symbolic link"
    } else if !metadata.is_dir() {
        "is not a folder"
    } else if metadata.uid() != our_uid() {
        "belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "is open to other users (`chmod 700` closes it)"
    } else {
        return Ok(());
    };
    Err(ListenError::NotPrivate { path: folder.to_owned(), why })
}

fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Takes the lock beside the socket and leaves our process id in it for people to read.
fn lock(socket: &Path) -> Result<File, ListenError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let fault = |source| ListenError::Io { place: path.display().to_string(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .map_err(fault)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok());
            return Err(ListenError::InUse { path: socket.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(fault(source)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(fault)?;
    Ok(file)
}

/// Removes a socket that nobody listens on; refuses anything else. We hold the lock.
async fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let fault = |source| ListenError::Io { place: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fault(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(fault)
        }
        Err(error) => Err(fault(error)),
        Ok(stream) => {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let pid = pid.and_then(|pid| u32::try_from(pid).ok());
            Err(ListenError::InUse { path: path.to_owned(), pid })
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn why_not(folder: &Path) -> &'static str {
        match private_folder(folder) {
            Err(ListenError::NotPrivate { why, .. }) => why,
            other => panic!("{folder:?} gave {other:?}"),
        }
    }

    #[test]
    fn a_private_folder_is_made_and_a_public_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("attar");
        private_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        private_folder(&folder).unwrap();
        let link = dir.path().join("link");
        symlink(&folder, &link).unwrap();
        assert_eq!(why_not(&link), "is a symbolic link");
        fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
        assert!(why_not(&folder).starts_with("is open to other users"));
    }

    #[test]
    fn only_our_user_and_root_are_trusted() {
        assert!(is_trusted(our_uid()) && is_trusted(0));
        assert!(!is_trusted(our_uid() + 1));
    }
}
