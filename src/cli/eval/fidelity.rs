//! `attar eval fidelity`: how far next-token distributions are from a full cache's.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use attar::eval::fidelity::{Scored, Turn, measure, measure_folded};
use attar::eval::journal::Journal;
use attar::eval::rows::{Measured, Repetition, Unit};
use attar::eval::{plot, table};
use clap::Args;

use super::{Common, Defaults, Job, Loaded, Progress, minutes, print_line};

const DEFAULTS: Defaults = Defaults {
    model: "smollm2-135m-instruct",
    max_tokens: [2_048, 16_384, 16_384],
    policies: [
        &["agent", "rkv", "oracle"],
        &["agent", "rkv", "rkv+protected", "rkv+sinks", "streaming", "random", "oracle"],
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
            "oracle",
        ],
    ],
    budgets: [&[512], &[1_024], &[512, 1_024, 2_048, 4_096]],
    buffer: 128,
};

/// Measure how far next-token distributions are from a full cache's.
///
/// Reads each trajectory with a full cache and with each policy under each budget, and at every
/// token that the assistant wrote after the first eviction compares what comes next: extra
/// negative log-likelihood of the token that was written, KL divergence, and how often the same
/// token is the likeliest. `oracle` knows the attention to come: a bound, no policy.
///
/// Example: attar eval fidelity --trajectories runs --budgets 512,1024 --plot loss.svg
#[derive(Args)]
pub struct FidelityCommand {
    #[command(flatten)]
    common: Common,
    /// Draw loss against budget as an SVG picture.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl FidelityCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let common = &self.common;
        let mut loaded = common.load(&DEFAULTS)?;
        let units = common.units(&loaded, &DEFAULTS)?;
        let mut journal: Journal<Measured> = Journal::open(common.resume.as_deref())?;
        let jobs = common.jobs(&loaded, &units, |unit| {
            journal.results().iter().any(|measured| measured.unit == *unit)
        })?;

        let started = Instant::now();
        let mut progress = Progress::new(jobs.iter().map(Job::cost).sum());
        for job in &jobs {
            let before = progress.done;
            for batch in job.batches() {
                let turns = measure_batch(job, &batch, &mut loaded, &mut progress)?;
                for (unit, turns) in batch.into_iter().zip(turns) {
                    journal.add(Measured { unit, turns })?;
                }
            }
            // What was forked was read for several at once.
            progress.done = before + job.cost();
            if common.json {
                print_lines(job, &journal)?;
            }
        }
        eprintln!("measured in {}", minutes(started.elapsed()));

        let wanted: Vec<_> = jobs
            .iter()
            .flat_map(|job| of(job, &journal))
            .filter(|measured| !measured.turns.is_empty())
            .cloned()
            .collect();
        if !common.json {
            self.print_tables(&loaded, &jobs, &wanted)?;
        }
        if let Some(path) = &self.plot {
            let title = format!("Loss beside a full cache, {}", loaded.describe());
            std::fs::write(path, plot::svg(&wanted, &title))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn print_tables(
        &self,
        loaded: &Loaded,
        jobs: &[Job],
        measured: &[Measured],
    ) -> anyhow::Result<()> {
        let mut out = stdout();
        writeln!(
            out,
            "Loss beside a full cache: {}; trajectories cut at whole messages to {} tokens, buffer \
             {}. In brackets the middle 95 % of resampled messages.\n",
            loaded.describe(),
            loaded.max_tokens,
            self.common.buffer.unwrap_or(DEFAULTS.buffer)
        )?;
        write!(out, "{}", table::fidelity(measured))?;
        let heads = ["trajectory", "tokens", "written", "thought", "thought before"];
        let row = |job: &Job| {
            let (thought, repeated) = job.stream.repetition();
            let written: usize = job.stream.turns.iter().map(|turn| turn.tokens.len()).sum();
            let share = 100.0 * repeated as f64 / thought.max(1) as f64;
            let counts = [job.stream.tokens.len(), written, thought].map(|n| n.to_string());
            let mut row = vec![job.name.clone()];
            row.extend(counts);
            row.push(format!("{share:.1} %"));
            row
        };
        let rows: Vec<_> = jobs.iter().map(row).collect();
        writeln!(out, "{}", table::markdown(&heads.map(str::to_owned), &rows))?;
        Ok(())
    }
}

fn measure_batch(
    job: &Job,
    batch: &[Unit],
    loaded: &mut Loaded,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Vec<Turn>>> {
    let folded = job.folded(batch, loaded)?;
    let read = folded.as_ref().unwrap_or(&job.stream);
    let contenders = job.contenders(batch, read, loaded, progress)?;
    let mut tell = |n: usize| progress.add(n as f64, &job.name);
    let machine = &mut loaded.machine;
    Ok(match &folded {
        Some(folded) => measure_folded(&job.stream, folded, &contenders, machine, &mut tell)?,
        None => measure(&job.stream, &contenders, machine, &mut tell)?,
    })
}

/// What was asked for and measured of a trajectory.
fn of<'a>(job: &'a Job, journal: &'a Journal<Measured>) -> impl Iterator<Item = &'a Measured> {
    let units = job.units.iter();
    units.filter_map(|unit| journal.results().iter().find(|measured| measured.unit == *unit))
}

fn print_lines(job: &Job, journal: &Journal<Measured>) -> anyhow::Result<()> {
    for row in of(job, journal).flat_map(Measured::rows) {
        print_line(&row)?;
    }
    let (tokens, repeated) = job.stream.repetition();
    if let (Some(unit), true) = (job.units.first(), tokens > 0) {
        print_line(&Repetition {
            model: unit.model.clone(),
            trajectory: job.name.clone(),
            scored: Scored::Thoughts,
            tokens,
            repeated,
        })?;
    }
    Ok(())
}
