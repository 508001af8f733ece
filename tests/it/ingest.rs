//! What folding promises, on recorded trajectories and through the daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use attar::engine::KvMemory;
use attar::ingest::condense::Condense;
use attar::ingest::formats;
use attar::ingest::log::{Log, Severity};
use attar::ingest::reader::{Anywhere, Reader, Reading, handle};
use attar::ingest::report::condense;
use attar::ingest::span::{Kind, Part};
use attar::ingest::template::template;
use attar::session::conversation::{Conversation, Intake};
use attar::session::models::{Model, Models};
use attar::session::record::Entry;
use attar::trajectory::{Message, Role};
use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, Peer};
use crate::tiny;

/// Trajectory files by name: the project's own, and where there are any the recorded ones.
fn files() -> Vec<(String, String)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/trajectories");
    let mut folders = vec![own.join("formats"), own];
    match std::env::var_os("ATTAR_TRAJECTORIES").map(PathBuf::from) {
        Some(folder) => folders.extend([folder.join("formats"), folder]),
        None => println!("ATTAR_TRAJECTORIES is not set; only the project's own are read"),
    }
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|e| ["json", "jsonl", "traj"].iter().any(|known| e == *known))
    });
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(read).collect()
}

#[test]
fn a_file_keeps_every_byte_but_those_of_folded_contents() {
    for (name, text) in files() {
        let whole = formats::read(&text).unwrap();
        let nothing = vec![None; whole.messages.len()];
        assert_eq!(formats::rewrite(&text, &nothing).unwrap(), text, "{name}");

        let (readings, report) = condense(&whole.messages, Condense::default(), None).unwrap();
        let given: Vec<_> = readings.iter().map(|reading| reading.given.as_deref()).collect();
        let short = formats::rewrite(&text, &given).unwrap();
        let again = formats::read(&short).unwrap();
        let mut expected = whole.clone();
        for (message, given) in expected.messages.iter_mut().zip(&given) {
            if let Some(given) = given {
                assert!(given.len() < message.content.len(), "{name}");
                message.content = (*given).to_owned();
            }
        }
        assert_eq!(again, expected, "{name}");
        println!("{name}: {:.1} % less, {:?}", 100.0 * report.characters.share(), report.rules);
    }
}

#[test]
fn a_message_that_was_folded_cannot_be_folded_further() {
    for (name, text) in files() {
        let mut reader = Reader::new(Condense::default()).unwrap();
        for message in formats::read(&text).unwrap().messages {
            let mark = reader.mark();
            let Reading { given, folds, .. } = reader.read(&message, &Anywhere);
            if let Some(given) = &given {
                reader.rewind(mark);
                let folded = Message { content: given.clone(), ..message.clone() };
                let again = reader.read(&folded, &Anywhere);
                assert_eq!(again.given, None, "{name}: {given}");
                reader.rewind(mark);
                reader.remember(&message, Some(given), &folds);
            }
        }
    }
}

/// Errors and failures of a log by their first lines, without colours.
fn errors(text: &str) -> Vec<String> {
    let plain = strip_ansi_escapes::strip_str(text);
    let log = Log::read(&plain);
    let errors = log.findings.iter().filter(|finding| finding.severity != Severity::Warning);
    errors.map(|error| log.lines[error.lines.start].trim().to_owned()).collect()
}

#[test]
fn every_error_of_a_log_stays_in_sight_or_is_counted() {
    for (name, text) in files() {
        let mut plain = Reader::new(Condense::off()).unwrap();
        let mut reader = Reader::new(Condense::default()).unwrap();
        let (mut seen, mut n_errors, mut n_counted) = (String::new(), 0, 0);
        for message in formats::read(&text).unwrap().messages {
            let spans = plain.read(&message, &Anywhere).spans;
            let reading = reader.read(&message, &Anywhere);
            let given = reading.given.as_ref().unwrap_or(&message.content);
            seen.push_str(given);
            for span in spans.iter().filter(|span| span.kind == Kind::Log) {
                for error in errors(&message.content[span.bytes.clone()]) {
                    n_errors += 1;
                    // Numbers of four digits, times and ids may be another run's.
                    let is_seen = seen.contains(&error)
                        || template(&seen).contains(template(&error).as_ref());
                    if !is_seen {
                        n_counted += 1;
                        assert!(!reading.folds.is_empty(), "{name}: {error:?} is gone");
                        let is_counted = given.lines().any(|line| {
                            line.contains("more") && line.contains(|c: char| c.is_ascii_digit())
                        });
                        assert!(is_counted, "{name}: {error:?} is not counted in {given}");
                    }
                }
            }
        }
        println!("{name}: {n_errors} errors, {n_counted} of them only counted");
    }
}

