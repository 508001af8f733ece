//! ruff and flake8.

use super::{Format, Mark, Severity, Until, site};

pub struct Ruff;

impl Format for Ruff {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        let found = line.strip_prefix("Found ").and_then(|rest| rest.split_once(" error"));
        let counted = found.is_some_and(|(count, _)| count.bytes().all(|b| b.is_ascii_digit()));
        if counted || line == "All checks passed!" || line.starts_with("[*] ") {
            return Some(Mark::Verdict);
        }
        // `F401 [*] …` over a picture of the code.
        let (code, rest) = line.split_once(' ')?;
        if is_code(code) && !rest.is_empty() {
            return Some(Mark::Finding(Severity::Error, Until::Blank, None));
        }
        // `x.py:1:8: F401 …` on one line.
        let place = code.strip_suffix(':').filter(|place| site::find(place).is_some())?;
        let coded = is_code(rest.split([' ', ':']).next()?) || rest.starts_with("SyntaxError: ");
        (coded && place.contains(".py")).then_some(Mark::Finding(
            Severity::Error,
            Until::Line,
            None,
        ))
    }
}

/// A rule's code: one to four capitals and three or four digits.
fn is_code(word: &str) -> bool {
    let letters = word.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = word.len() - letters;
    (1..=4).contains(&letters)
        && (3..=4).contains(&digits)
        && word.bytes().skip(letters).all(|b| b.is_ascii_digit())
}
