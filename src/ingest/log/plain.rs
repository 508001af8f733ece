//! Any program's log: lines that carry a level, or begin with `error:`.

use super::{Format, Mark, Severity, Until};

pub struct Plain;

/// Levels as logging libraries write them.
const LEVELS: [(&str, Severity); 6] = [
    ("ERROR", Severity::Error),
    ("FATAL", Severity::Error),
    ("CRITICAL", Severity::Error),
    ("SEVERE", Severity::Error),
    ("WARNING", Severity::Warning),
    ("WARN", Severity::Warning),
];

/// What programs put before a complaint.
const STARTS: [(&str, Severity); 6] = [
    ("error: ", Severity::Error),
    ("Error: ", Severity::Error),
    ("fatal: ", Severity::Error),
    ("FATAL: ", Severity::Error),
    ("warning: ", Severity::Warning),
    ("Warning: ", Severity::Warning),
];

/// Words of a line among which a level stands: the time and the thread may be before it.
const FIRST_WORDS: usize = 5;

impl Format for Plain {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        let severity = STARTS
            .iter()
            .find(|(start, _)| line.starts_with(start))
            .or_else(|| {
                // Every level has one of these letters.
                memchr::memchr2(b'R', b'F', line.as_bytes())?;
                line.split_ascii_whitespace().take(FIRST_WORDS).find_map(|word| {
                    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
                    LEVELS.iter().find(|(level, _)| *level == word)
                })
            })?
            .1;
        Some(Mark::Finding(severity, Until::Line, None))
    }
}
