//! What fidelity found, as it is kept, printed and drawn.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::budget::Asked;
use super::fidelity::{Scored, Turn};
use super::metrics::{Sums, bootstrap};
use super::reasoning::{COMPACTIONS_MIN, Outcome};
use super::recall;

/// What one measurement was made of: a change in any of it makes another measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    pub model: String,
    /// Identity of the model's weights and tokenizer.
    pub fingerprint: String,
    pub trajectory: String,
    pub max_tokens: usize,
    pub policy: String,
    pub budget: Asked,
    pub buffer: usize,
    /// Whether the policy's cache read folded tool output.
    pub folding: Folding,
    pub seed: u64,
}

/// Whether tool output is folded before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Folding {
    Off,
    On,
}

impl FromStr for Folding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => Err(format!("`{text}` is neither `off` nor `on`")),
        }
    }
}

/// A policy on a trajectory, message by message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    #[serde(flatten)]
    pub unit: Unit,
    pub turns: Vec<Turn>,
}

/// What a policy remembered of a trajectory, probe by probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recalled {
    #[serde(flatten)]
    pub unit: Unit,
    pub asked: Vec<recall::Asked>,
}

/// The figures of a [`Recalled`], a JSON line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename = "recall")]
pub struct RecallRow<'a> {
    pub model: &'a str,
    pub trajectory: &'a str,
    pub policy: &'a str,
    pub budget: Asked,
    pub folding: Folding,
    /// Probes that the full cache answered word for word.
    pub probes: usize,
    /// Those that the policy did, too.
    pub right: usize,
    /// Probes whose answer the full cache found likelier than the distractors.
    pub likelier_probes: usize,
    /// Those where the policy did, too.
    pub likelier: usize,
}

impl Recalled {
    pub fn row(&self) -> RecallRow<'_> {
        let Unit { model, trajectory, policy, budget, folding, .. } = &self.unit;
        let count =
            |is: &dyn Fn(&recall::Asked) -> bool| self.asked.iter().filter(|a| is(a)).count();
        RecallRow {
            model,
            trajectory,
            policy,
            budget: *budget,
            folding: *folding,
            probes: count(&|asked| asked.full.is_right),
            right: count(&|asked| asked.full.is_right && asked.own.is_right),
            likelier_probes: count(&|asked| asked.full.is_likelier),
            likelier: count(&|asked| asked.full.is_likelier && asked.own.is_likelier),
        }
    }
}

/// One problem under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempted {
    #[serde(flatten)]
    pub unit: Unit,
    /// Tells the problem from others.
    pub problem: String,
    pub outcome: Outcome,
}

impl Attempted {
    pub fn is_of(&self, unit: &Unit, problem: &str) -> bool {
        self.problem == problem && self.unit == *unit
    }
}

/// How a policy solved all problems that count, a JSON line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename = "reasoning")]
pub struct ReasoningRow {
    pub model: String,
    pub policy: String,
    pub budget: Asked,
    /// Those behind whose question each policy compacted often enough.
    pub problems: usize,
    pub solved: usize,
    /// Generated, for all of them.
    pub tokens: usize,
    pub loops: usize,
    #[serde(skip)]
    pub share: Figure,
    /// Less than the first unit's share, on the same problems.
    #[serde(skip)]
    pub behind: Figure,
}

impl ReasoningRow {
    /// One for each unit, of which the first is the reference; `outcomes` are for each unit those
    /// of all problems, in one order.
    pub fn all(units: &[Unit], outcomes: &[Vec<Outcome>]) -> Vec<Self> {
        let Some(reference) = outcomes.first() else { return Vec::new() };
        let counts = |i: &usize| {
            let bounded = &outcomes[1..];
            bounded.iter().all(|of_unit| of_unit[*i].compactions >= COMPACTIONS_MIN)
        };
        let counted: Vec<usize> = (0..reference.len()).filter(counts).collect();
        let row = |(unit, own): (&Unit, &Vec<Outcome>)| {
            let own: Vec<_> = counted.iter().map(|&i| own[i]).collect();
            let solved = |outcome: &Outcome| f64::from(u8::from(outcome.is_solved));
            let mean = |of: &dyn Fn(usize) -> f64, sample: &[usize]| {
                sample.iter().map(|&i| of(i)).sum::<f64>() / sample.len().max(1) as f64
            };
            let figure = |of: &dyn Fn(usize) -> f64| {
                let all: Vec<_> = (0..own.len()).collect();
                let [low, high] = bootstrap(own.len(), 0, |sample| mean(of, sample));
                Figure { mean: mean(of, &all), low, high }
            };
            Self {
                model: unit.model.clone(),
                policy: unit.policy.clone(),
                budget: unit.budget,
                problems: own.len(),
                solved: own.iter().filter(|outcome| outcome.is_solved).count(),
                tokens: own.iter().map(|outcome| outcome.tokens).sum(),
                loops: own.iter().filter(|outcome| outcome.loops).count(),
                share: figure(&|i| solved(&own[i])),
                behind: figure(&|i| solved(&reference[counted[i]]) - solved(&own[i])),
            }
        };
        units.iter().zip(outcomes).map(row).collect()
    }
}

