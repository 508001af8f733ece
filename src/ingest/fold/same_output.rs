//! An output that stands in the conversation already.

use super::{AGAIN, Folded, Rule, note};
use crate::ingest::history::History;
use crate::ingest::log::{Log, Role};
use crate::ingest::span::{Kind, Span};
use crate::ingest::template::template;

/// Says of an output that was given before where it stands.
pub struct SameOutput;

impl Rule for SameOutput {
    fn name(&self) -> &'static str {
        "same_output"
    }

    fn fold(&self, span: &Span, text: &str, history: &History) -> Option<Folded> {
        // Views of files go by their lines.
        if span.kind == Kind::FileView && span.path.is_some() {
            return None;
        }
        let is_log = span.kind == Kind::Log;
        let (past, exact) = match history.same_output(text) {
            Some(past) => (past, true),
            // Elsewhere a number that differs may be what was asked for.
            None if is_log => (history.similar_output(text)?, false),
            None => return None,
        };
        if !is_log && history.was_noted(&past.place, AGAIN) {
            return None;
        }
        let log = Log::read(if is_log { text } else { "" });
        // Of a failure, a number that differs has to be told; that is for another rule.
        let may_differ = |(line, role): (&&str, &Role)| {
            matches!(role, Role::Finding(_)) && template(line) != **line
        };
        if !exact && log.lines.iter().zip(&log.roles).any(may_differ) {
            return None;
        }
        let mut out = String::new();
        let from = match (note::command(&past.span), &past.span.path) {
            (Some(command), _) => format!(" of `{command}`"),
            (None, Some(path)) => format!(" for {path}"),
            (None, None) => String::new(),
        };
        let but = if exact { "" } else { ", but for times and ids" };
        let first_line = note::first_line(&past.first_line);
        note::push(
            &mut out,
            &format!("[same as the earlier output{from} that begins {first_line:?}{but}]"),
        );
        for at in log.verdict() {
            out.push_str(log.lines.get(at).copied().unwrap_or_default());
        }
        let text = note::shorter(out, text)?;
        Some(Folded { text, points_to: vec![past.place.clone()] })
    }
}
