//! make, ninja and cmake.

use super::{Format, Mark, Severity, Until, cut};

pub struct Make;

/// What cmake says while it looks around.
const CHECKS: [&str; 6] = [
    "-- Looking for ",
    "-- Check for ",
    "-- Checking ",
    "-- Performing Test ",
    "-- Detecting ",
    "-- The ",
];

impl Format for Make {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        match line.as_bytes().first()? {
            b'm' | b'g' if line.starts_with("make") || line.starts_with("gmake") => {
                let (who, said) = cut(line, ": ")?;
                if who.contains(' ') {
                    None
                } else if said.starts_with("*** ") || said.starts_with("Nothing to be done") {
                    Some(Mark::Verdict)
                } else {
                    said.contains("ing directory ").then_some(Mark::Passing("changes of folder"))
                }
            }
            b'[' => {
                let (count, rest) = line.strip_prefix('[')?.split_once("] ")?;
                let steps = count.trim_start();
                let counted = steps.ends_with('%') || steps.contains('/');
                (counted
                    && steps.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'%' | b'/'))
                    && ["Building ", "Linking ", "Built target ", "Generating ", "Compiling "]
                        .iter()
                        .any(|verb| rest.starts_with(verb)))
                .then_some(Mark::Passing("build steps"))
            }
            b'C' => {
                let severity = if line.starts_with("CMake Error") {
                    Severity::Error
                } else if line.starts_with("CMake Warning") {
                    Severity::Warning
                } else {
                    return None;
                };
                Some(Mark::Finding(severity, Until::Outdent, None))
            }
            b'-' => {
                let ended =
                    line.starts_with("-- Configuring ") || line.starts_with("-- Generating ");
                if ended {
                    return Some(Mark::Verdict);
                }
                CHECKS
                    .iter()
                    .any(|start| line.starts_with(start))
                    .then_some(Mark::Passing("configuration checks"))
            }
            b'F' => line.strip_prefix("FAILED: ").map(Mark::Failing),
            b'n' => line.starts_with("ninja: ").then_some(Mark::Verdict),
            _ => None,
        }
    }
}
