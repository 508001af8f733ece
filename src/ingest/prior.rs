//! What a piece of text is worth before anybody has looked at it.

mod evidence;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::structure::{Extent, Structure};

pub(in crate::ingest) use evidence::is_same_file;
pub use evidence::{Evidence, places};

/// What a line of code is, the weakest first: where a line is several things the last wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No letter and no digit: empty, or brackets alone.
    Blank,
    /// Code that is nothing of what follows.
    Plain,
    /// Literals and nothing else: a table, the text of a long string.
    Literal,
    Comment,
    Docstring,
    /// The licence at a file's head.
    Licence,
    /// A line of a file that says it is generated, or one that is too long to be written by hand.
    Generated,
    /// Names a type.
    Type,
    Assignment,
    Call,
    /// Leaves a function, a loop.
    Return,
    /// Decides: a condition, a loop's head, a pattern.
    Condition,
    Import,
    /// Defines data: a field, a constant, a type.
    Definition,
    /// The head of a function or a class.
    Signature,
    /// The head of a test, or an assertion.
    Test,
    /// Named in a stack trace or an error.
    Named,
    /// Changed by an edit.
    Touched,
}

/// Which of a capture's lines are of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    All,
    First,
    /// Those that hold nothing else.
    Alone,
}

impl Class {
    /// Every class, the weakest first.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Blank,
        Self::Plain,
        Self::Literal,
        Self::Comment,
        Self::Docstring,
        Self::Licence,
        Self::Generated,
        Self::Type,
        Self::Assignment,
        Self::Call,
        Self::Return,
        Self::Condition,
        Self::Import,
        Self::Definition,
        Self::Signature,
        Self::Test,
        Self::Named,
        Self::Touched,
    ];

    /// How many classes there are.
    pub const COUNT: usize = 18;

    /// What a token of this class gains, or loses, on other tokens: the one table of weights, in
    /// [-1, 1], 0 for text of which nothing is known.
    ///
    /// The order is that of what an agent comes back to: where it works, what can be called and
    /// how, what decides and what comes out; least what can be had from anywhere.
    pub fn weight(self) -> f32 {
        match self {
            Self::Touched | Self::Named | Self::Signature => 1.0,
            Self::Definition => 0.8,
            Self::Test => 0.7,
            Self::Return | Self::Condition => 0.6,
            Self::Import | Self::Call => 0.4,
            Self::Assignment => 0.3,
            Self::Type => 0.2,
            Self::Plain => 0.0,
            Self::Literal => -0.1,
            Self::Docstring => -0.3,
            Self::Comment => -0.5,
            Self::Generated => -0.8,
            Self::Blank | Self::Licence => -1.0,
        }
    }

    /// Which of a capture's lines are of this class.
    pub fn reach(self) -> Reach {
        match self {
            Self::Literal | Self::Comment | Self::Docstring => Reach::Alone,
            Self::Type | Self::Assignment | Self::Call | Self::Return | Self::Test => Reach::First,
            _ => Reach::All,
        }
    }

    /// Whether a capture ends where the body of what it captures begins.
    pub fn ends_at_body(self) -> bool {
        matches!(self, Self::Definition | Self::Signature | Self::Condition | Self::Test)
    }
}

/// The classes of a text's code by bytes, whole lines and the comments behind them: in order,
/// without overlap, neighbours of one class joined. Text that is no code is left out.
pub fn classes(structures: &[Structure], evidence: &Evidence) -> Vec<(Range<usize>, Class)> {
    let mut parts = Vec::new();
    for structure in structures {
        for line in &structure.lines {
            let seen = evidence.class(structure.path.as_deref(), line.number);
            let class = seen.unwrap_or(line.class);
            match line.comment.clone().filter(|_| seen.is_none()) {
                Some(comment) => {
                    parts.push((line.bytes.start..comment.start, class));
                    parts.push((comment.start..line.bytes.end, Class::Comment));
                }
                None => parts.push((line.bytes.clone(), class)),
            }
        }
    }
    parts.sort_by_key(|(bytes, _)| bytes.start);
    let mut joined: Vec<(Range<usize>, Class)> = Vec::new();
    for (bytes, class) in parts {
        match joined.last_mut() {
            Some((last, same)) if last.end == bytes.start && *same == class => last.end = bytes.end,
            _ => joined.push((bytes, class)),
        }
    }
    joined
}

/// The prior of each token, by its bytes in the text: the mean weight of its bytes, 0 for those
/// of no class. `classes` is in order and without overlap, as [`classes`] gives it.
pub fn token_priors(classes: &[(Range<usize>, Class)], tokens: &[(usize, usize)]) -> Vec<f32> {
    tokens
        .iter()
        .map(|&(start, end)| {
            let first = classes.partition_point(|(bytes, _)| bytes.end <= start);
            let within = classes[first..].iter().take_while(|(bytes, _)| bytes.start < end);
            let sum: f32 = within
                .map(|(bytes, class)| {
                    let n_shared = bytes.end.min(end).saturating_sub(bytes.start.max(start));
                    n_shared as f32 * class.weight()
                })
                .sum();
            if start < end { sum / (end - start) as f32 } else { 0.0 }
        })
        .collect()
}

/// The functions of a text, each from the comments and attributes above its head to the end of
/// its last line: in order, without overlap, functions inside functions left out.
pub fn regions(structures: &[Structure]) -> Vec<Range<usize>> {
    let mut regions: Vec<Range<usize>> = Vec::new();
    for structure in structures {
        let lines = &structure.lines;
        for definition in &structure.definitions {
            let end = regions.last().map_or(0, |last| last.end);
            if definition.extent != Extent::Function || definition.bytes.start < end {
                continue;
            }
            let index = |byte: usize| lines.partition_point(|line| line.bytes.end <= byte);
            let mut first = index(definition.bytes.start);
            let last = index(definition.bytes.end.saturating_sub(1));
            let Some(last) = lines.get(last) else { continue };
            let is_head = |class| {
                matches!(class, Class::Comment | Class::Docstring | Class::Signature | Class::Test)
            };
            while first > 0
                && is_head(lines[first - 1].class)
                && lines[first - 1].bytes.start >= end
            {
                first -= 1;
            }
            regions.push(lines[first].bytes.start.max(end)..last.bytes.end);
        }
    }
    regions
}

#[cfg(test)]
mod tests;
