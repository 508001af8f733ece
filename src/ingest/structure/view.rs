//! What of a text is code: gutters, diff columns, fences and prose taken off, places kept.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::Given;
use crate::ingest::language::Language;
use crate::ingest::span::Kind;

/// Nobody writes longer lines by hand, in bytes.
const MAX_WRITTEN: usize = 1000;

/// Consecutive lines of one file's code.
#[derive(Debug)]
pub(super) struct Piece {
    pub path: Option<String>,
    pub language: Language,
    /// The lines without what stands before them, each with a newline.
    pub code: String,
    pub lines: Vec<CodeLine>,
    /// Whether this is what a diff takes away.
    pub is_old: bool,
}

/// A line of a piece.
#[derive(Debug)]
pub(super) struct CodeLine {
    /// Where it begins in the piece's code.
    pub start: usize,
    /// Where its code begins in the given text.
    pub given: usize,
    /// The whole line in the given text, gutter and newline with it.
    pub whole: Range<usize>,
    /// Its number in the file.
    pub number: Option<u32>,
    /// Whether it is too long to be written by hand; it is left out of the code.
    pub is_long: bool,
    /// Whether it is this piece that speaks for the line.
    pub is_own: bool,
}

impl Piece {
    fn new(path: Option<String>, language: Language) -> Self {
        Self { path, language, code: String::new(), lines: Vec::new(), is_old: false }
    }

    fn push(&mut self, text: &str, whole: &Range<usize>, at: usize, number: Option<u32>) {
        let start = self.code.len();
        let line = text[at..whole.end].trim_end_matches(['\n', '\r']);
        if line.len() <= MAX_WRITTEN {
            self.code.push_str(line);
        }
        self.code.push('\n');
        let is_long = line.len() > MAX_WRITTEN;
        let whole = whole.clone();
        self.lines.push(CodeLine { start, given: at, whole, number, is_long, is_own: true });
    }

    /// The place in the given text of a range of the code. Where it ends with a line's newline it
    /// ends there as well, without the next line's gutter.
    pub(super) fn given(&self, bytes: &Range<usize>) -> Range<usize> {
        let place = |byte: usize, n_after: usize| {
            let next = self.lines.partition_point(|line| line.start <= byte);
            let line = self.lines[..next].last()?;
            Some((line.given + (byte - line.start) + n_after).min(line.whole.end))
        };
        let start = place(bytes.start, 0).unwrap_or(0);
        let last = bytes.end.checked_sub(1).filter(|last| *last >= bytes.start);
        start..last.and_then(|last| place(last, 1)).map_or(start, |end| end.max(start))
    }
}

/// The pieces of code in a text.
pub(super) fn pieces(text: &str, given: &Given<'_>) -> Vec<Piece> {
    let lines = lines(text);
    match given.kind {
        Kind::FileView | Kind::Search => view(text, &lines, given),
        Kind::Diff => diff(text, &lines, given),
        Kind::Log | Kind::Listing | Kind::Screen => Vec::new(),
        _ => fences(text, &lines, given),
    }
}

fn lines(text: &str) -> Vec<Range<usize>> {
    let mut start = 0;
    text.split_inclusive('\n')
        .map(|line| {
            let range = start..start + line.len();
            start = range.end;
            range
        })
        .collect()
}

/// What stands before a line of a numbered view.
struct Gutter<'a> {
    /// Where a search names the file in every line.
    path: Option<&'a str>,
    number: u32,
    /// Length in bytes.
    len: usize,
}

impl<'a> Gutter<'a> {
    /// `  12→`, `12:`, `    12<tab>`, `12 |`, `12-` (a search's context), `path:12:`.
    fn of(line: &'a str) -> Option<Self> {
        const PATH: &str = r"(?:([^\s:]*[^\s:/]\.[A-Za-z+]{1,4})[:-])?";
        static GUTTER: LazyLock<Regex> = LazyLock::new(|| {
            let pattern = format!(r"^{PATH}[ \t]*(\d{{1,7}})(?:[:→\t-]| ?[|│] ?)");
            Regex::new(&pattern).expect("a constant pattern")
        });
        let found = GUTTER.captures(line)?;
        Some(Self {
            path: found.get(1).map(|path| path.as_str()),
            number: found[2].parse().ok()?,
            len: found[0].len(),
        })
    }
}

