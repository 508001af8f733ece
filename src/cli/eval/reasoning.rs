//! `attar eval reasoning`: problems solved by thinking under a small budget.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use attar::engine::sampler::{Sampler, Sampling};
use attar::eval::journal::Journal;
use attar::eval::reasoning::{Generation, Problem, Room, read};
use attar::eval::rows::{Attempted, Folding, ReasoningRow, Unit};
use attar::eval::stream::Stream;
use attar::eval::table;
use clap::Args;

use super::{Common, Defaults, Job, Loaded, Progress, contenders, minutes, print_line};

const DEFAULTS: Defaults = Defaults {
    model: "qwen2.5-coder-0.5b-instruct",
    max_tokens: [1_024, 2_000, 2_000],
    policies: [
        &["agent", "rkv"],
        &["agent", "rkv", "rkv+protected", "streaming"],
        &[
            "agent",
            "rkv",
            "rkv+protected",
            "rkv+sinks",
            "gkv",
            "snapkv",
            "h2o",
            "tova",
            "keydiff",
            "streaming",
            "random",
        ],
    ],
    budgets: [&[512], &[512], &[512]],
    buffer: 64,
};

/// The reference, which is always measured.
const FULL: &str = "full";

/// Problems and new tokens of an answer: quickly, by default, in full.
const PROBLEMS: [usize; 3] = [2, 48, usize::MAX];
const NEW_TOKENS: [usize; 3] = [64, 512, 2_048];

/// Problems whose answers are generated together.
const AT_ONCE: usize = 4;

/// Measure how many problems with a number as their answer are solved under a small budget.
///
/// Each question comes behind the beginning of the first trajectory. A problem counts where at
/// least three compactions came after its question under every policy.
///
/// Example: attar eval reasoning problems.jsonl --policies rkv,streaming --budgets 512 --buffer 64
#[derive(Args)]
pub struct ReasoningCommand {
    /// A JSON object with `question` and `answer` a line.
    file: PathBuf,
    /// Take so many problems from the file's beginning.
    #[arg(long, value_name = "N")]
    problems: Option<usize>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N")]
    new_tokens: Option<usize>,
    /// 0 takes the likeliest token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    #[command(flatten)]
    common: Common,
}

impl ReasoningCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let common = &self.common;
        let text = std::fs::read_to_string(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        let mut problems = read(&text).map_err(|(line, error)| {
            anyhow::anyhow!("line {line} of {} is no problem: {error}", self.file.display())
        })?;
        problems.truncate(self.problems.unwrap_or(PROBLEMS[common.extent()]));
        anyhow::ensure!(!problems.is_empty(), "there is no problem to solve");
        let generation = self.generation()?;
        anyhow::ensure!(
            common.folding == [Folding::Off],
            "the context here has little to fold; `--folding` can only be `off`"
        );
        let mut loaded = common.load(&DEFAULTS)?;
        let mut units = common.units(&loaded, &DEFAULTS)?;
        let mut journal: Journal<Attempted> = Journal::open(common.resume.as_deref())?;
        let job = common.jobs(&loaded, &units, |_| false)?.into_iter().next();
        let Job { name, stream, .. } = job.context("there is no trajectory")?;
        anyhow::ensure!(
            loaded.max_tokens + generation.max_tokens + super::ROOM
                <= loaded.model.decoder.config().context_length,
            "the context, a question and `--new-tokens` pass the model's context; lower one"
        );
        units.iter_mut().for_each(|unit| unit.trajectory.clone_from(&name));
        let ids: Vec<_> = problems.iter().map(|problem| self.id(problem, generation)).collect();

        let started = Instant::now();
        let mut tables = String::new();
        for units in units.chunk_by(|a, b| a.budget == b.budget) {
            let mut all = units.to_vec();
            all.insert(0, Unit { policy: FULL.to_owned(), ..units[0].clone() });
            let is_missing = |id: &String| {
                all.iter().any(|unit| !journal.results().iter().any(|a| a.is_of(unit, id)))
            };
            let missing: Vec<_> =
                problems.iter().zip(&ids).filter(|(_, id)| is_missing(id)).collect();
            solve(&mut loaded, &stream, &all, &missing, generation, &mut journal)?;
            let attempts: Vec<Vec<_>> = all
                .iter()
                .map(|unit| {
                    let of = |id: &String| journal.results().iter().find(|a| a.is_of(unit, id));
                    ids.iter().filter_map(of).map(|attempted| attempted.outcome).collect()
                })
                .collect();
            let rows = ReasoningRow::all(&all, &attempts);
            if common.json {
                rows.iter().try_for_each(print_line)?;
            }
            tables += &format!("Budget {}:\n\n{}\n", units[0].budget, table::reasoning(&rows));
        }
        eprintln!("measured in {}", minutes(started.elapsed()));
        if !common.json {
            writeln!(
                stdout(),
                "Reasoning: {}; {} problems behind {} tokens of {name}, buffer {}, at most {} \
                 tokens an answer, temperature {}. In brackets the middle 95 % of resampled \
                 problems.\n\n{tables}",
                loaded.describe(),
                problems.len(),
                stream.tokens.len(),
                units[0].buffer,
                generation.max_tokens,
                self.temperature,
            )?;
        }
        Ok(())
    }

    fn generation(&self) -> anyhow::Result<Generation> {
        let sampling = Sampling {
            temperature: self.temperature,
            seed: self.common.seed,
            ..Sampling::default()
        };
        let max_tokens = self.new_tokens.unwrap_or(NEW_TOKENS[self.common.extent()]);
        anyhow::ensure!(max_tokens > 0, "`--new-tokens` is 0; use at least 1");
        Ok(Generation { sampler: Sampler::new(sampling)?, max_tokens })
    }

    /// Tells a problem, and how it is to be answered, from others.
    fn id(&self, problem: &Problem, generation: Generation) -> String {
        let all = format!(
            "{} {} {} {}",
            generation.max_tokens, self.temperature, problem.answer, problem.question
        );
        blake3::hash(all.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Has the missing problems answered under `units`, of which the full cache is the first.
fn solve(
    loaded: &mut Loaded,
    context: &Stream,
    units: &[Unit],
    missing: &[(&Problem, &String)],
    generation: Generation,
    journal: &mut Journal<Attempted>,
) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let contenders = contenders(&units[1..], context.tokens.len(), None)?;
    let mut progress = Progress::new((missing.len() * units.len()) as f64);
    let machine = &mut loaded.machine;
    let room = Room::new(context, &contenders, machine)?;
    for problems in missing.chunks(AT_ONCE) {
        let asked: Vec<_> = problems.iter().map(|(problem, _)| (*problem).clone()).collect();
        let outcomes = room.solve(&asked, &loaded.model, generation, machine)?;
        for ((_, id), outcomes) in problems.iter().zip(outcomes) {
            for (unit, outcome) in units.iter().zip(outcomes) {
                let (unit, problem) = (unit.clone(), (*id).clone());
                journal.add(Attempted { unit, problem, outcome })?;
            }
        }
        progress.add((problems.len() * units.len()) as f64, "reasoning");
    }
    Ok(())
}
