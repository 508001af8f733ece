//! Small texts of every convention, and the spans that they must have.

use super::*;
use crate::ingest::condense::Condense;
use crate::ingest::reader::{Anywhere, Reader};
use crate::trajectory::{FunctionCall, Meta, ToolCall};

fn assistant(text: &str, calls: &[(&str, &str)]) -> Message {
    let tool_calls = calls.iter().enumerate().map(|(index, (name, arguments))| ToolCall {
        id: format!("call-{index}"),
        kind: "function".to_owned(),
        function: FunctionCall { name: (*name).to_owned(), arguments: (*arguments).to_owned() },
    });
    Message { tool_calls: tool_calls.collect(), ..Message::text(Role::Assistant, text) }
}

fn tool(text: &str) -> Message {
    Message { tool_call_id: Some("call-0".to_owned()), ..Message::text(Role::Tool, text) }
}

/// The last message's spans, one a line: kind, path, lines, exit code, and how the text begins.
fn spans_of(messages: &[Message]) -> Vec<String> {
    let mut reader = Reader::new(Condense { enabled: false, ..Condense::default() }).unwrap();
    let readings: Vec<_> = messages.iter().map(|message| reader.read(message, &Anywhere)).collect();
    let (Some(message), Some(reading)) = (messages.last(), readings.last()) else { return vec![] };
    let describe = |span: &Span| {
        let text = match span.part {
            Part::Content => &message.content,
            Part::Reasoning => message.reasoning_content.as_ref().unwrap(),
            Part::ToolCall(index) => &message.tool_calls[index].function.arguments,
        };
        let text: String = text[span.bytes.clone()].chars().take(24).collect();
        let kind = serde_json::to_value(span.kind).unwrap();
        let mut line = kind.as_str().unwrap().to_owned();
        line.extend(span.path.iter().flat_map(|path| [" ", path].map(str::to_owned)));
        line.extend(span.lines.iter().map(|[first, last]| format!(" {first}-{last}")));
        line.extend(span.exit_code.iter().map(|code| format!(" ={code}")));
        format!("{line} {text:?}")
    };
    reading.spans.iter().map(describe).collect()
}

/// The spans of a tool's output that answers one call.
fn answered(name: &str, arguments: &str, output: &str) -> Vec<String> {
    spans_of(&[assistant("", &[(name, arguments)]), tool(output)])
}

/// The spans of an output in a user's name that answers an action in the text.
fn observed(command: &str, output: &str) -> Vec<String> {
    let action = format!("THOUGHT: so.\n\n```bash\n{command}\n```");
    spans_of(&[assistant(&action, &[]), Message::text(Role::User, output)])
}

#[test]
fn a_system_prompt_is_cut_into_its_rules() {
    let prompt = "You are an agent.\n\n# Rules\n- Be brief\n  in all.\n- Never lie.\nThe end.\n\
                  You must stop.\n";
    assert_eq!(
        spans_of(&[Message::text(Role::System, prompt)]),
        [
            r##"system "You are an agent.\n\n# Rul""##,
            r#"instruction "- Be brief\n  in all.\n""#,
            r#"instruction "- Never lie.\n""#,
            r#"system "The end.\n""#,
            r#"instruction "You must stop.\n""#,
        ]
    );
}

