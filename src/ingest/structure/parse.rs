//! Parses a piece of code, and asks the query, within bounds.

use std::ops::{ControlFlow, Range};

use tree_sitter::{
    ParseOptions, ParseState, Parser, QueryCursor, QueryCursorOptions, QueryCursorState,
    StreamingIterator, Tree,
};

use super::frame::{self, Frame};
use super::grammar::{Grammar, Role};
use crate::ingest::language::Language;

/// Longer code is not parsed, in bytes.
const MAX_LEN: usize = 1 << 20;

/// How often a parse may report progress (every hundred operations) for a text of no length, and
/// for each byte a share of it. Work is bounded by count and not by the clock, since the same
/// text must always have the same structure.
const MIN_REPORTS: usize = 500;
const BYTES_PER_REPORT: usize = 4;

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

impl Parsed {
    /// Parses `code`, as it stands or in the frame that leaves the least unread.
    pub(super) fn of(language: Language, grammar: &Grammar, code: &str) -> Option<Self> {
        if code.len() > MAX_LEN {
            return None;
        }
        let plain = Self::in_frame(grammar, code, &Frame::default());
        let cost = plain.as_ref().map_or(usize::MAX, Self::unread);
        if cost == 0 {
            return plain;
        }
        let mut best = (cost, plain);
        for frame in frame::frames(language, code) {
            let parsed = Self::in_frame(grammar, code, &frame);
            let unread = parsed.as_ref().map_or(usize::MAX, Self::unread);
            let cost = unread.saturating_add(frame.in_string / 4);
            if cost < best.0 {
                best = (cost, parsed);
            }
            if cost == 0 {
                break;
            }
        }
        best.1
    }

    fn in_frame(grammar: &Grammar, code: &str, frame: &Frame) -> Option<Self> {
        let text = [frame.before.as_str(), code, frame.after.as_str()].concat();
        let mut parser = Parser::new();
        parser.set_language(&grammar.language).ok()?;
        let mut reports = MIN_REPORTS + text.len() / BYTES_PER_REPORT;
        let mut progress = |_: &ParseState| countdown(&mut reports);
        let options = ParseOptions::new().progress_callback(&mut progress);
        let bytes = text.as_bytes();
        let mut input = |at: usize, _| bytes.get(at..).unwrap_or_default();
        let tree = parser.parse_with_options(&mut input, None, Some(options))?;
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

    /// Calls `take` with the captures of each match.
    pub(super) fn each_match(&self, grammar: &Grammar, mut take: impl FnMut(&[Node])) {
        let mut cursor = QueryCursor::new();
        cursor.set_match_limit(MATCH_LIMIT);
        let mut reports = MIN_REPORTS + self.text.len();
        let mut progress = |_: &QueryCursorState| countdown(&mut reports);
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
                let within =
                    |byte: usize| byte.clamp(self.code.start, self.code.end) - self.code.start;
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

fn countdown(reports: &mut usize) -> ControlFlow<()> {
    match reports.checked_sub(1) {
        Some(left) => {
            *reports = left;
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    }
}