/// How much shorter some of the recorded trajectories get.
#[test]
fn what_folding_is_for_is_folded() {
    let least = [("requests-1142.json", 0.7), ("rust-cargo-failures-a.json", 0.1)];
    for (name, text) in files() {
        let messages = formats::read(&text).unwrap().messages;
        let (_, report) = condense(&messages, Condense::default(), None).unwrap();
        let share = report.characters.share();
        if let Some((_, least)) = least.iter().find(|(known, _)| *known == name) {
            assert!(share >= *least, "{name}: {:.1} % less, {:?}", 100.0 * share, report.rules);
        }
    }
}

async fn tiny_model() -> Arc<Model> {
    let name = tiny::fixture().to_str().unwrap().to_owned();
    Models::new(name.clone(), Arc::new(KvMemory::new(1 << 30))).get(&name).await.unwrap()
}

fn intake(budget: Option<usize>) -> Intake {
    Intake { condense: Condense::default(), budget }
}

/// A conversation of messages that are pushed one by one.
fn pushed(model: &Arc<Model>, budget: Option<usize>, messages: &[Message]) -> Conversation {
    let mut conversation =
        Conversation::new(Arc::clone(model), Vec::new(), intake(budget)).unwrap();
    for message in messages {
        conversation.push(message.clone()).unwrap();
    }
    conversation
}

#[tokio::test]
async fn a_record_gives_the_same_tokens_and_the_exact_text() {
    let model = tiny_model().await;
    for (name, text) in files() {
        let messages = formats::read(&text).unwrap().messages;
        for budget in [None, Some(4_096)] {
            let whole = pushed(&model, budget, &messages);
            let records: Vec<_> = whole
                .entries()
                .iter()
                .map(|entry| serde_json::to_string(entry).unwrap())
                .map(|record| serde_json::from_str::<Entry>(&record).unwrap())
                .collect();
            let originals: Vec<_> = records.iter().map(|entry| entry.message.clone()).collect();
            assert_eq!(originals, messages, "{name}");
            for entry in records.iter().filter(|entry| entry.given.is_some()) {
                assert_eq!(entry.handle(), Some(handle(&entry.message.content)), "{name}");
            }
            let restored =
                Conversation::restore(Arc::clone(&model), Vec::new(), intake(budget), records)
                    .unwrap();
            assert_eq!(restored.n_tokens(), whole.n_tokens(), "{name}");
            let n_tokens = whole.n_tokens();
            assert_eq!(restored.stream_hash(n_tokens), whole.stream_hash(n_tokens), "{name}");
            for (idx, _) in messages.iter().enumerate() {
                assert_eq!(restored.spans(idx), whole.spans(idx), "{name}: message {idx}");
            }
            assert_eq!(restored.pins(), whole.pins(), "{name}");
        }
    }
}

#[tokio::test]
async fn what_was_given_before_is_given_whatever_the_rules_say_now() {
    let model = tiny_model().await;
    let mut record: Entry = serde_json::from_value(json!({
        "message": {"role": "tool", "content": "line\n".repeat(300)},
        "given": "a rule of another time",
        "folds": [{"rule": "forgotten", "saved": 1_478}],
    }))
    .unwrap();
    let restore = |record: &Entry| {
        let records = vec![record.clone()];
        let model = Arc::clone(&model);
        let mut restored = Conversation::restore(model, Vec::new(), intake(None), records).unwrap();
        restored.push(Message::text(Role::User, "next")).unwrap();
        restored
    };
    assert!(restore(&record).n_tokens() < 300);
    // A record from before there was folding.
    record.given = None;
    record.folds.clear();
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains("given") && !text.contains("folds"), "{text}");
    assert!(restore(&record).n_tokens() > 1_000);
}

#[tokio::test]
async fn spans_lie_where_their_tokens_are() {
    let model = tiny_model().await;
    for (name, text) in files() {
        let messages = formats::read(&text).unwrap().messages;
        let conversation = pushed(&model, None, &messages);
        let stream: Vec<u32> =
            conversation.runs_after(0).iter().flat_map(|run| run.tokens.clone()).collect();
        let (mut n_placed, mut n_spans) = (0, 0);
        for (idx, entry) in conversation.entries().iter().enumerate() {
            let mut end = 0;
            for span in conversation.spans(idx).iter().filter(|span| span.part == Part::Content) {
                assert_eq!(span.bytes.start, end, "{name}: message {idx}");
                end = span.bytes.end;
                n_spans += 1;
                let Some(tokens) = conversation.tokens(idx, span.part, &span.bytes) else {
                    continue;
                };
                n_placed += 1;
                let tokens = &stream[tokens.start as usize..tokens.end as usize];
                let read = model.tokenizer.decode(tokens).unwrap();
                let wanted = entry.content()[span.bytes.clone()].trim();
                assert!(read.contains(wanted), "{name}: message {idx}: {wanted:?} in {read:?}");
                assert!(read.len() <= span.bytes.len() + 16, "{name}: message {idx}: {read:?}");
            }
            assert_eq!(end, entry.content().len(), "{name}: message {idx}");
        }
        // The open group has no tokens; a template may take an answer apart.
        println!("{name}: {n_placed} of {n_spans} spans have a place");
        assert!(2 * n_placed > n_spans || messages.len() < 10, "{name}: {n_placed} of {n_spans}");
    }
}

