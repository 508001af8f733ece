//! What the model has been given so far, as far as later messages may repeat it.
//!
//! Only hashes are kept of what was given, and the text of logs, whose failures a later run may
//! repeat. Everything follows from one list of records, one a message, so that going back in a
//! conversation is cutting that list and reading it again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::act::{Act, At, Touch};
use super::command;
use super::shown::{FileLines, Seen, numbered_lines, pieces};
use super::span::{Kind, Span};
use super::template::template;

/// A place in the text that the model was given.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// Index of the message in its conversation.
    pub message: usize,
    /// Bytes of its content, as the model was given it.
    pub bytes: Range<usize>,
}

/// A tool's output that stands in full, or condensed by itself, in what the model was given.
#[derive(Clone, Debug, PartialEq)]
pub struct PastOutput {
    pub place: Place,
    /// The output's span in the text that was given.
    pub span: Span,
    /// The first line that is not blank, as it was given, at most 120 bytes of it.
    pub first_line: String,
}

/// A log that the model was given, in full or folded.
#[derive(Clone, Debug, PartialEq)]
pub struct PastLog {
    pub place: Place,
    pub span: Span,
    /// The log as the tool wrote it.
    pub text: Arc<str>,
    /// Where the failures stand that a note in its place points to; empty where it was given.
    pub points_to: Vec<Place>,
}

/// Text that the model was given and that a later message has overtaken.
#[derive(Clone, Debug, PartialEq)]
pub struct Overtaken {
    /// The later message.
    pub by: usize,
    pub place: Place,
    pub how: How,
}

/// How a later message overtakes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// It may read otherwise since an edit, or does so in a later view.
    Outdated,
    /// It was given again.
    Repeated,
}

/// What one message adds to the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    /// The tools that it calls, with the calls' ids.
    pub calls: Vec<(String, Act)>,
    /// True for an answer of the model, which begins a new round of calls.
    pub is_answer: bool,
    /// True where it answers a call, so that the next one answers the next call.
    pub is_output: bool,
    /// True where it asks for thoughts in the text beside each action.
    pub thinks_aloud: bool,
    pub touches: Vec<Touch>,
    pub outputs: Vec<Output>,
}

/// A span of tool output, as it is remembered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Output {
    pub span: Span,
    /// Hashes of the tool's text and of its template; none where a note stands in its place.
    pub hashes: Option<[u64; 2]>,
    pub first_line: String,
    /// Lines of a file or pieces of an output, by number, in the text that was given.
    pub lines: Vec<(u32, u64, Range<usize>)>,
    pub log: Option<Arc<str>>,
    pub points_to: Vec<Place>,
}

/// What the model has been given so far.
#[derive(Debug, Default, PartialEq)]
pub struct History {
    records: Vec<Record>,
    index: Index,
}

/// What the records say, by what is asked for.
#[derive(Debug, Default, PartialEq)]
struct Index {
    outputs: Vec<PastOutput>,
    by_text: HashMap<u64, usize>,
    by_template: HashMap<u64, usize>,
    logs: Vec<PastLog>,
    logs_by_family: HashMap<String, Vec<usize>>,
    /// The pieces of all outputs that show no file.
    pieces: FileLines,
    files: Vec<FileLines>,
    files_by_name: HashMap<String, Vec<usize>>,
    /// By the later message.
    overtaken: Vec<Overtaken>,
    /// What notes pointed to, and the messages that they stand in.
    noted: Vec<(Place, usize)>,
    /// The last message after which any file may have another text.
    all_touched: Option<usize>,
    calls: HashMap<String, Act>,
    /// The calls of the model's last answer, in order, and how many have been answered.
    last_calls: Vec<Act>,
    n_answered: usize,
    acts_in_text: bool,
    thinks_aloud: bool,
    has_answer: bool,
}

impl History {
    /// How many messages the conversation has so far.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True before the first message.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The latest output with exactly this text.
    pub fn same_output(&self, text: &str) -> Option<&PastOutput> {
        self.index.by_text.get(&hash(text)).map(|at| &self.index.outputs[*at])
    }

