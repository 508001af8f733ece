//! What is read next, as a pure function of the token stream.
//!
//! Block borders decide what a compaction sees, so they must not depend on the clock, on other
//! sessions or on idle time: a block ends at a multiple of [`BLOCK`] of the position, and where
//! generated tokens begin. A shorter rest waits until a generation asks for it.

use std::collections::VecDeque;

use super::{Run, RunKind};
use crate::model::decoder::BLOCK;

/// Tokens handed over and not read yet.
#[derive(Debug, Default)]
pub struct Pending {
    runs: VecDeque<Run>,
    len: usize,
}

/// The next piece of work on pending tokens.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this block.
    Block(Vec<u32>),
    /// Replay this token as a decode step.
    Replay(u32),
}

impl Pending {
    /// Runs in the order in which they are read.
    pub fn of(runs: Vec<Run>) -> Self {
        let mut pending = Self::default();
        runs.into_iter().for_each(|run| pending.push(run));
        pending
    }

    /// Queues tokens. An empty run of generated tokens is a border: a generation began there,
    /// even if it left no token in the cache.
    pub fn push(&mut self, run: Run) {
        if run.tokens.is_empty() && run.kind == RunKind::Prompt {
            return;
        }
        self.len += run.tokens.len();
        match self.runs.back_mut() {
            Some(last) if last.kind == run.kind => last.tokens.extend(run.tokens),
            _ => self.runs.push_back(run),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether [`Self::take`] would give anything.
    pub fn is_ready(&self, position: usize, forced: bool) -> bool {
        // A border in front has done its work: nothing is left before it.
        let mut runs = self.runs.iter().skip_while(|run| run.tokens.is_empty());
        let Some(first) = runs.next() else { return false };
        first.kind == RunKind::Generated
            || forced
            || runs.next().is_some()
            || first.tokens.len() >= BLOCK - position % BLOCK
    }

    /// The next piece for a sequence whose next token has `position`. A block that more tokens
    /// may still fill is given only when `forced`.
    pub fn take(&mut self, position: usize, forced: bool) -> Option<Next> {
        while self.runs.front().is_some_and(|run| run.tokens.is_empty()) {
            self.runs.pop_front();
        }
        if !self.is_ready(position, forced) {
            return None;
        }
        let run = self.runs.front_mut()?;
        let n_tokens = match run.kind {
            RunKind::Generated => 1,
            RunKind::Prompt => run.tokens.len().min(BLOCK - position % BLOCK),
        };
        let rest = run.tokens.split_off(n_tokens);
        let taken = std::mem::replace(&mut run.tokens, rest);
        let kind = run.kind;
        if run.tokens.is_empty() {
            self.runs.pop_front();
        }
        self.len -= n_tokens;
        Some(match kind {
            RunKind::Generated => Next::Replay(taken[0]),
            RunKind::Prompt => Next::Block(taken),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Borders of everything that can be read, tokens handed over in `cuts`.
    fn borders(cuts: &[usize], eager: bool) -> Vec<usize> {
        let mut pending = Pending::default();
        let (mut position, mut borders) = (0, Vec::new());
        let mut drain = |pending: &mut Pending, forced| {
            while let Some(next) = pending.take(position, forced) {
                position += match next {
                    Next::Block(tokens) => tokens.len(),
                    Next::Replay(_) => 1,
                };
                borders.push(position);
            }
        };
        for &cut in cuts {
            pending.push(Run::prompt(vec![0; cut]));
            if eager {
                drain(&mut pending, false);
            }
        }
        drain(&mut pending, true);
        borders
    }

    #[test]
    fn blocks_end_at_multiples_and_before_generated_tokens() {
        let mut pending = Pending::default();
        pending.push(Run::prompt(vec![1; BLOCK + 4]));
        pending.push(Run::generated(vec![2; 2]));
        assert_eq!(pending.take(0, false), Some(Next::Block(vec![1; BLOCK])));
        assert_eq!(pending.take(BLOCK, false), Some(Next::Block(vec![1; 4])));
        assert_eq!(pending.take(BLOCK + 4, false), Some(Next::Replay(2)));
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn a_generation_that_left_nothing_still_ends_a_block() {
        let mut pending = Pending::default();
        pending.push(Run::prompt(vec![1; 3]));
        pending.push(Run::generated(Vec::new()));
        pending.push(Run::prompt(vec![2; 3]));
        assert_eq!(pending.take(0, true), Some(Next::Block(vec![1; 3])));
        assert!(!pending.is_ready(3, false), "the rest is shorter than a block");
        assert_eq!(pending.take(3, true), Some(Next::Block(vec![2; 3])));
        assert!(pending.is_empty());
    }

    #[test]
    fn a_short_rest_waits_for_a_generation() {
        let mut pending = Pending::default();
        pending.push(Run::prompt(vec![1; 3]));
        assert_eq!(pending.take(0, false), None);
        assert_eq!(pending.take(0, true), Some(Next::Block(vec![1; 3])));
        assert!(pending.is_empty());
    }

    proptest! {
        #[test]
        fn borders_do_not_depend_on_when_the_reading_is_done(
            cuts in prop::collection::vec(0usize..700, 0..12),
        ) {
            prop_assert_eq!(borders(&cuts, true), borders(&cuts, false));
        }
    }
}
