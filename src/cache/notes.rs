//! What is known of a session's tokens besides their keys.
//!
//! Notes are made from the text by who owns it, handed over with the tokens they speak of, and
//! only ever added to. They are a function of the text alone and are not part of a frozen cache:
//! whoever thaws one hands all notes over again.
//!
//! Each note says from which position on it holds. A compaction heeds those whose position has been
//! read, so it decides the same whether notes come early or late, as long
//! as they come before the token at that position: for text that is read in blocks that is the
//! first token of the message they were drawn from, for text that the model writes the position
//! behind its last token.

use std::collections::VecDeque;
use std::ops::Range;

/// What a run of tokens is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    System,
    /// One rule of a system prompt.
    Instruction,
    /// What a person asks for.
    Task,
    Thought,
    ToolCall,
    Answer,
    /// Part of a file, or a listing or search over files.
    View,
    Diff,
    Log,
    /// Any other output of a tool.
    Other,
}

impl Kind {
    /// Whether the model writes such text itself.
    pub fn is_assistant(self) -> bool {
        matches!(self, Self::Thought | Self::ToolCall | Self::Answer)
    }
}

/// A run of tokens with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub tokens: Range<u32>,
    /// Tokens read from which on it is known.
    pub at: u32,
    pub kind: Kind,
    /// Names the file or the command that it shows, the same number for the same one; 0 for none.
    pub source: u32,
    /// Assistant messages before it.
    pub turn: u32,
}

/// What has become known of tokens that stand in the session already, or that come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Later text points to them: they stay while there is room for them.
    Pin,
    /// Takes every pin back that shares a token with them.
    Unpin,
    /// A later edit or a later view has outdated them.
    Stale,
    /// Later tokens say the same.
    Repeated,
    /// Edits, failing assertions and what these name.
    Evidence,
}

/// Something that becomes known at one position of other tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Tokens read from which on it holds.
    pub at: u32,
    pub tokens: Range<u32>,
    pub what: What,
}

/// How much rather than others tokens that follow one another should stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priors {
    pub first: u32,
    /// Tokens read from which on they hold.
    pub at: u32,
    /// In sixteenths of the spread that importance has within a head; 0 for no opinion.
    pub values: Vec<i8>,
}

/// All that is known, or what has been added to it. Nothing here can make a cache pass its bound,
/// whatever it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// By first token.
    pub spans: Vec<Span>,
    /// By first token; what two say of the same token adds up.
    pub priors: Vec<Priors>,
    /// By the position from which they hold.
    pub events: Vec<Event>,
    /// Tokens with which a line of read text begins, ascending.
    pub lines: Vec<u32>,
}

impl Notes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in what has become known since.
    pub fn extend(&mut self, new: Self) {
        self.spans.extend(new.spans);
        self.priors.extend(new.priors);
        self.events.extend(new.events);
        self.lines.extend(new.lines);
        // Stable, and near to nothing where all is in order already.
        self.spans.sort_by_key(|span| span.tokens.start);
        self.priors.sort_by_key(|priors| priors.first);
        self.events.sort_by_key(|event| event.at);
        self.lines.sort_unstable();
    }

    /// The spans that are known once `n_read` tokens have been read, the one at their position among
    /// them, as far as they reach then.
    pub fn spans_at(&self, n_read: u32) -> impl DoubleEndedIterator<Item = Span> {
        self.spans.iter().filter(move |span| span.at < n_read).filter_map(move |span| {
            let tokens = span.tokens.start..span.tokens.end.min(n_read);
            (!tokens.is_empty()).then(|| Span { tokens, ..span.clone() })
        })
    }

    /// The spans that are known as the tokens from `tokens` are read, as far as they lie there.
    pub fn spans_in(&self, tokens: Range<u32>) -> impl Iterator<Item = Span> {
        let n_begun = self.spans.partition_point(|span| span.tokens.start < tokens.end);
        self.spans[..n_begun].iter().filter_map(move |span| {
            let start = span.tokens.start.max(tokens.start);
            let inside = start..span.tokens.end.min(tokens.end);
            let is_known = span.at <= span.tokens.start && !inside.is_empty();
            is_known.then(|| Span { tokens: inside, ..span.clone() })
        })
    }

    /// The events that hold once `n_read` tokens have been read, the one at their position among
    /// them, as far as they reach then.
    pub fn events_at(&self, n_read: u32) -> impl DoubleEndedIterator<Item = Event> {
        let n_holding = self.events.partition_point(|event| event.at < n_read);
        self.events[..n_holding].iter().filter_map(move |event| {
            let tokens = event.tokens.start..event.tokens.end.min(n_read);
            (!tokens.is_empty()).then(|| Event { tokens, ..event.clone() })
        })
    }

    /// The pinned runs of tokens, newest pin first, and of those that are more than `n_max`
    /// tokens together only such as fit beside the newer ones.
    pub fn pins(&self, n_read: u32, n_max: usize) -> Vec<Range<u32>> {
        let mut pins = VecDeque::new();
        for event in self.events_at(n_read) {
            match event.what {
                What::Pin => {
                    pins.retain(|pin| *pin != event.tokens);
                    pins.push_front(event.tokens);
                }
                What::Unpin => pins.retain(|pin| !overlap(pin, &event.tokens)),
                What::Stale | What::Repeated | What::Evidence => {}
            }
        }
        let mut n_left = n_max;
        pins.retain(|pin| {
            let fits = pin.len() <= n_left;
            n_left -= if fits { pin.len() } else { 0 };
            fits
        });
        pins.into()
    }

    /// Adds the priors that hold to `sums`, `[S]`, in spreads, for slots at ascending
    /// `positions`, `[S]`.
    pub fn add_priors(&self, n_read: u32, positions: &[u32], weight: f32, sums: &mut [f32]) {
        let mut from = 0;
        for priors in self.priors.iter().filter(|priors| priors.at < n_read) {
            let end = priors.first.saturating_add(priors.values.len() as u32);
            from += positions[from..].partition_point(|&position| position < priors.first);
            for (&position, sum) in positions[from..].iter().zip(&mut sums[from..]) {
                if position >= end {
                    break;
                }
                *sum +=
                    weight * f32::from(priors.values[(position - priors.first) as usize]) / 16.0;
            }
        }
    }
}

fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
// One run of tokens is what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn event(at: u32, tokens: Range<u32>, what: What) -> Event {
        Event { at, tokens, what }
    }

    fn span(tokens: Range<u32>, at: u32) -> Span {
        Span { tokens, at, kind: Kind::View, source: 0, turn: 0 }
    }

    #[test]
    fn notes_hold_from_their_position_on_and_reach_as_far_as_was_read() {
        let notes = Notes {
            spans: vec![span(0..10, 0), span(10..30, 10), span(30..40, 40)],
            events: vec![event(10, 0..5, What::Stale), event(40, 5..50, What::Evidence)],
            ..Notes::default()
        };
        let spans = |n_read| notes.spans_at(n_read).map(|span| span.tokens).collect::<Vec<_>>();
        assert_eq!(spans(9), [0..9]);
        assert_eq!(spans(12), [0..10, 10..12]);
        assert_eq!(spans(39), [0..10, 10..30]);
        assert_eq!(spans(40), [0..10, 10..30]);
        assert_eq!(spans(41), [0..10, 10..30, 30..40]);
        let events = |n_read| notes.events_at(n_read).map(|event| event.tokens).collect::<Vec<_>>();
        assert_eq!(events(9), [] as [Range<u32>; 0]);
        assert_eq!(events(40), [0..5]);
        assert_eq!(events(41), [0..5, 5..41]);
    }

    #[test]
    fn the_order_in_which_notes_come_makes_no_difference_to_what_they_say() {
        let parts: [Notes; 3] = [
            Notes { spans: vec![span(20..30, 20)], ..Notes::default() },
            Notes { spans: vec![span(0..20, 0)], lines: vec![3, 9], ..Notes::default() },
            Notes { events: vec![event(7, 0..2, What::Pin)], lines: vec![1], ..Notes::default() },
        ];
        let all = |order: [usize; 3]| {
            let mut notes = Notes::default();
            order.into_iter().for_each(|i| notes.extend(parts[i].clone()));
            notes
        };
        assert_eq!(all([0, 1, 2]), all([2, 0, 1]));
    }

    #[test]
    fn pins_stay_newest_first_within_the_cap_until_they_are_taken_back() {
        let notes = Notes {
            events: vec![
                event(10, 0..4, What::Pin),
                event(20, 10..16, What::Pin),
                event(30, 20..23, What::Pin),
                event(40, 0..4, What::Pin),
                event(50, 22..24, What::Unpin),
            ],
            ..Notes::default()
        };
        assert_eq!(notes.pins(9, 100), []);
        assert_eq!(notes.pins(31, 100), [20..23, 10..16, 0..4]);
        assert_eq!(notes.pins(41, 100), [0..4, 20..23, 10..16]);
        assert_eq!(notes.pins(41, 8), [0..4, 20..23]);
        assert_eq!(notes.pins(31, 8), [20..23, 0..4], "what is too long for the rest is left out");
        assert_eq!(notes.pins(51, 100), [0..4, 10..16]);
    }

    #[test]
    fn priors_add_up_on_the_slots_that_are_there() {
        let priors = |first, at, values: &[i8]| Priors { first, at, values: values.to_vec() };
        let notes = Notes {
            priors: vec![priors(2, 0, &[16, 32, -16]), priors(4, 5, &[8, 8]), priors(7, 9, &[1])],
            ..Notes::default()
        };
        let mut sums = vec![0.0; 5];
        notes.add_priors(8, &[0, 3, 4, 5, 7], 2.0, &mut sums);
        assert_eq!(sums, [0.0, 4.0, -1.0, 1.0, 0.0]);
    }
}
