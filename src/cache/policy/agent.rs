//! `agent`: what a coding agent will come back to.

use super::{HeadMemory, HeadView, Policy, Protection, Work};
use crate::cache::notes::{Kind, What};
use crate::cache::plan::{Protected, SessionView, SpanPlan};

pub mod asked;

/// Slots at the front of each head that stay.
pub const SINKS: usize = 4;

/// Slots at the end of each head that stay.
pub const RECENT: usize = 64;

/// Importance asked of the right witnesses, and protection by what a span is.
#[derive(Default)]
pub struct Agent {}

impl Agent {
    /// What stays for what it is: the open tool call, the task and each instruction, and evidence,
    /// each within its part of the budget.
    pub fn protected(&self, session: &SessionView<'_>) -> SpanPlan {
        let (notes, n_read, budget) = (session.notes, session.n_read, session.budget.n_slots);
        let of_kind = |wanted: &'static [Kind]| {
            notes.spans_at(n_read).filter(|span| wanted.contains(&span.kind))
        };
        let last_call = of_kind(&[Kind::ToolCall]).next_back().map(|span| span.tokens);
        let mut given: Vec<_> =
            of_kind(&[Kind::Task, Kind::Instruction]).map(|span| span.tokens).collect();
        given.reverse();
        let evidence = notes.events_at(n_read).filter(|event| event.what == What::Evidence);
        let mut evidence: Vec<_> = evidence.map(|event| event.tokens).collect();
        evidence.reverse();
        let protected = [
            Protected { runs: last_call.into_iter().collect(), cap: budget / 8 },
            Protected { runs: given, cap: budget / 8 },
            Protected { runs: evidence, cap: budget / 4 },
        ];
        SpanPlan { protected: protected.into(), ..SpanPlan::default() }
    }
}

impl Policy for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn plan(&self, session: &SessionView<'_>) -> SpanPlan {
        self.protected(session)
    }

    fn score(&self, head: &HeadView<'_>, _: HeadMemory<'_>, work: &mut Work, scores: &mut [f32]) {
        asked::asked(head, &mut work.asked, scores);
    }

    fn protection(&self, _budget: usize) -> Protection {
        Protection { n_sinks: SINKS, n_recent: RECENT }
    }

    fn keeps_bank(&self) -> bool {
        true
    }
}
