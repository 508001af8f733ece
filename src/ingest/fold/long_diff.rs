//! A diff that no context has room for.

use super::{Folded, Rule, note};
use crate::ingest::history::History;
use crate::ingest::span::{Kind, Span};

/// Keeps of a very long diff the list of files, and whole only what this session changed.
pub struct LongDiff;

/// Bytes from which on a diff is too long: about 8,000 tokens.
const LONG: usize = 32_000;

/// Bytes of the list of files that this session did not change.
const LIST: usize = 12_000;

/// Hunk headers of one file that the list gives.
const HUNKS: usize = 8;

/// What a long diff's first line becomes.
const TITLE: &str = "[a long diff, abridged: ";

impl Rule for LongDiff {
    fn name(&self) -> &'static str {
        "long_diff"
    }

    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded> {
        if span.kind != Kind::Diff || text.len() <= LONG || text.starts_with(TITLE) {
            return None;
        }
        let diff = Diff::read(text);
        if diff.files.is_empty() {
            return None;
        }
        let (whole, listed): (Vec<_>, Vec<_>) =
            diff.files.iter().partition(|file| was_edited(history, file.path));
        let mut out = String::new();
        note::push(&mut out, &title(span, text, &diff, whole.len()));
        out.push_str(diff.before);
        let mut left = 0;
        for file in listed {
            let entry = file.entry();
            if out.len() + entry.len() > LIST {
                left += 1;
            } else {
                note::push(&mut out, &entry);
            }
        }
        if left > 0 {
            note::push(&mut out, &format!("[and {}]", note::counted(left, "more file")));
        }
        for file in whole {
            if !out.ends_with('\n') {
                out.push('\n');
            }
            out.push_str(file.text);
        }
        note::shorter(out, text).map(Folded::of)
    }
}

/// Whether the session edited the file of this path, which is relative to some folder.
fn was_edited(history: &History, path: &str) -> bool {
    let is_it = |known: &str| {
        known.strip_suffix(path).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
    };
    history.shown(path).is_some_and(|file| file.is_edited() && is_it(file.path()))
}

fn title(span: &Span, text: &str, diff: &Diff<'_>, whole: usize) -> String {
    let (added, removed) =
        diff.files.iter().fold((0, 0), |(a, r), file| (a + file.added, r + file.removed));
    let again = match span.command.as_deref().and_then(git) {
        Some(git) => format!("{git} -- PATH"),
        None => "the same for that file alone".to_owned(),
    };
    let whole = match whole {
        0 => "none of them changed in this session".to_owned(),
        1 => "whole here is the one changed in this session".to_owned(),
        n => format!("whole here are the {n} changed in this session"),
    };
    format!(
        "{TITLE}{}, +{} -{}, {} bytes; {whole}; for another: {again}]",
        note::counted(diff.files.len(), "file"),
        note::grouped(added),
        note::grouped(removed),
        note::grouped(text.len()),
    )
}

/// The part of a command line that asks git for the diff.
fn git(command: &str) -> Option<&str> {
    let mut parts = command.split(['\n', ';', '|', '&']).map(str::trim);
    let asks = |part: &&str| {
        let verb = part.split(' ').nth(1);
        part.starts_with("git ")
            && matches!(verb, Some("diff" | "show" | "log" | "-C" | "--no-pager"))
    };
    let part = parts.rfind(asks)?;
    Some(part.split(" -- ").next().unwrap_or(part).trim_end_matches(" 2>"))
}

/// A diff, file by file.
struct Diff<'a> {
    /// What stands before the first file, such as a commit's message.
    before: &'a str,
    files: Vec<File<'a>>,
}

#[derive(Debug, Default, PartialEq)]
struct File<'a> {
    path: &'a str,
    /// `new file`, `deleted file`, `renamed`.
    what: &'static str,
    hunks: Vec<&'a str>,
    added: usize,
    removed: usize,
    /// All lines about it.
    text: &'a str,
}

impl<'a> Diff<'a> {
    fn read(text: &'a str) -> Self {
        let git = text.starts_with("diff --git ") || text.contains("\ndiff --git ");
        let mut starts = Vec::new();
        let mut at = 0;
        let mut before = "";
        for line in text.split_inclusive('\n') {
            let begins = if git {
                line.starts_with("diff --git ")
            } else {
                line.starts_with("+++ ") && before.starts_with("--- ")
            };
            if begins {
                starts.push(if git { at } else { at - before.len() });
            }
            at += line.len();
            before = line;
        }
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        let files = starts
            .iter()
            .zip(ends)
            .filter_map(|(start, end)| text.get(*start..end))
            .map(File::read)
            .collect();
        let first = starts.first().copied().unwrap_or(text.len());
        Self { before: text.get(..first).unwrap_or_default(), files }
    }
}

impl<'a> File<'a> {
    fn read(text: &'a str) -> Self {
        let mut file = Self { text, ..Self::default() };
        for line in text.lines() {
            if line.starts_with("@@ ") {
                file.hunks.push(line);
            } else if file.hunks.is_empty() {
                file.head(line);
            } else if line.starts_with('+') {
                file.added += 1;
            } else if line.starts_with('-') {
                file.removed += 1;
            }
        }
        file
    }

    fn head(&mut self, line: &'a str) {
        if let Some((_, path)) = line.strip_prefix("diff --git ").and_then(|l| l.rsplit_once(" b/"))
        {
            self.path = path;
        }
        let path = |prefix: &str, side: &str| {
            let path = line.strip_prefix(prefix)?.split('\t').next()?;
            (path != "/dev/null").then(|| path.strip_prefix(side).unwrap_or(path))
        };
        if let Some(path) = path("+++ ", "b/").or_else(|| path("--- ", "a/")) {
            self.path = path;
        }
        for (start, what) in [
            ("new file", ", new file"),
            ("deleted file", ", deleted file"),
            ("rename to", ", renamed"),
            ("Binary files", ", binary"),
        ] {
            if line.starts_with(start) {
                self.what = what;
            }
        }
    }

    /// The file's line in the list, and under it the hunks of a file that was there before.
    fn entry(&self) -> String {
        let mut entry = format!("{} +{} -{}{}", self.path, self.added, self.removed, self.what);
        if matches!(self.what, ", new file" | ", deleted file") {
            return entry;
        }
        for hunk in self.hunks.iter().take(HUNKS) {
            entry.push_str("\n  ");
            entry.push_str(&note::clip(hunk, 100));
        }
        if let Some(more) = self.hunks.len().checked_sub(HUNKS + 1) {
            entry.push_str(&format!("\n  … {}", note::counted(more + 1, "more hunk")));
        }
        entry
    }
}
