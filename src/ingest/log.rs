//! What build, test and lint tools write: which lines are findings, verdict, or passing noise.
//!
//! Every tool has a file of its own behind one trait, and all of them look at every line, since
//! one output often holds several tools' (make runs gcc, npm runs jest). Each knows only lines
//! that it would hardly mistake; a line that none knows is plain and is left as it is.

mod cargo;
mod compiler;
mod eslint;
mod go;
mod jest;
mod make;
mod mypy;
mod packages;
mod plain;
mod pytest;
mod ruff;
mod site;
mod trace;
mod unittest;

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

pub use site::Site;

use super::template::template;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A test that failed.
    Failure,
    Error,
    Warning,
}

/// Where a finding ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// With its first line.
    Line,
    /// Before the next blank line.
    Blank,
    /// Before the next line that is not indented; blank lines do not end it.
    Outdent,
    /// After the next line that is not indented, as Python ends a traceback with the exception.
    Report,
    /// Where its format marks another line; until then no other format is asked.
    Section,
}

/// What a format says of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark<'a> {
    /// One of many that say that all is well: passing tests, compiled crates. The plural names
    /// them in notes.
    Passing(&'static str),
    /// A line that stands over findings: a file's path, a section's title.
    Heading,
    /// Says how it ended.
    Verdict,
    /// Says that this test failed.
    Failing(&'a str),
    /// Begins a finding, of a test where there is a name.
    Finding(Severity, Until, Option<&'a str>),
    /// Belongs to the finding above, where there is one.
    More,
}

/// One tool's way of writing.
trait Format: Sync {
    /// What the line means. `within` is set while a finding of this format is open.
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>>;
}

/// All formats. The first that knows a line has it: the strict ones stand before the lax.
const FORMATS: [&dyn Format; 13] = [
    &cargo::Cargo,
    &pytest::Pytest,
    &unittest::Unittest,
    &go::Go,
    &jest::Jest,
    &mypy::Mypy,
    &compiler::Compiler,
    &ruff::Ruff,
    &eslint::Eslint,
    &make::Make,
    &packages::Packages,
    &trace::Trace,
    &plain::Plain,
];

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Plain,
    /// One of many lines that say that all is well; the plural names them.
    Passing(&'static str),
    Heading,
    Verdict,
    /// Part of the finding with this index.
    Finding(usize),
}

/// An error, a warning or a failed test, with all lines that the tool wrote about it.
#[derive(Clone, Debug)]
pub struct Finding<'a> {
    pub severity: Severity,
    /// Lines of the log, counted from zero.
    pub lines: Range<usize>,
    /// The failed test, where it is one.
    pub name: Option<&'a str>,
    /// The line that stands over it and says more, such as the file's path.
    pub under: Option<usize>,
}

/// What tells findings apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    severity: Severity,
    under: Option<&'a str>,
    site: Option<Site<'a>>,
    text: String,
}

/// A log, read.
#[derive(Debug, Default)]
pub struct Log<'a> {
    /// The lines with their ends.
    pub lines: Vec<&'a str>,
    pub roles: Vec<Role>,
    pub findings: Vec<Finding<'a>>,
    /// Names of failing tests in the order of their first mention.
    pub failing: Vec<&'a str>,
}

/// Lines at the end that always survive.
const LAST: usize = 3;

impl<'a> Log<'a> {
    /// Reads a log. Any text will do; one that no tool wrote has plain lines only.
    pub fn read(text: &'a str) -> Self {
        let mut reading = Reading::default();
        for line in text.split_inclusive('\n') {
            reading.line(line);
        }
        reading.close();
        let mut log = reading.log;
        // Where no summary names the failed tests, their reports do.
        if log.failing.is_empty() {
            log.failing = log.findings.iter().filter_map(|finding| finding.name).collect();
        }
        let mut seen = HashSet::new();
        log.failing.retain(|name| seen.insert(*name));
        log
    }

    /// Whether a tool was recognised.
    pub fn is_recognised(&self) -> bool {
        self.roles.iter().any(|role| *role != Role::Plain)
    }

    /// The finding to look at first: the first error or failure, else the first warning.
    pub fn first(&self) -> Option<&Finding<'a>> {
        self.findings
            .iter()
            .find(|finding| finding.severity != Severity::Warning)
            .or(self.findings.first())
    }

    /// A finding's own lines.
    pub fn text(&self, finding: &Finding<'a>) -> &[&'a str] {
        self.lines.get(finding.lines.clone()).unwrap_or_default()
    }

    /// What two findings have in common that say the same: all but times, ids and large numbers.
    pub fn key(&self, finding: &Finding<'a>) -> Key<'a> {
        let under = finding.under.and_then(|at| self.lines.get(at)).map(|line| line.trim_end());
        let site = self.site(finding).map(|(_, site)| site);
        let text = template(self.text(finding).concat().trim_end()).into_owned();
        Key { severity: finding.severity, under, site, text }
    }

    /// Where a finding is in the code, and the line of the log that says so.
    pub fn site(&self, finding: &Finding<'a>) -> Option<(usize, Site<'a>)> {
        let lines = self.text(finding).iter().enumerate();
        let mut sites =
            lines.filter_map(|(at, line)| Some((finding.lines.start + at, site::find(line)?)));
        // A Python traceback names the innermost place last; a test's report ends with it.
        let innermost_last = self.text(finding).iter().any(|line| {
            line.starts_with("Traceback (") || line.starts_with("E  ") || line.contains("\", line ")
        });
        if innermost_last { sites.next_back() } else { sites.next() }
    }

    /// The lines of a finding that say what it is and where: its head, its place, what stands
    /// under either, what was compared, and the end.
    fn gist(&self, finding: &Finding<'a>) -> BTreeSet<usize> {
        let lines = finding.lines.clone();
        let filled = |at: &usize| self.lines.get(*at).is_some_and(|line| !line.trim().is_empty());
        let compared = |at: &usize| self.lines.get(*at).is_some_and(|line| line.starts_with("E  "));
        let mut gist: BTreeSet<usize> = lines.clone().filter(filled).take(2).collect();
        if let Some((at, _)) = self.site(finding) {
            gist.extend((at..lines.end).filter(filled).take(2));
        }
        gist.extend(lines.clone().find(compared));
        gist.extend(lines.rev().find(filled));
        gist
    }

    /// The lines that must stand in whatever the log is folded to: how it ended, which tests
    /// failed, the head and the place of the first error, and the last lines.
    pub fn verdict(&self) -> BTreeSet<usize> {
        let mut kept: BTreeSet<usize> = self
            .roles
            .iter()
            .enumerate()
            .filter(|(_, role)| **role == Role::Verdict)
            .map(|(at, _)| at)
            .collect();
        if let Some(first) = self.first() {
            kept.extend(first.under);
            kept.extend(self.gist(first));
        }
        let says = |at: &usize| {
            let passing = matches!(self.roles.get(*at), Some(Role::Passing(_)));
            !passing && self.lines.get(*at).is_some_and(|line| !line.trim().is_empty())
        };
        kept.extend((0..self.lines.len()).rev().filter(says).take(LAST));
        kept
    }
}

