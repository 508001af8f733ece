//! Logs of real tools, and what is made of them.
//!
//! `fixtures/logs/record.sh` records them. Beside each log stands the text that it is folded to,
//! for people to judge; `ATTAR_WRITE_SNAPSHOTS=1` writes those anew.

use std::fs;
use std::path::PathBuf;

use attar::ingest::condense::Condense;
use attar::ingest::log::Log;
use attar::ingest::reader::{Anywhere, Reader};
use attar::trajectory::{FunctionCall, Message, Role, ToolCall};

struct Recorded {
    path: PathBuf,
    command: String,
    output: String,
}

impl Recorded {
    fn name(&self) -> &str {
        self.path.file_stem().and_then(|stem| stem.to_str()).unwrap()
    }
}

fn recorded() -> Vec<Recorded> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/logs");
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    paths.sort_by_key(|path| path.file_stem().map(ToOwned::to_owned));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let (command, output) = text.split_once('\n').unwrap();
        Recorded {
            path: path.clone(),
            command: command.strip_prefix("$ ").unwrap().to_owned(),
            output: output.to_owned(),
        }
    };
    paths.into_iter().map(read).collect()
}

/// What the model is given of each log. It is read after the logs of the runs before it.
fn folded(logs: &[Recorded]) -> Vec<String> {
    let mut reader = Reader::new(Condense::default()).unwrap();
    let mut given = Vec::new();
    for (at, log) in logs.iter().enumerate() {
        let is_first = at == 0 || !log.name().starts_with(logs[at - 1].name());
        if is_first && !log.name().ends_with("-again") {
            reader = Reader::new(Condense::default()).unwrap();
        }
        let call = ToolCall {
            id: at.to_string(),
            kind: "function".to_owned(),
            function: FunctionCall {
                name: "bash".to_owned(),
                arguments: serde_json::json!({ "command": log.command }).to_string(),
            },
        };
        let asks = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
        let answer = Message {
            tool_call_id: Some(at.to_string()),
            ..Message::text(Role::Tool, log.output.clone())
        };
        reader.read(&asks, &Anywhere);
        given.push(reader.read(&answer, &Anywhere).given.unwrap_or(log.output.clone()));
    }
    given
}

#[test]
fn every_recorded_log_is_folded_as_it_was_judged() {
    let write = std::env::var_os("ATTAR_WRITE_SNAPSHOTS").is_some();
    let logs = recorded();
    for (log, folded) in logs.iter().zip(folded(&logs)) {
        let snapshot = log.path.with_extension("folded");
        if write {
            fs::write(&snapshot, &folded).unwrap();
        }
        let expected = fs::read_to_string(&snapshot).unwrap_or_default();
        assert!(expected == folded, "{} folds differently:\n{folded}", log.path.display());
    }
}

#[test]
fn the_verdict_of_every_recorded_log_survives() {
    let logs = recorded();
    for (log, folded) in logs.iter().zip(folded(&logs)) {
        // Of a diff, nothing is a verdict.
        if log.command.starts_with("git diff") {
            continue;
        }
        let name = log.path.display();
        let read = Log::read(&log.output);
        for failing in &read.failing {
            assert!(folded.contains(failing), "{name}: {failing} is gone");
        }
        for at in read.verdict() {
            let line = read.lines[at].trim_end();
            assert!(folded.contains(line), "{name}: this line is gone: {line}");
        }
    }
}
