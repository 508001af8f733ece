//! One account of KV memory under many sessions of two models: it holds, all work ends, and what
//! comes out is what each session would have said alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attar::cache::policy::by_name;
use attar::cache::{Budget, KvCache};
use attar::engine::sampler::{Sampler, Sampling};
use attar::engine::{
    Engine, EngineError, Feed, Generate, KvMemory, Listener, Need, Run, SequenceId, Verdict,
};
use attar::model::decoder::Decoder;
use candle_core::quantized::GgmlDType;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::tiny;

/// No work takes longer than this, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
enum Op {
    /// Generates after so many new tokens.
    Say { n_prompt: usize, max_tokens: usize },
    /// Leaves so many new tokens to be read in the background.
    ReadAhead { n_prompt: usize },
    /// Asks for memory and goes away, at once or when it has it.
    GoAway { at_once: bool },
    /// Drops the cache.
    Forget,
}

#[derive(Clone, Debug)]
struct Plan {
    model_idx: usize,
    policy: &'static str,
    ops: Vec<Op>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let op = prop_oneof![
        4 => (1usize..500, 1usize..40)
            .prop_map(|(n_prompt, max_tokens)| Op::Say { n_prompt, max_tokens }),
        2 => (1usize..700).prop_map(|n_prompt| Op::ReadAhead { n_prompt }),
        1 => any::<bool>().prop_map(|at_once| Op::GoAway { at_once }),
        1 => Just(Op::Forget),
    ];
    let policy = prop::sample::select(vec!["full", "rkv", "tova", "streaming"]);
    let parts = (0usize..2, policy, prop::collection::vec(op, 1..5));
    parts.prop_map(|(model_idx, policy, ops)| Plan { model_idx, policy, ops })
}

/// A session as its owner knows it.
struct Session {
    id: SequenceId,
    engine: Engine,
    decoder: Arc<Decoder>,
    policy: &'static str,
    runs: Vec<Run>,
}

struct Quiet;

impl Listener for Quiet {
    fn token(&mut self, _token: u32) -> Verdict {
        Verdict::Continue
    }

    fn progress(&mut self, _done: usize, _total: usize) {}
}

impl Session {
    fn empty(&self) -> Box<KvCache<half::f16>> {
        let budget = Budget { n_slots: 256, n_buffer: 40 };
        Box::new(KvCache::new(self.decoder.shape(), budget, by_name(self.policy).unwrap()))
    }

    fn n_tokens(&self) -> usize {
        self.runs.iter().map(|run| run.tokens.len()).sum()
    }

    fn need(&self, n_more: usize) -> Need {
        Need::of(&self.empty(), self.n_tokens() + n_more, false)
    }

    /// Tokens that are the same for the same place in the same session.
    fn append(&mut self, n_prompt: usize) {
        let first = self.n_tokens();
        let token = |i: usize| ((first + i) * 7_919 + self.id.0 as usize * 31) % tiny::VOCAB;
        let tokens = (0..n_prompt).map(|i| token(i) as u32).collect();
        self.runs.push(Run::prompt(tokens));
    }

    fn runs_after(&self, n_tokens: usize) -> Vec<Run> {
        let mut skip = n_tokens;
        let mut rest = Vec::new();
        for run in &self.runs {
            let n = skip.min(run.tokens.len());
            skip -= n;
            if n < run.tokens.len() {
                rest.push(Run { kind: run.kind, tokens: run.tokens[n..].to_vec() });
            }
        }
        rest
    }

    fn feed(&self, granted: attar::engine::Granted) -> Feed {
        let resident = granted.or_make(|| self.empty());
        let runs = self.runs_after(resident.cache.logical());
        Feed { id: self.id, resident, runs }
    }

    /// Does what is asked; gives what was generated, which nothing else may change.
    async fn run(mut self, ops: Vec<Op>) -> Vec<u32> {
        let mut said = Vec::new();
        for op in ops {
            match op {
                Op::Say { n_prompt, max_tokens } => {
                    self.append(n_prompt);
                    let granted = self.engine.admit(self.id, self.need(max_tokens)).await.unwrap();
                    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
                    let generate = Generate {
                        asked_at: Instant::now(),
                        sampler: Sampler::new(greedy).unwrap(),
                        max_tokens,
                        cancel: CancellationToken::new(),
                        listener: Box::new(Quiet),
                    };
                    let finished =
                        self.engine.generate(self.feed(granted), generate).await.unwrap();
                    let mut read = finished.tokens.clone();
                    let last = read.pop().unwrap();
                    self.runs.push(Run::generated(read));
                    self.runs.push(Run::prompt(vec![last]));
                    said.extend(finished.tokens);
                    let memory = self.engine.memory();
                    memory.rest(self.id, finished.resident.unwrap());
                }
                Op::ReadAhead { n_prompt } => {
                    self.append(n_prompt);
                    if let Some(granted) = self.engine.try_admit(self.id, self.need(0)).await {
                        self.engine.read_ahead(self.feed(granted)).await.unwrap();
                    }
                }
                Op::GoAway { at_once } => {
                    let admit = self.engine.admit(self.id, self.need(0));
                    if at_once {
                        tokio::select! { biased; _ = admit => {} () = std::future::ready(()) => {} }
                    } else {
                        drop(admit.await.unwrap());
                    }
                }
                Op::Forget => self.engine.memory().forget(self.id),
            }
        }
        said
    }
}

