//! `attar replay`: a recorded trajectory, turn by turn, through a session of its own.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use attar::config::Settings;
use attar::ingest::formats::{self, Trajectory};
use attar::session::Sessions;
use attar::session::registry::Open;
use attar::store::Store;
use clap::Args;
use serde_json::json;

use super::local;

/// Feed a recorded trajectory turn by turn and print what the cache keeps.
///
/// Reads OpenAI messages, SWE-agent, mini-swe-agent, Claude Code and ATIF files, found out by
/// content.
///
/// Example: attar replay run.traj.json --policy rkv --budget 1024 --json
#[derive(Args)]
pub struct ReplayCommand {
    /// The trajectory.
    file: PathBuf,
    /// Print one JSON line a turn.
    #[arg(long)]
    json: bool,
    /// Stop after this many messages.
    #[arg(long, value_name = "N")]
    until_turn: Option<usize>,
    #[command(flatten)]
    settings: Settings,
}

impl ReplayCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let text = std::fs::read(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        let trajectory = formats::read(&String::from_utf8_lossy(&text))
            .with_context(|| format!("cannot read {} as a trajectory", self.file.display()))?;
        let config = self.settings.clone().check()?;
        local::ensure_model(&config.model)?;
        local::start_compute(&config)?;
        let sessions = local::sessions(&config, Store::in_memory());
        local::block_on(self.replay(&sessions, trajectory))
    }

    async fn replay(
        &self,
        sessions: &Arc<Sessions>,
        mut trajectory: Trajectory,
    ) -> anyhow::Result<()> {
        let tools = trajectory.tools.take();
        let opened = sessions.open(Open { tools, ..Open::default() }).await?;
        if !self.json {
            writeln!(
                stdout(),
                "{:>5} {:<10} {:>8} {:>6} {:>8} {:>11} {:>9} {:>8}",
                "turn",
                "role",
                "logical",
                "kept",
                "evicted",
                "compactions",
                "KV",
                "ms"
            )?;
        }
        let n_turns = self.until_turn.unwrap_or(usize::MAX);
        for (turn, message) in trajectory.messages.into_iter().enumerate().take(n_turns) {
            let started = Instant::now();
            let role = message.role.as_str();
            sessions.append(&opened.session, vec![message]).await?;
            let stats = sessions.guard(&opened.session).await?.read_all().await?;
            let ms = started.elapsed().as_millis() as u64;
            let evicted = stats.logical - stats.kept;
            if self.json {
                let line = json!({
                    "turn": turn,
                    "role": role,
                    "tokens": {"logical": stats.logical, "kept": stats.kept, "pending": stats.pending},
                    "evicted": evicted,
                    "compactions": stats.compactions,
                    "folded_tokens": 0,
                    "bytes": stats.bytes,
                    "ms": ms,
                });
                writeln!(stdout(), "{line}")?;
            } else {
                writeln!(
                    stdout(),
                    "{turn:>5} {role:<10} {:>8} {:>6} {evicted:>8} {:>11} {:>9} {ms:>8}",
                    stats.logical,
                    stats.kept,
                    stats.compactions,
                    local::human(stats.bytes as u64),
                )?;
            }
        }
        Ok(())
    }
}
