//! `attar condense`: a trajectory with its repetitions folded.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::Context;
use attar::ingest::condense::Condense;
use attar::ingest::formats;
use attar::ingest::report::{Report, condense};
use attar::model::registry;
use attar::model::tokenizer::Tokenizer;
use clap::Args;

use super::local;

/// Write a recorded trajectory with the repetitions in its tool output folded, in the same format.
///
/// Everything but the folded contents stays as it is, byte for byte. No model is needed. What was
/// saved is told on stderr.
///
/// Example: attar condense run.traj.json --output short.traj.json
#[derive(Args)]
pub struct CondenseCommand {
    /// The trajectory, in any format that `attar replay` reads.
    file: PathBuf,
    /// Write to this file instead of stdout.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Count tokens too: a model's file or folder, or its name.
    #[arg(long, value_name = "NAME_OR_PATH")]
    tokenizer: Option<String>,
    /// Tell what was saved as JSON.
    #[arg(long)]
    json: bool,
    /// Which rules are in force: `on`, or `off:` and names of rules.
    #[arg(long, value_name = "WHAT", default_value_t)]
    condense: Condense,
}

impl CondenseCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let (text, trajectory) = local::read_trajectory(&self.file)?;
        let tokenizer = match &self.tokenizer {
            Some(name) => Some(Tokenizer::load(registry::resolve(name)?)?),
            None => None,
        };
        let (readings, report) = condense(&trajectory.messages, self.condense, tokenizer.as_ref())?;
        let contents: Vec<_> = readings.iter().map(|reading| reading.given.as_deref()).collect();
        write(self.output.as_deref(), &formats::rewrite(&text, &contents)?)?;
        match self.json {
            true => eprintln!("{}", serde_json::json!(report)),
            false => tell(&report),
        }
        Ok(())
    }
}

fn write(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match path {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(stdout().write_all(text.as_bytes())?),
    }
}

/// What was saved, for people.
fn tell(report: &Report) {
    eprintln!("{} of {} messages folded", report.folded, report.messages);
    let changes = [("characters", Some(report.characters)), ("tokens", report.tokens)];
    for (what, change) in changes {
        if let Some(change) = change {
            let percent = 100.0 * change.share();
            eprintln!(
                "{what:<12} {:>9} -> {:>9}  {percent:.1} % less",
                change.before, change.after
            );
        }
    }
    for (rule, saved) in &report.rules {
        let tokens = saved.tokens.map_or(String::new(), |tokens| format!(", {tokens} tokens"));
        eprintln!("  {rule:<16} {:>5} times, {} characters{tokens}", saved.folds, saved.characters);
    }
}
