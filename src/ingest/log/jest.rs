//! jest, vitest, and node's own test runner.

use super::{Format, Mark, Severity, Until};

pub struct Jest;

/// What a summary's lines begin with.
const SUMMARY: [&str; 9] = [
    "Tests: ",
    "Test Suites: ",
    "Snapshots: ",
    "Time: ",
    "Test Files  ",
    "Tests  ",
    "Duration  ",
    "ℹ ",
    "Ran all test suites",
];

impl Format for Jest {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        // Most lines begin with none of these.
        if !matches!(words.as_bytes().first()?, b'T' | b'S' | b'D' | b'R' | b'P' | b'F' | 0x80..) {
            return None;
        }
        if SUMMARY.iter().any(|start| words.starts_with(start)) {
            return Some(Mark::Verdict);
        }
        if let Some(name) = words.strip_prefix("● ") {
            // `● Console` and the like are no tests.
            let test = indent == 2 && !matches!(name, "Console" | "Validation Error");
            return test.then_some(Mark::Finding(Severity::Failure, Until::Section, Some(name)));
        }
        if words.starts_with("✓ ") || words.starts_with("√ ") || words.starts_with("✔ ") {
            return Some(Mark::Passing("passing tests"));
        }
        for sign in ["✕ ", "× ", "✖ "] {
            // eslint's summary has the same sign.
            if let Some(name) = words.strip_prefix(sign).filter(|rest| !rest.contains(" problem")) {
                return Some(Mark::Failing(untimed(name)));
            }
        }
        if let Some(rest) = words.strip_prefix("PASS ") {
            return is_file(rest).then_some(Mark::Passing("passing test files"));
        }
        if let Some(rest) = words.strip_prefix("FAIL ") {
            let name = rest.trim_start();
            let of_file = is_file(name.split(" > ").next()?);
            return of_file.then_some(if name.contains(" > ") {
                Mark::Finding(Severity::Failure, Until::Section, Some(name))
            } else {
                Mark::Heading
            });
        }
        (words.starts_with("⎯⎯⎯") && words.chars().any(char::is_alphabetic))
            .then_some(Mark::Heading)
    }
}

/// A test's name without `(3 ms)` or ` 3ms` behind it.
fn untimed(name: &str) -> &str {
    let name = name.split(" (").next().unwrap_or(name);
    match name.rsplit_once(' ') {
        Some((name, time)) if time.ends_with("ms") => name,
        _ => name,
    }
}

fn is_file(text: &str) -> bool {
    let name = text.trim_start().split(' ').next().unwrap_or(text);
    [".js", ".ts", ".jsx", ".tsx", ".mjs", ".cjs", ".mts"].iter().any(|end| name.ends_with(end))
}
