//! Which lines of a file the model has been shown.

use std::collections::HashMap;
use std::ops::Range;

use super::history::{Place, hash};
use super::span::Span;

/// A line of a view, with its number in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub number: u32,
    /// The line's text, without gutter and line end.
    pub text: &'a str,
    /// Bytes of the view's text, gutter included, line end not.
    pub bytes: Range<usize>,
}

/// A line that the model was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number in the file when it was shown, counted from one.
    pub number: u32,
    /// [`hash`] of its text, without gutter and line end.
    pub hash: u64,
    pub place: Place,
}

/// The lines of one file that were shown, and since when they may read otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileLines {
    path: String,
    /// Every showing, in the order of the conversation.
    seen: Vec<Seen>,
    by_number: HashMap<u32, usize>,
    /// The last showing of each text, and the smallest number it was shown with.
    by_text: HashMap<u64, (usize, u32)>,
    /// Messages that edited the file, with the first line that may differ.
    touches: Vec<(usize, u32)>,
}

impl FileLines {
    pub(super) fn new(path: String) -> Self {
        let (by_number, by_text) = Default::default();
        Self { path, seen: Vec::new(), by_number, by_text, touches: Vec::new() }
    }

    /// The path under which the file was first named.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last showing of the line with this number.
    pub fn line(&self, number: u32) -> Option<&Seen> {
        self.by_number.get(&number).map(|at| &self.seen[*at])
    }

    /// Where each line of a new view was shown before with the same text.
    ///
    /// A line is taken for an earlier one that follows the earlier one of the line before it, so
    /// that a stretch that was moved by an edit is found whole; else for the last one with its
    /// number; else, if it is longer than 16 bytes, for the last one with its text. So neighbours
    /// in the result are neighbours in one earlier view wherever that can be.
    pub fn seen<'a>(
        &self,
        lines: impl Iterator<Item = Line<'a>>,
    ) -> impl Iterator<Item = (Line<'a>, Option<&Seen>)> {
        let mut next = usize::MAX;
        lines.map(move |line| {
            let text = hash(line.text);
            let is_same = |at: &usize| self.seen.get(*at).is_some_and(|seen| seen.hash == text);
            let followed = Some(next).filter(is_same);
            let numbered = || self.by_number.get(&line.number).copied().filter(is_same);
            let telling = line.text.trim().len() > 16;
            let worded = || self.by_text.get(&text).map(|(at, _)| *at).filter(|_| telling);
            let found = followed.or_else(numbered).or_else(worded);
            next = found.map_or(usize::MAX, |at| at + 1);
            (line, found.map(|at| &self.seen[at]))
        })
    }

    /// False where an edit of the file came after the line was shown, at or above it.
    pub fn is_current(&self, line: &Seen) -> bool {
        let since = line.place.message;
        let later = self.touches.iter().rev().take_while(|(message, _)| *message > since);
        later.into_iter().all(|(_, from)| *from > line.number)
    }

    /// True where the file was edited in this conversation.
    pub fn is_edited(&self) -> bool {
        !self.touches.is_empty()
    }

    /// The smallest number that a line with this hash was shown with.
    pub(super) fn number_of(&self, hash: u64) -> Option<u32> {
        self.by_text.get(&hash).map(|(_, number)| *number)
    }

    /// Adds a showing of a line. Gives where an earlier message showed the line of that number,
    /// if it was still thought to be true, and whether it had the same text.
    pub(super) fn show(&mut self, number: u32, hash: u64, place: Place) -> Option<(Place, bool)> {
        let at = self.seen.len();
        let message = place.message;
        self.seen.push(Seen { number, hash, place });
        let before = self.by_number.insert(number, at).map(|before| &self.seen[before]);
        let before = before.filter(|before| before.place.message < message);
        let before = before
            .filter(|before| before.hash == hash || self.is_current(before))
            .map(|before| (before.place.clone(), before.hash == hash));
        let (last, smallest) = self.by_text.entry(hash).or_insert((at, number));
        (*last, *smallest) = (at, number.min(*smallest));
        before
    }

    /// Adds an edit at a line; gives where the lines were last shown that may read otherwise now.
    pub(super) fn touch(&mut self, message: usize, from: u32) -> Vec<Place> {
        let last = self.by_number.values().map(|at| &self.seen[*at]);
        let outdated = last.filter(|line| line.number >= from && self.is_current(line));
        let outdated = outdated.map(|line| line.place.clone()).collect();
        self.touches.push((message, from));
        outdated
    }
}

/// Bytes from which on a line is taken apart.
const LONG_LINE: usize = 512;

/// The pieces of an output by which it is compared with others: its lines, and of a long line the
/// lines of a text that is quoted in it, as in JSON. They are numbered from one.
pub fn pieces(text: &str) -> impl Iterator<Item = Line<'_>> {
    let lines = text.split_inclusive('\n').flat_map(|line| {
        let (long, short) = if line.len() < LONG_LINE { ("", line) } else { (line, "") };
        let short = Some(short).filter(|line| !line.is_empty());
        long.split_inclusive("\\n").chain(short)
    });
    let mut start = 0;
    (1..).zip(lines).map(move |(number, piece)| {
        let line = piece.strip_suffix('\n').unwrap_or(piece);
        let bytes = start..start + line.len();
        start += piece.len();
        Line { number, text: line, bytes }
    })
}

/// The lines of a view that have a number: by their gutter, else by the span's line range.
/// `text` is the span's.
pub fn numbered_lines<'a>(span: &Span, text: &'a str) -> impl Iterator<Item = Line<'a>> {
    let has_gutter = has_gutter(text);
    let first = span.lines.map(|[first, _]| first);
    let mut offset = 0;
    let mut index = 0;
    text.split_inclusive('\n').filter_map(move |raw| {
        let start = offset;
        offset += raw.len();
        let line = raw.strip_suffix('\n').unwrap_or(raw);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let bytes = start..start + line.len();
        if has_gutter {
            let (number, text) = gutter(line)?;
            return Some(Line { number, text, bytes });
        }
        let number = first?.checked_add(index)?;
        index += 1;
        Some(Line { number, text: line, bytes })
    })
}

/// True where the text's first lines are numbered one after the other.
pub(super) fn has_gutter(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let mut number = || lines.next().map(|line| gutter(line).map(|(number, _)| number));
    match (number(), number()) {
        (Some(Some(first)), Some(second)) => second == first.checked_add(1),
        (first, _) => first.flatten().is_some(),
    }
}

/// The number and the rest of a line as `cat -n`, `nl`, editors' views and agents' tools print it.
pub fn gutter(line: &str) -> Option<(u32, &str)> {
    let numbered = line.trim_start_matches(' ');
    let n_digits = numbered.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = numbered.split_at(n_digits);
    let number = digits.parse().ok()?;
    let text = ["→", "\t", ":", "|"].iter().find_map(|separator| rest.strip_prefix(*separator));
    match text {
        Some(text) => Some((number, text)),
        // An editor that trims trailing blanks leaves only the number of an empty line.
        None => rest.is_empty().then_some((number, "")),
    }
}
