//! Tracebacks and panics of Python, Rust, Go, JavaScript and Java.

use super::{Format, Mark, Severity, Until, cut};

pub struct Trace;

impl Format for Trace {
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>> {
        if !line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let error = |until| Some(Mark::Finding(Severity::Error, until, None));
        if line.starts_with("Traceback (most recent call last)") {
            return error(Until::Report);
        }
        if line.starts_with("thread '") && line.contains("' panicked at ")
            || line.starts_with("thread '") && line.contains(") panicked at ")
        {
            return error(Until::Blank);
        }
        if line.starts_with("panic: ") || line.starts_with("fatal error: ") {
            return error(Until::Blank);
        }
        if line.starts_with("goroutine ") && line.ends_with("]:") {
            return error(Until::Blank);
        }
        if line.starts_with("Exception in thread ") {
            return error(Until::Outdent);
        }
        if line.starts_with("Caused by: ") {
            return within.then_some(Mark::More);
        }
        // `TypeError: x is not a function` of node, `java.io.IOException: …`.
        let head = line.strip_prefix("Uncaught ").unwrap_or(line);
        let kind = cut(head, ": ").map_or(head, |(kind, _)| kind);
        let kind = kind.split(" [").next()?;
        let named = kind.ends_with("Error") || kind.ends_with("Exception");
        let word =
            kind.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'$'));
        let capital = kind.rsplit('.').next()?.starts_with(|c: char| c.is_ascii_uppercase());
        (named && word && capital && head.len() > kind.len()).then_some(Mark::Finding(
            Severity::Error,
            Until::Outdent,
            None,
        ))
    }
}
