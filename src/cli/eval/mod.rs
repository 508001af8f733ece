//! `attar eval`: what is lost by forgetting, measured.

mod fidelity;
mod reasoning;
mod recall;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use attar::cache::policy::{UnknownPolicy, by_name, random::Random};
use attar::cache::{Budget, Policy};
use attar::config::Settings;
use attar::engine::KvMemory;
use attar::eval::budget::Asked;
use attar::eval::lane::Machine;
use attar::eval::oracle::Oracle;
use attar::eval::race::Contender;
use attar::eval::rows::{Folding, Unit};
use attar::eval::stream::Stream;
use attar::eval::trajectories::{self, Named};
use attar::ingest::formats;
use attar::model::Workspace;
use attar::session::models::{Model, Models};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::local;

/// A run of real tools on the small project in `fixtures/projects`.
const RECORDED: &str = include_str!("../../../fixtures/trajectories/tally.json");

/// Not in the table of policies, as no session could have it.
const ORACLE: &str = "oracle";

/// What reading a token for the oracle costs, in tokens of another cache.
const ORACLE_COST: f64 = 1.5;

/// Tokens of the context that are left for questions.
const ROOM: usize = 512;

/// Measure what a compressed cache forgets.
///
/// Example: attar eval fidelity --trajectories runs --policies rkv,snapkv --budgets 512,1024
#[derive(Args)]
pub struct EvalCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Fidelity(fidelity::FidelityCommand),
    Recall(recall::RecallCommand),
    Reasoning(reasoning::ReasoningCommand),
}

impl EvalCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self.what {
            What::Fidelity(command) => command.run(),
            What::Recall(command) => command.run(),
            What::Reasoning(command) => command.run(),
        }
    }
}

/// What all measurements are told.
#[derive(Args)]
struct Common {
    /// Model by name (see `attar model list`) or path.
    #[arg(long, env = "ATTAR_MODEL", value_name = "NAME_OR_PATH")]
    model: Option<String>,
    /// Folder of trajectories in any format that `attar replay` reads [default:
    /// $ATTAR_TRAJECTORIES, else a run that comes with Attar].
    #[arg(long, value_name = "DIR")]
    trajectories: Option<PathBuf>,
    /// Which slots stay.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    policies: Option<Vec<String>>,
    /// How many slots stay, or a share such as 25%.
    #[arg(long, value_delimiter = ',', value_name = "SLOTS")]
    budgets: Option<Vec<Asked>>,
    /// Read tool output as it came (`off`), folded as sessions fold it (`on`), or both.
    #[arg(long, value_delimiter = ',', default_value = "off", value_name = "off,on")]
    folding: Vec<Folding>,
    /// Slots beyond the budget before a compaction.
    #[arg(long, value_name = "SLOTS")]
    buffer: Option<usize>,
    /// Read so many tokens of a trajectory, in whole messages.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Of all that is drawn at random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take under a minute, on the run that comes with Attar unless a folder is named.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure more, for hours.
    #[arg(long)]
    full: bool,
    /// Print one JSON line a figure instead of tables.
    #[arg(long)]
    json: bool,
    /// Keep finished results in a file; those that are there already are not measured again.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Threads that compute [default: one a core].
    #[arg(long, env = "ATTAR_THREADS", value_name = "N")]
    threads: Option<usize>,
}

/// A model, ready to compute.
struct Loaded {
    model: Arc<Model>,
    machine: Machine,
    max_tokens: usize,
    n_threads: usize,
}

/// What is measured where nobody says: quickly, by default, and in full.
struct Defaults {
    model: &'static str,
    max_tokens: [usize; 3],
    policies: [&'static [&'static str]; 3],
    budgets: [&'static [usize]; 3],
    buffer: usize,
}

impl Common {
    /// Which of the [`Defaults`] hold.
    fn extent(&self) -> usize {
        if self.quick { 0 } else { 1 + usize::from(self.full) }
    }