    /// The latest output that differs from this text at most in times, ids and the like.
    pub fn similar_output(&self, text: &str) -> Option<&PastOutput> {
        self.index.by_template.get(&hash(&template(text))).map(|at| &self.index.outputs[*at])
    }

    /// The pieces of all outputs that show no file, each numbered within its output.
    pub fn pieces(&self) -> &FileLines {
        &self.index.pieces
    }

    /// The output that this place lies in, unless a note stands in it.
    pub fn output_at(&self, place: &Place) -> Option<&PastOutput> {
        let outputs = &self.index.outputs;
        let from = outputs.partition_point(|output| output.place.message < place.message);
        let of_message = outputs[from..].iter().take_while(|o| o.place.message == place.message);
        of_message.into_iter().find(|output| {
            output.place.bytes.start <= place.bytes.start
                && place.bytes.end <= output.place.bytes.end
        })
    }

    /// The lines of a file that were shown; the path may be relative or absolute.
    pub fn shown(&self, path: &str) -> Option<&FileLines> {
        self.index.file(path).map(|at| &self.index.files[at])
    }

    /// False where a line may read otherwise by now: an edit, or a command of which it is not
    /// known what it writes, came after it was shown.
    pub fn is_current(&self, file: &FileLines, line: &Seen) -> bool {
        let since = line.place.message;
        self.index.all_touched.is_none_or(|message| message <= since) && file.is_current(line)
    }

    /// Lines of files that a message overtakes, in order, neighbours joined.
    pub fn overtaken(&self, by: usize) -> &[Overtaken] {
        let all = &self.index.overtaken;
        let first = all.partition_point(|overtaken| overtaken.by < by);
        let last = all.partition_point(|overtaken| overtaken.by <= by);
        &all[first..last]
    }

    /// Which of a message's tool calls edit a file.
    pub fn edits(&self, message: usize) -> impl Iterator<Item = usize> {
        let calls = self.records.get(message).map_or(&[][..], |record| &record.calls);
        let is_edit = |act: &Act| act.touches.iter().any(|touch| touch.path.is_some());
        calls.iter().enumerate().filter(move |(_, (_, act))| is_edit(act)).map(|(at, _)| at)
    }

    /// True where the file was edited in this conversation.
    pub fn is_edited(&self, path: &str) -> bool {
        self.shown(path).is_some_and(FileLines::is_edited)
    }

    /// The latest log of the same command, or else of the same tool.
    pub fn previous_log(&self, span: &Span) -> Option<&PastLog> {
        let (family, whole) = command::family(span.command.as_deref()?)?;
        let of_family = self.index.logs_by_family.get(&family)?;
        let logs = || of_family.iter().rev().map(|at| &self.index.logs[*at]);
        let is_same = |log: &&PastLog| {
            let command = log.span.command.as_deref().and_then(command::family);
            command.is_some_and(|(_, other)| other == whole)
        };
        // Older runs of the same command are looked for only among the last few.
        logs().take(16).find(is_same).or_else(|| logs().next())
    }

    /// True where one of the last `n_messages` messages holds a note in place of all this text.
    pub fn was_noted(&self, place: &Place, n_messages: usize) -> bool {
        let since = self.len().saturating_sub(n_messages);
        let recent = self.index.noted.iter().rev().take_while(|(_, message)| *message >= since);
        recent.into_iter().any(|(noted, _)| {
            noted.message == place.message
                && noted.bytes.start <= place.bytes.start
                && noted.bytes.end >= place.bytes.end
        })
    }

    /// What the message that comes next answers: the call of this id, else the first call that
    /// has no answer yet.
    pub(super) fn answered(&self, id: Option<&str>) -> Option<&Act> {
        let by_id = id.filter(|id| !id.is_empty()).and_then(|id| self.index.calls.get(id));
        by_id.or_else(|| self.index.last_calls.get(self.index.n_answered))
    }

    /// True where the model was asked to think in its text and to act in code blocks.
    pub(super) fn thinks_aloud(&self) -> bool {
        self.index.thinks_aloud
    }

