use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Cache, Extent, Given, Structure, read};
use crate::ingest::language::Language;
use crate::ingest::prior::Class;
use crate::ingest::span::Kind;

const FILES: [&str; 9] = [
    "ledger.rs",
    "ledger.py",
    "ledger.js",
    "ledger.ts",
    "ledger.tsx",
    "ledger.go",
    "Ledger.java",
    "ledger.c",
    "ledger.cpp",
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/code").join(name)
}

fn source(name: &str) -> String {
    fs::read_to_string(fixture(name)).unwrap()
}

fn view(path: &str) -> Given<'_> {
    Given { kind: Kind::FileView, path: Some(path), language: None, first_line: Some(1) }
}

fn read_one(text: &str, given: &Given<'_>) -> Structure {
    let mut structures = read(text, given);
    assert_eq!(structures.len(), 1, "{structures:#?}");
    structures.remove(0)
}

/// A structure in a form to be read by people: the class of each line, then what was found.
fn describe(text: &str, structure: &Structure) -> String {
    let mut out = String::new();
    let number = |byte: usize| text[..byte].matches('\n').count() + 1;
    for line in &structure.lines {
        let name = format!("{:?}", line.class).to_lowercase();
        writeln!(out, "{name:<10} | {}", text[line.bytes.clone()].trim_end()).unwrap();
    }
    writeln!(out, "\ncaptures").unwrap();
    for capture in &structure.captures {
        let first = number(capture.bytes.start);
        let content = text[capture.bytes.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
        let name = format!("{:?}", capture.class).to_lowercase();
        writeln!(out, "{first:>4} {name:<10} {}", content.chars().take(60).collect::<String>())
            .unwrap();
    }
    writeln!(out, "\ndefinitions").unwrap();
    for definition in &structure.definitions {
        let [first, last] = definition.numbers.unwrap();
        let owner = definition.owner.as_ref().map(|owner| format!("{owner}.")).unwrap_or_default();
        let extent = format!("{:?}", definition.extent).to_lowercase();
        writeln!(out, "{first:>4}-{last:<4} {extent:<9} {owner}{}", definition.name).unwrap();
    }
    writeln!(out, "\nreferences").unwrap();
    for reference in &structure.references {
        let owner = reference.owner.as_ref().map(|owner| format!("{owner}.")).unwrap_or_default();
        let from = reference.from.map_or("-", |from| &structure.definitions[from].name);
        let verb = if reference.is_call { "calls" } else { "names" };
        let line = number(reference.bytes.start);
        writeln!(out, "{line:>4} {from} {verb} {owner}{}", reference.name).unwrap();
    }
    out
}

/// With `ATTAR_RECORD` set in the environment the descriptions are written anew.
#[test]
fn a_file_is_described_as_recorded() {
    for name in FILES {
        let text = source(name);
        let described = describe(&text, &read_one(&text, &view(name)));
        let recorded = fixture(&format!("{name}.structure"));
        if std::env::var_os("ATTAR_RECORD").is_some() {
            fs::write(&recorded, &described).unwrap();
        }
        let recorded = fs::read_to_string(&recorded).unwrap_or_default();
        for (line, (is, was)) in described.lines().zip(recorded.lines()).enumerate() {
            assert_eq!(is, was, "{name}.structure, line {}", line + 1);
        }
        assert_eq!(described.lines().count(), recorded.lines().count(), "{name}");
    }
}

/// Lines with a gutter of one of the usual forms.
fn numbered(text: &str, first: usize, form: usize) -> String {
    let lines = text.lines().enumerate();
    lines.fold(String::new(), |mut out, (index, line)| {
        let n = first + index;
        match form {
            0 => writeln!(out, "{n:>6}→{line}"),
            1 => writeln!(out, "{n:>6}\t{line}"),
            2 => writeln!(out, "{n}:{line}\r"),
            3 => writeln!(out, "{n:>4} | {line}"),
            _ => writeln!(out, "{n}{}{line}", if n.is_multiple_of(5) { ':' } else { '-' }),
        }
        .unwrap();
        out
    })
}

#[test]
fn a_gutter_changes_nothing() {
    for name in FILES {
        let text = source(name);
        let bare = read_one(&text, &view(name));
        for form in 0..5 {
            let view_text = format!("[File: {name}]\n{}(end)\n", numbered(&text, 1, form));
            let structure = read_one(&view_text, &Given { first_line: None, ..view(name) });
            let facts = |structure: &Structure| -> Vec<_> {
                structure.lines.iter().map(|line| (line.number, line.class)).collect()
            };
            assert_eq!(facts(&structure), facts(&bare), "{name}, form {form}");
            let names = |structure: &Structure| -> Vec<_> {
                let definitions = structure.definitions.iter();
                definitions.map(|found| (found.name.clone(), found.numbers)).collect()
            };
            assert_eq!(names(&structure), names(&bare), "{name}, form {form}");
            for reference in &structure.references {
                assert_eq!(view_text[reference.bytes.clone()], reference.name);
            }
        }
    }
}

/// How many of the lines in windows of 30 have the class that they have in the whole file.
fn agreement(name: &str) -> f64 {
    const WINDOW: usize = 30;
    let text = source(name);
    let whole = read_one(&text, &view(name));
    let lines: Vec<_> = text.lines().collect();
    let (mut n_same, mut n_lines) = (0, 0);
    for first in 0..lines.len().saturating_sub(WINDOW - 1) {
        let shown = numbered(&(lines[first..first + WINDOW].join("\n") + "\n"), first + 1, 0);
        let part = read_one(&shown, &Given { first_line: None, ..view(name) });
        assert_eq!(part.lines.len(), WINDOW);
        for (line, as_whole) in part.lines.iter().zip(&whole.lines[first..]) {
            n_lines += 1;
            n_same += usize::from(line.class == as_whole.class);
        }
    }
    f64::from(n_same as u32) / f64::from(n_lines)
}

#[test]
fn a_fragment_is_read_as_in_its_file() {
    for name in FILES {
        let agreement = agreement(name);
        println!("{name}: {:.1} % of lines", 100.0 * agreement);
        assert!(agreement > 0.95, "{name}: {agreement}");
    }
}

fn class_of(text: &str, structures: &[Structure], part: &str) -> Class {
    let at = text.find(part).unwrap();
    let lines = structures.iter().flat_map(|structure| &structure.lines);
    let mut around = lines.filter(|line| line.bytes.contains(&at));
    let line = around.next().unwrap_or_else(|| panic!("{part} is no code"));
    assert!(around.next().is_none(), "{part} is read twice");
    line.class
}

const DIFF: &str = "\
diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -10,6 +10,7 @@ class A:
         self.x = x

     def f(self):
-        return self.x
+        if self.x:
+            return self.g(self.x)
         # nothing

--- a/notes.txt
+++ b/notes.txt
@@ -1 +1 @@
-if x:
+if y:
";

#[test]
fn a_diff_is_read_by_its_sides() {
    let given = Given { kind: Kind::Diff, path: None, language: None, first_line: None };
    let structures = read(DIFF, &given);
    assert_eq!(structures.len(), 2);
    for (part, class) in [
        ("self.x = x", Class::Assignment),
        ("def f", Class::Signature),
        ("return self.x\n", Class::Return),
        ("if self.x", Class::Condition),
        ("return self.g", Class::Return),
        ("# nothing", Class::Comment),
    ] {
        assert_eq!(class_of(DIFF, &structures, part), class, "{part}");
    }
    let new = structures.iter().find(|structure| !structure.references.is_empty()).unwrap();
    assert_eq!(new.path.as_deref(), Some("src/a.py"));
    assert_eq!(new.references[0].name, "g");
    assert_eq!(new.definitions[0].numbers, Some([12, 15]));
}

#[test]
fn fences_hold_code() {
    let text = "Try this:\n\n```rust\nfn f() -> u32 {\n    g()\n}\n```\nand\n````diff\n--- a/x.go\n+++ b/x.go\n@@ -1 +1 @@\n-a()\n+b()\n````\nor ```python\n";
    let given = Given { kind: Kind::Answer, path: None, language: None, first_line: None };
    let structures = read(text, &given);
    assert_eq!(class_of(text, &structures, "fn f"), Class::Signature);
    assert_eq!(class_of(text, &structures, "b()"), Class::Call);
    assert!(structures.iter().flat_map(|found| &found.lines).all(|line| line.bytes.start > 10));
}

#[test]
fn a_search_is_read_file_by_file() {
    let text = "src/a.rs:3:fn f() {\nsrc/a.rs-4-    g();\n--\nsrc/a.rs:9:use x::y;\nb.py:3:import x\nc.txt:4:if\n";
    let given = Given { kind: Kind::Search, path: None, language: None, first_line: None };
    let structures = read(text, &given);
    let paths: Vec<_> = structures.iter().map(|found| found.path.as_deref().unwrap()).collect();
    assert_eq!(paths, ["src/a.rs", "src/a.rs", "b.py"]);
    assert_eq!(class_of(text, &structures, "fn f"), Class::Signature);
    assert_eq!(class_of(text, &structures, "use x"), Class::Import);
    assert_eq!(structures[2].lines[0].number, Some(3));
}

#[test]
fn what_is_no_code_has_no_structure() {
    for kind in [Kind::Log, Kind::Listing, Kind::Screen, Kind::Other] {
        assert_eq!(read("fn f() {}\n", &Given { kind, ..view("a.rs") }), []);
    }
    assert_eq!(read("fn f() {}\n", &view("a.txt")), []);
    assert_eq!(read("", &view("a.rs"))[0].lines, []);
}

#[test]
fn generated_code_is_known_by_its_head_and_by_its_lines() {
    let text = "// Code generated by protoc. DO NOT EDIT.\npackage a\n\nfunc f() {}\n";
    let structure = read_one(text, &view("a.go"));
    assert!(structure.lines.iter().all(|line| line.class == Class::Generated));
    let text = format!("f();\n{}\n", "g();".repeat(1000));
    let structure = read_one(&text, &view("a.js"));
    assert_eq!(structure.lines[0].class, Class::Call);
    assert_eq!(structure.lines[1].class, Class::Generated);
}

#[test]
fn whatever_comes_is_read() {
    let texts = [
        "\0\0fn f() {\0}\0".to_owned(),
        "x".repeat(5 << 20),
        "(".repeat(100_000),
        "(".repeat(100_000) + &"]".repeat(100_000),
        "}\n".repeat(50_000),
        "if x { ".repeat(20_000),
        "if x:\n ".repeat(3_000),
        "[1, ".repeat(50_000),
        "a.b(".repeat(20_000),
        "\"\"\"\n'''\n`\n/*\n".repeat(5_000),
        "/*".repeat(100_000),
        "12→".repeat(1000),
        "1:\n".to_owned(),
        "\u{feff}\r\n\r\u{2028}fn ä() {}".to_owned(),
    ];
    for name in FILES {
        for text in &texts {
            check(text, &view(name));
        }
    }
}

#[test]
fn a_text_that_comes_again_is_not_read_again() {
    let text = source("ledger.rs");
    let mut cache = Cache::default();
    let first = cache.read(&text, &view("ledger.rs"));
    assert_eq!(first[..], read(&text, &view("ledger.rs")));
    assert!(Arc::ptr_eq(&first, &cache.read(&text, &view("ledger.rs"))));
    let elsewhere = cache.read(&text, &view("other.rs"));
    assert_eq!(elsewhere[0].path.as_deref(), Some("other.rs"));
}

#[test]
fn real_sessions_are_read() {
    let Some(folder) = std::env::var_os("ATTAR_TRAJECTORIES") else {
        println!("ATTAR_TRAJECTORIES is not set; nothing to read");
        return;
    };
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let session: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let messages = session["messages"].as_array().unwrap();
        for content in messages.iter().filter_map(|message| message["content"].as_str()) {
            for kind in [Kind::FileView, Kind::Diff, Kind::Answer] {
                check(content, &Given { kind, ..view("a.py") });
                check(content, &Given { kind, ..view("a.rs") });
            }
        }
    }
}

