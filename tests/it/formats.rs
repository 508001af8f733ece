//! Trajectory files of every known format read to the same conversation.

use std::path::{Path, PathBuf};

use attar::ingest::formats::{Format, FormatError, Trajectory, read};
use attar::trajectory::{FunctionCall, Message, Role, ToolCall};
use proptest::prelude::*;

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/trajectories/formats");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn view(id: &str, path: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        kind: "function".to_owned(),
        function: FunctionCall {
            name: "view".to_owned(),
            arguments: format!("{{\"path\":\"{path}\"}}"),
        },
    }
}

fn result(id: &str, content: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), ..Message::text(Role::Tool, content) }
}

/// The conversation that the fixtures hold; some formats have no place for thoughts.
fn conversation(has_thoughts: bool) -> Vec<Message> {
    let looking = Message {
        reasoning_content: has_thoughts.then(|| "Where is it?".to_owned()),
        tool_calls: vec![view("c1", "a.rs")],
        ..Message::text(Role::Assistant, "Looking.")
    };
    vec![
        Message::text(Role::System, "You mend code."),
        Message::text(Role::User, "Fix the test."),
        looking,
        result("c1", "1: fn a() {}"),
        Message::text(Role::Assistant, "Done."),
    ]
}

#[test]
fn every_format_is_found_out_and_reads_to_the_same_conversation() {
    for (name, format, id, has_tools, has_thoughts) in [
        ("openai.json", Format::OpenAi, Some("run-1"), true, true),
        ("openai.jsonl", Format::OpenAi, None, false, true),
        ("openai-list.json", Format::OpenAi, None, false, true),
        ("swe-agent.traj", Format::SweAgent, Some("run-1"), false, false),
        ("mini-swe-agent.traj.json", Format::MiniSweAgent, Some("run-1"), false, true),
        ("atif.json", Format::Atif, Some("run-1"), true, true),
        ("atif.jsonl", Format::Atif, Some("run-1"), true, true),
        ("openhands.json", Format::OpenHands, None, true, false),
    ] {
        let Trajectory { id: found, format: as_format, tools, messages } =
            read(&fixture(name)).unwrap();
        assert_eq!((as_format, found.as_deref()), (format, id), "{name}");
        assert_eq!(tools.is_some(), has_tools, "{name}");
        assert_eq!(messages, conversation(has_thoughts), "{name}");
    }
}

#[test]
fn claude_code_reads_along_the_main_chain() {
    let trajectory = read(&fixture("claude-code.jsonl")).unwrap();
    assert_eq!(trajectory.format, Format::ClaudeCode);
    assert_eq!(trajectory.id.as_deref(), Some("run-1"));
    let mut expected = conversation(true);
    expected.remove(0);
    // Two calls of one answer; the result of the first hangs beside the chain.
    expected[1].tool_calls.push(view("c2", "b.rs"));
    expected.insert(3, result("c2", "<tool_use_error>no such file</tool_use_error>"));
    assert_eq!(trajectory.messages, expected);
}

#[test]
fn swe_agent_steps_stand_in_for_a_missing_history() {
    let trajectory = read(&fixture("swe-agent-steps.traj")).unwrap();
    assert_eq!(trajectory.format, Format::SweAgent);
    let said: Vec<_> =
        trajectory.messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
    assert_eq!(
        said,
        [
            ("system", "You mend code."),
            ("user", "Fix the test."),
            ("assistant", "Looking."),
            ("user", "1: fn a() {}"),
            ("assistant", "Done."),
        ]
    );
}

#[test]
fn odd_atif_observations_become_tool_messages() {
    let messages = read(&fixture("atif-odd.jsonl")).unwrap().messages;
    assert_eq!(
        messages,
        [
            Message::text(Role::System, "Results"),
            Message::text(Role::Tool, "{\"command\":\"make\",\"passed\":true}\nok\nfine"),
            result("t", "{\"success\":true}"),
        ]
    );
}

#[test]
fn what_cannot_be_read_says_where_and_what_was_expected() {
    for (text, expected) in [
        ("", "begins with nothing"),
        ("hello", "line 1, column 1"),
        ("{\n \"messages\": [\n}", "line 3, column 1"),
        ("{\"role\":\"user\",\"content\":\"a\"}\n\n{\"role\":", "line 3"),
        ("{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"judge\"}", "line 2"),
        ("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"judge\"}]", "unknown variant `judge`"),
        ("{\"step_id\":1,\"source\":\"nobody\"}", "must be system, user or agent"),
        ("{\"name\":\"x\",\"size\":1}", "`name`, `size`"),
        ("[]", "begins with nothing"),
        ("{\"messages\":[]}", "no messages"),
        ("42", "begins with `42`"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?} gives {error:?}, not {expected:?}");
    }
}

#[test]
fn damaged_files_are_errors_or_shorter_conversations() {
    for name in
        ["openai.json", "swe-agent.traj", "claude-code.jsonl", "atif.jsonl", "openhands.json"]
    {
        let whole = fixture(name);
        for len in (0..whole.len()).filter(|&len| whole.is_char_boundary(len)).step_by(7) {
            match read(&whole[..len]) {
                Ok(trajectory) => assert!(trajectory.messages.len() <= 5),
                Err(FormatError::Json { line, .. }) => assert!(line <= whole.lines().count()),
                Err(_) => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn json_of_any_shape_is_no_panic(
        text in "(\\{\"(type|role|source|message|steps|history|trajectory|messages|uuid|content)\":|\"(user|agent|assistant)\"|\\[|\\]|\\}|,|1|null|\n)*",
    ) {
        let _ = read(&text);
    }
}

#[test]
fn recorded_files_of_each_format_are_read() {
    let Some(folder) = std::env::var_os("ATTAR_TRAJECTORIES").map(PathBuf::from) else {
        println!("ATTAR_TRAJECTORIES is not set; nothing to check");
        return;
    };
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    let mut paths = files(&folder);
    paths.extend(files(&folder.join("formats")));
    for path in paths.iter().filter(|path| path.extension().is_some_and(|ext| ext != "md")) {
        let trajectory = read(&std::fs::read_to_string(path).unwrap()).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        let expected = match &*name {
            name if name.starts_with("atif") => Format::Atif,
            name if name.starts_with("claude") => Format::ClaudeCode,
            name if name.starts_with("mini") => Format::MiniSweAgent,
            name if name.starts_with("openhands") => Format::OpenHands,
            name if name.starts_with("sweagent") => Format::SweAgent,
            _ => Format::OpenAi,
        };
        assert_eq!(trajectory.format, expected, "{name}");
        let count = |role| trajectory.messages.iter().filter(|m| m.role == role).count();
        println!(
            "{name}: {} messages, {} answers, {} results",
            trajectory.messages.len(),
            count(Role::Assistant),
            count(Role::Tool)
        );
    }
}
