//! Spans: runs of a message's text that have one meaning.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::language::Language;

/// What a span's text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    System,
    /// One rule of a system prompt.
    Instruction,
    /// What a person asks for.
    Task,
    Thought,
    Answer,
    ToolCall,
    FileView,
    Log,
    Diff,
    Listing,
    Search,
    /// A full-screen terminal program's picture.
    Screen,
    /// Anything else, and whatever is in doubt.
    Other,
}

impl Kind {
    /// True for what a tool gave out, which alone may be folded.
    pub fn is_output(self) -> bool {
        use Kind::{Diff, FileView, Listing, Log, Other, Screen, Search};
        matches!(self, FileView | Log | Diff | Listing | Search | Screen | Other)
    }

    /// The kind of this name, as `meta` spells it.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name))
            .ok()
    }
}

/// Which text of a message a span lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Reasoning,
    Content,
    /// The arguments of the tool call with this index.
    ToolCall(usize),
}

/// A run of text with one meaning. The spans of a part cover it without gaps, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub part: Part,
    /// Bytes of the part's text, as the model is given it.
    pub bytes: Range<usize>,
    pub kind: Kind,
    /// The file that is shown, edited or searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// First and last line of the file, counted from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<[u32; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// The command whose output this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl Span {
    /// A span of which only the kind is known.
    pub fn new(part: Part, bytes: Range<usize>, kind: Kind) -> Self {
        let (path, lines, language, command, exit_code) = Default::default();
        Self { part, bytes, kind, path, lines, language, command, exit_code }
    }
}
