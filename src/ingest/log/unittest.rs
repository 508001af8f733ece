//! Python's unittest, and what runs it, such as Django's own runner.

use super::{Format, Mark, Severity, Until};

pub struct Unittest;

impl Format for Unittest {
    fn mark<'a>(&self, line: &'a str, _within: bool) -> Option<Mark<'a>> {
        match line.as_bytes().first()? {
            b'=' if line.len() >= 70 && line.bytes().all(|b| b == b'=') => Some(Mark::Heading),
            b'R' => ran(line).then_some(Mark::Verdict),
            b'O' if line == "OK" || line.starts_with("OK (") => Some(Mark::Verdict),
            b'F' if line.starts_with("FAILED (") => Some(Mark::Verdict),
            _ => report(line).or_else(|| one_test(line)),
        }
    }
}

/// `Ran 3 tests in 0.001s`.
fn ran(line: &str) -> bool {
    line.strip_prefix("Ran ").is_some_and(|rest| rest.contains(" test") && rest.contains(" in "))
}

/// `FAIL: test_x (tests.Case.test_x)` over a report.
fn report(line: &str) -> Option<Mark<'_>> {
    let name = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))?;
    let test = name.contains(" (") && name.contains(')');
    test.then_some(Mark::Finding(Severity::Failure, Until::Section, Some(name)))
}

/// `test_x (tests.Case.test_x) ... ok`.
fn one_test(line: &str) -> Option<Mark<'_>> {
    if !["ok", "FAIL", "ERROR"].iter().any(|result| line.ends_with(result)) {
        return None;
    }
    let (name, result) = line.rsplit_once(" ... ")?;
    if !name.contains(" (") && !name.starts_with("test") {
        return None;
    }
    match result {
        "ok" => Some(Mark::Passing("passing tests")),
        "FAIL" | "ERROR" => Some(Mark::Failing(name)),
        _ => None,
    }
}
