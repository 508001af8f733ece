//! `attar bench`: speed and memory of a model on this machine.

use std::path::Path;
use std::sync::Arc;

use attar::cache::Budget;
use attar::cache::policy::{by_name, full::Full};
use attar::config::{Config, Settings};
use attar::eval::ingest::ingest;
use attar::eval::speed::{Bench, Measurement, Setting, SettingName};
use attar::ingest::formats;
use attar::model::decoder::Decoder;
use attar::model::registry;
use attar::model::tokenizer::Tokenizer;
use clap::Args;
use indicatif::ProgressBar;

use super::local;

/// Logical tokens of a session in the count of sessions that fit in memory.
const LONG_SESSION: usize = 16_384;

/// Tokens of the tool's result before the first token.
const TOOL_RESULT: usize = 512;

/// Measure speed and memory.
///
/// Depths are reached with random keys and values, as reading so many tokens would take long; the
/// rates do not depend on what the keys are. Leave the machine idle meanwhile.
///
/// Example: attar bench --budget 1024 --depths 0,2048,7936 --seqs 1,4 --json
#[derive(Args)]
pub struct BenchCommand {
    /// Tokens read at once.
    #[arg(long, default_value_t = 512)]
    prefill: usize,
    /// Tokens that sessions have behind them when decoding is measured.
    #[arg(long, value_delimiter = ',', default_value = "0,2048,7936")]
    depths: Vec<usize>,
    /// Decode steps of a measurement.
    #[arg(long, default_value_t = 32)]
    decode: usize,
    /// Sessions that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    seqs: Vec<usize>,
    /// Fewer and shorter measurements.
    #[arg(long)]
    quick: bool,
    /// Print one JSON line a measurement.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

impl BenchCommand {
    pub fn run(mut self) -> anyhow::Result<()> {
        if self.quick {
            self.prefill = self.prefill.min(256);
            self.decode = self.decode.min(8);
            self.depths.truncate(2);
            self.seqs.truncate(3);
        }
        let config = self.settings.clone().check()?;
        local::ensure_model(&config.model)?;
        local::start_compute(&config)?;
        let path = registry::resolve(&config.model)?;
        let decoder = Decoder::load(&path, &mut |_, _| {})?;
        self.check(&decoder)?;
        self.measure(&config, &path, Arc::new(decoder))
    }

    /// Says what cannot be measured before the first minute is spent.
    fn check(&self, decoder: &Decoder) -> anyhow::Result<()> {
        anyhow::ensure!(self.prefill > 0, "`--prefill` is 0; use at least 1");
        anyhow::ensure!(self.decode > 0, "`--decode` is 0; use at least 1");
        anyhow::ensure!(!self.seqs.contains(&0), "`--seqs` has a 0; use at least 1");
        let context = decoder.config().context_length;
        let deepest = self.depths.iter().max().copied().unwrap_or(0);
        let longest = self.prefill.max(TOOL_RESULT).max(deepest + self.decode);
        anyhow::ensure!(
            longest <= context,
            "the measurement takes {longest} tokens, the model's context is {context}; lower `--depths`"
        );
        Ok(())
    }

    fn measure(&self, config: &Config, path: &Path, decoder: Arc<Decoder>) -> anyhow::Result<()> {
        let budget = Budget { n_slots: config.cache.budget, n_buffer: config.cache.buffer };
        let setting = Setting { policy: by_name(&config.cache.policy)?, budget };
        let whole = Setting { policy: Arc::new(Full), budget };
        let evicts = setting.policy.evicts();
        let context = decoder.config().context_length;
        let mut report = Report::new(self.json);

        report.begin("reading");
        let mut bench = Bench::new(decoder)?;
        let prefill = bench.prefill(self.prefill)?;
        let Measurement::Prefill { tok_s, .. } = prefill else { unreachable!("it was asked for") };
        report.add(&prefill);
        report.begin("reading the text");
        let run = formats::read(super::demo::TRAJECTORY)?.messages;
        report.add(&ingest(&run, &Tokenizer::load(path)?, tok_s)?);
        for &depth in &self.depths {
            for &n_seqs in &self.seqs {
                report.begin(&format!("decoding {n_seqs} at depth {depth}"));
                report.add(&bench.decode(&setting, depth, n_seqs, self.decode)?);
            }
            if evicts {
                report.begin(&format!("decoding with a full cache at depth {depth}"));
                report.add(&bench.decode(&whole, depth, 1, self.decode)?);
            }
        }
        if budget.n_slots + 4 * budget.n_buffer <= context {
            report.begin("compacting");
            bench.compaction(&setting)?.iter().for_each(|measured| report.add(measured));
        }
        let depth = self.depths.iter().max().copied().unwrap_or(0);
        report.begin("reading a tool's result");
        report.add(&local::block_on(async {
            Ok(bench.first_token(&setting, depth.min(context - TOOL_RESULT), TOOL_RESULT).await?)
        })?);
        report.begin("storing and restoring");
        let folder = std::env::temp_dir().join(format!("attar-bench-{}", std::process::id()));
        let snapshot = bench.snapshot(&setting, depth.max(TOOL_RESULT), tok_s, &folder);
        let removed = std::fs::remove_dir_all(&folder);
        report.add(&snapshot?);
        removed?;
        for setting in [Some(&whole), evicts.then_some(&setting)].into_iter().flatten() {
            report.add(&bench.capacity(setting, LONG_SESSION, config.kv_memory));
        }
        report.add(&bench.memory());
        report.end();
        Ok(())
    }
}

/// Prints what is measured, and to a terminal what is being measured.
struct Report {
    json: bool,
    bar: ProgressBar,
}

impl Report {
    fn new(json: bool) -> Self {
        Self { json, bar: ProgressBar::new_spinner() }
    }

