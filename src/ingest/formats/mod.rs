//! Trajectory files, each format a file, found out by content.

use serde_json::Value;

use crate::trajectory::{FunctionCall, Message, Role, ToolCall};

mod atif;
mod claude;
mod mini;
mod openai;
mod openhands;
mod rewrite;
mod swe_agent;

pub use rewrite::rewrite;

/// What a trajectory file was written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Chat messages of the OpenAI API: a list, an object with `messages`, or JSON lines.
    OpenAi,
    /// SWE-agent's `.traj`.
    SweAgent,
    /// mini-swe-agent's `.traj.json`.
    MiniSweAgent,
    /// Claude Code's session log, JSON lines.
    ClaudeCode,
    /// The Agent Trajectory Interchange Format of Harbor, an object or JSON lines.
    Atif,
    /// OpenHands' list of events.
    OpenHands,
}

impl Format {
    /// The format's name as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::OpenAi => "openai",
            Format::SweAgent => "swe-agent",
            Format::MiniSweAgent => "mini-swe-agent",
            Format::ClaudeCode => "claude-code",
            Format::Atif => "atif",
            Format::OpenHands => "openhands",
        }
    }
}

/// An agent's conversation as a file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// The run's name, where the file has one.
    pub id: Option<String>,
    pub format: Format,
    /// Descriptions of the tools that the model was shown, where the file has them.
    pub tools: Option<Vec<Value>>,
    pub messages: Vec<Message>,
}

/// Why a file could not be read as a trajectory.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("line {line}, column {column}: {reason}; expected JSON or one JSON value a line")]
    Json { line: usize, column: usize, reason: String },
    #[error(
        "no known trajectory; expected OpenAI chat messages, SWE-agent, mini-swe-agent, Claude \
         Code, ATIF or OpenHands, but the file begins with {seen}"
    )]
    Unknown { seen: String },
    #[error("line {line} (or the element of that number) is no {} entry: {reason}", format.as_str())]
    Entry { format: Format, line: usize, reason: String },
    #[error("the {} file holds no messages", format.as_str())]
    Empty { format: Format },
}

/// The JSON of a file: values with their numbers (of the line or the element) from one.
struct Document {
    entries: Vec<(usize, Value)>,
    shape: Shape,
}

/// What a file's JSON is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One value that is no list.
    Single,
    List,
    /// A value a line.
    Lines,
}

/// Where a value stands in a file.
struct Source {
    /// Number of the entry.
    entry: usize,
    /// JSON pointer (RFC 6901) from the entry to the value.
    pointer: String,
}

/// A message, and where its content stands if that is one text of the file.
struct Said {
    message: Message,
    source: Option<Source>,
}

impl From<Message> for Said {
    fn from(message: Message) -> Self {
        Self { message, source: None }
    }
}

impl Said {
    /// A message whose content is `content`, which stands at `pointer` of an entry.
    fn at(entry: usize, pointer: String, content: &Value, message: Message) -> Self {
        // The text of an only block, so that the block's other fields stay.
        let block = content.as_array().and_then(|blocks| match &blocks[..] {
            [block] => block["text"].as_str(),
            _ => None,
        });
        let pointer = if block.is_some() { pointer + "/0/text" } else { pointer };
        Self { message, source: Some(Source { entry, pointer }) }
    }
}

/// What a format makes of a file, before it has a name.
#[derive(Default)]
struct Draft {
    id: Option<String>,
    tools: Option<Vec<Value>>,
    messages: Vec<Said>,
}

/// How one format is recognised and read.
struct Reader {
    format: Format,
    is_mine: fn(&Document) -> bool,
    /// Gives the draft, or the number of the entry that is wrong and the reason.
    read: fn(&Document) -> Result<Draft, (usize, String)>,
}

/// All formats; the first that claims a file reads it, so the particular stand before the plain.
const READERS: [Reader; 6] = [
    atif::READER,
    swe_agent::READER,
    mini::READER,
    claude::READER,
    openhands::READER,
    openai::READER,
];