    /// True where an action in the model's text has no answer yet.
    pub(super) fn awaits_text(&self) -> bool {
        self.index.acts_in_text && self.index.n_answered < self.index.last_calls.len()
    }

    /// True once the model has said something.
    pub(super) fn has_answer(&self) -> bool {
        self.index.has_answer
    }

    pub(super) fn add(&mut self, record: Record) {
        self.index.add(self.records.len(), &record);
        self.records.push(record);
    }

    /// Forgets all but the first messages.
    pub(super) fn truncate(&mut self, n_messages: usize) {
        if n_messages >= self.records.len() {
            return;
        }
        self.records.truncate(n_messages);
        self.index = Index::default();
        for (message, record) in self.records.iter().enumerate() {
            self.index.add(message, record);
        }
    }
}

impl Index {
    fn add(&mut self, message: usize, record: &Record) {
        self.thinks_aloud |= record.thinks_aloud;
        if record.is_answer {
            self.has_answer = true;
            self.n_answered = 0;
            self.acts_in_text = record.calls.iter().any(|(id, _)| id.is_empty());
            self.last_calls = record.calls.iter().map(|(_, act)| act.clone()).collect();
        }
        for (id, act) in record.calls.iter().filter(|(id, _)| !id.is_empty()) {
            self.calls.insert(id.clone(), act.clone());
        }
        self.n_answered += usize::from(record.is_output);
        for touch in &record.touches {
            self.touch(message, touch);
        }
        for output in &record.outputs {
            self.add_output(message, output);
        }
    }

    fn touch(&mut self, message: usize, touch: &Touch) {
        match &touch.path {
            None => self.all_touched = Some(message),
            Some(path) => {
                let at = self.file_or_new(path);
                let file = &mut self.files[at];
                let from = match touch.at {
                    At::All => 1,
                    At::Line(line) => line,
                    At::Text(first_line) => file.number_of(first_line).unwrap_or(1),
                };
                let outdated = file.touch(message, from);
                self.overtake(message, How::Outdated, outdated);
            }
        }
    }

    fn add_output(&mut self, message: usize, output: &Output) {
        let Output { span, hashes, first_line, lines, log, points_to } = output;
        let place = Place { message, bytes: span.bytes.clone() };
        self.noted.extend(points_to.iter().map(|place| (place.clone(), message)));
        if let Some([text, template]) = hashes {
            let at = self.outputs.len();
            let (span, first_line) = (span.clone(), first_line.clone());
            self.outputs.push(PastOutput { place: place.clone(), span, first_line });
            self.by_text.insert(*text, at);
            self.by_template.insert(*template, at);
        }
        if !lines.is_empty() {
            let shown = shown_file(span).map(|path| self.file_or_new(path));
            let file = match shown {
                Some(at) => &mut self.files[at],
                None => &mut self.pieces,
            };
            let (mut outdated, mut repeated) = (Vec::new(), Vec::new());
            for (number, hash, bytes) in lines {
                match file.show(*number, *hash, Place { message, bytes: bytes.clone() }) {
                    Some((before, true)) => repeated.push(before),
                    // The pieces of other outputs have no numbers that stay.
                    Some((before, false)) if shown.is_some() => outdated.push(before),
                    _ => {}
                }
            }
            self.overtake(message, How::Outdated, outdated);
            self.overtake(message, How::Repeated, repeated);
        }
        let Some(text) = log else { return };
        let same_run =
            |log: &&mut PastLog| log.place.message == message && log.span.command == span.command;
        if let Some(log) = self.logs.last_mut().filter(same_run) {
            // The head and the tail of one log, of which the middle was left out.
            log.text = [&*log.text, &**text].concat().into();
            log.place.bytes.end = place.bytes.end;
            log.points_to.extend(points_to.iter().cloned());
        } else if let Some((family, _)) = span.command.as_deref().and_then(command::family) {
            self.logs_by_family.entry(family).or_default().push(self.logs.len());
            let (text, points_to) = (text.clone(), points_to.clone());
            self.logs.push(PastLog { place, span: span.clone(), text, points_to });
        }
    }

