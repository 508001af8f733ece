//! gcc, clang, tsc and the linkers.

use super::{Format, Mark, Severity, Until, cut, site};

pub struct Compiler;

impl Format for Compiler {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        if line.starts_with("collect2: error: ") || line.starts_with("ld: error: ") {
            return Some(Mark::Verdict);
        }
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            let counted = line.ends_with(" generated.") || line.contains(" errors generated");
            return counted.then_some(Mark::Verdict);
        }
        let in_function = line.ends_with(':') && cut(line, ": In ").is_some();
        if line.starts_with("In file included from ") || in_function {
            return Some(Mark::Heading);
        }
        // `x.c:3:9: error: …` and `x.ts(3,9): error TS2322: …`.
        let (place, message) = cut(line, ": ")?;
        if place.starts_with("/usr/bin/ld") || place.contains(":(.") {
            let unlinked = ["undefined reference to ", "multiple definition of "];
            return unlinked.iter().any(|said| message.contains(said)).then_some(Mark::Finding(
                Severity::Error,
                Until::Line,
                None,
            ));
        }
        if place.contains(' ') || site::find(place).is_none() {
            return None;
        }
        let word = message.split([':', ' ']).next()?;
        let finding = |severity| Mark::Finding(severity, Until::Outdent, None);
        match word {
            "error" | "fatal" => Some(finding(Severity::Error)),
            "warning" => Some(finding(Severity::Warning)),
            "note" => Some(Mark::More),
            _ => None,
        }
    }
}
