//! Questions about facts that an agent needs later, made from a trajectory's own text.
//!
//! A probe is a line that the model is to complete from memory: what stands in front of the fact
//! is given, the fact is the answer. Which probes a text gives depends on the text alone.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde::{Deserialize, Serialize};

use crate::trajectory::{Message, Role};

/// Wrong answers beside the right one.
pub const N_DISTRACTORS: usize = 4;

/// Probes of one kind from one trajectory, so that none drowns the others.
const PER_KIND: usize = 24;

/// What a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The value that an assertion expected.
    Expected,
    /// Where an error was raised: path and line.
    Location,
    /// A function's parameters.
    Signature,
    Constant,
    /// The command whose tests passed.
    Command,
    /// The end of one of the task's instructions.
    Instruction,
}

/// A line to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub fact: Fact,
    pub question: String,
    /// What the answer begins with, without white space at its end.
    pub given: String,
    pub answer: String,
    /// Answers to other probes of the kind.
    pub distractors: [String; N_DISTRACTORS],
}

/// A fact as it was found.
struct Found {
    question: String,
    given: String,
    answer: String,
    /// Byte of the whole text.
    at: usize,
}

/// How facts of one kind are written: the pattern's groups, and what is made of them.
struct Pattern {
    fact: Fact,
    regex: Regex,
    question: &'static str,
    given: &'static str,
    answer: &'static str,
}

static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let pattern = |fact, regex, question, given, answer| Pattern {
        fact,
        // The patterns are constants of this file, and a test compiles them all.
        regex: Regex::new(regex).unwrap_or_else(|error| unreachable!("{error}")),
        question,
        given,
        answer,
    };
    vec![
        pattern(
            Fact::Expected,
            r"(?m)\bassert ([^\n=]{3,80}?) == ([^\n]{1,40})$",
            "Which value was expected of `$1`? Quote the assertion.",
            "assert $1 ==",
            "$2",
        ),
        pattern(
            Fact::Expected,
            r"(?m)\b(assertEqual|assert_eq!)\(([^\n]{3,80}), ([^\n,]{1,40}?)\)+;?$",
            "Which value was expected of `$2`? Quote the assertion.",
            "$1($2,",
            "$3",
        ),
        pattern(
            Fact::Location,
            r#"(?m)File "([^"\n]+)", line (\d+), in [^\n]+\n[^\n]*(?:\n[ \t~^]+)?\n([A-Z]\w*(?:Error|Exception)\b[^\n]{0,80})"#,
            "In which file and line was this raised: $3",
            "File \"",
            "$1\", line $2",
        ),
        pattern(
            Fact::Location,
            r"(?m)^((?:error|warning)(?:\[\w+\])?: [^\n]{8,100})\n *--> ([^\s:]+:\d+)",
            "In which file and line is this: $1",
            "-->",
            "$2",
        ),
        pattern(
            Fact::Location,
            r"(?m)^([\w/.-]+\.py:\d+): (\w+(?:Error|Exception))\b",
            "In which file and line did the test fail with $2?",
            "",
            "$1",
        ),
        pattern(
            Fact::Location,
            r"(?m)^([\w./-]+\.\w+:\d+): *([^\n]{12,80}?)\r?$",
            "The search found this line; in which file and line stands it: $2",
            "",
            "$1",
        ),
        pattern(
            Fact::Signature,
            r"\b(def|fn|func|function|class) (\w{3,})\(([^()\n]{3,80})\)",
            "What are the parameters of `$2`? Quote its definition.",
            "$1 $2(",
            "$3)",
        ),
        pattern(
            Fact::Constant,
            r#"(?m)\b([a-z_][\w.-]{2,40}) = ("[^"\n]{1,40}"|'[^'\n]{1,40}'|-?\d[\d._]*|True|False|None|true|false)[,;]?\r?$"#,
            "What is the value of `$1`? Quote the line.",
            "$1 =",
            "$2",
        ),
        pattern(
            Fact::Constant,
            r"(?m)\b([A-Z][A-Z0-9]*_[A-Z0-9_]+(?:: [\w&' ]+)?) = ([^\n=;]{1,40}?);?$",
            "What is the value of `$1`? Quote the line.",
            "$1 =",
            "$2",
        ),
    ]
});

static PASSED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b\d+ passed\b|test result: ok|(?m)^OK$")
        .unwrap_or_else(|error| unreachable!("{error}"))
});

static FAILED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b[1-9]\d* (failed|errors?)\b|FAILED")
        .unwrap_or_else(|error| unreachable!("{error}"))
});

static INSTRUCTION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)[^.!?\n]*\b(?:[Mm]ust|MUST|[Ss]hould|[Nn]ever|NEVER|[Aa]lways|ALWAYS|[Dd]o not|DO NOT|[Dd]on't|[Mm]ake sure|[Oo]nly|[Ee]nsure)\b[^.!?\n]*[.!?]")
        .unwrap_or_else(|error| unreachable!("{error}"))
});

