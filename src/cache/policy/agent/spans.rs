//! What is known of spans: which stay whatever their score, and whose scores move.

use std::ops::Range;

use super::Settings;
use crate::cache::notes::{Kind, What};
use crate::cache::plan::{Protected, SessionView, Shift};

/// What stays for what it is, by rank: the open tool call, the task and each instruction (newest
/// first), and evidence (newest first), each within its part of the budget.
pub fn protected(settings: &Settings, session: &SessionView<'_>) -> Vec<Protected> {
    let (notes, n_read) = (session.notes, session.n_read);
    let cap = |part: f32| (session.budget.n_slots as f32 * part) as usize;
    let spans = || notes.spans_at(n_read).rev();
    let call = spans().find(|span| span.kind == Kind::ToolCall).map(|span| span.tokens);
    let given = spans().filter(|span| matches!(span.kind, Kind::Task | Kind::Instruction));
    let evidence = notes.events_at(n_read).rev().filter(|event| event.what == What::Evidence);
    let protected = [
        Protected { runs: call.into_iter().collect(), cap: cap(settings.call_part) },
        Protected { runs: given.map(|span| span.tokens).collect(), cap: cap(settings.task_part) },
        Protected {
            runs: evidence.map(|event| event.tokens).collect(),
            cap: cap(settings.evidence_part),
        },
    ];
    protected.into_iter().filter(|class| class.cap > 0 && !class.runs.is_empty()).collect()
}

/// How events move the scores of tokens. Two events of one kind move a token once.
pub fn shifts(settings: &Settings, session: &SessionView<'_>) -> Vec<Shift> {
    let weights = [
        (What::Stale, -settings.staleness),
        (What::Repeated, -settings.repetition),
        (What::Evidence, settings.evidence),
    ];
    let of_kind = |what| {
        let events = session.notes.events_at(session.n_read);
        merged(events.filter(|event| event.what == what).map(|event| event.tokens).collect())
    };
    weights
        .into_iter()
        .filter(|(_, by)| *by != 0.0)
        .flat_map(|(what, by)| of_kind(what).into_iter().map(move |tokens| Shift { tokens, by }))
        .collect()
}

/// The same tokens as runs that do not overlap.
fn merged(mut runs: Vec<Range<u32>>) -> Vec<Range<u32>> {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let overlaps = next.start <= run.end;
        if overlaps {
            run.end = run.end.max(next.end);
        }
        overlaps
    });
    runs
}

#[cfg(test)]
// One run of tokens is what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::cache::Budget;
    use crate::cache::notes::{Event, Notes, Span};

    fn view(notes: &Notes) -> SessionView<'_> {
        let budget = Budget { n_slots: 800, n_buffer: 128 };
        SessionView { notes, n_read: 1_000, budget, n_slots: 900 }
    }

    fn event(tokens: Range<u32>, what: What) -> Event {
        Event { at: 0, tokens, what }
    }

    #[test]
    fn the_newest_call_and_all_that_was_asked_for_is_protected_within_parts() {
        let span = |tokens: Range<u32>, kind| Span { at: 0, tokens, kind, source: 0, turn: 0 };
        let spans = vec![
            span(0..10, Kind::Instruction),
            span(10..90, Kind::Task),
            span(100..120, Kind::ToolCall),
            span(300..320, Kind::ToolCall),
            span(320..900, Kind::Log),
        ];
        let notes = Notes { spans, ..Notes::default() };
        let settings = Settings { call_part: 0.125, task_part: 0.25, ..Settings::default() };
        assert_eq!(
            protected(&settings, &view(&notes)),
            [
                Protected { runs: vec![300..320], cap: 100 },
                Protected { runs: vec![10..90, 0..10], cap: 200 },
            ]
        );
        let off = Settings { call_part: 0.0, task_part: 0.0, ..settings };
        assert_eq!(protected(&off, &view(&notes)), []);
    }

    #[test]
    fn what_two_events_of_a_kind_say_of_a_token_counts_once() {
        let events = vec![
            event(50..60, What::Stale),
            event(0..20, What::Stale),
            event(10..30, What::Stale),
            event(0..5, What::Pin),
            event(4..9, What::Evidence),
        ];
        let notes = Notes { events, ..Notes::default() };
        let settings = Settings { staleness: 0.5, evidence: 0.25, ..Settings::default() };
        let shift = |tokens, by| Shift { tokens, by };
        assert_eq!(
            shifts(&settings, &view(&notes)),
            [shift(0..30, -0.5), shift(50..60, -0.5), shift(4..9, 0.25)]
        );
    }
}
