use proptest::prelude::*;

use super::*;
use crate::ingest::fold::Folded;
use crate::trajectory::{FunctionCall, Role, ToolCall};

/// Drops lines that begin with a dot.
struct Dots;

impl Rule for Dots {
    fn name(&self) -> &'static str {
        "dots"
    }

    fn fold(&self, _: &Span, text: &str, _: &History) -> Option<Folded> {
        let kept = text.split_inclusive('\n').filter(|line| !line.starts_with('.'));
        Some(Folded { text: kept.collect(), points_to: Vec::new() })
    }
}

/// Says where the whole output stands.
struct Again;

impl Rule for Again {
    fn name(&self) -> &'static str {
        "again"
    }

    fn fold(&self, _: &Span, text: &str, history: &History) -> Option<Folded> {
        let past = history.same_output(text)?;
        let text = format!("[as above: {}]\n", past.first_line);
        Some(Folded { text, points_to: vec![past.place.clone()] })
    }
}

/// Makes everything longer.
struct Longer;

impl Rule for Longer {
    fn name(&self) -> &'static str {
        "longer"
    }

    fn fold(&self, _: &Span, text: &str, _: &History) -> Option<Folded> {
        Some(Folded { text: format!("{text}!"), points_to: Vec::new() })
    }
}

static TEST_RULES: &[&dyn Rule] = &[&Longer, &Dots, &Again];

fn reader() -> Reader {
    Reader::with_rules(Condense::default(), TEST_RULES).unwrap()
}

fn tool(text: &str) -> Message {
    Message::text(Role::Tool, text)
}

fn long(line: &str) -> String {
    format!("{line}\n").repeat(60)
}

#[test]
fn an_output_is_folded_and_its_frame_is_not() {
    let mut reader = reader();
    let output = format!("keep this line\n.drop\n{}", long("another line"));
    let text = format!("OBSERVATION:\n{output}(Open file: n/a)\nbash-$");
    let reading = reader.read(&tool(&text), &Anywhere);
    let given = reading.given.unwrap();
    assert_eq!(given, text.replace(".drop\n", ""));
    assert_eq!(
        reading.folds,
        [Fold { rule: "dots".to_owned(), span: 1, saved: 6, points_to: vec![] }]
    );
    let texts: Vec<_> = reading.spans.iter().map(|span| &given[span.bytes.clone()]).collect();
    assert_eq!(
        texts,
        ["OBSERVATION:\n", &output.replace(".drop\n", ""), "(Open file: n/a)\nbash-$"]
    );
    // The same again is a note, which points to what was given.
    let again = reader.read(&tool(&text), &Anywhere);
    let body = reading.spans[1].bytes.clone();
    let by_dots = again.folds.iter().find(|fold| fold.rule == "again");
    assert!(by_dots.is_none(), "rules see what rules before them made");
    let plain = long("a line of text");
    reader.read(&tool(&plain), &Anywhere);
    let again = reader.read(&tool(&plain), &Anywhere);
    assert_eq!(again.given.as_deref(), Some("[as above: a line of text]\n"));
    assert_eq!(again.folds[0].points_to, [Place { message: 2, bytes: 0..plain.len() }]);
    assert!(!body.is_empty());
}

#[test]
fn a_note_never_points_to_a_note() {
    let mut reader = reader();
    let plain = long("a line of text");
    for _ in 0..3 {
        reader.read(&tool(&plain), &Anywhere);
    }
    let last = reader.read(&tool(&plain), &Anywhere);
    assert_eq!(last.folds[0].points_to[0].message, 0);
}

#[test]
fn nothing_is_folded_that_must_not_be() {
    struct Nowhere;
    impl Room for Nowhere {
        fn may_point_to(&self, _: &Place) -> bool {
            false
        }
    }
    let mut reader = reader();
    let plain = long("a line of text");
    reader.read(&tool(&plain), &Nowhere);
    assert_eq!(reader.read(&tool(&plain), &Nowhere).given, None, "there is no room");
    assert_eq!(reader.read(&tool(".short\n"), &Anywhere).given, None);
    for role in [Role::System, Role::User, Role::Assistant] {
        let message = Message::text(role, long(".dots"));
        assert_eq!(reader.read(&message, &Anywhere).given, None, "{role:?}");
    }
    let off = Condense { enabled: false, ..Condense::default() };
    let mut reader = Reader::with_rules(off, TEST_RULES).unwrap();
    assert_eq!(reader.read(&tool(&long(".dots")), &Anywhere).given, None);
    let off = Condense { off: ["dots".to_owned()].into(), ..Condense::default() };
    let mut reader = Reader::with_rules(off, TEST_RULES).unwrap();
    assert_eq!(reader.read(&tool(&long(".dots")), &Anywhere).given, None);
}