/// The probes that a conversation gives: of facts that it says once, before its last quarter, and
/// of which there are enough others of the kind.
pub fn probes(messages: &[Message]) -> Vec<Probe> {
    let mut text = String::new();
    let mut starts = Vec::with_capacity(messages.len());
    for message in messages {
        starts.push(text.len());
        let calls = message.tool_calls.iter().map(|call| unquoted(&call.function.arguments));
        let parts =
            [message.reasoning_content.clone().unwrap_or_default(), message.content.clone()];
        for part in parts.into_iter().chain(calls) {
            text += &part;
            text.push('\n');
        }
    }
    let mut found: BTreeMap<Fact, Vec<Found>> = BTreeMap::new();
    for pattern in PATTERNS.iter() {
        for captures in pattern.regex.captures_iter(&text) {
            found.entry(pattern.fact).or_default().push(pattern.found(&captures));
        }
    }
    found.insert(Fact::Command, commands(messages, &starts));
    found.insert(Fact::Instruction, instructions(messages, &starts));

    let mut probes = Vec::new();
    for (fact, all) in found {
        let mut of_kind = Vec::new();
        for one in &all {
            let said = [one.given.as_str(), one.answer.as_str()].join(" ");
            let is_known =
                |probe: &Probe| probe.given == one.given && probe.question == one.question;
            if one.at < text.len() / 4 * 3
                && is_once(&text, one, fact)
                && !one.answer.trim().is_empty()
                && !one.question.contains(&one.answer)
                && !of_kind.iter().any(is_known)
                && said.len() < 240
                && let Some(distractors) = distractors(&all, &one.answer)
            {
                of_kind.push(Probe {
                    fact,
                    question: one.question.clone(),
                    given: one.given.clone(),
                    answer: one.answer.clone(),
                    distractors,
                });
            }
        }
        // Evenly from all over the text.
        let step = of_kind.len().div_ceil(PER_KIND).max(1);
        probes.extend(of_kind.into_iter().step_by(step));
    }
    probes
}

impl Pattern {
    fn found(&self, captures: &Captures<'_>) -> Found {
        let expand = |template: &str| {
            let mut text = String::new();
            captures.expand(template, &mut text);
            text.trim().to_owned()
        };
        Found {
            question: expand(self.question),
            given: expand(self.given),
            answer: expand(self.answer),
            at: captures.get(0).map_or(0, |whole| whole.start()),
        }
    }
}

/// The commands whose output says that tests passed; of one kind with the commands that did not.
fn commands(messages: &[Message], starts: &[usize]) -> Vec<Found> {
    let mut found = Vec::new();
    for (pair, start) in messages.windows(2).zip(starts) {
        let [said, output] = pair else { continue };
        let Some(command) = command(said) else { continue };
        let has_passed = PASSED.is_match(&output.content) && !FAILED.is_match(&output.content);
        let question = match has_passed {
            true => "With which command did the tests pass? Quote it.",
            // Not asked, only a distractor.
            false => "",
        };
        let (question, given) = (question.to_owned(), String::new());
        found.push(Found { question, given, answer: command, at: *start });
    }
    let n_passed = found.iter().filter(|one| !one.question.is_empty()).count();
    if n_passed != 1 {
        found.iter_mut().for_each(|one| one.question.clear());
    }
    found
}

/// The shell command that an assistant message runs, if it is one short line.
fn command(message: &Message) -> Option<String> {
    if message.role != Role::Assistant {
        return None;
    }
    let called = message.tool_calls.first().and_then(|call| {
        let arguments: serde_json::Value = serde_json::from_str(&call.function.arguments).ok()?;
        Some(arguments["command"].as_str()?.to_owned())
    });
    let command = called.or_else(|| {
        let (_, fenced) = message.content.split_once("```bash\n")?;
        Some(fenced.split_once("\n```")?.0.to_owned())
    })?;
    let command = command.trim();
    (!command.contains('\n') && (4..=100).contains(&command.len())).then(|| command.to_owned())
}

/// Sentences of the system's and the first user's message that demand something, cut in two.
fn instructions(messages: &[Message], starts: &[usize]) -> Vec<Found> {
    let first_user = messages.iter().position(|message| message.role == Role::User);
    let mut found = Vec::new();
    for (idx, (message, start)) in messages.iter().zip(starts).enumerate() {
        if message.role != Role::System && Some(idx) != first_user {
            continue;
        }
        for sentence in INSTRUCTION.find_iter(&message.content) {
            let words: Vec<_> = sentence.as_str().split_whitespace().collect();
            if !(8..=40).contains(&words.len()) {
                continue;
            }
            let cut = words.len() - 4;
            found.push(Found {
                question: "Quote the instruction that begins with the following words.".to_owned(),
                given: words[..cut].join(" "),
                answer: words[cut..].join(" "),
                at: start + sentence.start(),
            });
        }
    }
    found
}

