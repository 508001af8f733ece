//! What need not be read twice: one file a rule, one trait for all.
//!
//! A rule sees one span of a new tool output and what the model has been given before, and may
//! say with which text the model is told the same in less. It depends on nothing else, so the
//! same conversation always folds the same way.

mod long_diff;
mod long_log;
mod note;
mod repeats;
mod same_failures;
mod same_output;
mod seen_blocks;
mod seen_lines;
mod terminal;
#[cfg(test)]
mod tests;

use super::history::{History, Place};
use super::span::Span;

/// All rules, in the order in which they are tried on a span.
pub static RULES: &[&dyn Rule] = &[
    &same_output::SameOutput,
    &terminal::Terminal,
    &same_failures::SameFailures,
    &seen_lines::SeenLines,
    &seen_blocks::SeenBlocks,
    &repeats::Repeats,
    &long_log::LongLog,
    &long_diff::LongDiff,
];

/// Messages for which a note is fresh: whoever asks within these for what it stands for has not
/// found it, and is given it whole.
const AGAIN: usize = 8;

/// Bytes that a note on seen lines has to save, for what it points to has to be kept.
const WORTH: usize = 100;

/// Whether a text was folded before: what stands in it then is left as it is.
pub(super) fn is_folded(text: &str) -> bool {
    text.lines().any(note::is_note)
}

/// One way to say the same in less.
pub trait Rule: Send + Sync {
    /// The name by which it is switched off and reported.
    fn name(&self) -> &'static str;

    /// What the model is to read in place of `text`, the text of `span`; none where the rule has
    /// nothing to say. The caller drops whatever is not shorter.
    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded>;
}

/// A span's shorter text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    pub text: String,
    /// What a note in it points to; it must stay in the cache, or nothing is folded.
    pub points_to: Vec<Place>,
}

impl Folded {
    /// A text whose notes point to nothing.
    fn of(text: String) -> Self {
        Self { text, points_to: Vec::new() }
    }
}
