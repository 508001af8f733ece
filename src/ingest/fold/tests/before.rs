//! What rules make of an output after others.

use proptest::prelude::*;

use super::lines;
use crate::ingest::condense::Condense;
use crate::ingest::reader::{Anywhere, Reader, Reading};
use crate::trajectory::{FunctionCall, Message, Role, ToolCall};

/// Reads the call of a command and what it wrote.
fn run(reader: &mut Reader, command: &str, output: &str) -> Reading {
    let call = ToolCall {
        id: "1".to_owned(),
        kind: "function".to_owned(),
        function: FunctionCall {
            name: "bash".to_owned(),
            arguments: serde_json::json!({ "command": command }).to_string(),
        },
    };
    let asks = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
    reader.read(&asks, &Anywhere);
    let id = Some("1".to_owned());
    reader.read(&Message { tool_call_id: id, ..Message::text(Role::Tool, output) }, &Anywhere)
}

fn reader() -> Reader {
    Reader::new(Condense::default()).unwrap()
}

fn given(reader: &mut Reader, command: &str, output: &str) -> String {
    run(reader, command, output).given.unwrap_or_else(|| output.to_owned())
}

fn code(lines: std::ops::Range<usize>) -> String {
    lines.map(|n| format!("    let value_{n} = compute(\"line {n}\");\n")).collect()
}

#[test]
fn a_view_shows_only_what_was_not_shown_before() {
    let mut reader = reader();
    let first = code(1..41);
    assert_eq!(given(&mut reader, "sed -n 1,40p src/a.rs", &first), first, "a first showing");
    let second = given(&mut reader, "sed -n 21,60p src/a.rs", &code(21..61));
    let note = "[lines 21-40 were shown before: sed -n 21,40p src/a.rs]\n";
    assert_eq!(second, format!("{note}{}", code(41..61)));
}

#[test]
fn whoever_asks_for_what_a_note_stands_for_is_given_it() {
    let mut reader = reader();
    given(&mut reader, "sed -n 1,40p src/a.rs", &code(1..41));
    let folded = given(&mut reader, "sed -n 1,40p src/a.rs", &code(1..41));
    assert_eq!(folded, "[lines 1-40 were shown before: sed -n 1,40p src/a.rs]\n");
    let asked = code(5..35);
    assert_eq!(given(&mut reader, "sed -n 5,34p src/a.rs", &asked), asked);
}

#[test]
fn a_line_that_only_reads_like_another_is_shown() {
    let mut reader = reader();
    given(&mut reader, "sed -n 1,40p src/a.rs", &code(1..41));
    // Lines of the first view in another order are new code.
    let shuffled: String = (1..30).rev().map(|n| code(n..n + 1)).collect();
    assert_eq!(given(&mut reader, "sed -n 101,129p src/a.rs", &shuffled), shuffled);
    assert_eq!(
        given(&mut reader, "sed -n 1,29p src/b.rs", &code(1..30)),
        code(1..30),
        "another file's lines are its own"
    );
}

fn cargo_test(left: usize, also: &str) -> String {
    let frames: String = (0..20).map(|n| format!("  {n:>2}: shop::frame_{n}\n")).collect();
    format!(
        "running 2 tests\ntest totals ... FAILED\ntest names ... FAILED\n\nfailures:\n\n\
         ---- names stdout ----\nthread 'names' panicked at src/b.rs:3:9:\nno names\n{frames}\n\
         ---- totals stdout ----\nthread 'totals' panicked at src/a.rs:3:9:\n\
         assertion `left == right` failed\n  left: {left}\n right: 1230\n{frames}\n{also}\n\
         failures:\n    names\n    totals\n\ntest result: FAILED. 0 passed; 2 failed\n"
    )
}

#[test]
fn of_the_same_failures_what_differs_is_told() {
    let mut reader = reader();
    given(&mut reader, "cargo test", &cargo_test(1231, ""));
    let again = given(&mut reader, "cargo test", &cargo_test(4711, ""));
    assert!(again.starts_with("[same 2 failures as the previous `cargo test`"), "{again}");
    assert!(again.contains("\n  left: 4711\n"), "a number of four digits that changed: {again}");
    assert!(again.contains("src/b.rs:3:9:\nno names"), "the first failure and its place: {again}");
    assert!(again.contains("\n    names\n    totals\n"), "{again}");
    assert!(again.ends_with("test result: FAILED. 0 passed; 2 failed\n"));

    let also = "---- prices stdout ----\nthread 'prices' panicked at src/c.rs:3:9:\nno price\n";
    let new = given(&mut reader, "cargo test", &cargo_test(4711, also));
    assert!(new.contains(also), "what is new is told in full: {new}");
    assert!(new.contains("new: prices"), "{new}");
}

#[test]
fn a_small_number_a_word_or_a_path_makes_another_failure() {
    for (one, other) in [("3:9", "4:9"), ("no names", "no tea"), ("src/b.rs", "src/c.rs")] {
        let mut reader = reader();
        let before = cargo_test(1231, "");
        given(&mut reader, "cargo test", &before);
        let now = given(&mut reader, "cargo test", &before.replacen(one, other, 1));
        assert!(now.contains(other), "{other} is told: {now}");
    }
}

#[test]
fn an_output_that_stands_there_is_one_line() {
    let mut reader = reader();
    let listing: String = (0..60).map(|n| format!("src/module_{n}.rs\n")).collect();
    given(&mut reader, "find . -name '*.rs'", &listing);
    assert_eq!(
        given(&mut reader, "find . -name '*.rs'", &listing),
        "[same as the earlier output of `find . -name '*.rs'` that begins \"src/module_0.rs\"]\n"
    );
    assert_eq!(given(&mut reader, "find . -name '*.rs'", &listing), listing, "asked again");
}

#[test]
fn blocks_of_an_earlier_output_are_named_and_the_rest_is_told() {
    let mut reader = reader();
    let issue = |state: &str| {
        let body: String = (0..40).map(|n| format!("step {n} of the plan\\n")).collect();
        format!("{{\n  \"state\": \"{state}\",\n  \"body\": \"{body}\"\n}}\n")
    };
    given(&mut reader, "tracker show 5", &issue("open"));
    let again = given(&mut reader, "tracker show 5", &issue("closed"));
    assert!(again.contains("\"state\": \"closed\""), "{again}");
    assert!(again.contains("lines as in the earlier output of `tracker show 5`, from"), "{again}");
    assert!(again.len() < 400, "{again}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_second_run_is_folded_soundly(
        before in lines(), now in lines(), more in lines(), command in prop::sample::select(vec![
            "cargo test", "python3 x.py", "cat src/a.rs", "sed -n 3,90p src/a.rs", "grep -n a src",
        ])
    ) {
        let mut reader = reader();
        given(&mut reader, command, &format!("{before}{now}"));
        for output in [format!("{now}{before}{more}"), format!("{before}{more}"), before] {
            let reading = run(&mut reader, command, &output);
            prop_assert!(reading.given.is_none_or(|given| given.len() < output.len()));
        }
    }
}