/// Whether the fact is said in one place only, and only one thing is said of its subject.
fn is_once(text: &str, found: &Found, fact: Fact) -> bool {
    let n_times = |part: &str| text.matches(part).count();
    match fact {
        Fact::Expected | Fact::Signature | Fact::Constant => n_times(&found.given) == 1,
        // Frames share their beginning; what is asked about is named in the question.
        Fact::Location => {
            let subject = found.question.rsplit(": ").next().unwrap_or_default();
            n_times(&found.answer) == 1 && n_times(subject.trim_end_matches('?')) <= 1
        }
        Fact::Command => !found.question.is_empty() && n_times(&found.answer) == 1,
        Fact::Instruction => true,
    }
}

/// Four other answers, those nearest in length, as a wrong answer is not to be told by its size.
fn distractors(all: &[Found], answer: &str) -> Option<[String; N_DISTRACTORS]> {
    let mut others: Vec<&str> = all.iter().map(|found| found.answer.as_str()).collect();
    others.retain(|other| *other != answer && !other.is_empty());
    others.sort_by_key(|other| (other.len().abs_diff(answer.len()), *other));
    others.dedup();
    let others: Vec<_> = others.into_iter().take(N_DISTRACTORS).map(str::to_owned).collect();
    others.try_into().ok()
}

/// The texts of a call's arguments without JSON's escapes.
fn unquoted(arguments: &str) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(arguments) else {
        return arguments.to_owned();
    };
    let texts = fields.values().map(|value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(output: &str) -> Vec<Message> {
        let filler = "nothing to see here\n".repeat(output.len() / 4);
        vec![
            Message::text(Role::User, "Look."),
            Message::text(Role::Tool, output),
            Message::text(Role::Assistant, filler),
        ]
    }

    fn asked(output: &str) -> Vec<(Fact, String, String)> {
        let probes = probes(&conversation(output));
        probes.into_iter().map(|probe| (probe.fact, probe.given, probe.answer)).collect()
    }

    #[test]
    fn every_kind_of_fact_is_found() {
        let asserts: String = (0..5).map(|i| format!("assert total({i}) == {}\n", i * 7)).collect();
        let constants: String = (0..5).map(|i| format!("MAX_{i}_SIZE = {}\n", i * 7)).collect();
        let functions: String = (0..5).map(|i| format!("def load{i}(path, n={i}):\n")).collect();
        let frames: String = (0..5)
            .map(|i| {
                format!("  File \"a/b{i}.py\", line {i}, in f\n    go()\nValueError: bad {i}\n")
            })
            .collect();
        for (text, fact, given, answer) in [
            (&asserts, Fact::Expected, "assert total(2) ==", "14"),
            (&constants, Fact::Constant, "MAX_2_SIZE =", "14"),
            (&functions, Fact::Signature, "def load2(", "path, n=2)"),
            (&frames, Fact::Location, "File \"", "a/b2.py\", line 2"),
        ] {
            let found = asked(text);
            let expected = (fact, given.to_owned(), answer.to_owned());
            assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
        }
    }

    #[test]
    fn what_is_said_twice_or_late_is_not_asked() {
        let lines: String = (0..6).map(|i| format!("LIMIT_{i}_A = {}\n", i + 10)).collect();
        assert_eq!(asked(&lines).len(), 6);
        assert_eq!(asked(&(lines.clone() + "LIMIT_3_A = 99\n")).len(), 5);
        let mut messages = conversation(&lines);
        messages.reverse();
        assert_eq!(probes(&messages), []);
    }

    #[test]
    fn distractors_are_other_answers_of_the_kind() {
        let lines: String = (0..8).map(|i| format!("LIMIT_{i}_A = {}\n", i + 10)).collect();
        for probe in probes(&conversation(&lines)) {
            assert!(!probe.distractors.contains(&probe.answer));
            let mut different = probe.distractors.to_vec();
            different.dedup();
            assert_eq!(different.len(), N_DISTRACTORS);
        }
        let few: String = (0..4).map(|i| format!("LIMIT_{i}_A = {}\n", i + 10)).collect();
        assert_eq!(asked(&few), []);
    }

    #[test]
    fn the_only_command_with_passing_tests_is_asked_for() {
        let turn = |command: &str, output: &str| {
            let said = format!("Now.\n```bash\n{command}\n```");
            [Message::text(Role::Assistant, said), Message::text(Role::User, output)]
        };
        let mut messages = vec![Message::text(Role::User, "Fix it.")];
        for i in 0..4 {
            messages.extend(turn(&format!("cat file{i}.py"), "text"));
        }
        messages.extend(turn("pytest -q tests", "3 passed in 0.1s"));
        messages.extend(turn("pytest -q", "1 failed, 3 passed in 0.1s"));
        messages.push(Message::text(Role::Assistant, "padding ".repeat(100)));
        let found = probes(&messages);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].fact, found[0].answer.as_str()), (Fact::Command, "pytest -q tests"));
    }
}
