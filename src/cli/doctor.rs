//! `attar doctor`: what could keep Attar from working here, and what to do.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use attar::config::{self, Settings};
use attar::model::decoder::Decoder;
use attar::model::registry;
use attar::store::{Store, StoreError};
use attar::wire::{Client, socket};
use clap::Args;
use serde_json::{Value, json};

use super::local;

/// Check model, store, socket, memory and CPU, and say what to do.
///
/// Example: attar doctor
#[derive(Args)]
pub struct DoctorCommand {
    /// The daemon's socket.
    #[arg(long, env = "ATTAR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// One finding: what was looked at, whether it is well, and what was seen.
struct Finding {
    what: &'static str,
    is_well: bool,
    seen: String,
}

impl DoctorCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let config = self.settings.clone().check()?;
        let path = self.socket.clone().unwrap_or_else(socket::default_path);
        let daemon = local::block_on(async {
            let Ok(mut client) = Client::connect(&path).await else { return Ok(None) };
            Ok(Some(client.call("daemon/status", json!({})).await?))
        })?;
        let findings = [
            cpu(),
            memory(config.kv_memory),
            model(&config.model),
            store(&config, daemon.is_some()),
            Finding {
                what: "daemon",
                is_well: true,
                seen: match &daemon {
                    Some(status) => {
                        format!("runs as process {} on {}", status["pid"], path.display())
                    }
                    None => format!("none runs on {}; `attar serve` starts one", path.display()),
                },
            },
        ];
        if self.json {
            let all: Value = findings
                .iter()
                .map(|f| json!({"what": f.what, "ok": f.is_well, "seen": f.seen}))
                .collect();
            writeln!(stdout(), "{all}")?;
        } else {
            for finding in &findings {
                let mark = if finding.is_well { "ok  " } else { "BAD " };
                writeln!(stdout(), "{mark} {:<8} {}", finding.what, finding.seen)?;
            }
        }
        let n_bad = findings.iter().filter(|finding| !finding.is_well).count();
        anyhow::ensure!(n_bad == 0, "{n_bad} of {} checks failed; see above", findings.len());
        Ok(())
    }
}

fn cpu() -> Finding {
    let features = attar::kernel::cpu_features();
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seen = match features.as_slice() {
        [] => format!("{n_threads} threads, no SIMD kernels for this CPU: it works, slowly"),
        features => format!("{n_threads} threads, {}", features.join(" ")),
    };
    Finding { what: "cpu", is_well: true, seen }
}

fn memory(kv_memory: usize) -> Finding {
    let total = config::memory_bytes();
    let is_well = (kv_memory as u64) < total;
    let seen = format!(
        "{} in all, {} of it for KV caches{}",
        local::human(total),
        local::human(kv_memory as u64),
        if is_well { "" } else { "; lower `--kv-memory`" }
    );
    Finding { what: "memory", is_well, seen }
}

fn model(name: &str) -> Finding {
    let loaded = registry::resolve(name).map_err(anyhow::Error::from).and_then(|path| {
        let decoder = Decoder::load(&path, &mut |_, _| {})?;
        Ok((path, decoder))
    });
    match loaded {
        Ok((path, decoder)) => {
            let config = decoder.config();
            let seen = format!(
                "{name}: {} layers, context {}, {} in memory ({})",
                config.n_layers,
                config.context_length,
                local::human(decoder.weight_bytes() as u64),
                path.display()
            );
            Finding { what: "model", is_well: true, seen }
        }
        Err(error) => Finding { what: "model", is_well: false, seen: format!("{error:#}") },
    }
}

/// Names of the databases that could not be read, now or earlier.
fn set_aside(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut aside: Vec<_> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.contains(".damaged-"))
        .collect();
    aside.sort();
    aside
}

fn store(config: &config::Config, has_daemon: bool) -> Finding {
    let dir = config.data_dir.display();
    let (is_well, seen) = match Store::open(&config.data_dir, config.store_limit) {
        Ok(store) => match store.list() {
            Ok(sessions) => {
                let size = local::human(store.size_on_disk());
                let seen = format!("{dir}: {} sessions, {size}", sessions.len());
                match set_aside(&config.data_dir) {
                    aside if aside.is_empty() => (true, seen),
                    aside => (
                        false,
                        format!(
                            "{seen}; set aside because it could not be read: {}; a cache can be \
                             deleted, a history holds sessions that are lost otherwise",
                            aside.join(", ")
                        ),
                    ),
                }
            }
            Err(error) => (false, format!("{dir}: {error}")),
        },
        Err(StoreError::Locked { .. }) if has_daemon => (true, format!("{dir}: the daemon has it")),
        Err(error) => (false, error.to_string()),
    };
    Finding { what: "store", is_well, seen }
}
