//! What no rule may do, whatever the text.

mod before;

use proptest::prelude::*;

use super::*;
use crate::ingest::span::{Kind, Part};

const KINDS: [Kind; 7] =
    [Kind::FileView, Kind::Log, Kind::Diff, Kind::Listing, Kind::Search, Kind::Screen, Kind::Other];

fn span(kind: Kind, text: &str) -> Span {
    let command = Some("cargo test".to_owned());
    Span { command, ..Span::new(Part::Content, 0..text.len(), kind) }
}

fn fold(rule: &dyn Rule, kind: Kind, text: &str) -> Option<String> {
    rule.fold(&span(kind, text), text, &History::default()).map(|folded| folded.text)
}

/// Whatever all rules make of a text, one after the other.
fn all(kind: Kind, text: &str) -> String {
    RULES.iter().fold(text.to_owned(), |text, rule| fold(*rule, kind, &text).unwrap_or(text))
}

fn is_sound(text: &str) {
    for kind in KINDS {
        for rule in RULES.iter().copied() {
            let Some(folded) = fold(rule, kind, text) else { continue };
            assert!(folded.len() < text.len(), "{} made {kind:?} longer", rule.name());
            let again = fold(rule, kind, &folded);
            assert_eq!(again, None, "{} of {kind:?} folds its own work: {folded}", rule.name());
        }
    }
}

/// Lines of tools and of programs, to be mixed.
fn lines() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "test a ... ok",
        "test b ... ok",
        "test c ... FAILED",
        "test result: FAILED. 1 passed; 1 failed",
        "failures:",
        "---- c stdout ----",
        "thread 'c' panicked at src/lib.rs:3:9:",
        "error[E0433]: failed to resolve",
        "  --> src/a.rs:12:5",
        "warning: unused",
        "   Compiling shop v0.1.0",
        "==== FAILURES ====",
        "____ test_x ____",
        "E   assert 1 == 2",
        "tests/a.py::test_x PASSED [ 5%]",
        "FAILED tests/a.py::test_x - assert",
        "Traceback (most recent call last):",
        "  File \"a.py\", line 3, in f",
        "ValueError: no",
        "--- FAIL: TestX (0.00s)",
        "    a_test.go:9: got 3",
        "  ● cart › totals",
        "2024-01-31 12:00:00 ERROR no page 1234",
        "2024-01-31 12:00:01 INFO page 12345",
        "2024-01-31 12:00:02 INFO page 123456",
        "… 4 more like this",
        "diff --git a/x.py b/x.py",
        "@@ -1,3 +1,4 @@",
        "+added",
        "",
        "}",
        "\u{1b}[31mred\u{1b}[0m  ",
        " 10%\r 20%\r",
        "größer → 日本語",
    ]);
    let run = (line, 1usize..9, prop::sample::select(vec!["\n", "\r\n"]));
    prop::collection::vec(run, 0..24).prop_map(|runs| {
        runs.into_iter().map(|(line, times, end)| format!("{line}{end}").repeat(times)).collect()
    })
}

