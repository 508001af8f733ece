//! A tool's output: what it is, of which file or command, and which lines.

use std::ops::Range;

use super::frame::Frame;
use super::{Classified, push, shape};
use crate::ingest::act::Act;
use crate::ingest::command;
use crate::ingest::history::History;
use crate::ingest::language::Language;
use crate::ingest::shown::{gutter, has_gutter};
use crate::ingest::span::{Kind, Part, Span};
use crate::trajectory::{Message, Meta};

pub(super) fn spans(message: &Message, frame: Frame, history: &History) -> Classified {
    let text = message.content.as_str();
    let meta = message.meta.clone().unwrap_or_default();
    let told = meta.command.as_deref().or(frame.command.as_deref()).map(command::act);
    let called = history.answered(message.tool_call_id.as_deref()).cloned();
    let act = told.or(called).unwrap_or_default();

    let mut classified = Classified::default();
    classified.record.is_output = true;
    classified.record.touches = act.touches.clone();
    // A head alone may not show what the whole is, and a tail neither.
    let bodies = || frame.bodies.iter().map(|body| &text[body.clone()]);
    let kind = bodies().map(|body| kind_of(body, &act, &meta, &frame));
    let kind = kind.fold(Kind::Other, |all, kind| if all == Kind::Other { kind } else { all });
    let mut at = 0;
    for (index, body) in frame.bodies.iter().enumerate() {
        frame_span(&mut classified, at..body.start, Kind::Other);
        // Where lines were left out, the numbers of those behind are unknown.
        let is_cut = frame.is_escaped || index > 0;
        let body = Body { text: &text[body.clone()], start: body.start, is_cut };
        body.add(kind, &act, &meta, &frame, &mut classified);
        at = body.start + body.text.len();
    }
    for reminder in &frame.reminders {
        frame_span(&mut classified, at..reminder.start, Kind::Other);
        frame_span(&mut classified, reminder.clone(), Kind::Instruction);
        at = reminder.end;
    }
    frame_span(&mut classified, at..text.len(), Kind::Other);
    classified
}

/// Adds what an agent put around a body.
fn frame_span(classified: &mut Classified, bytes: Range<usize>, kind: Kind) {
    let is_behind_body =
        classified.bodies.last().is_some_and(|at| at + 1 == classified.spans.len());
    match is_behind_body && !bytes.is_empty() {
        true => classified.spans.push(Span::new(Part::Content, bytes, kind)),
        false => push(&mut classified.spans, bytes, kind),
    }
}

/// What a body is: what the client says, what the agent says, what the call promises, what it
/// looks like.
fn kind_of(text: &str, act: &Act, meta: &Meta, frame: &Frame) -> Kind {
    let told = meta.kind.as_deref().and_then(Kind::by_name).filter(|kind| kind.is_output());
    told.or(frame.kind).or_else(|| shape::screen(text)).unwrap_or_else(|| match act.kind {
        _ if is_refusal(text) => Kind::Other,
        Some(kind) => shape::checked(kind, text),
        None => shape::of(text),
    })
}

/// A tool's own words.
struct Body<'a> {
    text: &'a str,
    /// Where they begin in the content.
    start: usize,
    is_cut: bool,
}

