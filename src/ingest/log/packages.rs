//! pip, npm and apt.

use super::{Format, Mark, Severity, Until, cut};

pub struct Packages;

/// What pip and apt say while they work.
const STEPS: [&str; 9] = [
    "Collecting ",
    "Downloading ",
    "Using cached ",
    "Requirement already satisfied: ",
    "Unpacking ",
    "Setting up ",
    "Preparing to unpack ",
    "Selecting previously unselected package ",
    "Processing triggers for ",
];

impl Format for Packages {
    fn mark<'a>(&self, line: &'a str, within: bool) -> Option<Mark<'a>> {
        let words = line.trim_start();
        let steps = matches!(words.as_bytes().first()?, b'C' | b'D' | b'P' | b'R' | b'S' | b'U')
            && STEPS.iter().any(|step| words.starts_with(step));
        if steps || words.starts_with("━━━") {
            return Some(Mark::Passing("steps of installing"));
        }
        if line.starts_with("Get:") && line.contains(" http") {
            return Some(Mark::Passing("downloads"));
        }
        // All that npm says of one error stands behind the same words.
        let npm = ["npm error", "npm ERR!"].iter().any(|start| line.starts_with(start));
        if npm {
            return Some(if within {
                Mark::More
            } else {
                Mark::Finding(Severity::Error, Until::Blank, None)
            });
        }
        if line.starts_with("npm warn ") || line.starts_with("npm WARN ") {
            return Some(Mark::Finding(Severity::Warning, Until::Line, None));
        }
        if let Some(said) = line.strip_prefix("ERROR: ") {
            let pip = ["Could not ", "No matching ", "Cannot ", "Failed ", "Invalid ", "pip's "];
            return pip.iter().any(|start| said.starts_with(start)).then_some(Mark::Finding(
                Severity::Error,
                Until::Line,
                None,
            ));
        }
        let verdict = line.starts_with("Successfully installed ")
            || line.starts_with("up to date")
            || line.starts_with("E: ")
            || line.starts_with("found ") && line.contains(" vulnerabilit")
            || line.starts_with(['a', 'r', 'c']) && cut(line, " packages in ").is_some()
            || line.starts_with("added ") && line.contains(" package");
        verdict.then_some(Mark::Verdict)
    }
}