/// What holds for any text.
fn check(text: &str, given: &Given<'_>) {
    let is_place = |bytes: &Range<usize>| {
        assert!(text.get(bytes.clone()).is_some(), "{bytes:?} of {} in {text:?}", text.len());
    };
    for structure in read(text, given) {
        let mut end = 0;
        for line in &structure.lines {
            assert!(line.bytes.start >= end, "lines overlap in {text:?}");
            end = line.bytes.end;
            is_place(&line.bytes);
            line.comment.iter().for_each(is_place);
        }
        structure.captures.iter().for_each(|capture| is_place(&capture.bytes));
        for definition in &structure.definitions {
            is_place(&definition.bytes);
            assert!(definition.extent == Extent::Data || !definition.name.is_empty());
        }
        for reference in &structure.references {
            is_place(&reference.bytes);
            assert!(reference.from.is_none_or(|from| from < structure.definitions.len()));
        }
    }
}

fn language() -> impl Strategy<Value = Language> {
    prop::sample::select(vec![
        Language::Rust,
        Language::Python,
        Language::JavaScript,
        Language::TypeScript,
        Language::Tsx,
        Language::Go,
        Language::Java,
        Language::C,
        Language::Cpp,
    ])
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::FileView, Kind::Search, Kind::Diff, Kind::Answer])
}

