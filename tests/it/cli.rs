//! The commands as a user meets them: help, exit codes, errors, output for programs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home};

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn run(mut command: Command) -> (Option<i32>, String, String) {
    told(&command.output().unwrap())
}

fn trajectory() -> String {
    format!("{}/fixtures/trajectories/formats/openai.json", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_command_has_help_with_an_example() {
    let home = Home::new();
    let (code, help, _) = run(home.attar(&["--help"]));
    assert_eq!(code, Some(0));
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let (code, help, _) = run(home.attar(&[name, "--help"]));
        assert_eq!(code, Some(0), "{name}");
        assert!(help.contains("Example: attar"), "{name}: {help}");
    }
}

#[test]
fn wrong_usage_exits_2() {
    let home = Home::new();
    for args in
        [&["fly"][..], &["serve", "--bugdet", "1"], &["replay"], &["serve", "--budget", "x"], &[]]
    {
        let (code, _, errors) = run(home.attar(args));
        assert_eq!(code, Some(2), "{args:?}: {errors}");
    }
}

#[test]
fn failures_exit_1_with_one_error_line() {
    let home = Home::new();
    let nothing = home.dir.path().join("nothing");
    let nothing = nothing.to_str().unwrap();
    let no_trajectory = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let cases = [
        (&["status"][..], "attar serve"),
        (&["replay", nothing], "nothing"),
        (&["replay", &no_trajectory], "Cargo.toml"),
        (&["condense", nothing], "nothing"),
        (&["condense", &no_trajectory], "Cargo.toml"),
        (&["condense", &trajectory(), "--tokenizer", "unknown"], "unknown"),
        (&["serve", "--condense", "maybe"], "maybe"),
        (&["serve", "--condense", "off:nothing"], "nothing"),
        (&["sessions", "show", "unknown"], "unknown"),
        (&["sessions", "delete", "unknown"], "unknown"),
        (&["sessions", "export", "unknown", nothing], "unknown"),
        (&["sessions", "import", nothing], "nothing"),
        (&["serve", "--kv-memory", "much"], "much"),
        (&["serve", "--budget", "10"], "256"),
        (&["serve", "--policy", "lru"], "lru"),
        (&["serve", "--threads", "0"], "threads"),
        (&["serve", "--tcp", "8.8.8.8:1"], "loopback"),
        (&["model", "path", "unknown"], "unknown"),
        (&["doctor", "--model", nothing], "checks failed"),
    ];
    for (args, word) in cases {
        let (code, _, errors) = run(home.attar(args));
        assert_eq!(code, Some(1), "{args:?}: {errors}");
        let lines: Vec<_> = errors.lines().filter(|line| !line.contains("INFO")).collect();
        assert!(matches!(lines[..], [line] if line.starts_with("error: ")), "{args:?}: {errors}");
        assert!(lines[0].contains(word), "{args:?}: {errors}");
    }
    assert!(!fs::exists(nothing).unwrap(), "a failed export leaves no file");
}

#[tokio::test]
async fn sessions_are_managed_with_and_without_a_daemon() {
    let home = Home::new();
    let mut daemon = Some(Daemon::in_home(&home, &[]).await);
    let mut peer = daemon.as_ref().unwrap().peer().await;
    for session in ["one", "two"] {
        peer.open(session).await;
        peer.say(session, "Hello there", 4).await;
    }
    drop(peer);
    let file = home.dir.path().join("one.session");
    let file = file.to_str().unwrap();
    for deleted in ["one", "two"] {
        let (code, out, errors) = run(home.attar(&["sessions", "list", "--json"]));
        assert_eq!(code, Some(0), "{errors}");
        let listed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(listed["sessions"][0]["session"], "one");
        let (_, out, _) = run(home.attar(&["sessions"]));
        assert!(out.contains("one") && out.contains("2 messages"), "{out}");
        let (_, out, _) = run(home.attar(&["sessions", "show", "one"]));
        assert!(out.starts_with("--- user\nHello there\n--- assistant\n"), "{out}");
        let export = run(home.attar(&["sessions", "export", "one", file]));
        if let Some(daemon) = daemon.take() {
            assert!(export.0 == Some(1) && export.2.contains("stop it first"), "{export:?}");
            daemon.stop().await;
            continue;
        }
        assert_eq!(export.0, Some(0), "{}", export.2);
        let (code, _, errors) = run(home.attar(&["sessions", "export", "one", file]));
        assert!(code == Some(1) && errors.contains("exists already"), "{errors}");
        let (code, out, _) = run(home.attar(&["sessions", "delete", deleted]));
        assert_eq!((code, out.as_str()), (Some(0), "deleted two\n"));
        let import = ["sessions", "import", file, "--session", "copy"];
        assert_eq!(run(home.attar(&import)).1, "copy\n");
        let (_, whole, _) = run(home.attar(&["sessions", "show", "one"]));
        assert_eq!(run(home.attar(&["sessions", "show", "copy"])).1, whole);
    }
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    assert_eq!(peer.open("copy").await["rebuilt"], false, "the cache came along");
    let (code, out, errors) = run(home.attar(&["sessions", "delete", "one"]));
    assert_eq!((code, out.as_str()), (Some(0), "deleted one\n"), "{errors}");
    let (_, out, _) = run(home.attar(&["status", "--json"]));
    let status: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&status["pid"], &status["sessions"]["open"]), (&daemon.pid().into(), &1.into()));
    assert!(run(home.attar(&["status"])).1.contains("1 open, 0 generating"));
}

