//! How far a policy's next-token distributions are from the full cache's, on real trajectories.
//!
//! The written tokens are forced, and at every token of the assistant messages that begin after the
//! first eviction all policies are compared with the full cache.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::lane::{Machine, Step, StepKind, steps};
use super::metrics::{Reference, Sums};
use super::race::{Contender, Race};
use super::stream::{Kind, Stream};
use crate::cache::Budget;
use crate::model::ModelError;

/// Which of the assistant's tokens a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// All of them.
    Assistant,
    /// Tool calls, and commands in fenced blocks.
    Commands,
    /// What the assistant thought, or said before it acted.
    Thoughts,
}

impl Scored {
    pub const ALL: [Self; 3] = [Self::Assistant, Self::Commands, Self::Thoughts];

    fn holds(self, kind: Kind) -> bool {
        match self {
            Self::Assistant => true,
            Self::Commands => kind == Kind::Command,
            Self::Thoughts => kind == Kind::Thought,
        }
    }
}

/// One assistant message under one policy, a figure for each of [`Scored::ALL`].
pub type Turn = [Sums; Scored::ALL.len()];

/// Goes through a stream with a full cache and all contenders; gives each one's scored messages.
/// None is scored where the stream does not pass the budget. `progress` is told how many tokens
/// have been read, all caches together, as they are read.
///
/// # Errors
/// Where the stream is longer than the model's context.
pub fn measure(
    stream: &Stream,
    contenders: &[Contender],
    machine: &mut Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<Turn>>, ModelError> {
    let mut race = Race::new(stream, contenders, machine);
    let mut scores = Scores::new(stream, contenders, machine);
    for step in steps(stream) {
        let wants = scores.begin(&step);
        race.read(&step, &wants, machine, progress)?;
        scores.add(&step, &wants, &race.full.logits, &race);
    }
    Ok(scores.turns)
}

/// Measures contenders that read `folded`, the same messages with folded tool output, beside a
/// full cache that reads the whole `stream`. The same messages are scored as by [`measure`].
///
/// # Errors
/// As [`measure`].
pub fn measure_folded(
    stream: &Stream,
    folded: &Stream,
    contenders: &[Contender],
    machine: &mut Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<Turn>>, ModelError> {
    let mut whole = Race::new(stream, &[], machine);
    let mut race = Race::new(folded, contenders, machine);
    let mut scores = Scores::new(stream, contenders, machine);
    let mut rest = steps(folded).into_iter();
    for step in steps(stream) {
        let wants = scores.begin(&step);
        whole.read_full(&step, wants.contains(&true), machine, progress)?;
        if step.targets().is_empty() {
            continue;
        }
        // Of each turn both streams have the same steps.
        for step in rest.by_ref() {
            race.read(&step, &wants, machine, progress)?;
            if !step.targets().is_empty() {
                break;
            }
        }
        scores.add(&step, &wants, &whole.full.logits, &race);
    }
    Ok(scores.turns)
}

/// What is scored of a stream.
struct Scores<'a> {
    stream: &'a Stream,
    contenders: &'a [Contender],
    n_vocab: usize,
    /// The messages of each contender so far.
    turns: Vec<Vec<Turn>>,
    /// Whether the message under way is scored, for each.
    is_open: Vec<bool>,
}

impl<'a> Scores<'a> {
    fn new(stream: &'a Stream, contenders: &'a [Contender], machine: &Machine) -> Self {
        Self {
            stream,
            contenders,
            n_vocab: machine.decoder.config().vocab,
            turns: vec![Vec::new(); contenders.len()],
            is_open: vec![false; contenders.len()],
        }
    }

    /// Says of each contender whether its logits of the next step are scored.
    fn begin(&mut self, step: &Step) -> Vec<bool> {
        if step.kind == StepKind::Last {
            let all = self.is_open.iter_mut().zip(&mut self.turns).zip(self.contenders);
            for ((is_open, turns), contender) in all {
                let Budget { n_slots, n_buffer } = contender.budget;
                *is_open = step.tokens.end > n_slots + n_buffer;
                if *is_open {
                    turns.push(Turn::default());
                }
            }
        }
        self.is_open.iter().map(|is_open| *is_open && !step.targets().is_empty()).collect()
    }

    /// Compares the logits of a step with those of a full cache.
    fn add(&mut self, step: &Step, wants: &[bool], full: &[f32], race: &Race<'_>) {
        let (stream, targets) = (self.stream, step.targets());
        let turn = stream.turns.iter().find(|turn| turn.tokens.contains(&targets.start));
        let Some(turn) = turn.filter(|_| wants.contains(&true)) else { return };
        let references: Vec<_> = full.par_chunks_exact(self.n_vocab).map(Reference::new).collect();
        let kinds = &turn.kinds[targets.start - turn.tokens.start..];
        for ((turns, lane), _) in
            self.turns.iter_mut().zip(&race.lanes).zip(wants).filter(|(_, wants)| **wants)
        {
            // One that has not had to evict yet is the full one of its stream.
            let lane = lane.as_ref().unwrap_or(&race.full);
            let rows = lane.logits.par_chunks_exact(self.n_vocab);
            let sums: Vec<_> = (&references, rows, targets.clone())
                .into_par_iter()
                .map(|(reference, row, target)| reference.compare(row, stream.tokens[target]))
                .collect();
            let Some(turn) = turns.last_mut() else { continue };
            for (sums, kind) in sums.into_iter().zip(kinds) {
                for (scored, to) in Scored::ALL.into_iter().zip(&mut *turn) {
                    if scored.holds(*kind) {
                        *to += sums;
                    }
                }
            }
        }
    }
}
