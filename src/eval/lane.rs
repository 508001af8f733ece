//! A stream read as the engine reads a session: the same blocks, the same compactions.
//!
//! What the assistant wrote is read as if it were being generated: a few tokens at once, but cut
//! wherever a step would compact first.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::stream::Stream;
use crate::cache::notes::Notes;
use crate::cache::{Budget, KvCache, Policy};
use crate::engine::Run;
use crate::engine::make_room_for;
use crate::engine::plan::{Next, Pending};
use crate::model::ModelError;
use crate::model::decoder::{BLOCK, Decoder, REPLAYED, Workspace};

/// Written tokens that are read at once.
pub const CHUNK: usize = REPLAYED;

/// The next tokens to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub tokens: Range<usize>,
    pub kind: StepKind,
}

impl Step {
    /// The tokens that the step's logits foretell.
    pub fn targets(&self) -> Range<usize> {
        let Range { start, end } = self.tokens;
        match self.kind {
            StepKind::Block => end..end,
            StepKind::Last => end..end + 1,
            StepKind::Written => start + 1..end + 1,
        }
    }
}

/// How the tokens of a step came into the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A block of the prompt.
    Block,
    /// The prompt's last block before the assistant writes.
    Last,
    /// What the assistant wrote.
    Written,
}

/// The steps in which the engine would read and write the stream's tokens.
pub fn steps(stream: &Stream) -> Vec<Step> {
    let mut pending = Pending::default();
    let mut cursor = 0;
    for turn in &stream.turns {
        // The engine has not read the last token of a turn when the turn ends.
        let Range { start, end } = turn.tokens.start..turn.tokens.end - 1;
        pending.push(Run::prompt(stream.tokens[cursor..start].to_vec()));
        pending.push(Run::generated(stream.tokens[start..end].to_vec()));
        cursor = end;
    }
    let mut steps: Vec<Step> = Vec::new();
    let mut at = 0;
    while let Some(next) = pending.take(at, true) {
        let (n_tokens, kind) = match next {
            Next::Block(tokens) => (tokens.len(), StepKind::Block),
            Next::Replay(_) => (1, StepKind::Written),
        };
        match steps.last_mut() {
            Some(last)
                if kind == StepKind::Written
                    && last.kind == StepKind::Written
                    && last.tokens.len() < CHUNK =>
            {
                last.tokens.end += 1;
            }
            _ => steps.push(Step { tokens: at..at + n_tokens, kind }),
        }
        at += n_tokens;
        if kind == StepKind::Block && stream.turns.iter().any(|turn| turn.tokens.start == at) {
            steps.last_mut().into_iter().for_each(|step| step.kind = StepKind::Last);
        }
    }
    steps
}

/// What every lane computes with.
pub struct Machine {
    pub decoder: Arc<Decoder>,
    pub tool_call_token: Option<u32>,
    pub work: Workspace<f16>,
}

impl Machine {
    /// An empty cache that is told what there is to know of the tokens that it will read.
    pub fn lane(&self, policy: Arc<dyn Policy>, budget: Budget, notes: &Notes) -> Lane {
        let mut cache = KvCache::new(self.decoder.shape(), budget, policy);
        cache.set_notes(notes.clone());
        Lane { cache, logits: Vec::new() }
    }
}

/// One cache on its way through a stream.
#[derive(Clone)]
pub struct Lane {
    pub cache: KvCache<f16>,
    /// Of the last step, where they were wanted, `[n, vocab]`.
    pub logits: Vec<f32>,
}

impl Lane {
    /// Goes on from here under another policy and budget, as if it had been so from the start;
    /// nothing may have been evicted yet.
    pub fn fork(&self, policy: Arc<dyn Policy>, budget: Budget, machine: &Machine) -> Self {
        let mut lane = self.clone();
        lane.cache.configure(budget, policy, machine.decoder.rope(), &machine.work.scratch);
        lane
    }

    /// Reads a step's tokens, all of the stream's `tokens` before it having been read. Where
    /// logits are wanted, there is a row for each of [`Step::targets`].
    ///
    /// # Errors
    /// Where the stream is longer than the model's context.
    pub fn read(
        &mut self,
        step: &Step,
        tokens: &[u32],
        wants_logits: bool,
        machine: &mut Machine,
    ) -> Result<(), ModelError> {
        let now = &tokens[step.tokens.clone()];
        match step.kind {
            StepKind::Written => self.write(now, wants_logits, machine),
            StepKind::Block => self.block(now, false, machine),
            StepKind::Last => self.block(now, wants_logits, machine),
        }
    }

    /// Reads a prompt behind what has been read, in the engine's blocks. Its last token's logits
    /// are there afterwards.
    ///
    /// # Errors
    /// Where it passes the model's context.
    pub fn prompt(&mut self, tokens: &[u32], machine: &mut Machine) -> Result<(), ModelError> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let n_now = rest.len().min(BLOCK - self.cache.logical() % BLOCK);
            let (now, later) = rest.split_at(n_now);
            self.block(now, later.is_empty(), machine)?;
            rest = later;
        }
        Ok(())
    }

    /// Takes in tokens as if they had been generated; each one's logits where they are wanted.
    ///
    /// # Errors
    /// Where they pass the model's context.
    pub fn write(
        &mut self,
        tokens: &[u32],
        wants_logits: bool,
        machine: &mut Machine,
    ) -> Result<(), ModelError> {
        let Machine { decoder, tool_call_token, work } = machine;
        let (mut rest, mut logits) = (tokens, Vec::new());
        self.logits.clear();
        while let Some(&first) = rest.first() {
            make_room_for(first, *tool_call_token, &mut self.cache, decoder, work);
            let room = self.cache.limit() - self.cache.kept();
            let is_call = |token: &u32| Some(*token) == *tool_call_token;
            let until_call = rest[1..].iter().position(is_call).map_or(rest.len(), |n| n + 1);
            let (now, later) = rest.split_at(until_call.min(room).min(CHUNK));
            decoder.replay(now, &mut self.cache, work, wants_logits.then_some(&mut logits))?;
            self.logits.extend_from_slice(&logits);
            rest = later;
        }
        Ok(())
    }

    fn block(
        &mut self,
        tokens: &[u32],
        wants_logits: bool,
        machine: &mut Machine,
    ) -> Result<(), ModelError> {
        self.logits.clear();
        let logits = wants_logits.then_some(&mut self.logits);
        machine.decoder.prefill(tokens, &mut self.cache, &mut machine.work, logits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{Kind, Turn};
    use super::*;

    #[test]
    fn steps_are_the_engines() {
        let turn = |tokens: Range<usize>| Turn { kinds: vec![Kind::Other; tokens.len()], tokens };
        let n = BLOCK + 70;
        let turns = vec![turn(BLOCK + 4..BLOCK + 4 + 40), turn(n - 2..n)];
        let stream = Stream { tokens: vec![7; n], turns, ..Stream::default() };
        let step = |start: usize, end: usize, kind| Step { tokens: start..end, kind };
        let b = BLOCK;
        assert_eq!(
            steps(&stream),
            [
                step(0, b, StepKind::Block),
                step(b, b + 4, StepKind::Last),
                step(b + 4, b + 20, StepKind::Written),
                step(b + 20, b + 36, StepKind::Written),
                step(b + 36, b + 43, StepKind::Written),
                step(b + 43, b + 68, StepKind::Last),
                step(b + 68, b + 69, StepKind::Written),
            ]
        );
    }
}