/// Words that no rule takes for repetitions, coloured as tools do.
fn coloured() -> String {
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"];
    let pairs = words.iter().flat_map(|a| words.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| format!("\u{1b}[32m{a}\u{1b}[0m and {b}\n")).collect()
}

/// A command and what it gave out.
fn run(id: &str, command: &str, output: &str) -> Value {
    let arguments = json!({"command": command}).to_string();
    let call =
        json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}});
    json!([
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": output},
    ])
}

async fn append(peer: &mut Peer, session: &str, messages: Value) -> Value {
    let params = json!({"session": session, "messages": messages});
    peer.ok("session/append", params).await["items"].clone()
}

/// What a session holds of each message, without the places of tokens.
async fn held(peer: &mut Peer, session: &str) -> Value {
    let params = json!({"session": session, "what": "spans"});
    peer.ok("session/inspect", params).await["messages"].clone()
}

#[tokio::test]
async fn tool_output_is_folded_when_it_comes_and_recalled_as_it_came() {
    let home = Home::new();
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let items = append(&mut peer, "a", run("c1", "make list", &coloured())).await;
    let item = &items[1];
    assert_eq!(item["folds"][0]["rule"], "terminal", "{item}");
    let (tokens, given) =
        (item["tokens"].as_u64().unwrap(), item["given_tokens"].as_u64().unwrap());
    assert_eq!(tokens - given, item["folds"][0]["saved"].as_u64().unwrap(), "a token is a byte");
    assert_eq!(items[0].get("handle"), None);

    let recall = json!({"session": "a", "handle": item["handle"]});
    let recalled = peer.ok("session/recall", recall.clone()).await;
    assert_eq!(recalled["text"], coloured());
    assert_eq!(recalled["message"], 1);

    // A generation's messages are folded as well.
    let mut asked = json!({"session": "a", "messages": run("c2", "make list", &coloured())});
    asked["max_tokens"] = 4.into();
    let said = peer.ok("session/generate", asked).await;
    let before = held(&mut peer, "a").await;
    assert!(before[3]["folds"][0]["rule"].is_string(), "{before}");
    assert!(said["usage"]["prompt_tokens"].as_u64().unwrap() < 2 * tokens, "{said}");

    // Killed: what the model was given is the same, and the cache that was made of it fits.
    drop(daemon);
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    assert_eq!(
        peer.ok("session/recall", recall.clone()).await,
        recalled,
        "also while it is closed"
    );
    let opened = peer.open("a").await;
    assert_eq!((&opened["rebuilt"], &opened["resumed"]), (&false.into(), &true.into()));
    assert_eq!(held(&mut peer, "a").await, before);
    assert_eq!(peer.ok("session/recall", recall).await, recalled);
    let next = peer.say("a", "Go on.", 4).await;
    let cached = next["usage"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= said["usage"]["prompt_tokens"].as_u64().unwrap(), "{next}");
}

#[tokio::test]
async fn rollbacks_and_forks_remember_what_was_given() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let open = json!({"session": "a", "cache": {"policy": "full"}});
    peer.ok("session/open", open).await;
    append(&mut peer, "a", run("c1", "make list", &coloured())).await;
    peer.ok("session/checkpoint", json!({"session": "a", "checkpoint": "here"})).await;
    let once_more = run("c2", "make list", &coloured());
    let first = append(&mut peer, "a", once_more.clone()).await;
    let rules = first[1]["folds"].as_array().unwrap();
    let same = rules.iter().find(|fold| fold["rule"] == "same_output").expect("a repetition");
    assert_eq!(same["points_to"][0]["message"], 1, "{first}");

    let fork = json!({"session": "a", "checkpoint": "here"});
    let fork = peer.ok("session/fork", fork).await["session"].as_str().unwrap().to_owned();
    assert_eq!(append(&mut peer, &fork, once_more.clone()).await, first);
    let recalled = json!({"session": fork, "handle": first[1]["handle"]});
    assert_eq!(peer.ok("session/recall", recalled).await["text"], coloured());

    peer.ok("session/rollback", json!({"session": "a", "checkpoint": "here"})).await;
    assert_eq!(append(&mut peer, "a", once_more).await, first);
    // What came after the checkpoint is forgotten: here the output is new.
    peer.open("b").await;
    let whole = append(&mut peer, "b", run("c1", "make list", &coloured())).await;
    assert!(whole[1]["given_tokens"].as_u64() > first[1]["given_tokens"].as_u64());
}

