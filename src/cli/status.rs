//! `attar status`: asks the running daemon.

use std::io::{self, Write, stdout};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::local;

/// Ask the running daemon how it is.
///
/// Example: attar status --json
#[derive(Args)]
pub struct StatusCommand {
    /// The daemon's socket.
    #[arg(long, env = "ATTAR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    pub fn run(self) -> anyhow::Result<()> {
        local::block_on(async {
            let mut client = local::connect(self.socket.as_deref()).await?;
            let status = client.call("daemon/status", json!({})).await?;
            if self.json {
                writeln!(stdout(), "{status}")?;
            } else {
                print(&status)?;
            }
            Ok(())
        })
    }
}

fn print(status: &Value) -> io::Result<()> {
    let bytes = |value: &Value| local::human(value.as_u64().unwrap_or(0));
    let loaded: Vec<_> = status["models"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|m| m["model"].as_str())
        .collect();
    let loaded = if loaded.is_empty() { "none yet".to_owned() } else { loaded.join(", ") };
    writeln!(
        stdout(),
        "attar {} (process {})",
        status["version"].as_str().unwrap_or("?"),
        status["pid"]
    )?;
    writeln!(stdout(), "up          {} s", status["uptime_ms"].as_u64().unwrap_or(0) / 1_000)?;
    writeln!(stdout(), "models      {loaded}")?;
    writeln!(
        stdout(),
        "sessions    {} open, {} generating",
        status["sessions"]["open"],
        status["sessions"]["generating"]
    )?;
    let memory = &status["kv_memory"];
    writeln!(stdout(), "KV memory   {} of {}", bytes(&memory["used"]), bytes(&memory["limit"]))?;
    writeln!(stdout(), "store       {} on disk", bytes(&status["store"]["bytes"]))?;
    Ok(())
}
