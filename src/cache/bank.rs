//! Queries of what the model wrote, kept for as long as the session lasts.
//!
//! A window's queries tell what the last tokens looked at. Inside a tool's output these are poor
//! witnesses of what the next assistant message will look at; the queries of earlier assistant
//! messages are better ones (AgentKV), and best when they are spread over all of them: the last
//! message alone asks for too little of what a session comes back to.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::notes::Notes;

/// Most queries of a bank. Even, so that halving leaves them evenly spread.
pub const BANK: usize = 64;

/// Rows by which a bank grows.
const GROWTH: usize = 8;

/// How tokens come into a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a block of given text.
    Read,
    /// One by one, as the model writes them.
    Written,
}

/// One layer's remembered queries, before RoPE, oldest first.
///
/// Of the assistant's tokens every `n`th is remembered, the first one always; `n` doubles whenever
/// there are too many, so they stay evenly spread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryBank {
    /// `[n, H * G, D]`
    pub queries: Vec<f16>,
    /// `[n]`
    pub positions: Vec<u32>,
    /// Assistant's tokens met so far.
    pub n_met: u64,
}

impl QueryBank {
    /// Takes in queries of tokens that follow one another, `[n, H * G, D]` before RoPE, the first
    /// at `first_position`; of those that are no assistant's none is kept.
    pub fn observe(
        &mut self,
        queries: &[f32],
        n_tokens: usize,
        first_position: u32,
        origin: Origin,
        notes: &Notes,
    ) {
        if n_tokens == 0 {
            return;
        }
        let row = queries.len() / n_tokens;
        let tokens = first_position..first_position + n_tokens as u32;
        let mut meet = |tokens: Range<u32>| {
            for position in tokens {
                let token_idx = (position - first_position) as usize;
                self.meet(&queries[token_idx * row..(token_idx + 1) * row], position);
            }
        };
        match origin {
            Origin::Written => meet(tokens),
            Origin::Read => {
                // Spans may overlap; no token is met twice.
                let mut next = first_position;
                for span in notes.spans_in(tokens).filter(|span| span.kind.is_assistant()) {
                    meet(next.max(span.tokens.start)..span.tokens.end);
                    next = next.max(span.tokens.end);
                }
            }
        }
    }

    fn meet(&mut self, query: &[f32], position: u32) {
        let ordinal = self.n_met;
        self.n_met += 1;
        if !ordinal.is_multiple_of(stride(self.n_met)) {
            return;
        }
        if self.positions.len() == BANK {
            let row = query.len();
            for to in 1..BANK / 2 {
                self.queries.copy_within(2 * to * row..(2 * to + 1) * row, to * row);
                self.positions[to] = self.positions[2 * to];
            }
            self.queries.truncate(BANK / 2 * row);
            self.positions.truncate(BANK / 2);
        }
        if self.positions.len() == self.positions.capacity() {
            // Never more than there will be, so that `bytes` can say so.
            self.positions.reserve_exact(GROWTH);
            self.queries.reserve_exact(GROWTH * query.len());
        }
        let start = self.queries.len();
        self.queries.resize(start + query.len(), f16::ZERO);
        self.queries[start..].convert_from_f32_slice(query);
        self.positions.push(position);
    }

    pub(super) fn bytes(&self) -> usize {
        self.queries.capacity() * size_of::<f16>() + self.positions.capacity() * size_of::<u32>()
    }

    /// Bytes of a full one, for `row` numbers a query.
    pub(super) fn max_bytes(row: usize) -> usize {
        BANK.next_multiple_of(GROWTH) * (row * size_of::<f16>() + size_of::<u32>())
    }
}

/// Of how many tokens one is remembered once `n_met` have been met.
fn stride(n_met: u64) -> u64 {
    n_met.div_ceil(BANK as u64).next_power_of_two()
}

/// Queries that are remembered of `n_met` tokens.
pub(super) fn n_remembered(n_met: u64) -> u64 {
    n_met.div_ceil(stride(n_met))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::notes::{Kind, Span};

    #[test]
    fn what_is_remembered_is_spread_evenly_over_all_that_was_written() {
        let mut bank = QueryBank::default();
        let notes = Notes::default();
        for position in 0..1_000 {
            bank.observe(&[position as f32, 1.0], 1, position, Origin::Written, &notes);
            let stride = stride(bank.n_met) as usize;
            assert!(bank.positions.iter().copied().eq((0..=position).step_by(stride)));
            assert_eq!(bank.positions.len() as u64, n_remembered(bank.n_met));
            assert!(bank.positions.len() <= BANK && 2 * stride * BANK > position as usize);
            let queries = bank.queries.iter().step_by(2).map(|x| x.to_f32() as u32);
            assert!(queries.eq(bank.positions.iter().copied()));
            assert!(bank.bytes() <= QueryBank::max_bytes(2));
        }
    }

    #[test]
    fn of_text_that_is_read_only_the_assistants_is_remembered_and_no_token_twice() {
        let span = |tokens: Range<u32>, kind| Span { at: 0, tokens, kind, source: 0, turn: 0 };
        let spans = vec![
            span(0..4, Kind::Task),
            span(4..7, Kind::Thought),
            span(6..9, Kind::ToolCall),
            span(9..20, Kind::Log),
        ];
        let notes = Notes { spans, ..Notes::default() };
        let (mut whole, mut parts) = (QueryBank::default(), QueryBank::default());
        let queries: Vec<f32> = (0..20).map(|position| position as f32).collect();
        whole.observe(&queries, 20, 0, Origin::Read, &notes);
        parts.observe(&queries[..5], 5, 0, Origin::Read, &notes);
        parts.observe(&queries[5..], 15, 5, Origin::Read, &notes);
        assert_eq!(whole.positions, [4, 5, 6, 7, 8]);
        assert_eq!(whole.positions, parts.positions);
    }
}