    /// Loads the model and starts the threads.
    fn load(&self, defaults: &Defaults) -> anyhow::Result<Loaded> {
        anyhow::ensure!(self.buffer != Some(0), "`--buffer` is 0; use at least 1");
        let name = self.model.clone().unwrap_or_else(|| defaults.model.to_owned());
        let settings = Settings { threads: self.threads, ..Settings::default() };
        let config = Settings { model: Some(name.clone()), ..settings }.check()?;
        local::ensure_model(&name)?;
        local::start_compute(&config)?;
        // Caches here are none of the engine's, which stays idle.
        let models = Models::new(name.clone(), Arc::new(KvMemory::new(0)));
        let model = local::block_on(async { Ok(models.get(&name).await?) })?;
        let context = model.decoder.config().context_length;
        let default = defaults.max_tokens[self.extent()];
        let max_tokens =
            self.max_tokens.unwrap_or_else(|| default.min(context.saturating_sub(ROOM)));
        anyhow::ensure!(
            max_tokens <= context,
            "`--max-tokens` is {max_tokens}, the model's context is {context}"
        );
        let machine = Machine {
            decoder: Arc::clone(&model.decoder),
            tool_call_token: model.tokenizer.token_id("<tool_call>"),
            work: Workspace::default(),
        };
        Ok(Loaded { model, machine, max_tokens, n_threads: config.threads })
    }

    /// All policies under all budgets, without a trajectory.
    fn units(&self, loaded: &Loaded, defaults: &Defaults) -> anyhow::Result<Vec<Unit>> {
        let extent = self.extent();
        let policies: Vec<String> = self.policies.clone().unwrap_or_else(|| {
            defaults.policies[extent].iter().map(|name| (*name).to_owned()).collect()
        });
        for name in policies.iter().filter(|name| *name != ORACLE) {
            named(name)?;
        }
        let budgets: Vec<Asked> = self.budgets.clone().unwrap_or_else(|| {
            defaults.budgets[extent].iter().copied().map(Asked::Slots).collect()
        });
        let mut units = Vec::new();
        for budget in budgets {
            for &folding in &self.folding {
                units.extend(policies.iter().map(|policy| Unit {
                    model: loaded.model.name.clone(),
                    fingerprint: loaded.model.fingerprint.clone(),
                    trajectory: String::new(),
                    max_tokens: loaded.max_tokens,
                    policy: policy.clone(),
                    budget,
                    buffer: self.buffer.unwrap_or(defaults.buffer),
                    folding,
                    seed: self.seed,
                }));
            }
        }
        Ok(units)
    }

    /// The trajectories that were asked for, and what is to be measured of each.
    fn jobs(
        &self,
        loaded: &Loaded,
        units: &[Unit],
        is_finished: impl Fn(&Unit) -> bool,
    ) -> anyhow::Result<Vec<Job>> {
        let given = || std::env::var_os("ATTAR_TRAJECTORIES").map(PathBuf::from);
        let folder = self.trajectories.clone().or_else(|| given().filter(|_| !self.quick));
        let all = match folder {
            Some(folder) => trajectories::load(&folder)?,
            None => {
                let trajectory = formats::read(RECORDED).context("the recorded run")?;
                vec![Named { name: "tally".to_owned(), trajectory }]
            }
        };
        let job = |named: Named| {
            let stream = Stream::new(&loaded.model, &named.trajectory, loaded.max_tokens)?;
            let own = |unit: &Unit| Unit { trajectory: named.name.clone(), ..unit.clone() };
            let units: Vec<_> = units.iter().map(own).collect();
            let missing = units.iter().filter(|unit| !is_finished(unit)).cloned().collect();
            Ok(Job { stream, units, missing, name: named.name })
        };
        all.into_iter().map(job).collect()
    }
}

/// A trajectory with what was asked about it.
struct Job {
    name: String,
    stream: Stream,
    units: Vec<Unit>,
    /// What is not measured yet.
    missing: Vec<Unit>,
}

impl Job {
    /// What is missing, parted by the stream that is read: folding depends on the budget.
    fn batches(&self) -> Vec<Vec<Unit>> {
        let mut batches: Vec<Vec<Unit>> = Vec::new();
        for unit in &self.missing {
            let is_same = |batch: &&mut Vec<Unit>| {
                let first = &batch[0];
                let is_same_text = unit.folding == Folding::Off || unit.budget == first.budget;
                unit.folding == first.folding && is_same_text
            };
            match batches.iter_mut().find(is_same) {
                Some(batch) => batch.push(unit.clone()),
                None => batches.push(vec![unit.clone()]),
            }
        }
        batches
    }

    /// Work on the stream in tokens of one cache.
    fn cost(&self) -> f64 {
        let cost = |batch: Vec<Unit>| {
            let oracle = if needs_oracle(&batch) { ORACLE_COST } else { 0.0 };
            let whole = f64::from(u8::from(batch[0].folding == Folding::On));
            1.0 + whole + oracle + batch.len() as f64
        };
        self.stream.tokens.len() as f64 * self.batches().into_iter().map(cost).sum::<f64>()
    }