#[test]
fn people_and_harnesses_are_told_apart() {
    let user = |text: &str| Message::text(Role::User, text);
    assert_eq!(spans_of(&[user("Fix it.\nbash-$")]), [r#"task "Fix it.\nbash-$""#]);
    let acted = assistant("THOUGHT: x\n```bash\nls\n```", &[]);
    assert_eq!(spans_of(&[acted.clone(), user("No, wait.")]), [r#"task "No, wait.""#]);
    let complaint = "Please always provide EXACTLY ONE action in triple backticks, found 2";
    assert_eq!(spans_of(&[acted, user(complaint)]), [r#"other "Please always provide EX""#]);
    assert_eq!(
        spans_of(&[user("Do.<system-reminder>Be good.</system-reminder>")]),
        [r#"task "Do.""#, r#"instruction "<system-reminder>Be good""#]
    );
}

#[test]
fn thoughts_actions_and_answers_are_told_apart() {
    let mut message = assistant("Done.", &[("Read", r#"{"file_path":"a.rs"}"#)]);
    message.reasoning_content = Some("Hm.".to_owned());
    assert_eq!(
        spans_of(&[message]),
        [r#"thought "Hm.""#, r#"answer "Done.""#, r#"tool_call a.rs "{\"file_path\":\"a.rs\"}""#]
    );
    let says = |text: &str| spans_of(&[assistant(text, &[])]);
    assert_eq!(says("<think>a</think>b"), [r#"thought "<think>a</think>""#, r#"answer "b""#]);
    assert_eq!(says("<think>cut off"), [r#"thought "<think>cut off""#]);
    assert_eq!(
        says("THOUGHT: a\n```python\nx\n```\n```bash\ncat a.py\n```\n"),
        [
            r#"thought "THOUGHT: a\n```python\nx\n`""#,
            r#"tool_call a.py "```bash\ncat a.py\n```\n""#
        ]
    );
    // Without that convention a block is an example.
    assert_eq!(says("Run\n```bash\nls\n```"), [r#"answer "Run\n```bash\nls\n```""#]);
    let prompt = Message::text(Role::System, "Write a DISCUSSION, then a command.");
    assert_eq!(
        spans_of(&[prompt, assistant("I look.\n```\nopen a.py\n```", &[])]),
        [r#"thought "I look.\n""#, r#"tool_call a.py "```\nopen a.py\n```""#]
    );
    assert_eq!(
        says(
            "THOUGHT\n<function=execute_bash>\n<parameter=command>cat a.c</parameter>\n</function>"
        ),
        [r#"thought "THOUGHT\n""#, r#"tool_call a.c "<function=execute_bash>\n""#]
    );
}

#[test]
fn swe_agent() {
    let view = "[File: /t/a.py (9 lines total)]\n(3 more lines above)\n4:x = 1\n5:y\n\
                (4 more lines below)\n(Open file: /t/a.py)\n(Current directory: /t)\nbash-$";
    let expected = [
        r#"other "[File: /t/a.py (9 lines ""#,
        r#"file_view /t/a.py 4-5 "4:x = 1\n5:y\n""#,
        r#"other "(4 more lines below)\n(Op""#,
    ];
    assert_eq!(answered("open", r#"{"path":"a.py","line_number":4}"#, view), expected);
    // An edit shows what it made of the file; an older version speaks as the user.
    let edit = r#"{"search":"x","replace":"x = 1"}"#;
    assert_eq!(answered("edit", edit, &format!("Text replaced.\n{view}"))[1], expected[1]);
    assert_eq!(observed("open a.py 4", view), expected);
    assert_eq!(
        answered("bash", r#"{"command":"ls"}"#, "a.py\nb.py\n(Open file: n/a)\nbash-$"),
        [r#"listing "a.py\nb.py\n""#, r#"other "(Open file: n/a)\nbash-$""#]
    );
    let replaced = "OBSERVATION:\nThe file /t/a.py has been edited. Here's the result of running \
                    `cat -n` on a snippet of /t/a.py:\n     1\ta\n     2\tb\nReview the changes.";
    let edit = r#"{"command":"str_replace","path":"/t/a.py","old_str":"b","new_str":"c"}"#;
    assert_eq!(
        answered("str_replace_editor", edit, replaced),
        [
            r#"other "OBSERVATION:\nThe file /t""#,
            r#"file_view /t/a.py 1-2 "     1\ta\n     2\tb\n""#,
            r#"other "Review the changes.""#,
        ]
    );
}

#[test]
fn mini_swe_agent() {
    let whole = "<returncode>1</returncode>\n<output>\n  File x\n</output>";
    assert_eq!(
        observed("sed -n '7,9p' a.py", whole),
        [
            r#"other "<returncode>1</returncod""#,
            r#"file_view a.py 7-7 =1 "  File x\n""#,
            r#"other "</output>""#
        ]
    );
    let cut = "<returncode>1</returncode>\n<warning>\nToo long.\n</warning><output_head>\n\
               a\n</output_head>\n<elided_chars>\n9 characters elided\n</elided_chars>\n\
               <output_tail>\nTraceback (most recent call last):\n</output_tail>";
    assert_eq!(
        observed("python x.py", cut),
        [
            r#"other "<returncode>1</returncod""#,
            r#"log =1 "a\n""#,
            r#"other "</output_head>\n<elided_c""#,
            r#"log =1 "Traceback (most recent c""#,
            r#"other "</output_tail>""#,
        ]
    );
    // What is submitted comes bare.
    let diff = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n";
    assert_eq!(observed("git diff", diff), [r#"diff "diff --git a/a b/a\n--- a""#]);
}

#[test]
fn claude_code() {
    let view = "     7→fn a() {\n     8→}\n\n<system-reminder>\nBeware.\n</system-reminder>\n";
    assert_eq!(
        answered("Read", r#"{"file_path":"/a.rs","offset":7,"limit":2}"#, view),
        [
            r#"file_view /a.rs 7-8 "     7→fn a() {\n     8→}""#,
            r#"other "\n""#,
            r#"instruction "<system-reminder>\nBeware""#,
            r#"other "\n""#,
        ]
    );
    let edited = "The file /a.rs has been updated. Here's the result of running `cat -n` on a \
                  snippet of the edited file:\n     7→fn b() {\n     8→}";
    assert_eq!(
        answered("Edit", r#"{"file_path":"/a.rs","old_string":"a","new_string":"b"}"#, edited)[1],
        r#"file_view /a.rs 7-8 "     7→fn b() {\n     8→}""#
    );
    let cases = [
        ("Grep", r#"{"pattern":"x","path":"a.rs"}"#, "7:x\n9:x", r#"search a.rs "7:x\n9:x""#),
        ("Glob", r#"{"pattern":"*.rs"}"#, "a.rs", r#"listing "a.rs""#),
        ("Write", r#"{"file_path":"a.rs","content":""}"#, "Written.", r#"other "Written.""#),
        (
            "TodoWrite",
            r#"{"todos":[]}"#,
            "Todos have been modified",
            r#"other "Todos have been modified""#,
        ),
        ("Read", r#"{"file_path":"a"}"#, "<tool_use_error>No.", r#"other "<tool_use_error>No.""#),
    ];
    for (name, arguments, output, expected) in cases {
        assert_eq!(answered(name, arguments, output), [expected]);
    }
    assert_eq!(
        answered("Bash", r#"{"command":"cargo test"}"#, "Exit code 101\nrunning 1 test\n"),
        [r#"other "Exit code 101\n""#, r#"log =101 "running 1 test\n""#]
    );
}

#[test]
fn codex() {
    let cat = r#"{"command":["bash","-lc","cat a.rs"],"workdir":"/w"}"#;
    let told = "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nfn a() {}\n";
    assert_eq!(
        answered("shell", cat, told),
        [r#"other "Exit code: 0\nWall time: ""#, r#"file_view /w/a.rs 1-1 =0 "fn a() {}\n""#]
    );
    // Lines within JSON are not lines.
    let json = r#"{"output":"fn a() {}\n","metadata":{"exit_code":0,"duration_seconds":0.1}}"#;
    assert_eq!(
        answered("shell", cat, json),
        [r#"file_view /w/a.rs =0 "{\"output\":\"fn a() {}\\n\",""#]
    );
    let patch = r#"{"input":"*** Begin Patch\n*** Update File: a.rs\n@@\n*** End Patch"}"#;
    let made = assistant("", &[("apply_patch", patch)]);
    assert_eq!(spans_of(&[made])[0].split('"').next(), Some("tool_call a.rs "));
}

#[test]
fn openhands() {
    let done = "a.rs\nb.rs\n[The command completed with exit code 0.]\n\
                [Current working directory: /w]\n[Python interpreter: /usr/bin/python]\n";
    let ls = r#"{"command":"ls"}"#;
    assert_eq!(
        answered("execute_bash", ls, done),
        [r#"listing =0 "a.rs\nb.rs\n""#, r#"other "[The command completed w""#]
    );
    let text = format!("EXECUTION RESULT of [execute_bash]:\n{done}");
    assert_eq!(observed("ls", &text)[1], r#"listing =0 "a.rs\nb.rs\n""#);
    let view = r#"{"command":"view","path":"/w/a.rs","view_range":[3,4]}"#;
    let seen = "Here's the result of running `cat -n` on /w/a.rs:\n     3\tx\n     4\ty\n";
    assert_eq!(
        answered("str_replace_editor", view, seen)[1],
        r#"file_view /w/a.rs 3-4 "     3\tx\n     4\ty\n""#
    );
}

#[test]
fn atif_and_terminals() {
    let observed = "{\"command\":\"bun test\",\"exit_code\":1}\n(fail) a > b\n";
    assert_eq!(
        spans_of(&[tool(observed)]),
        [r#"other "{\"command\":\"bun test\",\"e""#, r#"log =1 "(fail) a > b\n""#]
    );
    let said = assistant("I look.", &[]);
    let screen = Message::text(Role::User, "Current Terminal Screen:\n$ vim\n~\n~\n");
    assert_eq!(
        spans_of(&[said, screen]),
        [r#"other "Current Terminal Screen:""#, r#"screen "$ vim\n~\n~\n""#]
    );
    assert_eq!(spans_of(&[tool("\u{1b}[2J\u{1b}[1;1H~")]), [r#"screen "\u{1b}[2J\u{1b}[1;1H~""#]);
}

#[test]
fn shape_tells_where_nothing_else_does() {
    let cases = [
        ("a/b.rs:1:x\nc.rs:20:y\n", "search"),
        ("--- a\n+++ b\n@@ -1 +1 @@\n", "diff"),
        ("a.rs\nb/c.rs\nd.toml\n", "listing"),
        ("error[E0432]: unresolved import\n", "log"),
        ("Traceback (most recent call last):\n", "log"),
        ("     1\ta\n     2\tb\n     3\tc\n", "file_view 1-3"),
        ("344\n", "other"),
        ("fn main() {\n    let x = 1;\n}\n", "other"),
        ("1: one\n2: two\n3: three\n", "other"),
    ];
    for (text, kind) in cases {
        assert_eq!(spans_of(&[tool(text)])[0].split(" \"").next(), Some(kind), "{text}");
    }
}

#[test]
fn the_client_knows_best() {
    let meta = Meta {
        path: Some("a.py".to_owned()),
        range: Some([5, 6]),
        language: Some("rust".to_owned()),
        exit_code: Some(3),
        command: Some("show".to_owned()),
        kind: Some("file_view".to_owned()),
    };
    let message = Message { meta: Some(meta), ..tool("x\ny\n") };
    let mut reader = Reader::new(Condense::default()).unwrap();
    reader.read(&assistant("", &[("bash", r#"{"command":"ls"}"#)]), &Anywhere);
    let span = Span {
        path: Some("a.py".to_owned()),
        lines: Some([5, 6]),
        language: Some(crate::ingest::language::Language::Rust),
        command: Some("show".to_owned()),
        exit_code: Some(3),
        ..Span::new(Part::Content, 0..4, Kind::FileView)
    };
    assert_eq!(reader.read(&message, &Anywhere).spans, [span]);
}

#[test]
fn calls_are_found_by_id_and_by_order() {
    let calls = [("bash", r#"{"command":"ls"}"#), ("bash", r#"{"command":"pytest"}"#)];
    let asked = assistant("", &calls);
    let nameless = Message::text(Role::Tool, "x");
    let kinds = spans_of(&[asked.clone(), nameless.clone(), nameless.clone()]);
    assert_eq!(kinds, [r#"log "x""#]);
    let second = Message { tool_call_id: Some("call-1".to_owned()), ..nameless };
    assert_eq!(spans_of(&[asked, second]), [r#"log "x""#]);
}

/// Panics unless the spans cover every part of the message without gaps.
fn assert_covered(message: &Message, given: &str, spans: &[Span]) {
    let mut parts = vec![(Part::Content, given)];
    parts.extend(message.reasoning_content.iter().map(|text| (Part::Reasoning, text.as_str())));
    let calls = message.tool_calls.iter().enumerate();
    parts.extend(calls.map(|(i, call)| (Part::ToolCall(i), call.function.arguments.as_str())));
    for (part, text) in parts {
        let mut end = 0;
        for span in spans.iter().filter(|span| span.part == part) {
            assert_eq!(span.bytes.start, end, "{span:?}");
            assert!(text.get(span.bytes.clone()).is_some_and(|text| !text.is_empty()), "{span:?}");
            end = span.bytes.end;
        }
        assert_eq!(end, text.len());
    }
}

#[test]
fn real_trajectories_are_covered_and_known() {
    let Some(folder) = std::env::var_os("ATTAR_TRAJECTORIES").map(std::path::PathBuf::from) else {
        println!("ATTAR_TRAJECTORIES is not set: nothing is read");
        return;
    };
    let entries = [folder.clone(), folder.join("formats")].into_iter();
    let paths = entries.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    for path in paths.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&path).unwrap();
        let Ok(trajectory) = crate::ingest::formats::read(&text) else { continue };
        let mut reader = Reader::new(Condense::default()).unwrap();
        let mut bytes = std::collections::BTreeMap::<String, usize>::new();
        let (mut n_views, mut n_named) = (0, 0);
        for message in &trajectory.messages {
            let reading = reader.read(message, &Anywhere);
            let given = reading.given.as_deref().unwrap_or(&message.content);
            assert_covered(message, given, &reading.spans);
            for span in reading.spans.iter().filter(|span| span.kind.is_output()) {
                *bytes.entry(format!("{:?}", span.kind)).or_default() += span.bytes.len();
                n_views += usize::from(span.kind == Kind::FileView);
                n_named += usize::from(span.kind == Kind::FileView && span.path.is_some());
            }
        }
        let all: usize = bytes.values().sum();
        let share = |(kind, n): (&String, &usize)| format!("{kind} {}%", n * 100 / all.max(1));
        println!("{}: {:?}", path.display(), bytes.iter().map(share).collect::<Vec<_>>());
        assert!(n_named * 100 >= n_views * 95, "{n_named} of {n_views} views name their file");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_in_any_role_is_covered(
        texts in proptest::collection::vec(
            "(\\PC|\n|<output>|</output>|<returncode>0</returncode>\n|  12→|     1\t|```bash\n|```\n\
             |bash-\\$|<system-reminder>|</system-reminder>|OBSERVATION:\n|diff --git |- |cat a.py){0,30}",
            1..6,
        ),
        roles in proptest::collection::vec(0..4, 6),
    ) {
        let mut reader = Reader::new(Condense::default()).unwrap();
        for (text, role) in texts.iter().zip(roles) {
            let role = [Role::System, Role::User, Role::Assistant, Role::Tool][role as usize];
            let message = Message::text(role, text.as_str());
            let reading = reader.read(&message, &Anywhere);
            let given = reading.given.as_deref().unwrap_or(text);
            assert_covered(&message, given, &reading.spans);
        }
    }
}