#[test]
fn a_replay_prints_one_line_of_json_a_turn() {
    let home = Home::new();
    let args = ["replay", &trajectory(), "--json", "--budget", "256", "--buffer", "64"];
    let (code, out, errors) = run(home.attar(&args));
    assert_eq!(code, Some(0), "{errors}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 2);
    for (turn, line) in lines.iter().enumerate() {
        assert_eq!(line["turn"], turn);
        assert!(line["role"].is_string() && line["tokens"]["pending"].is_u64(), "{line}");
        for name in ["evicted", "compactions", "folded_tokens", "bytes", "ms"] {
            assert!(line[name].is_u64(), "{name}: {line}");
        }
        let count = |name: &str| line["tokens"][name].as_u64().unwrap();
        assert_eq!(count("logical"), count("kept") + line["evicted"].as_u64().unwrap());
        assert!(count("kept") <= 256 + 64, "{line}");
    }
    let args = ["replay", &trajectory(), "--json", "--until-turn", "2"];
    assert_eq!(run(home.attar(&args)).1.lines().count(), 2);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let home = Home::new();
    for args in [&["replay", &trajectory(), "--json"][..], &["model", "list"], &["doctor"]] {
        let mut command = home.attar(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Closed before anything is written.
        drop(child.stdout.take());
        let (code, _, errors) = told(&child.wait_with_output().unwrap());
        assert_eq!((code, errors.contains("panicked")), (Some(0), false), "{args:?}: {errors}");
    }
}

#[tokio::test]
async fn the_doctor_finds_everything_well_with_and_without_a_daemon() {
    let home = Home::new();
    for is_running in [false, true] {
        let daemon = if is_running { Some(Daemon::in_home(&home, &[]).await) } else { None };
        let (code, out, errors) = run(home.attar(&["doctor", "--json"]));
        assert_eq!(code, Some(0), "{out}{errors}");
        let findings: Value = serde_json::from_str(&out).unwrap();
        for finding in findings.as_array().unwrap() {
            assert_eq!(finding["ok"], true, "{finding}");
        }
        let seen = findings.as_array().unwrap().last().unwrap()["seen"].as_str().unwrap();
        let expected = if is_running { "runs as process" } else { "none runs" };
        assert!(seen.contains(expected), "{seen}");
        drop(daemon);
    }
}

#[tokio::test]
async fn a_chat_answers_every_line_until_its_input_ends() {
    let home = Home::new();
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut command =
        home.attar(&["chat", "--session", "talk", "--max-tokens", "5", "--system", "Be kind."]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Hello\n\nAgain\n").unwrap();
    let (code, _, errors) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(errors.matches("budget 4096").count(), 2, "{errors}");
    let shown = daemon.peer().await.ok("session/show", json!({"session": "talk"})).await;
    let roles: Vec<_> = shown["history"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
}

#[test]
fn a_chat_starts_a_daemon_where_none_runs() {
    let home = Home::new();
    let mut command = home.attar(&["chat", "--max-tokens", "3", "--model"]);
    command.arg(crate::tiny::fixture()).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    child.stdin.take().unwrap().write_all(b"Hello\n").unwrap();
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    assert!(first.starts_with("session "), "{first}");
    assert!(child.wait().unwrap().success());
    let shutdown = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    shutdown.block_on(async {
        let client = attar::wire::Client::connect(&home.socket()).await.unwrap();
        crate::daemon::Peer(client).ok("daemon/shutdown", json!({})).await;
    });
}

/// A file of chat messages in which a coloured output comes twice.
fn repetitive(home: &Home) -> (String, Value) {
    let numbers = ["one", "two", "three", "four", "five", "six", "seven"];
    let pairs = numbers.iter().flat_map(|a| numbers.iter().map(move |b| (a, b)));
    let output: String = pairs.map(|(a, b)| format!("\u{1b}[1m{a}\u{1b}[0m {b}\n")).collect();
    let run = |id: &str| {
        let function = json!({"name": "bash", "arguments": "{\"command\": \"make\"}"});
        let call = json!({"id": id, "type": "function", "function": function});
        [
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": output}),
        ]
    };
    let messages = [run("c1"), run("c2")].concat();
    let whole = json!({"messages": messages, "unknown": 1e-7});
    let path = home.dir.path().join("run.json");
    fs::write(&path, serde_json::to_string_pretty(&whole).unwrap()).unwrap();
    (path.to_str().unwrap().to_owned(), whole)
}

#[test]
fn condense_writes_the_same_file_with_less_in_it() {
    let home = Home::new();
    let (file, mut whole) = repetitive(&home);
    let (code, out, errors) = run(home.attar(&["condense", &file]));
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("2 of 4 messages folded") && errors.contains("terminal"), "{errors}");
    let short: Value = serde_json::from_str(&out).unwrap();
    for message in [1, 3] {
        let content = &short["messages"][message]["content"];
        assert!(!content.as_str().unwrap().contains('\u{1b}'), "{content}");
        whole["messages"][message]["content"] = content.clone();
    }
    assert_eq!(out, serde_json::to_string_pretty(&whole).unwrap());

    let output = home.dir.path().join("short.json");
    let tokenizer = crate::tiny::fixture();
    let args = ["condense", &file, "--json", "--output", output.to_str().unwrap(), "--tokenizer"];
    let (code, nothing, errors) =
        run(home.attar(&[&args[..], &[tokenizer.to_str().unwrap()]].concat()));
    assert_eq!((code, nothing.as_str()), (Some(0), ""), "{errors}");
    assert_eq!(fs::read_to_string(&output).unwrap(), out);
    let report: Value = serde_json::from_str(&errors).unwrap();
    assert!(report["tokens"]["after"].as_u64() < report["tokens"]["before"].as_u64(), "{report}");
    let (_, again, _) = run(home.attar(&["condense", &file, "--condense", "off"]));
    assert_eq!(again, fs::read_to_string(&file).unwrap());
}

#[test]
fn a_replay_of_the_text_alone_tells_what_each_turn_is_shortened_by() {
    let home = Home::new();
    let (file, _) = repetitive(&home);
    let lines = |args: &[&str]| -> Vec<Value> {
        let (code, out, errors) = run(home.attar(&[&["replay", &file, "--json"], args].concat()));
        assert_eq!(code, Some(0), "{errors}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let text = lines(&["--text-only"]);
    assert_eq!(text.len(), 4);
    assert_eq!(text[1]["rules"], json!(["terminal"]));
    assert_eq!(text[0]["folded_characters"], 0);
    let folded = |line: &Value| line["folded_characters"].as_u64().unwrap();
    assert!(folded(&text[3]) > folded(&text[1]), "{text:?}");
    let read = lines(&["--policy", "full"]);
    for (read, text) in read.iter().zip(&text) {
        let is_folded = folded(text) > 0;
        assert_eq!(read["folded_tokens"].as_u64().unwrap() > 0, is_folded, "{read} {text}");
    }
    let whole = lines(&["--condense", "off", "--until-turn", "2"]);
    assert_eq!(whole.len(), 2);
    assert!(whole.iter().all(|line| line["folded_tokens"] == 0), "{whole:?}");
}