impl Body<'_> {
    fn add(&self, kind: Kind, act: &Act, meta: &Meta, frame: &Frame, classified: &mut Classified) {
        if self.text.is_empty() {
            return;
        }
        let mut whole = Span::new(Part::Content, self.bytes(0..self.text.len()), Kind::Other);
        whole.command = meta.command.clone().or_else(|| act.command.clone());
        whole.command = whole.command.or_else(|| frame.command.clone());
        whole.exit_code = meta.exit_code.or(frame.exit_code);
        let path = meta.path.as_ref().or(act.path.as_ref());
        let numbered = match kind {
            Kind::FileView | Kind::Other => self.numbered(kind),
            _ => None,
        };
        let Some(lines) = numbered else {
            whole.kind = kind;
            whole.path = path.filter(|_| kind != Kind::Other).cloned();
            if kind == Kind::FileView {
                let asked = meta.range.map(|[first, last]| (first, Some(last)));
                whole.lines = asked.or(act.lines).and_then(|asked| self.counted(asked));
            }
            return self.push(whole, meta, classified);
        };
        // An agent says what it shows, and how much lies above and below.
        let head = &self.text[..lines.bytes.start];
        let view = Span {
            kind: Kind::FileView,
            bytes: self.bytes(lines.bytes.clone()),
            path: named(head).map(str::to_owned).or_else(|| path.cloned()),
            lines: Some(lines.numbers),
            ..whole.clone()
        };
        frame_span(classified, self.bytes(0..lines.bytes.start), Kind::Other);
        self.push(view, meta, classified);
        frame_span(classified, self.bytes(lines.bytes.end..self.text.len()), Kind::Other);
    }

    fn push(&self, mut span: Span, meta: &Meta, classified: &mut Classified) {
        let told = meta.language.as_deref().and_then(Language::by_name);
        let of_path = || span.path.as_deref().and_then(Language::of_path);
        let has_code = matches!(span.kind, Kind::FileView | Kind::Diff | Kind::Search);
        span.language = told.or_else(|| of_path().filter(|_| has_code));
        classified.bodies.push(classified.spans.len());
        classified.spans.push(span);
    }

    fn bytes(&self, bytes: Range<usize>) -> Range<usize> {
        bytes.start + self.start..bytes.end + self.start
    }

    /// The lines of a view without numbers, counted from the first that was asked for.
    fn counted(&self, (first, last): (u32, Option<u32>)) -> Option<[u32; 2]> {
        if self.is_cut || has_gutter(self.text) || is_abridged(self.text) {
            return None;
        }
        let n_lines = u32::try_from(self.text.lines().count()).ok()?;
        let end = first.checked_add(n_lines.checked_sub(1)?)?;
        // More lines than were asked for are not only the file's.
        last.is_none_or(|last| end <= last).then_some([first, end])
    }

    /// The longest stretch of lines that bear numbers in order.
    fn numbered(&self, kind: Kind) -> Option<Numbered> {
        let is_view = kind == Kind::FileView;
        let top = &self.text[..self.text.floor_char_boundary(2048)];
        let has_header = top.contains("[File: ") || top.contains("running `cat -n` on ");
        let mut best: Option<Numbered> = None;
        let mut now: Option<Numbered> = None;
        let mut offset = 0;
        for line in self.text.split_inclusive('\n') {
            let bytes = offset..offset + line.len();
            offset = bytes.end;
            let text = line.trim_end_matches(['\n', '\r']);
            let number = gutter(text)
                .map(|(number, _)| number)
                .filter(|_| is_view || has_header || is_sure_gutter(text));
            now = match (now, number) {
                (Some(mut run), Some(number))
                    if number == run.numbers[1].saturating_add(1)
                        || is_view && number > run.numbers[1] =>
                {
                    run.numbers[1] = number;
                    run.bytes.end = bytes.end;
                    run.n_lines += 1;
                    Some(run)
                }
                (run, number) => {
                    best = longer(best, run);
                    number.map(|number| Numbered { bytes, numbers: [number; 2], n_lines: 1 })
                }
            };
        }
        let least = if is_view || has_header { 1 } else { 3 };
        // Other texts happen to hold a few lines that begin with a number.
        let is_most = |run: &Numbered| {
            self.text[..run.bytes.start].trim().is_empty() || run.bytes.len() * 2 > self.text.len()
        };
        longer(best, now).filter(|run| run.n_lines >= least && (has_header || is_most(run)))
    }
}

struct Numbered {
    bytes: Range<usize>,
    numbers: [u32; 2],
    n_lines: usize,
}

fn longer(one: Option<Numbered>, other: Option<Numbered>) -> Option<Numbered> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.n_lines > one.n_lines { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// True for `  12→` and `  12<tab>`, which hardly anything but a view has.
fn is_sure_gutter(line: &str) -> bool {
    let rest = line.trim_start_matches(' ').trim_start_matches(|c: char| c.is_ascii_digit());
    rest.starts_with(['→', '\t'])
}

/// The file that an agent's header names.
fn named(head: &str) -> Option<&str> {
    let line = |line: &'_ str| -> Option<(usize, usize)> {
        const STARTS: [(&str, &str); 4] = [
            ("[File: ", " ("),
            ("running `cat -n` on a snippet of the edited file", ":"),
            ("running `cat -n` on a snippet of ", ":"),
            ("running `cat -n` on ", ":"),
        ];
        STARTS.iter().find_map(|(open, close)| {
            let start = line.find(open)? + open.len();
            let length = line[start..].rfind(close)?;
            Some((start, start + length))
        })
    };
    head.lines().rev().find_map(|text| {
        let (start, end) = line(text)?;
        let path = text[start..end].trim();
        (!path.is_empty()).then_some(path)
    })
}

/// True where an agent or a tool says that it could not do what was asked.
fn is_refusal(text: &str) -> bool {
    let start = text.trim_start();
    let is_short = start.len() < 600 && start.lines().count() <= 4;
    let says =
        ["<tool_use_error>", "<error>", "Error:", "ERROR:", "No such file", "File not found"];
    let ends =
        ["No such file or directory", "command not found", "Permission denied", "Is a directory"];
    let first = start.lines().next().unwrap_or_default();
    is_short
        && (says.iter().any(|say| start.starts_with(say))
            || ends.iter().any(|end| first.ends_with(end)))
}

/// True where an agent says that it left out lines.
fn is_abridged(text: &str) -> bool {
    const WINDOW: usize = 200;
    ["truncated", "omitted", "elided", "clipped"].iter().any(|word| {
        text.match_indices(word).any(|(at, _)| {
            let before = &text[text.floor_char_boundary(at.saturating_sub(WINDOW))..at];
            let line = before.rsplit_once('\n').map_or(before, |(_, line)| line);
            let is_line = line.len() < before.len() || before.len() == at;
            is_line && line.trim_start().starts_with(['[', '<', '.', '…', '('])
        })
    })
}