/// Runs all plans side by side; gives what each session said.
fn run(decoders: &[Arc<Decoder>], memory: &Arc<KvMemory>, plans: &[Plan]) -> Vec<Vec<u32>> {
    let engines: Vec<_> = decoders
        .iter()
        .map(|decoder| Engine::start(Arc::clone(decoder), Arc::clone(memory), None).unwrap())
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let said = runtime.block_on(async {
        let mut running = JoinSet::new();
        for (idx, plan) in plans.iter().enumerate() {
            let session = Session {
                id: SequenceId(idx as u64),
                engine: engines[plan.model_idx].clone(),
                decoder: Arc::clone(&decoders[plan.model_idx]),
                policy: plan.policy,
                runs: Vec::new(),
            };
            let ops = plan.ops.clone();
            running.spawn(async move { (idx, session.run(ops).await) });
        }
        let all = tokio::time::timeout(PATIENCE, running.join_all());
        let mut said = all.await.expect("all work ends");
        said.sort_unstable();
        said.into_iter().map(|(_, said)| said).collect()
    });
    for idx in 0..plans.len() {
        memory.forget(SequenceId(idx as u64));
    }
    said
}

fn decoders() -> Vec<Arc<Decoder>> {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.gguf");
    tiny::gguf(&other, "llama", GgmlDType::Q8_0, 5);
    let load = |path| Arc::new(Decoder::load(path, &mut |_, _| {}).unwrap());
    vec![load(&tiny::fixture()), load(&other)]
}

/// What the largest session of all plans needs at its end.
fn largest(decoders: &[Arc<Decoder>], plans: &[Plan]) -> usize {
    let need = |plan: &Plan| {
        let n_tokens: usize = plan
            .ops
            .iter()
            .map(|op| match op {
                Op::Say { n_prompt, max_tokens } => n_prompt + max_tokens,
                Op::ReadAhead { n_prompt } => *n_prompt,
                Op::GoAway { .. } | Op::Forget => 0,
            })
            .sum();
        let budget = Budget { n_slots: 256, n_buffer: 40 };
        let policy = by_name(plan.policy).unwrap();
        let shape = decoders[plan.model_idx].shape();
        Need::of(&KvCache::new(shape, budget, policy), n_tokens, false).bytes()
    };
    plans.iter().map(need).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_limit_holds_and_all_work_ends_as_if_each_session_were_alone(
        plans in prop::collection::vec(plan(), 1..7),
        spare in 0usize..200_000,
    ) {
        let decoders = decoders();
        let alone: Vec<_> = plans
            .iter()
            .enumerate()
            .map(|(idx, plan)| {
                // The others do nothing, so that each has the same id as among them.
                let mut plans = vec![Plan { ops: Vec::new(), ..plan.clone() }; plans.len()];
                plans[idx] = plan.clone();
                run(&decoders, &Arc::new(KvMemory::new(usize::MAX)), &plans).swap_remove(idx)
            })
            .collect();
        let limit = largest(&decoders, &plans) + spare;
        let memory = Arc::new(KvMemory::new(limit));
        prop_assert_eq!(run(&decoders, &memory, &plans), alone);
        prop_assert!(memory.peak() <= limit, "{} of {limit}", memory.peak());
        // The engines end with their last owner; what they still read ahead is theirs till then.
        let deadline = Instant::now() + PATIENCE;
        while memory.used() > 0 {
            prop_assert!(Instant::now() < deadline, "{} bytes are never given back", memory.used());
            std::thread::yield_now();
        }
    }
}

#[test]
fn who_can_never_fit_is_refused_with_numbers_and_holds_up_nobody() {
    let decoders = decoders();
    let memory = Arc::new(KvMemory::new(100_000));
    let engine = Engine::start(Arc::clone(&decoders[0]), Arc::clone(&memory), None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let huge = Need { cache: 90_000, working: 20_000 };
        let refused = engine.admit(SequenceId(1), huge).await.err().unwrap();
        assert!(
            matches!(refused, EngineError::KvMemory { needed: 110_000, limit: 100_000 }),
            "{refused}"
        );
        let fits = Need { cache: 80_000, working: 20_000 };
        let held = engine.admit(SequenceId(2), fits).await.unwrap();
        assert_eq!(memory.used(), 100_000);
        // Working memory is an engine's, not a session's.
        let small = Need { cache: 0, working: 20_000 };
        drop(engine.admit(SequenceId(3), small).await.unwrap());
        assert!(engine.try_admit(SequenceId(4), Need { cache: 1, working: 0 }).await.is_none());
        drop(held);
        assert_eq!(memory.used(), 0);
    });
}
