//! Parses a piece of code, and asks the query, within bounds.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};

use tree_sitter::{
    ParseOptions, ParseState, Parser, QueryCursor, QueryCursorOptions, QueryCursorState,
    StreamingIterator, Tree,
};

use super::frame::{self, Frame};
use super::grammar::{Grammar, Role};
use crate::ingest::language::Language;

/// Longer code is parsed in parts, in bytes.
const MAX_LEN: usize = 64 << 10;

/// Shorter code that cannot be parsed is not divided further, in bytes.
const MIN_LEN: usize = 2 << 10;

/// Deeper code is not parsed, in open brackets: the query takes quadratic time in it.
const MAX_DEPTH: usize = 200;

/// What a parse may cost: pieces of the text that are read, and reports of progress, which come
/// every hundred operations and ordinarily every hundred bytes. Work is bounded by count and not by the clock, since the same text must
/// always have the same structure.
const MIN_COST: usize = 100;
const BYTES_PER_COST: usize = 25;

/// How much of the text is read for one.
const BYTES_PER_READ: usize = 1 << 10;

/// While it recovers from an error the parser walks back over what it has read, so a report costs
/// one more for so many bytes.
const BYTES_PER_RECOVERY: usize = 500;

/// A reading that leaves no more than one byte in so many unread is not bettered.
const GOOD_SHARE: usize = 200;

/// A string that reaches over the fragment's edge costs one byte in so many.
const STRING_SHARE: usize = 4;

/// Captures of unfinished matches that the query keeps at a time.
const MATCH_LIMIT: u32 = 4096;

/// A parsed piece of code.
pub(super) struct Parsed {
    tree: Tree,
    /// The code in its frame.
    text: String,
    /// Where in `text` the code lies.
    code: Range<usize>,
}

/// A node that the query captured.
pub(super) struct Node {
    pub role: Role,
    /// Bytes of the code, not of its frame.
    pub bytes: Range<usize>,
    /// Whether code follows it; what ends where the code does may go on beyond.
    pub is_whole: bool,
}

/// Parses `code`: as a whole where it can be, else in parts of whole lines. Each comes with where it
/// begins.
pub(super) fn parts(language: Language, grammar: &Grammar, code: &str) -> Vec<(usize, Parsed)> {
    let mut parts = Vec::new();
    let mut rest = vec![(0, code.len())];
    while let Some((start, end)) = rest.pop() {
        let text = &code[start..end];
        let is_fit = text.len() <= MAX_LEN && depth(text) <= MAX_DEPTH;
        let parsed = is_fit.then(|| Parsed::of(language, grammar, text)).flatten();
        if let Some(parsed) = parsed {
            parts.push((start, parsed));
            continue;
        }
        let middle = memchr::memchr(b'\n', &text.as_bytes()[text.len() / 2..]);
        let Some(middle) = middle.map(|newline| text.len() / 2 + newline + 1) else { continue };
        if text.len() > MIN_LEN && middle < text.len() {
            rest.push((start + middle, end));
            rest.push((start, start + middle));
        }
    }
    parts
}

/// The most brackets that are open at once.
fn depth(code: &str) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in code.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

impl Parsed {
    /// Parses `code`, as it stands or in the frame that leaves the least unread.
    fn of(language: Language, grammar: &Grammar, code: &str) -> Option<Self> {
        let unread = |text: &str| {
            Self::in_frame(grammar, text, &Frame::default()).map_or(usize::MAX, |it| it.unread())
        };
        let mut frames = frame::frames(language, code, &unread);
        if !frames.contains(&Frame::default()) {
            frames.push(Frame::default());
        }
        let mut best: Option<(usize, Self)> = None;
        for frame in frames {
            let least = best.as_ref().map_or(usize::MAX, |(least, _)| *least);
            if least <= code.len() / GOOD_SHARE {
                break;
            }
            let in_string = frame.in_string / STRING_SHARE;
            if in_string >= least {
                continue;
            }
            let Some(parsed) = Self::in_frame(grammar, code, &frame) else { continue };
            let cost = parsed.unread() + in_string;
            if cost < least {
                best = Some((cost, parsed));
            }
        }
        best.map(|(_, parsed)| parsed)
    }