/// One figure of a [`Measured`], a JSON line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename = "fidelity")]
pub struct Row<'a> {
    pub model: &'a str,
    pub trajectory: &'a str,
    pub policy: &'a str,
    pub budget: Asked,
    pub folding: Folding,
    pub scored: Scored,
    pub tokens: usize,
    /// Nats a token.
    #[serde(serialize_with = "short")]
    pub extra_nll: f64,
    /// Nats a token.
    #[serde(serialize_with = "short")]
    pub kl: f64,
    /// Share of tokens.
    #[serde(serialize_with = "short")]
    pub top1: f64,
}

/// Writes so many digits as come back the same when they are read.
fn short<S: serde::Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((value * 1e9).round() / 1e9)
}

/// How much of a trajectory's thoughts was thought before, a JSON line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename = "repetition")]
pub struct Repetition {
    pub model: String,
    pub trajectory: String,
    pub scored: Scored,
    pub tokens: usize,
    /// Tokens in a run of 8 that came before.
    pub repeated: usize,
}

impl Measured {
    /// A row for each kind of token of which there is one.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let Unit { model, trajectory, policy, budget, folding, .. } = &self.unit;
        Scored::ALL.into_iter().filter_map(move |scored| {
            let sums: Sums = self.turns.iter().map(|turn| &turn[scored as usize]).sum();
            (sums.tokens > 0).then(|| Row {
                model,
                trajectory,
                policy,
                budget: *budget,
                folding: *folding,
                scored,
                tokens: sums.tokens,
                extra_nll: sums.mean(|s| s.extra_nll),
                kl: sums.mean(|s| s.kl),
                top1: sums.mean(|s| s.agreed as f64),
            })
        })
    }
}

/// How a table or a picture calls a policy with or without folding.
pub fn named(policy: &str, folding: Folding) -> String {
    match folding {
        Folding::Off => policy.to_owned(),
        Folding::On => format!("{policy}, folded"),
    }
}

/// A figure over all trajectories with the interval that 95 % of resampled messages give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// A policy under a budget, with or without folding, over all trajectories.
pub struct Pooled<'a> {
    pub policy: &'a str,
    pub budget: Asked,
    pub folding: Folding,
    pub trajectories: Vec<&'a Measured>,
}

impl<'a> Pooled<'a> {
    /// One for each policy and budget, in the order in which these come first.
    pub fn all(measured: &'a [Measured]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in measured {
            let Unit { policy, budget, folding, .. } = &one.unit;
            let (budget, folding) = (*budget, *folding);
            let is_it =
                |p: &&mut Self| p.policy == policy && p.budget == budget && p.folding == folding;
            match all.iter_mut().find(is_it) {
                Some(pooled) => pooled.trajectories.push(one),
                None => all.push(Self { policy, budget, folding, trajectories: vec![one] }),
            }
        }
        all
    }

    /// The sums of each message.
    fn turns(&self, scored: Scored) -> Vec<Sums> {
        let turns = self.trajectories.iter().flat_map(|one| &one.turns);
        turns.map(|turn| turn[scored as usize]).collect()
    }

    /// How a table or a picture calls it.
    pub fn name(&self) -> String {
        named(self.policy, self.folding)
    }

    pub fn tokens(&self, scored: Scored) -> usize {
        self.turns(scored).iter().map(|sums| sums.tokens).sum()
    }

    /// A mean a token; messages are drawn anew for the interval, as tokens of one message are not
    /// independent of each other.
    pub fn figure(&self, scored: Scored, of: impl Fn(&Sums) -> f64 + Copy) -> Figure {
        let turns = self.turns(scored);
        let mean = |sample: &[usize]| sample.iter().map(|&i| &turns[i]).sum::<Sums>().mean(of);
        let all: Vec<_> = (0..turns.len()).collect();
        let [low, high] = bootstrap(turns.len(), 0, mean);
        Figure { mean: mean(&all), low, high }
    }

    /// This policy's extra loss as a multiple of another's on the same messages.
    pub fn ratio(&self, other: &Self, scored: Scored) -> Option<Figure> {
        let (own, others) = (self.turns(scored), other.turns(scored));
        if own.len() != others.len() {
            return None;
        }
        let loss = |turns: &[Sums], sample: &[usize]| -> f64 {
            sample.iter().map(|&i| turns[i].extra_nll).sum()
        };
        let ratio = |sample: &[usize]| loss(&own, sample) / loss(&others, sample);
        let all: Vec<_> = (0..own.len()).collect();
        let [low, high] = bootstrap(own.len(), 0, ratio);
        Some(Figure { mean: ratio(&all), low, high })
    }
}
