//! go build, go vet and go test.

use super::{Format, Mark, Severity, Until, cut};

pub struct Go;

impl Format for Go {
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>> {
        let words = line.trim_start();
        if let Some(rest) = words.strip_prefix("--- ") {
            let (result, rest) = rest.split_once(": ")?;
            let name = rest.split(" (").next()?;
            return match result {
                "PASS" => Some(Mark::Passing("passing tests")),
                "FAIL" => Some(Mark::Finding(Severity::Failure, Until::Outdent, Some(name))),
                _ => None,
            };
        }
        if words.strip_prefix("=== ").is_some_and(|rest| {
            ["RUN ", "PAUSE ", "CONT ", "NAME "].iter().any(|verb| rest.starts_with(verb))
        }) {
            return Some(Mark::Passing("tests that began"));
        }
        if line.starts_with("ok  \t") || line.starts_with("?   \t") {
            return Some(Mark::Passing("passing packages"));
        }
        if line == "PASS" || line == "FAIL" || line.starts_with("FAIL\t") {
            return Some(Mark::Verdict);
        }
        // `    x_test.go:9: got 3, want 4` stands before the test's result under -v.
        if !within && line.starts_with(' ') && is_place(words, "_test.go:") {
            return Some(Mark::Finding(Severity::Failure, Until::Outdent, None));
        }
        if let Some(package) = line.strip_prefix("# ") {
            let one_word = !package.contains(' ') || package.ends_with(']');
            return (one_word && package.contains('/')).then_some(Mark::Heading);
        }
        is_place(line.strip_prefix("vet: ").unwrap_or(line), ".go:").then_some(Mark::Finding(
            Severity::Error,
            Until::Outdent,
            None,
        ))
    }
}

/// Whether a line begins with `x.go:3:` or `x.go:3:9:`.
fn is_place(line: &str, ending: &str) -> bool {
    cut(line, ending).is_some_and(|(path, rest)| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        !path.contains(' ') && digits > 0 && rest.as_bytes().get(digits) == Some(&b':')
    })
}
