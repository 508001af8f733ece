//! pytest.

use super::{Format, Mark, Severity, Until, cut};

pub struct Pytest;

impl Format for Pytest {
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>> {
        // What an assertion compared, where the report's head is missing.
        if !within && line.starts_with("E   ") {
            return Some(Mark::Finding(Severity::Failure, Until::Line, None));
        }
        if let Some(title) = ruled(line, '=') {
            return Some(if is_summary(title) { Mark::Verdict } else { Mark::Heading });
        }
        if let Some(title) = ruled(line, '_') {
            // Parts of one report are ruled with blanks between: `_ _ _ _`.
            let parts = title.trim_matches(['_', ' ']).is_empty();
            return (!parts).then_some(Mark::Finding(
                Severity::Failure,
                Until::Section,
                Some(title),
            ));
        }
        if is_summary(line) {
            return Some(Mark::Verdict);
        }
        if let Some(rest) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
            let name = rest.split(" - ").next()?;
            return (name.contains("::") || name.ends_with(".py")).then_some(Mark::Failing(name));
        }
        if cut(line, "::").is_some() {
            return one_test(line);
        }
        dots(line)
    }
}

/// The title in a line such as `==== FAILURES ====`.
fn ruled(line: &str, rule: char) -> Option<&str> {
    let inner = line.strip_prefix(rule)?.trim_start_matches(rule).strip_prefix(' ')?;
    let title = inner.strip_suffix(rule)?.trim_end_matches(rule).strip_suffix(' ')?;
    (!title.is_empty()).then_some(title)
}

/// `2 failed, 3 passed in 0.05s`.
fn is_summary(text: &str) -> bool {
    let counted = |part: &str| {
        let (count, what) = part.split_once(' ').unwrap_or((part, ""));
        count.bytes().all(|b| b.is_ascii_digit())
            && ["failed", "passed", "error", "skipped", "deselected", "xfailed", "xpassed"]
                .iter()
                .any(|word| what.starts_with(word))
    };
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.starts_with("no tests ran in ");
    }
    let Some((counts, _)) = cut(text, " in ") else { return false };
    counts.split(", ").next().is_some_and(counted)
}

/// `tests/test_x.py::test_y PASSED [ 50%]`, also with the worker before it.
fn one_test(line: &str) -> Option<Mark<'_>> {
    let line = match line.strip_prefix("[gw") {
        Some(_) => line.split_once("%] ")?.1,
        None => line,
    };
    if let Some(name) = line.strip_prefix("PASSED ").filter(|name| name.contains("::")) {
        return (!name.contains(" - ")).then_some(Mark::Passing("passing tests"));
    }
    let (name, result) = line.split_once(' ').filter(|(name, _)| name.contains("::"))?;
    match result.split(' ').next()? {
        "PASSED" => Some(Mark::Passing("passing tests")),
        "FAILED" | "ERROR" => Some(Mark::Failing(name)),
        _ => None,
    }
}

/// `tests/test_x.py ......... [ 50%]`, all passing.
fn dots(line: &str) -> Option<Mark<'_>> {
    if !line.ends_with([']', '.']) {
        return None;
    }
    let (name, rest) = cut(line, ".py ")?;
    let dots = rest.split(" [").next()?.trim_end();
    let all = !dots.is_empty() && dots.bytes().all(|b| b == b'.') && !name.contains(' ');
    all.then_some(Mark::Passing("passing test files"))
}
