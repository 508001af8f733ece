//! cargo, rustc, clippy and the test harness of Rust.

use super::{Format, Mark, Severity, Until};

pub struct Cargo;

/// What cargo says while it works, right-aligned to twelve columns.
const STEPS: [&str; 12] = [
    "Compiling",
    "Checking",
    "Downloading",
    "Downloaded",
    "Updating",
    "Locking",
    "Adding",
    "Fresh",
    "Blocking",
    "Documenting",
    "Building",
    "Unpacking",
];

/// Column at which cargo's verbs end.
const VERB: usize = 12;

impl Format for Cargo {
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>> {
        match line.as_bytes().first()? {
            b' ' if !within => step(line),
            b't' => test(line),
            b'e' | b'w' => diagnostic(line, within),
            b'-' => {
                let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
                let name = name.strip_suffix(" stdout").unwrap_or(name);
                Some(Mark::Finding(Severity::Failure, Until::Section, Some(name)))
            }
            b'f' => (line == "failures:").then_some(Mark::Heading),
            _ => None,
        }
    }
}

fn step(line: &str) -> Option<Mark<'_>> {
    let words = line.trim_start();
    let verb = words.split(' ').next()?;
    if line.len() - words.len() + verb.len() != VERB {
        return None;
    }
    match verb {
        "Finished" => Some(Mark::Verdict),
        _ => STEPS.contains(&verb).then_some(Mark::Passing("build steps")),
    }
}

fn test(line: &str) -> Option<Mark<'_>> {
    if line.starts_with("test result: ") {
        return Some(Mark::Verdict);
    }
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    match result.split([' ', ',']).next()? {
        "ok" => Some(Mark::Passing("passing tests")),
        "FAILED" => Some(Mark::Failing(name)),
        _ => None,
    }
}

fn diagnostic(line: &str, within: bool) -> Option<Mark<'_>> {
    let (severity, rest) = if let Some(rest) = line.strip_prefix("warning") {
        (Severity::Warning, rest)
    } else {
        (Severity::Error, line.strip_prefix("error")?)
    };
    let coded = rest.starts_with('[') && rest.contains("]: ");
    let said = rest.strip_prefix(": ");
    let summary = said.is_some_and(|said| {
        said.starts_with("could not compile")
            || said.starts_with("aborting due to")
            || said.starts_with("test failed, to rerun")
            || said.starts_with("build failed")
            || said.contains(" generated ") && said.contains(" warning")
            || said.contains(" warnings emitted")
    });
    if summary {
        return Some(Mark::Verdict);
    }
    // A failed test's own output may say anything.
    (coded || said.is_some() && !within).then_some(Mark::Finding(severity, Until::Blank, None))
}