proptest! {
    #[test]
    fn any_text_is_folded_soundly(text in "[ -~\\n\\r\\t\\x00\\x1bé→日]{0,400}") {
        is_sound(&text);
    }

    #[test]
    fn any_mix_of_tools_lines_is_folded_soundly(text in lines()) {
        is_sound(&text);
    }

    #[test]
    fn any_block_that_repeats_is_folded_soundly(text in lines(), times in 1usize..7) {
        is_sound(&text.repeat(times));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_long_text_is_folded_soundly(text in lines(), seed in 0usize..1000) {
        let unlike = |i: usize| format!("{text}step {} of x{}\n", i % 997, i * 7919 % (seed + 13));
        let times = 100_000 / (text.len() + 12);
        is_sound(&(0..times).map(unlike).collect::<String>());
    }
}

#[test]
fn monsters_are_folded_soundly() {
    is_sound("");
    is_sound(&"\n".repeat(5000));
    is_sound(&"x".repeat(5_000_000));
    is_sound(&"日本語".repeat(50_000));
    is_sound(&"\0".repeat(100_000));
    is_sound(&"a\u{1b}[31mb\t\0c\u{1b}[0m\r\n".repeat(5000));
    is_sound(&"error: x\n".repeat(20_000));
    is_sound(&(0..20_000).map(|i| format!("a.c:{i}:1: error: no\n")).collect::<String>());
}

/// Asserts that every line of a log stands in what it is folded to.
fn keeps_all(kind: Kind, text: &str) {
    let folded = all(kind, text);
    for line in text.lines() {
        assert!(folded.lines().any(|kept| kept == line), "{line:?} is gone of {folded}");
    }
}

#[test]
fn what_differs_in_a_word_a_small_number_or_a_path_never_merges() {
    let words = ["red", "blue", "green", "black", "white", "grey"];
    for text in [
        words.map(|word| format!("error: no {word} tea in the shop\n")).concat(),
        words.map(|word| format!("cannot find {word} tea in the shop\n")).concat(),
        words.map(|word| format!("shop/{word}.c:3:9: error: unknown tea\n")).concat(),
        words.map(|word| format!("opened /srv/{word}/tea for reading\n")).concat(),
        (1..9).map(|n| format!("error: only {n} teas in the shop\n")).collect(),
        (101..109).map(|n| format!("shelf {n} has no tea in the shop\n")).collect(),
        (1..9).map(|n| format!("a.c:{n}000:9: error: unknown tea\n")).collect(),
        (1..9).map(|n| format!("error: expected {n}000 teas in the shop\n")).collect(),
        (1..9).map(|n| format!("E       assert {n}000 == 1000\n")).collect(),
    ] {
        keeps_all(Kind::Log, &text);
        keeps_all(Kind::Other, &text);
    }
    let search: String = (1..9).map(|n| format!("src/a.rs:{n}000:    let tea = 1;\n")).collect();
    keeps_all(Kind::Search, &search);
}

#[test]
fn code_and_diffs_are_left_as_they_are() {
    let code =
        "int prices[] = {\n".to_owned() + &"    1000, 2000, 3000,   \n".repeat(50) + "};\r\n";
    for kind in [Kind::FileView, Kind::Diff] {
        assert_eq!(all(kind, &code), code);
    }
    let log = "+test a ... ok\n".repeat(40);
    let diff =
        format!("diff --git a/x.log b/x.log\n--- a/x.log\n+++ b/x.log\n@@ -0,0 +1,40 @@\n{log}");
    assert_eq!(all(Kind::Diff, &diff), diff, "a diff of a log is a diff");
}

#[test]
fn a_log_that_quotes_code_keeps_the_code() {
    let log = "\
error[E0308]: mismatched types
  --> src/a.rs:3:9
   |
3  |         println!(\"test a ... ok\");
4  |         println!(\"test a ... ok\");
5  |         println!(\"test a ... ok\");
6  |         println!(\"test a ... ok\");
7  |         println!(\"test a ... ok\");
   |         ^^^^^^^
";
    assert_eq!(all(Kind::Log, log), log);
}

#[test]
fn terminal_noise_goes() {
    let cases = [
        ("\u{1b}[1m\u{1b}[32m   Compiling\u{1b}[0m a\tb\n", "   Compiling a\tb\n"),
        (" 10%\r 50%\r100%\ndone\n", "100%\ndone\n"),
        (" 10%\r 50%\r\n", " 50%\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("a  \nb\t\nc ", "a\nb\nc"),
        ("\u{1b}]0;title\u{7}a\n", "a\n"),
    ];
    for (text, expected) in cases {
        assert_eq!(fold(&terminal::Terminal, Kind::Log, text).as_deref(), Some(expected));
    }
    assert_eq!(fold(&terminal::Terminal, Kind::FileView, "a  \r\n"), None, "edits quote these");
    assert_eq!(fold(&terminal::Terminal, Kind::Search, "1:a  \n2:b\n"), None);
}

#[test]
fn repeats_keep_the_first_and_the_last() {
    let pages = (1000..1010).map(|n| format!("12:00:01 visited page {n}\n")).collect::<String>();
    assert_eq!(
        fold(&repeats::Repeats, Kind::Log, &format!("start\n{pages}end\n")).unwrap(),
        "start\n12:00:01 visited page 1000\n… 8 more like this\n12:00:01 visited page 1009\nend\n"
    );
    let tests = (0..20).map(|n| format!("test adds_{n} ... ok\n")).collect::<String>();
    assert_eq!(
        fold(&repeats::Repeats, Kind::Log, &tests).unwrap(),
        "test adds_0 ... ok\n… 18 more passing tests\ntest adds_19 ... ok\n"
    );
    let frames = "  File \"a.py\", line 3, in walk\n    walk(depth)\n".repeat(30);
    let text = format!("Traceback (most recent call last):\n{frames}RecursionError: too deep\n");
    let frame = "  File \"a.py\", line 3, in walk\n    walk(depth)\n";
    assert_eq!(
        fold(&repeats::Repeats, Kind::Log, &text).unwrap(),
        format!(
            "Traceback (most recent call last):\n{frame}  … 28 more like these 2 lines\n{frame}\
             RecursionError: too deep\n"
        )
    );
}

#[test]
fn a_long_log_keeps_its_ends_and_every_distinct_error() {
    let mut text = String::new();
    for i in 0..9000 {
        match i % 900 {
            450 => {
                text.push_str(&format!("src/a{}.c:{i}:1: error: no tea\n  {i} | tea\n", i / 900))
            }
            _ => text.push_str(&format!("step {}-{} of many\n", i % 700, i % 31)),
        }
    }
    text.push_str("make: *** [Makefile:3: all] Error 1\n");
    let folded = fold(&long_log::LongLog, Kind::Log, &text).unwrap();
    assert!(folded.len() < 20_000, "{}", folded.len());
    for file in 0..10 {
        assert!(folded.contains(&format!("src/a{file}.c:{}:1: error", file * 900 + 450)));
    }
    assert!(folded.ends_with("make: *** [Makefile:3: all] Error 1\n"));
    assert!(folded.contains("step 0-0 of many\nstep 1-1 of many\n"));
    assert!(folded.lines().next().unwrap().contains("cargo test 2>&1 | sed -n FROM,TOp"));
}