/// Text that looks a little like code.
fn codelike() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "fn ",
        "def ",
        "class ",
        "f",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ":",
        ";",
        ",",
        "\n",
        "\n    ",
        "\n        ",
        "\t",
        "\r\n",
        "if ",
        "else",
        "return ",
        "match ",
        "\"",
        "\"\"\"",
        "'",
        "`",
        "/*",
        "*/",
        "//",
        "#",
        "@",
        "=",
        "=>",
        "->",
        "12→",
        "3:",
        "+",
        "-",
        "@@ -1,3 +1,4 @@\n",
        "+++ b/a.rs\n",
        "```rust\n",
        "```",
        "ä",
        "\0",
        "\\",
        "1",
        "<",
        ">",
        "a.py:3:",
    ]);
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_is_read(text in any::<String>(), language in language(), kind in kind()) {
        check(&text, &Given { kind, path: None, language: Some(language), first_line: None });
    }

    #[test]
    fn anything_like_code_is_read(text in codelike(), language in language(), kind in kind()) {
        check(&text, &Given { kind, path: None, language: Some(language), first_line: Some(7) });
    }

    #[test]
    fn any_window_of_a_file_is_read(
        file in 0..FILES.len(),
        first in 0..100_usize,
        n_lines in 1..60_usize,
        form in 0..5_usize,
    ) {
        let text = source(FILES[file]);
        let window: Vec<_> = text.lines().skip(first).take(n_lines).collect();
        check(&numbered(&window.join("\n"), first + 1, form), &view(FILES[file]));
    }
}
