//! Lines that say the same over and over inside one output.

use std::borrow::Cow;
use std::ops::Range;

use super::{Folded, Rule, note};
use crate::ingest::history::History;
use crate::ingest::log::{Log, Role};
use crate::ingest::span::{Kind, Span};
use crate::ingest::template::template;

/// Folds runs of lines with one template to the first and the last of them.
pub struct Repeats;

/// Times that something must stand in a row.
const TIMES: usize = 4;

/// Most lines of which one repetition may consist.
const PERIOD: usize = 8;

/// When two lines are alike.
#[derive(Clone, PartialEq, Eq)]
enum Key<'a> {
    /// Both say that something of this kind went well.
    Passing(&'static str),
    /// They differ in times, ids and large numbers only.
    Template(Cow<'a, str>),
    /// They are the same to the byte.
    Exact(Cow<'a, str>),
}

struct Item<'a> {
    key: Key<'a>,
    text: Cow<'a, str>,
}

impl Rule for Repeats {
    fn name(&self) -> &'static str {
        "repeats"
    }

    fn fold(&self, span: &Span, text: &str, _history: &History) -> Option<Folded> {
        let mut folded = shorter(span.kind, text)?;
        // What is left may read differently: a line that belonged to an error may stand alone now.
        while let Some(less) = shorter(span.kind, &folded) {
            folded = less;
        }
        Some(Folded::of(folded))
    }
}

/// The text with its runs folded once, if that is shorter.
fn shorter(kind: Kind, text: &str) -> Option<String> {
    let mut items = match kind {
        Kind::Log => log(text),
        // In a search's lines numbers are places.
        Kind::Search | Kind::Listing | Kind::Screen | Kind::Other => exact(text),
        _ => return None,
    };
    for period in 1..=PERIOD {
        items = fold(items, period);
    }
    let length = items.iter().map(|item| item.text.len()).sum::<usize>();
    (length < text.len()).then(|| items.iter().map(|item| &*item.text).collect())
}

fn log(text: &str) -> Vec<Item<'_>> {
    let log = Log::read(text);
    let lines = log.lines.iter().zip(&log.roles);
    lines
        .map(|(line, role)| {
            let key = match role {
                Role::Passing(what) => Key::Passing(what),
                // A number in an error may be its place, or what was expected.
                Role::Finding(_) | Role::Verdict | Role::Heading => {
                    Key::Exact(Cow::Borrowed(*line))
                }
                Role::Plain => Key::Template(template(line)),
            };
            Item { key, text: Cow::Borrowed(*line) }
        })
        .collect()
}

fn exact(text: &str) -> Vec<Item<'_>> {
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| Item { key: Key::Exact(Cow::Borrowed(line)), text: Cow::Borrowed(line) })
        .collect()
}

/// Folds what repeats every `period` lines.
fn fold(items: Vec<Item<'_>>, period: usize) -> Vec<Item<'_>> {
    let runs = runs(&items, period);
    if runs.is_empty() {
        return items;
    }
    let mut left_out = runs.into_iter().peekable();
    let mut out = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        left_out.next_if(|(range, _)| range.end <= at);
        match left_out.peek() {
            Some((range, said)) if range.start == at => {
                let text: Cow<str> = Cow::Owned(said.clone());
                out.push(Item { key: Key::Template(text.clone()), text });
            }
            Some((range, _)) if range.contains(&at) => {}
            _ => out.push(item),
        }
    }
    out
}

/// What to leave out of the items, and the line to put there.
fn runs(items: &[Item<'_>], period: usize) -> Vec<(Range<usize>, String)> {
    let mut runs = Vec::new();
    let mut at = 0;
    let alike = |at: usize| match (items.get(at), items.get(at + period)) {
        (Some(one), Some(other)) => one.key == other.key,
        _ => false,
    };
    while at + period < items.len() {
        let start = at;
        while alike(at) {
            at += 1;
        }
        let times = (at - start) / period + 1;
        if times >= TIMES {
            let range = start + period..start + (times - 1) * period;
            let said = said(items, &range, period, times - 2);
            let saved: usize =
                items.get(range.clone()).unwrap_or_default().iter().map(|i| i.text.len()).sum();
            if said.len() < saved {
                runs.push((range, said));
            }
        }
        at = at.max(start + 1);
    }
    runs
}

fn said(items: &[Item<'_>], range: &Range<usize>, period: usize, times: usize) -> String {
    let Some(first) = items.get(range.start) else { return String::new() };
    let indent = first.text.len() - first.text.trim_start_matches([' ', '\t']).len();
    let indent = first.text.get(..indent).unwrap_or_default();
    let times = note::grouped(times);
    match &first.key {
        _ if period > 1 => format!("{indent}… {times} more like these {period} lines\n"),
        Key::Passing(what) => format!("{indent}… {times} more {what}\n"),
        _ => format!("{indent}… {times} more like this\n"),
    }
}