#[test]
fn an_unknown_rule_is_an_error_that_names_the_known() {
    let off = Condense { off: ["nosuch".to_owned()].into(), ..Condense::default() };
    let error = Reader::with_rules(off, TEST_RULES).unwrap_err().to_string();
    assert_eq!(error, "no rule is named `nosuch`; the rules are longer, dots, again");
}

#[test]
fn a_record_that_does_not_fit_is_read_all_the_same() {
    let mut reader = reader();
    let text = long("a line of text");
    let fold = Fold { rule: "gone".to_owned(), span: 7, saved: 3, points_to: vec![] };
    let spans = reader.remember(&tool(&text), Some("something else"), &[fold]);
    assert_eq!(spans, [Span::new(Part::Content, 0..14, Kind::Other)]);
    assert_eq!(reader.history().same_output(&text), None, "the model never read it");
}

#[test]
fn a_handle_is_short_and_depends_on_the_content_alone() {
    assert_eq!(handle("text"), handle("text"));
    assert_ne!(handle("text"), handle("test"));
    assert_eq!(handle("text").len(), 12);
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let line = prop_oneof![
        Just("fn a_function_of_some_length() {}\n"),
        Just(".dot\n"),
        Just("     7→let x = 1;\n     8→}\n"),
        Just("error[E0432]: unresolved import\n"),
        Just("a line of text that is long enough\n"),
    ];
    let text = (prop::collection::vec(line, 0..3), prop_oneof![Just(1_usize), Just(30)])
        .prop_map(|(lines, n)| lines.concat().repeat(n));
    let commands = ["cat a.rs", "cargo test", "sed -i 's/a/b/' a.rs", "python x.py", "grep x a.rs"];
    let message =
        (text, 0..8_usize, 0..commands.len()).prop_map(move |(text, who, command)| match who {
            0 => Message::text(Role::User, text),
            1 => Message::text(Role::User, format!("OBSERVATION:\n{text}")),
            2 => Message::text(
                Role::Assistant,
                format!("THOUGHT: a\n```bash\n{}\n```", commands[command]),
            ),
            3 | 4 => {
                let arguments = serde_json::json!({ "command": commands[command] }).to_string();
                let function = FunctionCall { name: "bash".to_owned(), arguments };
                let call = ToolCall { id: "c".to_owned(), kind: "function".to_owned(), function };
                Message { tool_calls: vec![call], ..Message::text(Role::Assistant, text) }
            }
            _ => Message { tool_call_id: Some("c".to_owned()), ..tool(&text) },
        });
    prop::collection::vec(message, 0..20)
}

proptest! {
    #[test]
    fn remembering_leaves_the_state_that_reading_left(messages in messages()) {
        let (mut read, mut remembered) = (reader(), reader());
        for message in &messages {
            let Reading { given, spans, folds } = read.read(message, &Anywhere);
            prop_assert!(given.as_ref().is_none_or(|given| given.len() < message.content.len()));
            let restored = serde_json::from_str::<Vec<Fold>>(&serde_json::to_string(&folds).unwrap());
            let again = remembered.remember(message, given.as_deref(), &restored.unwrap());
            prop_assert_eq!(spans, again);
            prop_assert_eq!(read.history(), remembered.history());
        }
    }

    #[test]
    fn going_back_is_as_if_nothing_had_been_read(messages in messages(), at in 0_usize..20) {
        let at = at.min(messages.len());
        let (mut reader, mut other) = (reader(), reader());
        for message in &messages[..at] {
            reader.read(message, &Anywhere);
            other.read(message, &Anywhere);
        }
        let mark = reader.mark();
        for message in &messages[at..] {
            reader.read(message, &Anywhere);
        }
        reader.rewind(mark);
        prop_assert_eq!(reader.history(), other.history());
    }
}