#[tokio::test]
async fn folding_has_a_switch_and_every_rule_its_own() {
    let daemon = Daemon::with(&["--condense", "off:same_output,seen_blocks"]).await;
    let mut peer = daemon.peer().await;
    let opened = peer.ok("initialize", json!({})).await;
    let rules = opened["capabilities"]["condense"].as_array().unwrap();
    assert!(rules.contains(&"terminal".into()) && rules.contains(&"same_output".into()));
    let folded_by = |items: &Value| -> Vec<String> {
        let folds = items[1]["folds"].as_array().cloned().unwrap_or_default();
        folds.iter().map(|fold| fold["rule"].as_str().unwrap().to_owned()).collect()
    };
    let twice = json!([run("c1", "make", &coloured()), run("c2", "make", &coloured())]);
    let open = |session: &str, condense: Option<Value>| {
        let mut open = json!({"session": session, "cache": {"policy": "full"}});
        if let Some(condense) = condense {
            open["condense"] = condense;
        }
        open
    };
    for (session, condense, expected) in [
        ("default", None, [&["terminal"][..], &["terminal"]]),
        ("off", Some(json!("off")), [&[], &[]]),
        ("switched", Some(json!({"off": ["terminal"]})), [&[], &["same_output"]]),
    ] {
        peer.ok("session/open", open(session, condense)).await;
        for (run, expected) in twice.as_array().unwrap().iter().zip(expected) {
            let items = append(&mut peer, session, run.clone()).await;
            assert_eq!(folded_by(&items), expected, "{session}");
        }
    }
    // Another setting holds for what comes later, and stays.
    let error = peer.refused("session/open", open("off", Some(json!("on")))).await;
    assert!(error.code == -32_602 && error.message.contains("session/configure"), "{error}");
    let change = json!({"session": "off", "condense": {"off": ["repeats"]}});
    let set = peer.ok("session/configure", change).await;
    assert_eq!(set["condense"], json!({"off": ["repeats"]}));
    let before = held(&mut peer, "off").await;
    let home = daemon.stop().await;
    let daemon = Daemon::in_home(&home, &["--condense", "off"]).await;
    let mut peer = daemon.peer().await;
    peer.open("off").await;
    assert_eq!(held(&mut peer, "off").await, before);
    let items = append(&mut peer, "off", run("c3", "make all", &coloured())).await;
    assert!(folded_by(&items).contains(&"same_output".to_owned()), "{items}");
}

#[tokio::test]
async fn a_conversation_is_folded_the_same_however_it_comes_in_pieces() {
    let daemon = Daemon::with(&["--budget", "2048"]).await;
    let mut peer = daemon.peer().await;
    let mut messages = vec![json!({"role": "user", "content": "List it all."})];
    for round in 0..8 {
        let output = if round % 3 == 0 { coloured() } else { coloured().replace("beta", "omega") };
        messages.extend(run(&format!("c{round}"), "make", &output).as_array().unwrap().clone());
    }
    let mut found = Vec::new();
    for (session, size) in [("whole", messages.len()), ("one", 1), ("three", 3), ("five", 5)] {
        peer.open(session).await;
        for piece in messages.chunks(size) {
            append(&mut peer, session, json!(piece)).await;
        }
        found.push(held(&mut peer, session).await);
    }
    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    let n_folded = found[0].as_array().unwrap().iter().filter(|m| m.get("folds").is_some()).count();
    assert!(n_folded >= 8, "{found:?}");
}

#[tokio::test]
async fn messages_are_condensed_without_a_session() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let mut messages = run("c1", "make", &coloured()).as_array().unwrap().clone();
    messages[1]["content"] =
        json!([{"type": "text", "text": coloured(), "cache_control": {"type": "ephemeral"}}]);
    messages[0]["unknown"] = 1.into();
    let params = json!({"messages": messages, "tokenizer": tiny::fixture()});
    let result = peer.ok("context/condense", params).await;
    assert_eq!(result["messages"][0], messages[0]);
    let part = &result["messages"][1]["content"][0];
    assert_eq!(part["cache_control"]["type"], "ephemeral");
    assert!(!part["text"].as_str().unwrap().contains('\u{1b}'), "{part}");
    let report = &result["report"];
    let before = report["tokens"]["before"].as_u64().unwrap();
    let after = report["tokens"]["after"].as_u64().unwrap();
    assert_eq!(report["rules"]["terminal"]["tokens"], before - after, "{report}");
    assert_eq!(report["folded"], 1);
    let off = json!({"messages": messages, "condense": "off"});
    assert_eq!(peer.ok("context/condense", off).await["messages"], json!(messages));
}