/// Reads a trajectory in any of the known formats.
///
/// # Errors
/// Where the text is no JSON, no known trajectory, or one without messages.
pub fn read(text: &str) -> Result<Trajectory, FormatError> {
    let (format, Draft { id, tools, messages }) = Document::parse(text)?.draft()?;
    let messages = messages.into_iter().map(|said| said.message).collect();
    Ok(Trajectory { id, format, tools, messages })
}

impl Document {
    /// Reads the document in its format.
    fn draft(&self) -> Result<(Format, Draft), FormatError> {
        let Some(Reader { format, read, .. }) = READERS.iter().find(|r| (r.is_mine)(self)) else {
            return Err(FormatError::Unknown { seen: self.describe() });
        };
        let format = *format;
        let draft =
            read(self).map_err(|(line, reason)| FormatError::Entry { format, line, reason })?;
        if draft.messages.is_empty() {
            return Err(FormatError::Empty { format });
        }
        Ok((format, draft))
    }

    fn parse(text: &str) -> Result<Self, FormatError> {
        let text = text.trim_start_matches('\u{FEFF}');
        let broken = |line, error: &serde_json::Error| {
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
            FormatError::Json { line, column: error.column(), reason }
        };
        let error = match serde_json::from_str(text) {
            Ok(Value::Array(values)) => {
                return Ok(Self { entries: (1..).zip(values).collect(), shape: Shape::List });
            }
            Ok(value) => return Ok(Self { entries: vec![(1, value)], shape: Shape::Single }),
            Err(error) => error,
        };
        let mut entries = Vec::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            match serde_json::from_str(text) {
                Ok(value) => entries.push((line, value)),
                // Not lines, but one value that is broken further down.
                Err(_) if entries.is_empty() => return Err(broken(error.line(), &error)),
                Err(error) => return Err(broken(line, &error)),
            }
        }
        Ok(Self { entries, shape: Shape::Lines })
    }

    /// The file's only object, with its fields; null for a list.
    fn root(&self) -> &Value {
        match self.entries.first() {
            Some((_, root)) if self.shape == Shape::Single => root,
            _ => &Value::Null,
        }
    }

    /// What the file begins with, for a message.
    fn describe(&self) -> String {
        match self.entries.first() {
            None => "nothing".to_owned(),
            Some((_, Value::Object(fields))) => {
                let names: Vec<_> = fields.keys().take(6).map(|name| format!("`{name}`")).collect();
                format!("an object with the fields [{}]", names.join(", "))
            }
            Some((_, other)) => {
                let text: String = other.to_string().chars().take(40).collect();
                format!("`{text}`")
            }
        }
    }
}

/// A chat message whose content may be of any shape.
fn message(value: &Value) -> Result<Message, String> {
    let mut value = value.clone();
    let Some(fields) = value.as_object_mut() else {
        return Err("expected an object with `role` and `content`".to_owned());
    };
    for name in ["content", "reasoning_content", "reasoning"] {
        if let Some(field) = fields.get_mut(name).filter(|field| !field.is_null()) {
            *field = text(field).into();
        }
    }
    if fields.contains_key("reasoning_content") {
        fields.remove("reasoning");
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// The text of a content: a string, blocks, or JSON, in which an `output` is shown as it is.
fn text(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(text).collect::<Vec<_>>().join("\n"),
        Value::Object(fields) => {
            match (fields.get("text"), fields.get("output"), fields.get("type")) {
                (Some(Value::String(text)), ..) => text.clone(),
                (_, Some(Value::String(output)), _) => {
                    let mut others = fields.clone();
                    others.remove("output");
                    let others = Value::Object(others);
                    format!("{others}\n{output}")
                }
                (.., Some(Value::String(kind))) => format!("[{kind}]"),
                _ => content.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// A call as chat messages have it.
fn call(id: &Value, name: &Value, arguments: &Value) -> ToolCall {
    let arguments = match arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ToolCall {
        id: id.as_str().unwrap_or_default().to_owned(),
        kind: "function".to_owned(),
        function: FunctionCall { name: name.as_str().unwrap_or_default().to_owned(), arguments },
    }
}

/// A tool's answer to the call `id`.
fn result(id: &Value, content: &Value) -> Message {
    let tool_call_id = id.as_str().map(str::to_owned);
    Message { tool_call_id, ..Message::text(Role::Tool, text(content)) }
}

fn string(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
