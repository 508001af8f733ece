//! The one thread that computes: it owns the model's run state and all live caches.
//!
//! Token ids and numbers go in and come out; text stays outside, behind [`Listener`].

pub mod memory;
pub mod plan;
pub mod sampler;
mod sequence;
mod step;

use std::sync::Arc;
use std::time::Duration;

use half::f16;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::freeze::Frozen;
use crate::cache::{Budget, KvCache, Policy};
use crate::model::decoder::Decoder;
pub use memory::KvMemory;
use sampler::Sampler;

/// Commands that may wait for the engine before their senders do.
const COMMANDS_MAX: usize = 1_024;

/// Names a sequence inside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// How tokens came into a session. The two are computed by different kernels, so a cache that is
/// rebuilt must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RunKind {
    /// Read in blocks.
    Prompt,
    /// Written by the model, one step each.
    Generated,
}

/// Tokens that follow one another and came in the same way.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Run {
    pub kind: RunKind,
    pub tokens: Vec<u32>,
}

impl Run {
    pub fn prompt(tokens: Vec<u32>) -> Self {
        Self { kind: RunKind::Prompt, tokens }
    }

    pub fn generated(tokens: Vec<u32>) -> Self {
        Self { kind: RunKind::Generated, tokens }
    }
}

/// What a listener wants after a token.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    /// The generation is over; the token just heard is its last.
    Stop(FinishReason),
    /// These tokens come next, whatever the model would have sampled.
    Force(Vec<u32>),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    Cancelled,
}

/// Hears every token of a generation on the engine's thread, at once, and decides when it ends.
/// It must not block.
pub trait Listener: Send {
    /// A token was chosen.
    fn token(&mut self, token: u32) -> Verdict;
    /// `done` of `total` prompt tokens have been read.
    fn progress(&mut self, done: usize, total: usize);
}

/// What is to be generated.
pub struct Generate {
    pub sampler: Sampler,
    pub max_tokens: usize,
    pub cancel: CancellationToken,
    pub listener: Box<dyn Listener>,
}

/// A sequence as its owner hands it to the engine.
pub struct Feed {
    pub id: SequenceId,
    /// Sets up (or replaces) the sequence; without it the sequence must be resident.
    pub cache: Option<Box<KvCache<f16>>>,
    /// Tokens that follow what was handed over before.
    pub runs: Vec<Run>,
}

/// A generation that ended in good order.
pub struct Finished {
    /// All tokens chosen; the last one has not been read into the cache.
    pub tokens: Vec<u32>,
    pub reason: FinishReason,
    /// The cache after the last token that was read.
    pub frozen: Frozen,
    pub stats: CacheStats,
    pub timing: Timing,
}

/// A cache in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheStats {
    /// Tokens read so far, evicted ones included.
    pub logical: usize,
    /// Slots of each head.
    pub kept: usize,
    /// Tokens handed over and not read yet.
    pub pending: usize,
    pub compactions: u64,
    /// Bytes held in memory.
    pub bytes: usize,
}

/// Where a generation's time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    pub queue: Duration,
    /// Prompt tokens read while the generation waited, and the time that took.
    pub prefill_tokens: usize,
    pub prefill: Duration,
    pub decode: Duration,
    /// Compactions between decode steps.
    pub compaction: Duration,
}

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The sequence's cache is not in memory; hand it over again.
    #[error("the session's cache is not in memory")]
    NotResident,
    #[error(
        "the session needs {needed} bytes of KV memory, the limit is {limit}; lower its budget or raise `--kv-memory`"
    )]
    KvMemory { needed: usize, limit: usize },
    #[error("the conversation fills the model's context of {limit} tokens")]
    ContextFull { limit: usize },
    #[error("nothing to read before generating")]
    EmptyPrompt,
    #[error("the model step failed: {0}")]
    Step(String),
    #[error("the engine has stopped")]
    Stopped,
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

pub(crate) enum Command {
    /// Reads whole blocks while nobody waits for anything else; `wait` answers once they are read.
    Read {
        feed: Feed,
        wait: bool,
        reply: Reply<CacheStats>,
    },
    Generate {
        feed: Feed,
        generate: Box<Generate>,
        reply: Reply<Box<Finished>>,
    },
    Freeze {
        id: SequenceId,
        reply: Reply<(Frozen, CacheStats)>,
    },
    Positions {
        id: SequenceId,
        layer_idx: usize,
        head_idx: usize,
        reply: Reply<Vec<u32>>,
    },
    Configure {
        id: SequenceId,
        budget: Budget,
        policy: Arc<dyn Policy>,
        reply: Reply<(Frozen, usize)>,
    },
    Stats {
        id: SequenceId,
        reply: Reply<CacheStats>,
    },
    Drop {
        id: SequenceId,
    },
    Stop,
}

/// A way to the engine thread. Clones lead to the same thread; it stops with the last of them.
#[derive(Clone)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
}

impl Engine {
    /// Starts the thread that computes with `decoder`.
    ///
    /// `tool_call_token` opens a tool call in the model's format: the cache makes room before one,
    /// so that no compaction falls into it.
    pub fn start(
        decoder: Arc<Decoder>,
        memory: Arc<KvMemory>,
        tool_call_token: Option<u32>,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || step::Loop::new(decoder, memory, tool_call_token, inbox).run())?;
        Ok(Self { commands })
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)?
    }

    /// Hands tokens over, to be read in whole blocks; a rest shorter than a block waits for a
    /// generation. With `wait` the answer comes once the whole blocks are read, else at once.
    pub async fn read(&self, feed: Feed, wait: bool) -> Result<CacheStats, EngineError> {
        self.ask(|reply| Command::Read { feed, wait, reply }).await
    }

    /// Hands tokens over and generates after them.
    pub async fn generate(
        &self,
        feed: Feed,
        generate: Generate,
    ) -> Result<Box<Finished>, EngineError> {
        let generate = Box::new(generate);
        self.ask(|reply| Command::Generate { feed, generate, reply }).await
    }

    /// The cache as bytes, as it stands now.
    pub async fn freeze(&self, id: SequenceId) -> Result<(Frozen, CacheStats), EngineError> {
        self.ask(|reply| Command::Freeze { id, reply }).await
    }

    /// Token positions that one head of one layer holds.
    pub async fn positions(
        &self,
        id: SequenceId,
        layer_idx: usize,
        head_idx: usize,
    ) -> Result<Vec<u32>, EngineError> {
        self.ask(|reply| Command::Positions { id, layer_idx, head_idx, reply }).await
    }

    /// Brings a cache under another budget or policy; gives it as bytes, with
    /// the number of tokens it has read.
    pub async fn configure(
        &self,
        id: SequenceId,
        budget: Budget,
        policy: Arc<dyn Policy>,
    ) -> Result<(Frozen, usize), EngineError> {
        self.ask(|reply| Command::Configure { id, budget, policy, reply }).await
    }

    /// The cache in numbers.
    pub async fn stats(&self, id: SequenceId) -> Result<CacheStats, EngineError> {
        self.ask(|reply| Command::Stats { id, reply }).await
    }

    /// Frees the sequence's memory. What was generated must have been stored before.
    pub async fn forget(&self, id: SequenceId) {
        // A stopped engine holds nothing any more.
        let _ = self.commands.send(Command::Drop { id }).await;
    }

    /// Ends the thread after the step it is in.
    pub async fn stop(&self) {
        let _ = self.commands.send(Command::Stop).await;
    }
}
