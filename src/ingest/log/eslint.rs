//! eslint, as it writes for people.

use super::{Format, Mark, Severity, Until};

pub struct Eslint;

impl Format for Eslint {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        if line.starts_with("✖ ") && line.contains(" problem") {
            return Some(Mark::Verdict);
        }
        let Some(rest) = line.strip_prefix("  ") else {
            // A file's path stands over what was found in it.
            let path = line.starts_with('/') && !line.contains([' ', ':']);
            let known = [".js", ".ts", ".jsx", ".tsx", ".mjs", ".cjs", ".vue"];
            return (path && known.iter().any(|end| line.ends_with(end))).then_some(Mark::Heading);
        };
        // `  3:10  error  'x' is not defined  no-undef`.
        let mut words = rest.split_whitespace();
        let (row, column) = words.next()?.split_once(':')?;
        if ![row, column].iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            return None;
        }
        let severity = match words.next()? {
            "error" => Severity::Error,
            "warning" => Severity::Warning,
            _ => return None,
        };
        Some(Mark::Finding(severity, Until::Line, None))
    }
}