/// A file view or a search's output. Where lines are numbered, only these are code, and each run
/// of consecutive numbers is a piece.
fn view(text: &str, lines: &[Range<usize>], given: &Given<'_>) -> Vec<Piece> {
    let gutters: Vec<_> = lines.iter().map(|line| Gutter::of(&text[line.clone()])).collect();
    let is_blank = |line: &&Range<usize>| text[(*line).clone()].trim().is_empty();
    let n_filled = lines.len() - lines.iter().filter(is_blank).count();
    if !are_line_numbers(gutters.iter().flatten(), n_filled) {
        let Some(language) = given.language() else { return Vec::new() };
        let mut piece = Piece::new(given.path.map(str::to_owned), language);
        for (index, line) in lines.iter().enumerate() {
            let number = given.first_line.map(|first| first.saturating_add(index as u32));
            piece.push(text, line, line.start, number);
        }
        return vec![piece];
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for (line, gutter) in lines.iter().zip(&gutters) {
        let Some(gutter) = gutter else { continue };
        let path = gutter.path.or(given.path);
        let language = match gutter.path {
            Some(path) => Language::of_path(path),
            None => given.language(),
        };
        let Some(language) = language else { continue };
        let goes_on = pieces.last().is_some_and(|piece| {
            let last = piece.lines.last().and_then(|line| line.number);
            piece.path.as_deref() == path && last.map(|last| last + 1) == Some(gutter.number)
        });
        if !goes_on {
            pieces.push(Piece::new(path.map(str::to_owned), language));
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(text, line, line.start + gutter.len, Some(gutter.number));
        }
    }
    pieces
}

/// Whether numbers before the lines are those of lines: they rise, and enough lines have one.
fn are_line_numbers<'a>(gutters: impl Iterator<Item = &'a Gutter<'a>>, n_filled: usize) -> bool {
    let gutters: Vec<_> = gutters.collect();
    let is_next =
        |pair: &&[&Gutter<'_>]| pair[0].path != pair[1].path || pair[1].number > pair[0].number;
    let n_rising = gutters.windows(2).filter(is_next).count();
    let has_enough = if gutters.len() < 2 { n_filled == 1 } else { gutters.len() * 3 >= n_filled };
    !gutters.is_empty() && has_enough && (n_rising + 1) * 10 >= gutters.len() * 9
}

/// A unified diff: each hunk twice, as it was and as it is now.
fn diff(text: &str, lines: &[Range<usize>], given: &Given<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut path = given.path.map(str::to_owned);
    let mut hunk: Option<Hunk> = None;
    for line in lines {
        let content = &text[line.clone()];
        if let Some(open) = &mut hunk {
            if open.take(text, line) {
                continue;
            }
            pieces.extend(hunk.take().into_iter().flat_map(Hunk::close));
        }
        if let Some(name) = content.strip_prefix("+++ ") {
            path = Some(file_name(name).to_owned());
        } else if let Some(header) = HunkHeader::of(content) {
            let language = path.as_deref().and_then(Language::of_path).or(given.language);
            hunk = language.map(|language| Hunk::new(header, path.clone(), language));
        }
    }
    pieces.extend(hunk.into_iter().flat_map(Hunk::close));
    pieces
}

/// The file's name after `+++ `, without git's `b/` and without a time.
fn file_name(name: &str) -> &str {
    let name = name.split('\t').next().unwrap_or(name).trim_end();
    name.strip_prefix("b/").unwrap_or(name)
}

/// `@@ -1,7 +1,9 @@`
struct HunkHeader {
    old: [u32; 2],
    new: [u32; 2],
}

impl HunkHeader {
    fn of(line: &str) -> Option<Self> {
        static HEADER: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@")
                .expect("a constant pattern")
        });
        let found = HEADER.captures(line)?;
        let number =
            |group| found.get(group).map_or(Some(1), |digits| digits.as_str().parse().ok());
        Some(Self { old: [number(1)?, number(2)?], new: [number(3)?, number(4)?] })
    }
}

struct Hunk {
    old: Piece,
    new: Piece,
    /// For each side the number of the next line, and how many are to come.
    next: HunkHeader,
}

impl Hunk {
    fn new(header: HunkHeader, path: Option<String>, language: Language) -> Self {
        let mut old = Piece::new(path.clone(), language);
        old.is_old = true;
        Self { old, new: Piece::new(path, language), next: header }
    }

    /// Takes a line; false where it is none of the hunk's.
    fn take(&mut self, text: &str, line: &Range<usize>) -> bool {
        if self.next.old[1] == 0 && self.next.new[1] == 0 {
            return text[line.clone()].starts_with('\\');
        }
        let (in_old, in_new) = match text.as_bytes()[line.start] {
            b' ' | b'\n' | b'\r' => (true, true),
            b'-' => (true, false),
            b'+' => (false, true),
            b'\\' => return true,
            _ => return false,
        };
        let code = line.start + usize::from(!matches!(text.as_bytes()[line.start], b'\n' | b'\r'));
        for (piece, next, is_in) in [
            (&mut self.old, &mut self.next.old, in_old),
            (&mut self.new, &mut self.next.new, in_new),
        ] {
            if is_in {
                piece.push(text, line, code, Some(next[0]));
                *next = [next[0] + 1, next[1].saturating_sub(1)];
            }
        }
        if in_old
            && in_new
            && let Some(shared) = self.old.lines.last_mut()
        {
            shared.is_own = false;
        }
        true
    }

    fn close(self) -> impl Iterator<Item = Piece> {
        let has_own = |piece: &Piece| piece.lines.iter().any(|line| line.is_own);
        [self.old, self.new].into_iter().filter(has_own)
    }
}

/// Markdown: the code between fences.
fn fences(text: &str, lines: &[Range<usize>], given: &Given<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = lines;
    while let Some(open) = rest.iter().position(|line| fence(&text[line.clone()]).is_some()) {
        let Some((mark, name)) = fence(&text[rest[open].clone()]) else { break };
        let inside = &rest[open + 1..];
        let is_close = |line: &Range<usize>| {
            let line = text[line.clone()].trim();
            line.starts_with(mark) && line.trim_start_matches(&mark[..1]).is_empty()
        };
        let end = inside.iter().position(is_close).unwrap_or(inside.len());
        let block = &inside[..end];
        if matches!(name, "diff" | "patch") {
            pieces.extend(diff(text, block, given));
        } else if let Some(language) = Language::by_name(name) {
            let code = Given {
                kind: Kind::FileView,
                path: None,
                language: Some(language),
                first_line: None,
            };
            pieces.extend(view(text, block, &code));
        }
        rest = inside.get(end + 1..).unwrap_or_default();
    }
    pieces
}

/// A fence's marks and the name behind them.
fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark))?;
    let info = line.trim_start_matches(&mark[..1]);
    let mark = &line[..line.len() - info.len()];
    let info = info.trim_start();
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '+' | '#' | '_');
    Some((mark, &info[..info.find(|c| !is_name(c)).unwrap_or(info.len())]))
}