    fn begin(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    fn add(&mut self, measured: &Measurement) {
        self.bar.suspend(|| match self.json {
            true => println!("{}", serde_json::json!(measured)),
            false => println!("{}", row(measured)),
        });
    }

    fn end(self) {
        self.bar.finish_and_clear();
        if !self.json {
            println!("\n* from a cache of random keys and values");
        }
    }
}

/// A line for people: what, under which circumstances, the figure.
fn row(measured: &Measurement) -> String {
    let mark = |is_synthetic: &bool| if *is_synthetic { " *" } else { "" };
    let human = |bytes: usize| local::human(bytes as u64);
    let (what, how, figure) = match measured {
        Measurement::Prefill { tokens, tok_s } => {
            ("prefill", format!("{tokens} tokens"), format!("{tok_s:.1} tok/s"))
        }
        Measurement::Decode { depth, seqs, tok_s, setting, kv_bytes, synthetic, .. } => (
            "decode",
            format!("{}, depth {depth}, {seqs} at once", name(setting)),
            format!("{tok_s:.1} tok/s, KV {}{}", human(*kv_bytes), mark(synthetic)),
        ),
        Measurement::Compaction { setting, ms, share, synthetic } => (
            "compaction",
            name(setting),
            format!("{ms:.1} ms, {:.2} % of decoding{}", 100.0 * share, mark(synthetic)),
        ),
        Measurement::FirstToken { depth, tokens, setting, ms, synthetic } => (
            "first token",
            format!("{}, depth {depth}, after {tokens} tokens", name(setting)),
            format!("{ms:.0} ms{}", mark(synthetic)),
        ),
        Measurement::Snapshot {
            logical,
            setting,
            bytes,
            write_ms,
            restore_ms,
            read_again_ms,
            synthetic,
        } => (
            "snapshot",
            format!("{}, {logical} tokens, {}", name(setting), human(*bytes as usize)),
            format!(
                "written in {write_ms:.0} ms, restored in {restore_ms:.0} ms, read again in {read_again_ms:.0} ms{}",
                mark(synthetic)
            ),
        ),
        Measurement::Capacity { logical, kv_memory, setting, bytes_per_session, sessions } => (
            "capacity",
            format!("{}, {logical} tokens in {}", name(setting), human(*kv_memory)),
            format!("{sessions} sessions of {}", human(*bytes_per_session)),
        ),
        Measurement::Ingest { bytes, tokens, ms, mb_s, share } => (
            "ingest",
            format!("{} of text, {tokens} tokens left", human(*bytes)),
            format!("{ms:.1} ms, {mb_s:.0} MB/s, {:.2} % of reading them", 100.0 * share),
        ),
        Measurement::Memory { weight_bytes, peak_bytes } => (
            "memory",
            format!("weights {}", human(*weight_bytes)),
            peak_bytes.map_or("peak unknown".to_owned(), |peak| {
                format!("at most {}", local::human(peak))
            }),
        ),
    };
    format!("{what:<12} {how:<42} {figure}")
}

fn name(setting: &SettingName) -> String {
    match setting.budget {
        Some(budget) => format!("{} {budget}", setting.policy),
        None => setting.policy.to_owned(),
    }
}
