//! An output that no context has room for.

use std::collections::{BTreeSet, HashMap};

use super::{Folded, Rule, note};
use crate::ingest::history::History;
use crate::ingest::log::{Key, Log, Role, Severity};
use crate::ingest::span::{Kind, Span};

/// Keeps the ends of a very long output, and every distinct error and warning in it.
pub struct LongLog;

/// Bytes from which on an output is too long: about 16,000 tokens.
pub(super) const LONG: usize = 64 * 1024;

/// Bytes of the output's beginning that stay.
const HEAD: usize = 4 * 1024;

/// Bytes of the output's end that stay: it mostly says how it ended.
const TAIL: usize = 8 * 1024;

/// Bytes of lines that say how it ended, wherever they stand.
const VERDICT: usize = 8 * 1024;

/// Bytes of errors and warnings.
const FINDINGS: usize = 24 * 1024;

/// Distinct errors and warnings that stay; the rest is counted.
const DISTINCT: usize = 200;

/// Lines of one error that stay.
const LINES: usize = 30;

/// Lines that stay before and after an error of one line.
const AROUND: usize = 2;

/// Bytes of one line that stay.
const LINE: usize = 1024;

/// Bytes that a note between kept lines takes, about.
const GAP: usize = 40;

impl Rule for LongLog {
    fn name(&self) -> &'static str {
        "long_log"
    }

    fn fold(&self, span: &Span, text: &str, _history: &History) -> Option<Folded> {
        let may = matches!(
            span.kind,
            Kind::Log | Kind::Search | Kind::Listing | Kind::Screen | Kind::Other
        );
        if !may || text.len() < LONG {
            return None;
        }
        let log = Log::read(text);
        let mut kept = Kept::new(&log);
        kept.ends();
        kept.verdict();
        let left = kept.findings();
        let out = kept.write(span, text.len(), &left);
        note::shorter(out, text).map(Folded::of)
    }
}

/// The lines that stay.
struct Kept<'l, 'a> {
    log: &'l Log<'a>,
    lines: BTreeSet<usize>,
}

/// Findings that had no room.
#[derive(Default)]
struct Left {
    errors: usize,
    warnings: usize,
    names: usize,
}

impl<'l, 'a> Kept<'l, 'a> {
    fn new(log: &'l Log<'a>) -> Self {
        Self { log, lines: BTreeSet::new() }
    }

    fn cost(&self, at: usize) -> usize {
        self.log.lines.get(at).map_or(0, |line| line.len().min(LINE + GAP))
    }

    fn ends(&mut self) {
        let count = self.log.lines.len();
        let mut room = HEAD;
        for at in 0..count {
            let Some(rest) = room.checked_sub(self.cost(at)) else { break };
            room = rest;
            self.lines.insert(at);
        }
        room = TAIL;
        for at in (0..count).rev() {
            let Some(rest) = room.checked_sub(self.cost(at)) else { break };
            room = rest;
            self.lines.insert(at);
        }
    }

    fn verdict(&mut self) {
        let mut room = VERDICT;
        let first = self.log.first().map(|first| first.lines.start);
        let verdict = self.log.verdict();
        // The first error first, then from the end: there stand the summaries.
        for at in first.into_iter().chain(verdict.into_iter().rev()) {
            if !self.lines.contains(&at)
                && let Some(rest) = room.checked_sub(self.cost(at) + GAP)
            {
                room = rest;
                self.lines.insert(at);
            }
        }
    }

    /// Keeps the first and the last of every distinct finding, errors before warnings.
    fn findings(&mut self) -> Left {
        let mut seen: HashMap<Key<'a>, usize> = HashMap::new();
        let mut distinct: Vec<(usize, usize)> = Vec::new();
        for (at, finding) in self.log.findings.iter().enumerate() {
            match seen.entry(self.log.key(finding)) {
                std::collections::hash_map::Entry::Occupied(entry) => {
                    if let Some(known) = distinct.get_mut(*entry.get()) {
                        known.1 = at;
                    }
                }
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(distinct.len());
                    distinct.push((at, at));
                }
            }
        }
        let is_warning = |at: usize| {
            self.log.findings.get(at).is_some_and(|found| found.severity == Severity::Warning)
        };
        distinct.sort_by_key(|(first, _)| (is_warning(*first), *first));
        let mut left = Left::default();
        let mut room = FINDINGS;
        for (nth, (first, last)) in distinct.into_iter().enumerate() {
            let mut lines = self.around(first);
            lines.extend(self.around(last));
            let new = lines.iter().filter(|at| !self.lines.contains(at));
            let cost = new.map(|at| self.cost(*at)).sum::<usize>() + 2 * GAP;
            match room.checked_sub(cost) {
                Some(rest) if nth < DISTINCT => {
                    room = rest;
                    self.lines.extend(lines);
                }
                _ if is_warning(first) => left.warnings += 1,
                _ => left.errors += 1,
            }
        }
        let names =
            |(at, role): (usize, &Role)| *role == Role::Verdict && !self.lines.contains(&at);
        left.names = self.log.roles.iter().enumerate().filter(|line| names(*line)).count();
        left
    }

    /// A finding's lines, with some about them if there is only one.
    fn around(&self, finding: usize) -> BTreeSet<usize> {
        let Some(finding) = self.log.findings.get(finding) else { return BTreeSet::new() };
        let lines = &finding.lines;
        let mut around: BTreeSet<usize> = if lines.len() == 1 {
            let end = (lines.end + AROUND).min(self.log.lines.len());
            (lines.start.saturating_sub(AROUND)..end).collect()
        } else {
            // The end of a report says more than its middle.
            let half = LINES / 2;
            lines.clone().take(half).chain(lines.clone().rev().take(half)).collect()
        };
        around.extend(finding.under);
        around
    }

    fn write(&self, span: &Span, bytes: usize, left: &Left) -> String {
        let mut out = String::new();
        let count = self.log.lines.len();
        note::push(
            &mut out,
            &format!(
                "[a long output, abridged: {} of {} lines of {} bytes; for more: {}]",
                note::grouped(self.lines.len()),
                note::grouped(count),
                note::grouped(bytes),
                note::lines_again(span)
            ),
        );
        let mut next = 0;
        for at in &self.lines {
            gap(&mut out, next, *at);
            cut(&mut out, self.log.lines.get(*at).copied().unwrap_or_default());
            next = at + 1;
        }
        gap(&mut out, next, count);
        let mut more = Vec::new();
        for (number, what) in [
            (left.errors, "distinct error"),
            (left.warnings, "distinct warning"),
            (left.names, "line of the verdict"),
        ] {
            if number > 0 {
                more.push(note::counted(number, what));
            }
        }
        if !more.is_empty() {
            note::push(&mut out, &format!("[not shown: {}]", more.join(", ")));
        }
        out
    }
}

/// Says which lines, counted from zero, are left out.
fn gap(out: &mut String, from: usize, to: usize) {
    if from + 1 == to {
        note::push(out, &format!("[… line {to}]"));
    } else if from < to {
        note::push(out, &format!("[… lines {} to {to}]", from + 1));
    }
}

/// A line, or its two ends if it is very long.
fn cut(out: &mut String, line: &str) {
    if line.len() <= LINE {
        out.push_str(line);
        return;
    }
    let head = line.floor_char_boundary(LINE / 2);
    let tail = line.ceil_char_boundary(line.len() - LINE / 2);
    out.push_str(line.get(..head).unwrap_or_default());
    out.push_str(&format!(" [… {} bytes …] ", note::grouped(tail - head)));
    out.push_str(line.get(tail..).unwrap_or_default());
}