    /// What a batch reads instead of the stream itself, if it does.
    fn folded(&self, batch: &[Unit], loaded: &Loaded) -> anyhow::Result<Option<Stream>> {
        let Some(Unit { folding: Folding::On, budget, .. }) = batch.first() else {
            return Ok(None);
        };
        let n_slots = budget.slots(self.stream.tokens.len());
        Ok(Some(self.stream.folded(&loaded.model, n_slots)?))
    }

    /// A batch, ready to be measured on the stream that it reads.
    fn contenders(
        &self,
        batch: &[Unit],
        read: &Stream,
        loaded: &mut Loaded,
        progress: &mut Progress,
    ) -> anyhow::Result<Vec<Contender>> {
        let n_tokens = self.stream.tokens.len();
        let fits = |unit: &Unit| unit.budget.slots(n_tokens) + unit.buffer >= n_tokens;
        if batch.iter().all(fits) {
            eprintln!("{}: its {n_tokens} tokens fit into every budget; left out", self.name);
        }
        let oracle = match needs_oracle(batch) {
            true => {
                let mut tell = |n: usize| progress.add(n as f64 * ORACLE_COST, &self.name);
                Some(Arc::new(Oracle::new(read, &mut loaded.machine, &mut tell)?))
            }
            false => None,
        };
        contenders(batch, n_tokens, oracle.as_ref())
    }
}

fn needs_oracle(batch: &[Unit]) -> bool {
    batch.iter().any(|unit| unit.policy == ORACLE)
}

/// A policy by its name, or by its name and other settings than its own: as a comma parts
/// policies, settings are parted by a plus, `agent:window=0+evidence=0.5`.
fn named(name: &str) -> Result<Arc<dyn Policy>, UnknownPolicy> {
    match name.split_once(':') {
        Some((policy, settings)) => by_name(&format!("{policy}:{}", settings.replace('+', ","))),
        None => by_name(name),
    }
}

/// Policies and budgets ready to be measured on `n_tokens`.
fn contenders(
    units: &[Unit],
    n_tokens: usize,
    oracle: Option<&Arc<Oracle>>,
) -> anyhow::Result<Vec<Contender>> {
    let contender = |unit: &Unit| {
        let policy: Arc<dyn Policy> = match (oracle, unit.policy.as_str()) {
            (Some(oracle), ORACLE) => Arc::clone(oracle) as Arc<dyn Policy>,
            (_, "random") => Arc::new(Random { seed: unit.seed }),
            (_, name) => named(name)?,
        };
        let n_slots = unit.budget.slots(n_tokens);
        Ok(Contender { policy, budget: Budget { n_slots, n_buffer: unit.buffer } })
    };
    units.iter().map(contender).collect()
}

/// Prints a JSON line.
fn print_line(row: &impl Serialize) -> anyhow::Result<()> {
    writeln!(stdout(), "{}", serde_json::to_string(row)?)?;
    Ok(())
}

impl Loaded {
    /// Says what a result was measured with.
    fn describe(&self) -> String {
        let identity = &self.model.fingerprint[..12];
        let name = Path::new(&self.model.name).file_stem().unwrap_or_default().to_string_lossy();
        format!(
            "{name} (weights and tokenizer {identity}), attar {}, {} threads of {}",
            env!("CARGO_PKG_VERSION"),
            self.n_threads,
            processor()
        )
    }
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or("an unknown processor", |(_, name)| name.trim()).to_owned()
}

/// Says on stderr how far a measurement is and how long it may still take.
struct Progress {
    total: f64,
    done: f64,
    started: Instant,
    said: Instant,
}

impl Progress {
    /// Seconds from one line to the next.
    const PAUSE: Duration = Duration::from_secs(10);

    /// `total` is the work to be done, in any unit.
    fn new(total: f64) -> Self {
        let now = Instant::now();
        Self { total, done: 0.0, started: now, said: now }
    }

    fn add(&mut self, done: f64, what: &str) {
        self.done += done;
        if self.said.elapsed() < Self::PAUSE {
            return;
        }
        self.said = Instant::now();
        let share = (self.done / self.total).min(1.0);
        let left = self.started.elapsed().mul_f64((1.0 - share) / share.max(1e-6));
        eprintln!("{what}: {:.0} %, about {} left", share * 100.0, minutes(left));
    }
}

/// A time for people.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6_000 => format!("{:.1} min", seconds as f64 / 60.0),
        seconds => format!("{:.1} h", seconds as f64 / 3_600.0),
    }
}