    fn in_frame(grammar: &Grammar, code: &str, frame: &Frame) -> Option<Self> {
        let text = [frame.before.as_str(), code, frame.after.as_str()].concat();
        let mut parser = Parser::new();
        parser.set_language(&grammar.language).ok()?;
        let left = Cell::new(MIN_COST + text.len() / BYTES_PER_COST);
        let mut progress = |state: &ParseState| {
            let has_error = state.has_error();
            let n_back =
                if has_error { state.current_byte_offset() / BYTES_PER_RECOVERY } else { 0 };
            spend(&left, 1 + n_back)
        };
        let options = ParseOptions::new().progress_callback(&mut progress);
        let bytes = text.as_bytes();
        // Where a comment or a string never ends each of its beginnings is read to the text's end.
        let mut input = |at: usize, _| match spend(&left, 1) {
            ControlFlow::Continue(()) => {
                bytes.get(at..bytes.len().min(at + BYTES_PER_READ)).unwrap_or_default()
            }
            ControlFlow::Break(()) => &[],
        };
        let tree = parser.parse_with_options(&mut input, None, Some(options))?;
        if left.get() == 0 {
            return None;
        }
        let code = frame.before.len()..frame.before.len() + code.len();
        Some(Self { tree, text, code })
    }

    /// How many bytes of the text the parser could make nothing of: what of an error lies in no
    /// phrase inside it.
    fn unread(&self) -> usize {
        let mut cursor = self.tree.walk();
        let mut outer_errors: Vec<bool> = Vec::new();
        let mut n_bytes = 0_usize;
        loop {
            let node = cursor.node();
            let is_phrase = node.is_named() && node.child_count() > 0;
            if node.is_error() {
                n_bytes += node.byte_range().len();
            }
            if node.is_missing() {
                n_bytes += 1;
            }
            if outer_errors.last() == Some(&true) && (is_phrase || node.is_error()) {
                n_bytes = n_bytes.saturating_sub(node.byte_range().len());
            }
            if node.has_error() && cursor.goto_first_child() {
                outer_errors.push(node.is_error());
                continue;
            }
            while !cursor.goto_next_sibling() {
                if !cursor.goto_parent() {
                    return n_bytes;
                }
                outer_errors.pop();
            }
        }
    }

    /// Calls `take` with the captures of each match, for code that begins at `start`.
    pub(super) fn each_match(
        &self,
        grammar: &Grammar,
        start: usize,
        mut take: impl FnMut(&[Node]),
    ) {
        let mut cursor = QueryCursor::new();
        cursor.set_match_limit(MATCH_LIMIT);
        let left = Cell::new(MIN_COST + self.text.len() / BYTES_PER_COST);
        let mut progress = |_: &QueryCursorState| spend(&left, 1);
        let options = QueryCursorOptions::new().progress_callback(&mut progress);
        let root = self.tree.root_node();
        let end = self.code.start + self.text[self.code.clone()].trim_end().len();
        let text = self.text.as_bytes();
        let mut matches = cursor.matches_with_options(&grammar.query, root, text, options);
        let mut nodes = Vec::new();
        while let Some(found) = matches.next() {
            nodes.clear();
            nodes.extend(found.captures().iter().map(|capture| {
                let bytes = capture.node.byte_range();
                let within = |byte: usize| {
                    start + byte.clamp(self.code.start, self.code.end) - self.code.start
                };
                Node {
                    role: grammar.role(capture.index),
                    bytes: within(bytes.start)..within(bytes.end),
                    is_whole: bytes.end < end,
                }
            }));
            take(&nodes);
        }
    }
}

/// Takes `cost` from what is left; once nothing is, work stops.
fn spend(left: &Cell<usize>, cost: usize) -> ControlFlow<()> {
    left.set(left.get().saturating_sub(cost));
    if left.get() > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
