//! `attar replay`: a recorded trajectory, turn by turn, through a session of its own.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use attar::config::Settings;
use attar::ingest::condense::Condense;
use attar::ingest::formats::Trajectory;
use attar::ingest::reader::{Anywhere, Reader};
use attar::session::Sessions;
use attar::session::registry::Open;
use attar::store::Store;
use attar::trajectory::Message;
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
    /// Only fold the text, without a model: what each message is shortened to.
    #[arg(long)]
    text_only: bool,
    #[command(flatten)]
    settings: Settings,
}

impl ReplayCommand {
    /// Prints what folding makes of each message.
    fn fold(&self, condense: Condense, messages: &[Message]) -> anyhow::Result<()> {
        let mut reader = Reader::new(condense)?;
        if !self.json {
            let names = ("turn", "role", "characters", "folded", "rules");
            let (turn, role, characters, folded, rules) = names;
            writeln!(stdout(), "{turn:>5} {role:<10} {characters:>10} {folded:>8}  {rules}")?;
        }
        for (turn, message) in messages.iter().enumerate() {
            let started = Instant::now();
            let reading = reader.read(message, &Anywhere);
            let us = started.elapsed().as_micros() as u64;
            let role = message.role.as_str();
            let characters = message.content.chars().count();
            let given = reading.given.as_ref().map_or(characters, |given| given.chars().count());
            let folded = characters.saturating_sub(given);
            let rules: Vec<_> = reading.folds.iter().map(|fold| fold.rule.as_str()).collect();
            if self.json {
                let line = json!({
                    "turn": turn,
                    "role": role,
                    "characters": characters,
                    "folded_characters": folded,
                    "rules": rules,
                    "us": us,
                });
                writeln!(stdout(), "{line}")?;
            } else {
                let rules = rules.join(", ");
                writeln!(stdout(), "{turn:>5} {role:<10} {characters:>10} {folded:>8}  {rules}")?;
            }
        }
        Ok(())
    }

    pub fn run(self) -> anyhow::Result<()> {
        let mut trajectory = local::read_trajectory(&self.file)?.1;
        trajectory.messages.truncate(self.until_turn.unwrap_or(usize::MAX));
        let config = self.settings.clone().check()?;
        if self.text_only {
            return self.fold(config.condense, &trajectory.messages);
        }
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
                "{:>5} {:<10} {:>8} {:>6} {:>6} {:>8} {:>11} {:>9} {:>8}",
                "turn",
                "role",
                "logical",
                "folded",
                "kept",
                "evicted",
                "compactions",
                "KV",
                "ms"
            )?;
        }
        for (turn, message) in trajectory.messages.into_iter().enumerate() {
            let started = Instant::now();
            let role = message.role.as_str();
            let (items, _) = sessions.append(&opened.session, vec![message]).await?;
            let folded: usize =
                items.iter().map(|item| item.n_tokens.saturating_sub(item.n_given)).sum();
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
                    "folded_tokens": folded,
                    "bytes": stats.bytes,
                    "ms": ms,
                });
                writeln!(stdout(), "{line}")?;
            } else {
                writeln!(
                    stdout(),
                    "{turn:>5} {role:<10} {:>8} {folded:>6} {:>6} {evicted:>8} {:>11} {:>9} {ms:>8}",
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
