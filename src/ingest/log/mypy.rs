//! mypy.

use super::{Format, Mark, Severity, Until, cut, site};

pub struct Mypy;

impl Format for Mypy {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        let summary =
            line.starts_with("Found ") && line.contains(" error") && line.contains(" in ")
                || line.starts_with("Success: no issues found");
        if summary {
            return Some(Mark::Verdict);
        }
        let (place, message) = cut(line, ": ")?;
        let path = site::find(place)?.path;
        if !(path.ends_with(".py") || path.ends_with(".pyi")) || place.contains(' ') {
            return None;
        }
        let finding = |severity| Mark::Finding(severity, Until::Outdent, None);
        match message.split_once(": ")?.0 {
            "error" => Some(finding(Severity::Error)),
            "warning" => Some(finding(Severity::Warning)),
            "note" => Some(Mark::More),
            _ => None,
        }
    }
}
