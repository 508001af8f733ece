//! `attar eval recall`: what is still known of facts that were read long before.

use std::io::{Write, stdout};
use std::time::Instant;

use attar::eval::journal::Journal;
use attar::eval::probes::probes;
use attar::eval::recall::measure;
use attar::eval::rows::{Recalled, Unit};
use attar::eval::table;
use clap::Args;

use super::{Common, Defaults, Job, Progress, minutes, print_line};

const DEFAULTS: Defaults = Defaults {
    model: "qwen2.5-coder-0.5b-instruct",
    max_tokens: [2_048, 6_144, 16_384],
    policies: [
        &["agent", "rkv"],
        &["agent", "rkv", "streaming"],
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
    budgets: [&[512], &[1_024], &[1_024, 4_096]],
    buffer: 128,
};

/// Measure what is still known at the end of facts that were read long before.
///
/// Asks for values, places, signatures, commands and instructions that a trajectory says once,
/// before its last quarter. Only what a full cache answers right counts: word for word, and by
/// whether the right answer is likelier than four others of its kind.
///
/// Example: attar eval recall --trajectories runs --policies rkv,streaming --budgets 1024
#[derive(Args)]
pub struct RecallCommand {
    #[command(flatten)]
    common: Common,
}

impl RecallCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let common = &self.common;
        let mut loaded = common.load(&DEFAULTS)?;
        let units = common.units(&loaded, &DEFAULTS)?;
        let mut journal: Journal<Recalled> = Journal::open(common.resume.as_deref())?;
        let jobs = common.jobs(&loaded, &units, |unit| {
            journal.results().iter().any(|recalled| recalled.unit == *unit)
        })?;

        let started = Instant::now();
        let mut progress = Progress::new(jobs.iter().map(cost).sum());
        for job in &jobs {
            let before = progress.done;
            for batch in job.batches() {
                let folded = job.folded(&batch, &loaded)?;
                let read = folded.as_ref().unwrap_or(&job.stream);
                let contenders = job.contenders(&batch, read, &mut loaded, &mut progress)?;
                let probes = probes(&job.stream.messages);
                eprintln!("{}: {} probes", job.name, probes.len());
                let mut tell = |n: usize| progress.add(n as f64, &job.name);
                let recalled = measure(
                    &loaded.model,
                    &job.stream,
                    folded.as_ref(),
                    &probes,
                    &contenders,
                    &mut loaded.machine,
                    &mut tell,
                )?;
                for (unit, asked) in batch.into_iter().zip(recalled) {
                    journal.add(Recalled { unit, asked })?;
                }
            }
            progress.done = before + cost(job);
        }
        eprintln!("measured in {}", minutes(started.elapsed()));

        let units = jobs.iter().flat_map(|job| &job.units);
        let find = |unit: &Unit| journal.results().iter().find(|recalled| recalled.unit == *unit);
        let wanted: Vec<_> = units.filter_map(find).cloned().collect();
        if common.json {
            return wanted.iter().try_for_each(|recalled| print_line(&recalled.row()));
        }
        writeln!(
            stdout(),
            "Recall: {}; trajectories cut at whole messages to {} tokens, buffer {}. Of what a full \
             cache answers right; in brackets the middle 95 % of resampled probes.\n\n{}",
            loaded.describe(),
            loaded.max_tokens,
            common.buffer.unwrap_or(DEFAULTS.buffer),
            table::recall(&wanted)
        )?;
        Ok(())
    }
}

/// Tokens to be read, those of the questions included.
fn cost(job: &Job) -> f64 {
    /// A question, its answer and the wrong ones, roughly.
    const PROBE: usize = 90;
    if job.missing.is_empty() {
        return 0.0;
    }
    let n_asked = probes(&job.stream.messages).len() * (1 + job.missing.len());
    job.cost() + (n_asked * PROBE) as f64
}
