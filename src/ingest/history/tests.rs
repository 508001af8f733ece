use super::*;
use crate::ingest::condense::Condense;
use crate::ingest::reader::{Anywhere, Reader};
use crate::ingest::span::Part;
use crate::trajectory::{FunctionCall, Message, Role, ToolCall};

/// A conversation of calls and their outputs.
struct Talk(Reader);

impl Talk {
    fn new() -> Self {
        Self(Reader::new(Condense { enabled: false, ..Condense::default() }).unwrap())
    }

    fn call(&mut self, name: &str, arguments: serde_json::Value, output: &str) -> Span {
        let function = FunctionCall { name: name.to_owned(), arguments: arguments.to_string() };
        let call = ToolCall { id: "c".to_owned(), kind: "function".to_owned(), function };
        let asked = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
        self.0.read(&asked, &Anywhere);
        let message =
            Message { tool_call_id: Some("c".to_owned()), ..Message::text(Role::Tool, output) };
        self.0.read(&message, &Anywhere).spans.remove(0)
    }

    fn bash(&mut self, command: &str, output: &str) -> Span {
        self.call("bash", serde_json::json!({ "command": command }), output)
    }

    fn history(&self) -> &History {
        self.0.history()
    }

    /// For each line of a view, the number it was shown with before and whether it is current.
    fn seen(&self, span: &Span, text: &str) -> Vec<Option<(u32, bool)>> {
        let file = self.history().shown(span.path.as_deref().unwrap()).unwrap();
        file.seen(numbered_lines(span, text))
            .map(|(_, seen)| seen.map(|s| (s.number, self.history().is_current(file, s))))
            .collect()
    }
}

const FILE: &str = "fn first_function() {}\n}\nfn second_function() {}\n}\n";

#[test]
fn an_output_that_stands_already_is_found() {
    let mut talk = Talk::new();
    talk.bash("python a.py", "\n  took 1.5s in all\n");
    talk.bash("python b.py", "other");
    let history = talk.history();
    let found = history.same_output("\n  took 1.5s in all\n").unwrap();
    assert_eq!(found.place, Place { message: 1, bytes: 0..20 });
    assert_eq!(found.first_line, "  took 1.5s in all");
    assert_eq!(found.span.command.as_deref(), Some("python a.py"));
    assert_eq!(history.same_output("\n  took 2.5s in all\n"), None);
    assert_eq!(history.similar_output("\n  took 2.5s in all\n"), Some(found));
    assert_eq!(history.similar_output("\n  took 2.5s at all\n"), None);
}

#[test]
fn lines_are_known_under_any_view_and_path() {
    let mut talk = Talk::new();
    talk.bash("cd /w && cat src/a.rs", FILE);
    let numbered = "     1→fn first_function() {}\n     2→}\n     9→new\n";
    let span = talk.call("Read", serde_json::json!({ "file_path": "src/a.rs" }), numbered);
    assert_eq!(talk.history().shown("./src/b/../a.rs").unwrap().path(), "/w/src/a.rs");
    assert!(talk.history().shown("other/a.rs").is_none());
    let line = talk.history().shown("src/a.rs").unwrap().line(2).unwrap();
    assert_eq!(line.place, Place { message: 3, bytes: 32..42 }, "the last showing");
    assert_eq!(talk.seen(&span, numbered), [Some((1, true)), Some((2, true)), Some((9, true))]);
}

#[test]
fn a_stretch_that_was_moved_is_found_whole() {
    let mut talk = Talk::new();
    let span = talk.bash("cat a.rs", FILE);
    let moved = format!("// new\n{FILE}");
    let unnumbered = Span { lines: Some([1, 5]), ..span };
    let seen = talk.seen(&unnumbered, &moved);
    let numbers: Vec<_> = seen.iter().map(|seen| seen.map(|(number, _)| number)).collect();
    assert_eq!(numbers, [None, Some(1), Some(2), Some(3), Some(4)]);
}

#[test]
fn an_edit_makes_lines_unsure_from_where_it_is() {
    let unsure = |name: &str, arguments: serde_json::Value| {
        let mut talk = Talk::new();
        let span = talk.bash("cat a.rs", FILE);
        talk.call(name, arguments, "Done.");
        let seen = talk.seen(&span, FILE);
        seen.iter().filter(|seen| seen.is_some_and(|(_, is_current)| !is_current)).count()
    };
    let bash = |command: &str| serde_json::json!({ "command": command });
    assert_eq!(unsure("bash", bash("sed -i '3s/a/b/' a.rs")), 2);
    assert_eq!(unsure("bash", bash("sed -i 's/a/b/' a.rs")), 4);
    assert_eq!(unsure("bash", bash("python change.py")), 4);
    assert_eq!(unsure("bash", bash("cargo test")), 0);
    assert_eq!(unsure("bash", bash("sed -i 's/a/b/' b.rs")), 0);
    let edit = |old: &str| serde_json::json!({"path": "a.rs", "old_str": old, "new_str": ""});
    assert_eq!(unsure("edit", edit("first_function")), 4, "it is not known where");
    assert_eq!(unsure("insert", serde_json::json!({"path": "a.rs", "insert_line": 4})), 1);
}

#[test]
fn what_is_shown_after_an_edit_is_current() {
    let mut talk = Talk::new();
    talk.bash("sed -i 1d a.rs", "ok");
    let span = talk.bash("cat a.rs", FILE);
    assert!(talk.seen(&span, FILE).iter().all(|seen| seen.unwrap().1));
    assert!(talk.history().is_edited("a.rs"));
    assert!(!talk.history().is_edited("b.rs"));
}

#[test]
fn the_previous_run_is_that_of_the_same_command() {
    let mut talk = Talk::new();
    talk.bash("cargo test -p x 2>&1 | tail -5", "running 1 test\n");
    talk.bash("cargo test", "running 2 tests\n");
    talk.bash("pytest", "1 passed in 1s\n");
    let of = |command: &str| {
        let command = Some(command.to_owned());
        let span = Span { command, ..Span::new(Part::Content, 0..0, Kind::Log) };
        talk.history().previous_log(&span).map(|log| (log.place.message, log.text.to_string()))
    };
    assert_eq!(of("timeout 9 cargo test -p x"), Some((1, "running 1 test\n".to_owned())));
    assert_eq!(of("cargo test -p y"), Some((3, "running 2 tests\n".to_owned())));
    assert_eq!(of("go test"), None);
}
