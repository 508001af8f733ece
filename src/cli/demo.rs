//! `attar demo`: the main job in one command.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use attar::config::Settings;
use attar::engine::sampler::Sampling;
use attar::ingest::condense::Condense;
use attar::ingest::formats::{self, Trajectory};
use attar::session::Sessions;
use attar::session::conversation::{Conversation, Intake};
use attar::session::generation::Answer;
use attar::session::record::BUDGET_MIN;
use attar::session::registry::Open;
use attar::session::think::Part;
use attar::session::turn::Options;
use attar::store::Store;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::local;

/// A run of real tools on the small project in `fixtures/projects`.
pub(super) const TRAJECTORY: &str = include_str!("../../fixtures/trajectories/tally.json");
const ANSWER_TOKENS: usize = 160;

/// Replay a recorded agent's run under a quarter of its tokens, answer a question about it, and
/// show what the cache kept.
///
/// Gets the model first where it is missing.
///
/// Example: attar demo --budget 1024
#[derive(Args)]
pub struct DemoCommand {
    #[command(flatten)]
    settings: Settings,
}

impl DemoCommand {
    pub fn run(mut self) -> anyhow::Result<()> {
        let trajectory = formats::read(TRAJECTORY).context("the demo's trajectory")?;
        let asked_budget = self.settings.budget.take();
        let config = self.settings.clone().check()?;
        local::ensure_model(&config.model)?;
        local::start_compute(&config)?;
        let sessions = local::sessions(&config, Store::in_memory());
        local::block_on(demo(&sessions, trajectory, asked_budget))
    }
}

async fn demo(
    sessions: &Arc<Sessions>,
    trajectory: Trajectory,
    asked_budget: Option<usize>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    eprintln!("loading the model {}", sessions.models().default_name());
    let model = sessions.models().get(sessions.models().default_name()).await?;
    let tools = trajectory.tools.clone().unwrap_or_default();
    let intake = Intake { condense: Condense::off(), budget: None };
    let mut whole = Conversation::new(model, tools.clone(), intake)?;
    for message in &trajectory.messages {
        whole.push(message.clone())?;
    }
    let n_tokens = whole.n_tokens() + whole.n_open_tokens()?;
    let context = whole.model().decoder.config().context_length;
    anyhow::ensure!(
        n_tokens + ANSWER_TOKENS < context,
        "the demo's run has {n_tokens} tokens in this model's vocabulary, its context is {context}; \
         choose another model"
    );
    let budget = asked_budget.unwrap_or((n_tokens / 4).max(BUDGET_MIN));
    writeln!(
        stdout(),
        "{} messages of an agent's run, {n_tokens} tokens; the cache keeps at most {budget} slots a head",
        trajectory.messages.len()
    )?;
    let open = Open { tools: Some(tools), budget: Some(budget), ..Open::default() };
    let session = sessions.open(open).await?.session;
    let mut messages = trajectory.messages;
    let question = messages.pop().context("the demo's trajectory is empty")?;
    let folded = read(sessions, &session, messages, n_tokens).await?;
    writeln!(stdout(), "\n> {}\n", question.content)?;
    let options = Options {
        max_tokens: ANSWER_TOKENS,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stop: Vec::new(),
        reasoning_max_tokens: None,
    };
    let generation = sessions.generate(&session, vec![question], options).await?;
    let mut seen = 0;
    let outcome = loop {
        let (parts, outcome) = generation.stream.after(seen).await;
        seen += parts.len();
        for part in parts {
            match part {
                Part::Reasoning(text) | Part::Content(text) => write!(stdout(), "{text}")?,
                Part::ToolCall { name, arguments, .. } => {
                    write!(stdout(), "{name}{arguments}")?;
                }
            }
        }
        stdout().flush()?;
        if let Some(outcome) = outcome {
            break outcome;
        }
    };
    match &*outcome {
        Ok(answer) => table(sessions, &session, answer, (n_tokens, folded), started).await,
        Err(error) => anyhow::bail!("{error}"),
    }
}

/// Reads the messages; gives the tokens that need not be read, for they were folded.
async fn read(
    sessions: &Arc<Sessions>,
    session: &str,
    messages: Vec<attar::trajectory::Message>,
    n_tokens: usize,
) -> anyhow::Result<usize> {
    let bar = ProgressBar::new(n_tokens as u64);
    bar.set_style(ProgressStyle::with_template("reading {bar:40} {pos}/{len} tokens {eta}")?);
    let mut folded = 0;
    for message in messages {
        let (items, _) = sessions.append(session, vec![message]).await?;
        folded +=
            items.iter().map(|item| item.n_tokens.saturating_sub(item.n_given)).sum::<usize>();
        let stats = sessions.guard(session).await?.read_all().await?;
        bar.set_position((stats.logical + folded) as u64);
    }
    bar.finish_and_clear();
    Ok(folded)
}

async fn table(
    sessions: &Arc<Sessions>,
    session: &str,
    answer: &Answer,
    (n_tokens, folded): (usize, usize),
    started: Instant,
) -> anyhow::Result<()> {
    let stats = answer.stats;
    let shape = sessions.guard(session).await?.model().decoder.shape();
    let n_written = answer.completion_tokens;
    let full = (n_tokens + n_written) as u64 * shape.slot_bytes::<half::f16>() as u64;
    let saved = 100.0 * (1.0 - stats.bytes as f64 / full as f64);
    let rows = [
        ("policy", format!("{}, budget {}", answer.policy, answer.budget)),
        ("folded", format!("{folded} of {n_tokens} tokens")),
        (
            "logical tokens",
            format!("{} ({} read, {n_written} written)", stats.logical, answer.prompt_tokens),
        ),
        ("kept", format!("{} slots of each KV head", stats.kept)),
        ("evicted", (stats.logical - stats.kept).to_string()),
        ("compactions", stats.compactions.to_string()),
        ("KV bytes, full cache", local::human(full)),
        ("KV bytes now", format!("{} ({saved:.0} % less)", local::human(stats.bytes as u64))),
        ("time", format!("{:.1} s", started.elapsed().as_secs_f64())),
    ];
    writeln!(stdout(), "\n")?;
    for (name, value) in rows {
        writeln!(stdout(), "{name:<22} {value}")?;
    }
    Ok(())
}