/// A log while it is read.
#[derive(Default)]
struct Reading<'a> {
    log: Log<'a>,
    /// The finding that the next line may belong to.
    open: Option<Open>,
    /// The heading above, and whose it is.
    heading: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct Open {
    format: usize,
    until: Until,
}

impl<'a> Reading<'a> {
    fn line(&mut self, line: &'a str) {
        let at = self.log.lines.len();
        let bare = line.trim_end();
        let found = match self.open {
            Some(Open { until: Until::Report, .. }) => None,
            // Whatever the lines of a finding quote is part of it.
            Some(Open { until: Until::Outdent, .. }) if keeps(Until::Outdent, bare) => None,
            Some(Open { until, format }) if keeps(until, bare) => ask(format, bare, true),
            Some(Open { format, .. }) => ask(format, bare, true).or_else(|| ask_all(bare)),
            None => ask_all(bare),
        };
        let role = match found {
            Some((_, Mark::Passing(what))) => self.ended(Role::Passing(what)),
            Some((_, Mark::Verdict)) => self.ended(Role::Verdict),
            Some((format, Mark::Heading)) => {
                self.heading = Some((at, format));
                self.ended(Role::Heading)
            }
            Some((_, Mark::Failing(name))) => {
                self.log.failing.push(name);
                self.ended(Role::Verdict)
            }
            Some((format, Mark::Finding(severity, until, name))) => {
                self.close();
                self.open = (until != Until::Line).then_some(Open { format, until });
                let under = self.heading.filter(|(_, whose)| *whose == format).map(|(at, _)| at);
                self.log.findings.push(Finding { severity, lines: at..at + 1, name, under });
                Role::Finding(self.log.findings.len() - 1)
            }
            Some((_, Mark::More)) => self.goes_on(at),
            None => match self.open.map(|open| open.until) {
                Some(Until::Report) if !keeps(Until::Report, bare) => {
                    let role = self.goes_on(at);
                    self.close();
                    role
                }
                Some(until) if keeps(until, bare) => self.goes_on(at),
                _ => self.ended(Role::Plain),
            },
        };
        self.log.lines.push(line);
        self.log.roles.push(role);
    }

    /// Adds the line to the last finding, if it reaches to here.
    fn goes_on(&mut self, at: usize) -> Role {
        match self.log.findings.last_mut() {
            Some(finding) if finding.lines.end == at => {
                finding.lines.end = at + 1;
                Role::Finding(self.log.findings.len() - 1)
            }
            _ => Role::Plain,
        }
    }

    fn ended(&mut self, role: Role) -> Role {
        self.close();
        role
    }

    /// Ends the open finding and gives back the blank and ruled lines at its end.
    fn close(&mut self) {
        if self.open.take().is_some()
            && let Some(finding) = self.log.findings.last_mut()
        {
            let empty = |line: &str| line.trim_matches(['-', '=', '_', ' ', '\r', '\n']).is_empty();
            while finding.lines.len() > 1
                && self.log.lines.get(finding.lines.end - 1).is_some_and(|line| empty(line))
            {
                finding.lines.end -= 1;
                self.log.roles[finding.lines.end] = Role::Plain;
            }
        }
    }
}

/// Both sides of a separator's first occurrence. On short lines it is several times faster than
/// `str::split_once`, which prepares for long ones.
fn cut<'a>(line: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    let at = memchr::memmem::find(line.as_bytes(), separator.as_bytes())?;
    Some((line.get(..at)?, line.get(at + separator.len()..)?))
}

fn ask<'a>(format: usize, line: &'a str, within: bool) -> Option<(usize, Mark<'a>)> {
    Some((format, FORMATS.get(format)?.mark(line, within)?))
}

fn ask_all(line: &str) -> Option<(usize, Mark<'_>)> {
    if line.is_empty() {
        return None;
    }
    (0..FORMATS.len()).find_map(|format| ask(format, line, false))
}

/// Whether a line that no format knows belongs to the finding above.
fn keeps(until: Until, line: &str) -> bool {
    match until {
        Until::Line => false,
        Until::Blank => !line.is_empty(),
        Until::Outdent | Until::Report => line.is_empty() || line.starts_with([' ', '\t']),
        Until::Section => true,
    }
}
