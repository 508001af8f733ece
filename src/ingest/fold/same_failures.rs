//! A log that repeats what failed in the run before.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::long_log::LONG;
use super::{Folded, Rule, note, terminal};
use crate::ingest::history::{History, PastLog};
use crate::ingest::log::{Finding, Key, Log, Role, Severity};
use crate::ingest::span::{Kind, Span};

/// Leaves out of a log the failures that the run before had too.
pub struct SameFailures;

/// How the note begins.
pub(super) const TITLE: &str = "[same ";

/// Names that a note lists.
const NAMES: usize = 10;

impl Rule for SameFailures {
    fn name(&self) -> &'static str {
        "same_failures"
    }

    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded> {
        if span.kind != Kind::Log || text.starts_with(TITLE) {
            return None;
        }
        let past = history.previous_log(span)?;
        // A very long log was abridged, and so may be what it says of a failure.
        if past.text.len() >= LONG {
            return None;
        }
        let before = terminal::as_seen(&past.text, true);
        let runs = Runs::new(Log::read(&before), Log::read(text));
        if runs.same.is_empty() {
            return None;
        }
        let text = note::shorter(runs.write(past), text)?;
        let points_to = past.points_to.iter().chain([&past.place]).cloned().collect();
        Some(Folded { text, points_to })
    }
}

/// A run and the one before it.
struct Runs<'b, 'a> {
    before: Log<'b>,
    now: Log<'a>,
    /// Findings that both have: their lines that are not the same to the byte.
    same: HashMap<usize, BTreeSet<usize>>,
    /// Findings that only the run before has.
    n_gone: usize,
}

impl<'b, 'a> Runs<'b, 'a> {
    fn new(before: Log<'b>, now: Log<'a>) -> Self {
        let mut known: HashMap<Key<'_>, &Finding<'b>> =
            before.findings.iter().map(|finding| (before.key(finding), finding)).collect();
        let mut same = HashMap::new();
        for (at, finding) in now.findings.iter().enumerate() {
            // A finding that was there once accounts for one.
            if let Some(old) = known.remove(&now.key(finding)) {
                let old = before.text(old).iter().map(|line| line.trim_end());
                let new = now.text(finding).iter().map(|line| line.trim_end());
                let lines = finding.lines.clone().zip(old.zip(new));
                same.insert(at, lines.filter(|(_, (o, n))| o != n).map(|(at, _)| at).collect());
            }
        }
        let n_gone = known.len();
        Self { before, now, same, n_gone }
    }

    fn write(&self, past: &PastLog) -> String {
        let mut out = String::new();
        note::push(&mut out, &self.note(past));
        let verdict = self.now.verdict();
        let mut after_gap = false;
        for (at, (line, role)) in self.now.lines.iter().zip(&self.now.roles).enumerate() {
            let changed = match role {
                Role::Finding(finding) => self.same.get(finding),
                _ => None,
            };
            let is_blank = line.trim().is_empty();
            let left_out = changed.is_some_and(|changed| !changed.contains(&at));
            if left_out && !verdict.contains(&at) {
                after_gap = true;
            } else if !(after_gap && is_blank) {
                out.push_str(line);
                after_gap = false;
            }
        }
        out
    }

    fn note(&self, past: &PastLog) -> String {
        let same = count(self.same.keys().filter_map(|at| self.now.findings.get(*at)));
        let run = match note::command(&past.span) {
            Some(command) => format!("the previous `{command}`"),
            None => "the previous run".to_owned(),
        };
        let others = self.now.findings.iter().enumerate();
        let new: Vec<_> = others.filter(|(at, _)| !self.same.contains_key(at)).collect();
        let names = |of: &[&str], not: &[&str]| {
            let not: HashSet<_> = not.iter().copied().collect();
            list(&of.iter().copied().filter(|name| !not.contains(name)).collect::<Vec<_>>())
        };
        let named: Vec<_> = new.iter().filter_map(|(_, finding)| finding.name).collect();
        let new = names(&self.now.failing, &self.before.failing)
            .or_else(|| list(&named))
            .or_else(|| (!new.is_empty()).then(|| count(new.iter().map(|(_, finding)| *finding))));
        let gone = names(&self.before.failing, &self.now.failing)
            .or_else(|| (self.n_gone > 0).then(|| self.n_gone.to_string()));
        let new = new.map_or("nothing new".to_owned(), |new| format!("new: {new}"));
        let gone = gone.map_or(String::new(), |gone| format!("; gone: {gone}"));
        let differs = self.same.values().any(|changed| !changed.is_empty());
        let but = if differs { " but for lines that differ" } else { "" };
        format!("{TITLE}{same} as {run}, not repeated here{but}; {new}{gone}]")
    }
}

/// `3 failures, 1 warning`.
fn count<'f, 'a: 'f>(findings: impl Iterator<Item = &'f Finding<'a>>) -> String {
    let mut numbers = [(Severity::Failure, 0), (Severity::Error, 0), (Severity::Warning, 0)];
    for finding in findings {
        for (severity, number) in &mut numbers {
            *number += usize::from(*severity == finding.severity);
        }
    }
    let said: Vec<String> = numbers
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(severity, number)| {
            let what = match severity {
                Severity::Failure => "failure",
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            note::counted(*number, what)
        })
        .collect();
    said.join(", ")
}

/// The names, the first of them if there are many; none for none.
fn list(names: &[&str]) -> Option<String> {
    let first = names.get(..NAMES.min(names.len()))?;
    let more = names.len() - first.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", first.join(", ")))
}
