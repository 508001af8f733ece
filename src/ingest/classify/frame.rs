//! What agents put around a tool's output: exit codes, headers, prompts, reminders.

use std::ops::Range;

use serde_json::Value;

use crate::ingest::span::Kind;

/// A tool's output within what its agent put around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Frame {
    /// The tool's own words, in order; what lies between and around them is the agent's.
    pub bodies: Vec<Range<usize>>,
    /// Rules that the agent appended.
    pub reminders: Vec<Range<usize>>,
    /// True where an agent is recognised, so that the text is an output whoever speaks.
    pub is_output: bool,
    pub exit_code: Option<i32>,
    pub command: Option<String>,
    pub kind: Option<Kind>,
    /// True where the output is a string within JSON, so that its lines are not lines.
    pub is_escaped: bool,
}

/// Takes off all frames.
pub(super) fn open(text: &str) -> Frame {
    let mut frame = Frame::default();
    let mut end = text.len();
    for reminder in reminders(text).into_iter().rev() {
        if !text[reminder.end..end].trim().is_empty() {
            break;
        }
        end = reminder.start;
        frame.reminders.insert(0, reminder);
    }
    if let Some(json) = json(&text[..end]) {
        frame.exit_code = json.exit_code;
        frame.command = json.command;
        frame.is_escaped = json.is_whole;
        frame.is_output = json.is_whole;
        frame.bodies.push(json.body);
        return frame;
    }
    let mut start = 0;
    while let Some(length) = frame.head(&text[start..end]) {
        start += length;
    }
    while let Some(length) = frame.tail(&text[start..end]) {
        end -= length;
    }
    let bodies = tagged(&text[start..end], frame.exit_code.is_some());
    frame.is_output |= !bodies.is_empty();
    match bodies.is_empty() {
        true => frame.bodies.push(start..end),
        false => frame.bodies.extend(bodies.iter().map(|b| b.start + start..b.end + start)),
    }
    frame
}

/// Where `<system-reminder>`s stand, with their tags.
pub(super) fn reminders(text: &str) -> Vec<Range<usize>> {
    const OPEN: &str = "<system-reminder>";
    const CLOSE: &str = "</system-reminder>";
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(OPEN).map(|start| at + start) {
        let Some(end) = text[start..].find(CLOSE).map(|end| start + end + CLOSE.len()) else {
            break;
        };
        found.push(start..end);
        at = end;
    }
    found
}

impl Frame {
    /// The length of a head at the text's beginning.
    fn head(&mut self, text: &str) -> Option<usize> {
        const SAYS_OUTPUT: [(&str, Option<Kind>); 6] = [
            ("OBSERVATION:\n", None),
            ("Observation:\n", None),
            ("New Terminal Output:\n", None),
            ("Current Terminal Screen:\n", Some(Kind::Screen)),
            ("Current terminal state:\n", Some(Kind::Screen)),
            ("Current Terminal Screen:\r\n", Some(Kind::Screen)),
        ];
        for (head, kind) in SAYS_OUTPUT {
            if text.starts_with(head) {
                self.is_output = true;
                self.kind = kind.or(self.kind);
                return Some(head.len());
            }
        }
        let line_end = text.find('\n').map_or(text.len(), |at| at + 1);
        let line = text[..line_end].trim_end();
        if line.starts_with("EXECUTION RESULT of [") && line.ends_with("]:") {
            self.is_output = true;
            return Some(line_end);
        }
        if let Some(code) = between(line, "<returncode>", "</returncode>") {
            self.is_output = true;
            self.exit_code = code.trim().parse().ok().or(self.exit_code);
            return Some(line_end);
        }
        // Codex: lines of numbers up to `Output:`.
        if line.starts_with("Exit code: ")
            || line.starts_with("Chunk ID: ")
            || line.starts_with("Wall time: ")
        {
            let head_end = text.find("Output:\n").filter(|at| *at < 400)? + "Output:\n".len();
            let code = ["Exit code: ", "exited with code "].iter().find_map(|name| {
                let rest = &text[text[..head_end].find(name)? + name.len()..];
                rest.lines().next()?.trim().parse().ok()
            });
            self.exit_code = code.or(self.exit_code);
            self.is_output = true;
            return Some(head_end);
        }
        // Claude Code, where a command failed.
        let code: i32 = line.strip_prefix("Exit code ")?.parse().ok()?;
        self.exit_code = Some(code);
        Some(line_end)
    }

    /// The length of a tail at the text's end, with the blanks behind it.
    fn tail(&mut self, text: &str) -> Option<usize> {
        let trimmed = text.trim_end();
        let start = trimmed.rfind('\n').map_or(0, |at| at + 1);
        let line = &trimmed[start..];
        let begins = |starts: &[&str]| starts.iter().any(|start| line.starts_with(start));
        let is_tail = line == "bash-$"
            || begins(&["(Open file: ", "(Current directory: "]) && line.ends_with(')')
            || begins(&[
                "[The command completed with exit code ",
                "[Current working directory: ",
                "[Python interpreter: ",
                "[Jupyter current working directory: ",
            ]) && line.ends_with(']')
            || line.starts_with("[Command ") && line.contains("finished with exit code ");
        if !is_tail {
            return line.starts_with("Shell cwd was reset to ").then(|| text.len() - start);
        }
        self.is_output = true;
        if let Some(code) = line.split("exit code ").nth(1) {
            self.exit_code = code.trim_end_matches([']', '.']).parse().ok().or(self.exit_code);
        }
        Some(text.len() - start)
    }
}

/// mini-swe-agent's `<output>`, or its head and tail where the whole was too long.
fn tagged(text: &str, has_code: bool) -> Vec<Range<usize>> {
    if !has_code {
        return Vec::new();
    }
    let body = |tag: &str| {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let start = text.find(&open)? + open.len();
        let start = start + usize::from(text[start..].starts_with('\n'));
        let end = text.rfind(&close).filter(|end| *end >= start)?;
        Some(start..end)
    };
    match body("output") {
        Some(whole) => vec![whole],
        None => [body("output_head"), body("output_tail")].into_iter().flatten().collect(),
    }
}

struct Json {
    exit_code: Option<i32>,
    command: Option<String>,
    is_whole: bool,
    body: Range<usize>,
}

/// An output in JSON, as Codex gives it, or behind a line of JSON that tells of it.
fn json(text: &str) -> Option<Json> {
    if !text.starts_with('{') {
        return None;
    }
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    let head: Value = serde_json::from_str(line).ok()?;
    let output = head["output"].as_str();
    let is_whole = rest.trim().is_empty();
    if is_whole != output.is_some() {
        return None;
    }
    let of = |value: &Value| {
        let code = ["exit_code", "exitCode", "returncode"].iter().find_map(|n| value[*n].as_i64());
        code.and_then(|code| i32::try_from(code).ok())
    };
    let exit_code = of(&head).or_else(|| of(&head["metadata"]));
    let command = head["command"].as_str().map(str::to_owned);
    let known = exit_code.is_some() || command.is_some() || head["metadata"].is_object();
    let start = if is_whole { 0 } else { line.len() + 1 };
    known.then_some(Json { exit_code, command, is_whole, body: start..text.len() })
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    text.strip_prefix(open)?.split(close).next()
}
