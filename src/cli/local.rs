//! What several subcommands share: a runtime, sessions in this process, a way to the daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use attar::config::Config;
use attar::engine::KvMemory;
use attar::ingest::formats::{self, Trajectory};
use attar::model::registry;
use attar::session::Sessions;
use attar::session::models::Models;
use attar::session::registry::Options;
use attar::store::Store;
use attar::wire::{Client, socket};

/// Runs one async piece of work to its end, on this thread.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let result = runtime.block_on(work);
    // A thread that reads the terminal cannot be interrupted, and need not be waited for.
    runtime.shutdown_background();
    result
}

/// Sets up the threads that compute. Once a process.
pub fn start_compute(config: &Config) -> anyhow::Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(config.threads)
        .thread_name(|index| format!("compute-{index}"))
        .build_global()
        .context("cannot start the compute threads")
}

/// Sessions over `store`, in this process.
pub fn sessions(config: &Config, store: Store) -> Arc<Sessions> {
    let memory = Arc::new(KvMemory::new(config.kv_memory));
    let models = Arc::new(Models::new(config.model.clone(), memory));
    let options = Options { cache: config.cache.clone(), condense: config.condense.clone() };
    Arc::new(Sessions::new(models, store, options))
}

/// Gets the model if it is a known one and not there yet.
pub fn ensure_model(name: &str) -> anyhow::Result<()> {
    match registry::resolve(name) {
        Err(registry::RegistryError::NotDownloaded { .. }) => {
            eprintln!("getting the model {name} (once)");
            let options = registry::PullOptions::default();
            registry::pull(&registry::by_name(name)?, &registry::models_dir()?, &options)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

/// Reads a trajectory file in whatever format it is; gives its text as well.
pub fn read_trajectory(path: &Path) -> anyhow::Result<(String, Trajectory)> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let trajectory = formats::read(&text)
        .with_context(|| format!("cannot read {} as a trajectory", path.display()))?;
    Ok((text, trajectory))
}

/// A connection to the daemon that listens on `path`, or on the default socket.
pub async fn connect(path: Option<&Path>) -> anyhow::Result<Client> {
    let path = path.map_or_else(socket::default_path, PathBuf::from);
    Client::connect(&path).await.with_context(|| {
        format!("no daemon answers on {}; start one with `attar serve`", path.display())
    })
}

/// Bytes for people.
pub fn human(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
