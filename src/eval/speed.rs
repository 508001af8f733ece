//! How fast a model runs, and what memory its sessions take.
//!
//! Depth is reached with seeded random keys and values ([`KvCache::fill_synthetic`]).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use half::f16;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::cache::{Budget, KvCache, Policy};
use crate::engine::sampler::{Sampler, Sampling};
use crate::engine::{
    Engine, EngineError, Feed, FinishReason, Generate, KvMemory, Listener, Need, Run, SequenceId,
    Verdict,
};
use crate::ingest::condense::UnknownRule;
use crate::model::ModelError;
use crate::model::decoder::{BLOCK, Decoder, Workspace};
use crate::model::tokenizer::TokenizerError;
use crate::store::{Image, ImageError, ImageSource, Store, StoreError, Turn};

/// Compactions that are timed.
const COMPACTIONS: u32 = 3;

/// The one sequence of a measurement's own engine.
const SEQUENCE: SequenceId = SequenceId(0);

/// Decode steps that are timed beside them.
const STEPS: u32 = 8;

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    #[error("the model cannot be run: {0}")]
    Model(#[from] ModelError),
    #[error("the engine failed: {0}")]
    Engine(#[from] EngineError),
    #[error("the engine thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the snapshot cannot be stored: {0}")]
    Store(#[from] StoreError),
    #[error("the snapshot cannot be read: {0}")]
    Image(#[from] ImageError),
    #[error("the snapshot does not come back whole: {0}")]
    Thaw(#[from] crate::cache::freeze::ThawError),
    #[error("the snapshot is not there after it was stored")]
    NoImage,
    #[error("the first token never came")]
    NoToken,
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Rule(#[from] UnknownRule),
}

/// Which slots stay in the caches of a measurement.
#[derive(Clone)]
pub struct Setting {
    pub policy: Arc<dyn Policy>,
    pub budget: Budget,
}

/// How a [`Setting`] is written down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingName {
    pub policy: &'static str,
    /// Absent for a policy that never evicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<usize>,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Measurement {
    Prefill {
        tokens: usize,
        tok_s: f64,
    },
    /// Tokens of all sequences together; compactions that fall into the steps are in the time.
    Decode {
        depth: usize,
        seqs: usize,
        tok_s: f64,
        #[serde(flatten)]
        setting: SettingName,
        /// Slots of each head at the first step.
        kept: usize,
        kv_bytes: usize,
        /// The cache was filled with random keys and values.
        synthetic: bool,
    },
    /// One compaction, and what it takes of decoding's time when it comes once a buffer.
    Compaction {
        #[serde(flatten)]
        setting: SettingName,
        ms: f64,
        share: f64,
        synthetic: bool,
    },
    /// Sessions of `logical` tokens that fit in `kv_memory` together.
    Capacity {
        logical: usize,
        kv_memory: usize,
        #[serde(flatten)]
        setting: SettingName,
        bytes_per_session: usize,
        sessions: usize,
    },
    /// From handing over a tool's result of `tokens` to the first token of the answer.
    FirstToken {
        depth: usize,
        tokens: usize,
        #[serde(flatten)]
        setting: SettingName,
        ms: f64,
        synthetic: bool,
    },
    /// A session's cache to the disk, safe from loss of power, and back; beside it what reading
    /// its tokens again would take at the measured prefill rate.
    Snapshot {
        logical: usize,
        #[serde(flatten)]
        setting: SettingName,
        bytes: u64,
        write_ms: f64,
        restore_ms: f64,
        read_again_ms: f64,
        synthetic: bool,
    },
    /// Reading a conversation's text message by message, folding included; and its share of the
    /// time in which text and tokens are read.
    Ingest {
        bytes: usize,
        /// That are left for the model.
        tokens: usize,
        ms: f64,
        mb_s: f64,
        share: f64,
    },
    Memory {
        weight_bytes: usize,
        /// The most that the process ever held; absent where the system does not tell.
        #[serde(skip_serializing_if = "Option::is_none")]
        peak_bytes: Option<u64>,
    },
}

impl Setting {
    fn name(&self) -> SettingName {
        let budget = self.policy.evicts().then_some(self.budget.n_slots);
        SettingName { policy: self.policy.name(), budget }
    }

    /// A cache as if `depth` tokens had been read.
    fn cache(&self, decoder: &Decoder, depth: usize, seed: u64) -> KvCache<f16> {
        let mut cache = KvCache::new(decoder.shape(), self.budget, Arc::clone(&self.policy));
        cache.fill_synthetic(depth, seed);
        cache
    }
}

/// A model with what its steps write to.
pub struct Bench {
    decoder: Arc<Decoder>,
    work: Workspace<f16>,
    logits: Vec<f32>,
}

impl Bench {
    /// Takes a model and warms up.
    ///
    /// # Errors
    /// Where the model cannot be run.
    pub fn new(decoder: Arc<Decoder>) -> Result<Self, SpeedError> {
        let mut bench = Self { decoder, work: Workspace::default(), logits: Vec::new() };
        bench.prefill(32)?;
        Ok(bench)
    }

    /// Some token for the `i`th place of a text.
    fn token(&self, i: usize) -> u32 {
        (i * 7_919 % self.decoder.config().vocab) as u32
    }

    fn tokens(&self, n_tokens: usize) -> Vec<u32> {
        (0..n_tokens).map(|i| self.token(i)).collect()
    }

    /// The rate at which `n_tokens` are read into an empty cache.
    ///
    /// # Errors
    /// Where they are more than the model's context.
    pub fn prefill(&mut self, n_tokens: usize) -> Result<Measurement, SpeedError> {
        let tokens = self.tokens(n_tokens);
        let policy: Arc<dyn Policy> = Arc::new(crate::cache::policy::full::Full);
        let budget = Budget { n_slots: n_tokens, n_buffer: 0 };
        let mut cache = KvCache::new(self.decoder.shape(), budget, policy);
        let started = Instant::now();
        for block in tokens.chunks(BLOCK) {
            self.decoder.prefill(block, &mut cache, &mut self.work, Some(&mut self.logits))?;
        }
        let tok_s = n_tokens as f64 / started.elapsed().as_secs_f64();
        Ok(Measurement::Prefill { tokens: n_tokens, tok_s })
    }

    /// The rate at which `n_seqs` sequences, each at `depth`, decode `n_steps` tokens.
    ///
    /// # Errors
    /// Where `depth` and the steps pass the model's context.
    pub fn decode(
        &mut self,
        setting: &Setting,
        depth: usize,
        n_seqs: usize,
        n_steps: usize,
    ) -> Result<Measurement, SpeedError> {
        let mut caches: Vec<_> =
            (0..n_seqs).map(|seq| setting.cache(&self.decoder, depth, seq as u64)).collect();
        let kept = caches.first().map_or(0, KvCache::kept);
        let started = Instant::now();
        for step in 0..n_steps {
            self.step(&mut caches, step)?;
        }
        let tok_s = (n_steps * n_seqs) as f64 / started.elapsed().as_secs_f64();
        Ok(Measurement::Decode {
            depth,
            seqs: n_seqs,
            tok_s,
            setting: setting.name(),
            kept,
            kv_bytes: caches.iter().map(KvCache::bytes).sum(),
            synthetic: depth > 0,
        })
    }

    fn step(&mut self, caches: &mut [KvCache<f16>], step: usize) -> Result<(), SpeedError> {
        for cache in &mut *caches {
            if cache.is_full() {
                cache.compact(self.decoder.rope(), &self.work.scratch);
            }
        }
        let tokens: Vec<_> = (0..caches.len()).map(|seq| self.token(step + seq)).collect();
        let mut caches: Vec<_> = caches.iter_mut().collect();
        self.decoder.decode(&tokens, &mut caches, &mut self.work, Some(&mut self.logits))?;
        Ok(())
    }

    /// What compactions cost in a session that has gone through many; nothing for a policy that
    /// never evicts. Random keys without matches are the dearest for policies that look for them.
    ///
    /// # Errors
    /// Where the budget passes the model's context.
    pub fn compaction(&mut self, setting: &Setting) -> Result<Option<Measurement>, SpeedError> {
        let Budget { n_slots, n_buffer } = setting.budget;
        if !setting.policy.evicts() || n_buffer == 0 {
            return Ok(None);
        }
        let mut cache = setting.cache(&self.decoder, n_slots + 2 * n_buffer, 0);
        let mut compactions = Duration::ZERO;
        for cycle in 0..=COMPACTIONS {
            cache.fill_synthetic(n_buffer, u64::from(cycle) + 1);
            let started = Instant::now();
            cache.compact(self.decoder.rope(), &self.work.scratch);
            // The first finds buffers that have not grown yet.
            if cycle > 0 {
                compactions += started.elapsed();
            }
        }
        let compaction = compactions.as_secs_f64() / f64::from(COMPACTIONS);
        cache.fill_synthetic(n_buffer / 2, 0);
        let started = Instant::now();
        for step in 0..STEPS {
            self.step(std::slice::from_mut(&mut cache), step as usize)?;
        }
        let decoding = started.elapsed().as_secs_f64() / f64::from(STEPS) * n_buffer as f64;
        Ok(Some(Measurement::Compaction {
            setting: setting.name(),
            ms: compaction * 1e3,
            share: compaction / (compaction + decoding),
            synthetic: true,
        }))
    }

    /// How many sessions of `logical` tokens `kv_memory` bytes hold.
    pub fn capacity(&self, setting: &Setting, logical: usize, kv_memory: usize) -> Measurement {
        let cache = setting.cache(&self.decoder, 0, 0);
        let bytes_per_session = cache.bytes_after(logical);
        Measurement::Capacity {
            logical,
            kv_memory,
            setting: setting.name(),
            bytes_per_session,
            sessions: kv_memory / bytes_per_session,
        }
    }

    /// How long the first token of an answer takes after a tool's result of `n_tokens` tokens.
    ///
    /// # Errors
    /// Where the tokens pass the model's context.
    pub async fn first_token(
        &self,
        setting: &Setting,
        depth: usize,
        n_tokens: usize,
    ) -> Result<Measurement, SpeedError> {
        let (heard, first) = tokio::sync::oneshot::channel();
        let memory = Arc::new(KvMemory::new(usize::MAX));
        let engine = Engine::start(Arc::clone(&self.decoder), memory, None)?;
        let cache = setting.cache(&self.decoder, depth, 0);
        let granted = engine.admit(SEQUENCE, Need::of(&cache, depth + n_tokens, false)).await?;
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let started = Instant::now();
        let generate = Generate {
            asked_at: started,
            sampler: Sampler::new(greedy).unwrap_or_else(|_| unreachable!("greedy is legal")),
            max_tokens: 1,
            cancel: CancellationToken::new(),
            listener: Box::new(First(Some(heard))),
        };
        let feed = Feed {
            id: SEQUENCE,
            resident: granted.or_make(|| Box::new(cache)),
            runs: vec![Run::prompt(self.tokens(n_tokens))],
        };
        engine.generate(feed, generate).await?;
        let heard = first.await.map_err(|_| SpeedError::NoToken)?;
        engine.stop().await;
        Ok(Measurement::FirstToken {
            depth,
            tokens: n_tokens,
            setting: setting.name(),
            ms: heard.duration_since(started).as_secs_f64() * 1e3,
            synthetic: depth > 0,
        })
    }

    /// A cache at `depth` into a store in `folder` and back.
    ///
    /// # Errors
    /// Where the store fails.
    pub fn snapshot(
        &self,
        setting: &Setting,
        depth: usize,
        prefill_tok_s: f64,
        folder: &Path,
    ) -> Result<Measurement, SpeedError> {
        const SESSION: &str = "bench";
        let cache = setting.cache(&self.decoder, depth, 0);
        let store = Store::open(folder, u64::MAX)?;

        let started = Instant::now();
        let frozen = cache.freeze();
        let image = Image { fingerprint: String::new(), meta: frozen.meta, chunks: frozen.chunks };
        let turn = Turn { header: &[0], first_entry: 0, entries: &[], image: Some(&image) };
        if let Some(error) = store.commit(SESSION, turn)?.image_error {
            return Err(error.into());
        }
        let write = started.elapsed();

        let started = Instant::now();
        let Image { meta, chunks, .. } = store.image(SESSION)?.ok_or(SpeedError::NoImage)?;
        let frozen = crate::cache::freeze::Frozen { meta, chunks };
        let policy = Arc::clone(&setting.policy);
        let thawed = KvCache::<f16>::thaw(&frozen, self.decoder.shape(), setting.budget, policy)?;
        let restore = started.elapsed();
        Ok(Measurement::Snapshot {
            logical: thawed.logical(),
            setting: setting.name(),
            bytes: image.n_bytes(),
            write_ms: write.as_secs_f64() * 1e3,
            restore_ms: restore.as_secs_f64() * 1e3,
            read_again_ms: depth as f64 / prefill_tok_s * 1e3,
            synthetic: true,
        })
    }

    /// What the process has held at most so far.
    pub fn memory(&self) -> Measurement {
        Measurement::Memory {
            weight_bytes: self.decoder.weight_bytes(),
            peak_bytes: peak_resident_bytes(),
        }
    }
}

/// Tells when the first token came.
struct First(Option<tokio::sync::oneshot::Sender<Instant>>);

impl Listener for First {
    fn token(&mut self, _token: u32) -> Verdict {
        if let Some(heard) = self.0.take() {
            // Who asked may have gone.
            let _ = heard.send(Instant::now());
        }
        Verdict::Stop(FinishReason::Stop)
    }

    fn progress(&mut self, _done: usize, _total: usize) {}
}

/// The most memory that this process ever held at once.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}
