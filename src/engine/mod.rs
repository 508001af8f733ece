//! The one thread that computes: it owns the model's run state and all live caches.
//!
//! Token ids and numbers go in and come out; text stays outside, behind [`Listener`].

pub mod memory;
pub mod plan;
pub mod sampler;
mod sequence;
mod step;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Budget, KvCache, KvElement, Policy};
use crate::model::decoder::Decoder;
use memory::EngineId;
pub use memory::{Granted, KvMemory, Need, Resident};
use plan::Pending;
use sampler::Sampler;
use sequence::{Job, Sequence};
pub(crate) use step::make_room_for;

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
    /// When it was asked for.
    pub asked_at: Instant,
    pub sampler: Sampler,
    pub max_tokens: usize,
    pub cancel: CancellationToken,
    pub listener: Box<dyn Listener>,
}

/// A sequence as its owner hands it to the engine.
pub struct Feed {
    pub id: SequenceId,
    /// Notes on tokens that are read in blocks stand in the cache before these are handed over.
    pub resident: Resident,
    /// Tokens that follow what the cache has read.
    pub runs: Vec<Run>,
}

/// A generation that ended in good order.
pub struct Finished {
    /// All tokens chosen; the last one has not been read into the cache.
    pub tokens: Vec<u32>,
    pub reason: FinishReason,
    /// The cache after the last token that was read; none where the generation never began.
    pub resident: Option<Resident>,
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

impl CacheStats {
    /// A cache's numbers, with nothing pending.
    pub fn of<E: KvElement>(cache: &KvCache<E>) -> Self {
        Self {
            logical: cache.logical(),
            kept: cache.kept(),
            pending: 0,
            compactions: cache.n_compactions(),
            bytes: cache.bytes(),
        }
    }
}

/// Where a generation's time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    pub queue: Duration,
    /// Reading the prompt's tokens.
    pub prefill: Duration,
    pub decode: Duration,
    /// Compactions between decode steps.
    pub compaction: Duration,
}

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(
        "the session needs {needed} bytes of KV memory, the limit is {limit}; lower its budget or raise `--kv-memory`"
    )]
    KvMemory { needed: usize, limit: usize },
    #[error("nothing to read before generating")]
    EmptyPrompt,
    #[error("the model step failed: {0}")]
    Step(String),
    #[error("the engine has stopped")]
    Stopped,
}

type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

enum Command {
    /// Reads whole blocks while nobody waits for anything else; the cache rests meanwhile.
    ReadAhead {
        id: SequenceId,
        sequence: Sequence,
    },
    /// Reads whole blocks.
    Read {
        feed: Feed,
        reply: Reply<Resident>,
    },
    Generate {
        feed: Feed,
        generate: Box<Generate>,
        reply: Reply<Box<Finished>>,
    },
    Configure {
        resident: Resident,
        budget: Budget,
        policy: Arc<dyn Policy>,
        reply: Reply<Resident>,
    },
    Stop,
}

/// A way to the engine thread. Clones lead to the same thread; it stops with the last of them.
#[derive(Clone)]
pub struct Engine {
    id: EngineId,
    memory: Arc<KvMemory>,
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
        let id = memory.enter();
        let own = Arc::clone(&memory);
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || step::Loop::new(decoder, own, tool_call_token, inbox).run())?;
        Ok(Self { id, memory, commands })
    }

    /// Where caches rest that nobody works on.
    pub fn memory(&self) -> &Arc<KvMemory> {
        &self.memory
    }

    /// Takes memory for work on a sequence, with its cache if that rests in memory; waits in line
    /// until there is as much.
    ///
    /// # Errors
    /// [`EngineError::KvMemory`] where there never will be.
    pub async fn admit(&self, id: SequenceId, need: Need) -> Result<Granted, EngineError> {
        self.memory.admit(id, self.id, need).await
    }

    /// The same, if the memory is there now and nobody waits for it.
    pub async fn try_admit(&self, id: SequenceId, need: Need) -> Option<Granted> {
        self.memory.try_admit(id, self.id, need).await
    }

    /// Takes out the sequence's cache if it rests in memory.
    pub async fn take(&self, id: SequenceId) -> Option<Resident> {
        self.memory.take(id).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)?
    }

    /// Lets the cache rest, and whole blocks of tokens be read into it meanwhile, until somebody
    /// takes it; a rest shorter than a block waits for a generation.
    pub async fn read_ahead(&self, feed: Feed) -> Result<(), EngineError> {
        let Feed { id, resident, runs } = feed;
        let (position, pending) = (resident.cache.logical(), Pending::of(runs));
        if !pending.is_ready(position, false) {
            self.memory.rest(id, resident);
            return Ok(());
        }
        let since = self.memory.rest_granted(id, resident);
        let sequence = Sequence { pending, position, job: Job::Ahead(since) };
        let sent = self.commands.send(Command::ReadAhead { id, sequence }).await;
        sent.map_err(|_| {
            self.memory.abandon(id, since);
            EngineError::Stopped
        })
    }

    /// Reads whole blocks of tokens; a rest shorter than a block waits for a generation.
    pub async fn read(&self, feed: Feed) -> Result<Resident, EngineError> {
        self.ask(|reply| Command::Read { feed, reply }).await
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

    /// Brings a cache under another budget or policy.
    pub async fn configure(
        &self,
        resident: Resident,
        budget: Budget,
        policy: Arc<dyn Policy>,
    ) -> Result<Resident, EngineError> {
        self.ask(|reply| Command::Configure { resident, budget, policy, reply }).await
    }

    /// Ends the thread after the step it is in.
    pub async fn stop(&self) {
        let _ = self.commands.send(Command::Stop).await;
    }
}