    /// Adds lines that a message overtakes; those that follow one another become one place.
    fn overtake(&mut self, by: usize, how: How, mut lines: Vec<Place>) {
        lines.sort_by_key(|line| (line.message, line.bytes.start));
        let first = self.overtaken.len();
        for place in lines {
            match self.overtaken[first..].last_mut() {
                // A line's bytes leave out its end, of one byte or two.
                Some(Overtaken { place: last, .. })
                    if last.message == place.message && last.bytes.end + 2 >= place.bytes.start =>
                {
                    last.bytes.end = last.bytes.end.max(place.bytes.end);
                }
                _ => self.overtaken.push(Overtaken { by, place, how }),
            }
        }
    }

    /// The only known file that this path may mean.
    fn file(&self, path: &str) -> Option<usize> {
        let path = clean(path);
        let candidates = self.files_by_name.get(name(&path))?;
        let is = |at: &&usize| self.files[**at].path() == path;
        let exact = candidates.iter().find(is);
        let is_end = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|rest| rest.ends_with('/'))
        };
        let mut ends = candidates.iter().filter(|at| {
            let known = self.files[**at].path();
            is_end(known, &path) || is_end(&path, known)
        });
        exact.or_else(|| ends.next().filter(|_| ends.next().is_none())).copied()
    }

    fn file_or_new(&mut self, path: &str) -> usize {
        self.file(path).unwrap_or_else(|| {
            let path = clean(path);
            let at = self.files.len();
            self.files_by_name.entry(name(&path).to_owned()).or_default().push(at);
            self.files.push(FileLines::new(path));
            at
        })
    }
}

impl Output {
    /// What is remembered of a span: `text` is the tool's, `given` what the model reads.
    pub(super) fn new(span: &Span, text: &str, given: &str, points_to: Vec<Place>) -> Self {
        let is_reference = !points_to.is_empty();
        let hashes = (!is_reference).then(|| [hash(text), hash(&template(text))]);
        let first = given.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let first_line = first[..first.floor_char_boundary(120)].to_owned();
        let lines = match shown_file(span) {
            Some(_) => given_lines(span, text, given),
            None => pieces(given)
                .map(|piece| {
                    (piece.number, hash(piece.text), move_by(&piece.bytes, span.bytes.start))
                })
                .collect(),
        };
        let log = (span.kind == Kind::Log).then(|| text.into());
        Self { span: span.clone(), hashes, first_line, lines, log, points_to }
    }
}

/// The file whose lines a span shows.
fn shown_file(span: &Span) -> Option<&str> {
    span.path.as_deref().filter(|_| span.kind == Kind::FileView)
}

/// The numbered lines of a view that stand in what was given of it.
fn given_lines(span: &Span, text: &str, given: &str) -> Vec<(u32, u64, Range<usize>)> {
    let start = span.bytes.start;
    let lines = || numbered_lines(span, text);
    if text == given {
        return lines()
            .map(|line| (line.number, hash(line.text), move_by(&line.bytes, start)))
            .collect();
    }
    // A folded view is the tool's lines in their order, with notes between them.
    let mut all: HashMap<&str, Vec<(usize, u32, u64)>> = HashMap::new();
    for (at, line) in lines().enumerate() {
        let raw = text[line.bytes.clone()].trim_end();
        all.entry(raw).or_default().push((at, line.number, hash(line.text)));
    }
    let mut next = 0;
    let mut kept = Vec::new();
    let mut offset = start;
    for raw in given.split_inclusive('\n') {
        let line = raw.trim_end();
        let copies = all.get(line).map_or(&[][..], Vec::as_slice);
        let first = copies.partition_point(|(at, ..)| *at < next);
        if let Some((at, number, hash)) = copies.get(first) {
            kept.push((*number, *hash, offset..offset + line.len()));
            next = at + 1;
        }
        offset += raw.len();
    }
    kept
}

fn move_by(bytes: &Range<usize>, offset: usize) -> Range<usize> {
    bytes.start + offset..bytes.end + offset
}

/// The hash by which texts are compared.
pub fn hash(text: &str) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// A path without `.` parts, doubled slashes and what `..` takes back.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
