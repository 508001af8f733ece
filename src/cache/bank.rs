//! Queries of what the model wrote, kept for longer than the observation window.
//!
//! A window's queries tell what the last tokens looked at. Inside a tool's output these are poor
//! witnesses of what the next assistant message will look at; earlier assistant messages are
//! better ones (AgentKV keeps some of each phase for this).

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::notes::{Kind, Notes};

/// Queries that are kept of each phase.
pub const PER_PHASE: usize = 32;

/// Most queries of a bank.
pub const BANK: usize = PER_PHASE * Phase::ALL.len();

/// Of the tokens of a phase one in so many is remembered.
const STRIDE: u32 = 2;

/// Rows by which a bank grows.
const GROWTH: usize = 8;

/// What the model is doing when it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Thought,
    ToolCall,
    /// Also anything that the model writes before it is known what it is.
    Answer,
}

impl Phase {
    pub const ALL: [Self; 3] = [Self::Thought, Self::ToolCall, Self::Answer];

    fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Thought => Some(Self::Thought),
            Kind::ToolCall => Some(Self::ToolCall),
            Kind::Answer => Some(Self::Answer),
            _ => None,
        }
    }
}

/// How tokens come into a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a block of given text.
    Read,
    /// One by one, as the model writes them.
    Written,
}

/// One layer's remembered queries, before RoPE, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryBank {
    /// `[n, H * G, D]`
    pub queries: Vec<f16>,
    /// `[n]`
    pub positions: Vec<u32>,
    /// Each query's [`Phase`] as a number, `[n]`.
    pub phases: Vec<u8>,
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
        match origin {
            Origin::Written => self.keep(queries, row, first_position, tokens, Phase::Answer),
            Origin::Read => {
                for span in notes.spans_in(tokens) {
                    if let Some(phase) = Phase::of(span.kind) {
                        self.keep(queries, row, first_position, span.tokens, phase);
                    }
                }
            }
        }
    }

    fn keep(
        &mut self,
        queries: &[f32],
        row: usize,
        first_position: u32,
        tokens: std::ops::Range<u32>,
        phase: Phase,
    ) {
        for position in tokens.filter(|position| position % STRIDE == 0) {
            let of_phase = self.phases.iter().filter(|&&of| of == phase as u8).count();
            if of_phase >= PER_PHASE
                && let Some(oldest) = self.phases.iter().position(|&of| of == phase as u8)
            {
                self.queries.drain(oldest * row..(oldest + 1) * row);
                self.positions.remove(oldest);
                self.phases.remove(oldest);
            }
            self.grow(row);
            let token_idx = (position - first_position) as usize;
            let start = self.queries.len();
            self.queries.resize(start + row, f16::ZERO);
            self.queries[start..]
                .convert_from_f32_slice(&queries[token_idx * row..(token_idx + 1) * row]);
            self.positions.push(position);
            self.phases.push(phase as u8);
        }
    }

    /// Makes room for one more, and for no more than will ever be, so that `bytes` can say so.
    fn grow(&mut self, row: usize) {
        let n = self.positions.len();
        if n == self.positions.capacity() {
            self.queries.reserve_exact(GROWTH * row);
            self.positions.reserve_exact(GROWTH);
            self.phases.reserve_exact(GROWTH);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.queries.capacity() * size_of::<f16>()
            + self.positions.capacity() * size_of::<u32>()
            + self.phases.capacity()
    }

    /// Bytes of a full one, for `row` numbers a query.
    pub(super) fn max_bytes(row: usize) -> usize {
        BANK.next_multiple_of(GROWTH) * (row * size_of::<f16>() + size_of::<u32>() + 1)
    }
}
