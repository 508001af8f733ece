//! What a generation gives, and when.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Daemon, Home, content, long_text, question, user};
use crate::tiny;
use attar::wire::client::Received;

/// Checks that `result` has each member (a JSON pointer) with this type.
fn assert_fields(what: &str, result: &Value, fields: &[(&str, &str)]) {
    for (pointer, kind) in fields {
        let value = result.pointer(pointer).unwrap_or_else(|| panic!("{what} lacks {pointer}"));
        let is_right = match *kind {
            "count" => value.is_u64(),
            "number" => value.is_number(),
            "text" => value.is_string(),
            "bool" => value.is_boolean(),
            "list" => value.is_array(),
            "map" => value.is_object(),
            _ => unreachable!("{kind}"),
        };
        assert!(is_right, "{what}: {pointer} is {value}, no {kind}");
    }
}

#[tokio::test]
async fn results_have_every_field_with_its_type() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let client = json!({"client": {"name": "test", "version": "1"}});
    let said = question("a", "Hello", 8);
    let calls = [
        (
            "initialize",
            client,
            &[
                ("/server/name", "text"),
                ("/server/version", "text"),
                ("/protocol", "count"),
                ("/models", "list"),
                ("/capabilities", "map"),
                ("/capabilities/methods", "list"),
            ][..],
        ),
        (
            "session/open",
            json!({"session": "a", "messages": user("Hi")}),
            &[
                ("/session", "text"),
                ("/resumed", "bool"),
                ("/rebuilt", "bool"),
                ("/turns", "count"),
                ("/tokens/logical", "count"),
                ("/tokens/kept", "count"),
                ("/tokens/pending", "count"),
            ],
        ),
        (
            "session/append",
            json!({"session": "a", "messages": user("there")}),
            &[
                ("/items/0/index", "count"),
                ("/items/0/tokens", "count"),
                ("/items/0/given_tokens", "count"),
                ("/tokens/logical", "count"),
                ("/tokens/kept", "count"),
                ("/tokens/pending", "count"),
            ],
        ),
        (
            "session/generate",
            said,
            &[
                ("/generation", "text"),
                ("/message/role", "text"),
                ("/message/content", "text"),
                ("/finish_reason", "text"),
                ("/usage/prompt_tokens", "count"),
                ("/usage/cached_tokens", "count"),
                ("/usage/completion_tokens", "count"),
                ("/usage/reasoning_tokens", "count"),
                ("/cache/policy", "text"),
                ("/cache/budget", "count"),
                ("/cache/kept", "count"),
                ("/cache/evicted", "count"),
                ("/cache/compactions", "count"),
                ("/cache/bytes", "count"),
                ("/timing/queue_ms", "number"),
                ("/timing/prefill_ms", "number"),
                ("/timing/decode_ms", "number"),
                ("/timing/compaction_ms", "number"),
                ("/timing/tokens_per_second", "number"),
                ("/seed", "count"),
            ],
        ),
        (
            "session/configure",
            json!({"session": "a", "cache": {"budget": 512}}),
            &[("/cache/policy", "text"), ("/cache/budget", "count"), ("/cache/buffer", "count")],
        ),
        ("session/checkpoint", json!({"session": "a"}), &[("/checkpoint", "text")]),
        ("session/rollback", json!({"session": "a"}), &[("/checkpoint", "text")]),
        ("session/fork", json!({"session": "a"}), &[("/session", "text"), ("/turns", "count")]),
        ("session/cancel", json!({"session": "a"}), &[("/cancelled", "bool")]),
        (
            "session/list",
            json!({}),
            &[("/sessions/0/session", "text"), ("/sessions/0/open", "bool")],
        ),
        (
            "session/show",
            json!({"session": "a"}),
            &[("/history", "list"), ("/model", "text"), ("/tokens", "count"), ("/turns", "count")],
        ),
        (
            "session/inspect",
            json!({"session": "a", "what": "spans"}),
            &[("/spans", "list"), ("/messages/0/given_bytes", "count")],
        ),
        (
            "context/condense",
            json!({"messages": user("hello")}),
            &[("/messages", "list"), ("/report/characters/after", "count")],
        ),
        ("session/inspect", json!({"session": "a", "what": "kept"}), &[("/kept", "list")]),
        ("session/close", json!({"session": "a"}), &[("/session", "text")]),
        ("session/delete", json!({"session": "a"}), &[("/session", "text")]),
        ("model/list", json!({}), &[("/default", "text"), ("/loaded", "list")]),
        ("model/load", json!({"model": tiny::fixture()}), &[("/context_length", "count")]),
        ("model/unload", json!({"model": tiny::fixture()}), &[("/unloaded", "bool")]),
        (
            "daemon/status",
            json!({}),
            &[
                ("/version", "text"),
                ("/pid", "count"),
                ("/uptime_ms", "count"),
                ("/sessions/open", "count"),
                ("/sessions/generating", "count"),
                ("/kv_memory/limit", "count"),
                ("/kv_memory/used", "count"),
                ("/store/bytes", "count"),
            ],
        ),
    ];
    for (method, params, fields) in calls {
        assert_fields(method, &peer.ok(method, params).await, fields);
    }
}

#[tokio::test]
async fn deltas_have_no_gaps_and_add_up_to_the_message() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    for session in ["streamed", "whole", "other-seed"] {
        peer.open(session).await;
    }
    let mut request = question("streamed", "Tell me.", 200);
    request["stream"] = true.into();
    let (mut text, mut seqs) = (String::new(), Vec::new());
    let result = peer.0.call_streaming("session/generate", request, |method, params| {
        if method == "session/delta" {
            assert_eq!(
                (&params["session"], &params["kind"]),
                (&"streamed".into(), &"content".into())
            );
            seqs.push(params["seq"].as_u64().unwrap());
            text.push_str(params["text"].as_str().unwrap());
        }
    });
    let result = result.await.unwrap();
    assert!(seqs.len() > 1 && seqs.iter().copied().eq(0..seqs.len() as u64), "{seqs:?}");
    assert_eq!(text, content(&result));

    let request = question("whole", "Tell me.", 200);
    let mut n_notified = 0;
    let whole = peer.0.call_streaming("session/generate", request, |_, _| n_notified += 1);
    let whole = whole.await.unwrap();
    assert_eq!((content(&whole), n_notified), (text.as_str(), 0));

    let mut request = question("other-seed", "Tell me.", 200);
    request["sampling"]["seed"] = 8.into();
    assert_ne!(content(&peer.ok("session/generate", request).await), text);
}

#[tokio::test]
async fn a_generation_ends_where_it_is_asked_to() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    peer.open("b").await;
    let whole = peer.say("a", "Tell me.", 60).await;
    let text = content(&whole).to_owned();
    let stop: String = text.trim().chars().skip(5).take(3).collect();
    let mut request = question("b", "Tell me.", 60);
    request["stop"] = json!(["never said", stop]);
    let stopped = peer.ok("session/generate", request).await;
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(content(&stopped), &text[..text.find(&stop).unwrap()], "{text:?} {stop:?}");

    let mut greedy = question("b", "Again.", 60);
    greedy["sampling"] = json!({});
    let whole = peer.ok("session/generate", greedy).await;
    assert_eq!(whole["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 60);
}

#[tokio::test]
async fn thoughts_end_at_their_limit() {
    // The fixture with a template that opens the model's thoughts, of the same length.
    let home = Home::new();
    let (thinking, opening) = (home.dir.path().join("thinking.gguf"), r"'<|im_start|>assistant\n'");
    let replace = |bytes: Vec<u8>, from: &str, to: &str| -> Vec<u8> {
        let at = bytes.windows(from.len()).rposition(|part| part == from.as_bytes()).unwrap();
        [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
    };
    let bytes = std::fs::read(tiny::fixture()).unwrap();
    let bytes = replace(bytes, opening, r"'<|im_start|>assistant\n<think>\n'");
    let bytes = replace(bytes, "You are a helpful assistant.", "You are so helpful.");
    assert_eq!(bytes.len() as u64, std::fs::metadata(tiny::fixture()).unwrap().len());
    std::fs::write(&thinking, bytes).unwrap();
    let daemon = Daemon::in_home(&home, &["--model", thinking.to_str().unwrap()]).await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let mut request = question("a", "Think.", 80);
    request["reasoning"] = json!({"max_tokens": 10});
    let result = peer.ok("session/generate", request).await;
    let n_thoughts = result["usage"]["reasoning_tokens"].as_u64().unwrap();
    assert!((10..40).contains(&n_thoughts), "{result}");
    assert!(result["message"]["reasoning_content"].is_string(), "{result}");
}

#[tokio::test]
async fn impossible_sampling_is_refused() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let cases = [
        json!({"temperature": -1}),
        json!({"temperature": "hot"}),
        json!({"top_p": 0}),
        json!({"top_p": 1.5}),
        json!({"top_k": -1}),
        json!({"min_p": 2}),
        json!({"repetition_penalty": 0}),
        json!({"seed": -1}),
        json!({"heat": 1}),
    ];
    for sampling in cases {
        let mut request = question("a", "Hello", 4);
        request["sampling"] = sampling.clone();
        let error = peer.refused("session/generate", request).await;
        assert_eq!(error.code, -32_602, "{sampling}: {error}");
    }
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"], json!([]), "what is refused leaves nothing");
}

#[tokio::test]
async fn a_long_prefill_reports_progress_in_time() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let mut request = question("a", &long_text(), 4);
    request["stream"] = true.into();
    let asked = Instant::now();
    let id = peer.0.send("session/generate", request).await.unwrap();
    let progress = peer.notification("$/progress").await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_fields("progress", &progress, &[("/generation", "text"), ("/done", "count")]);
    assert_eq!((&progress["session"], &progress["phase"]), (&"a".into(), &"prefill".into()));
    assert!(progress["done"].as_u64() <= progress["total"].as_u64(), "{progress}");
    peer.0.cancel(id).await.unwrap();
    assert_eq!(peer.answer(id).await.unwrap()["finish_reason"], "cancelled");
}

#[tokio::test]
async fn a_closed_session_goes_on_as_if_it_had_stayed_open() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let mut texts = Vec::new();
    for (session, is_closed) in [("open", false), ("closed", true)] {
        peer.open(session).await;
        let first = peer.say(session, "One.", 40).await;
        if is_closed {
            peer.ok("session/close", json!({"session": session})).await;
            let opened = peer.open(session).await;
            assert_eq!((&opened["resumed"], &opened["rebuilt"]), (&true.into(), &false.into()));
            assert_eq!(opened["turns"], 1);
        }
        let second = peer.say(session, "Two.", 40).await;
        let n_read = first["usage"]["prompt_tokens"].as_u64().unwrap();
        let n_written = first["usage"]["completion_tokens"].as_u64().unwrap();
        assert_eq!(second["usage"]["cached_tokens"], n_read + n_written - 1);
        // All but the last token have been read, each once.
        let cache = |name: &str| second["cache"][name].as_u64().unwrap();
        let usage = |name: &str| second["usage"][name].as_u64().unwrap();
        let n_tokens = usage("prompt_tokens") + usage("completion_tokens") - 1;
        assert_eq!(cache("kept") + cache("evicted"), n_tokens);
        texts.push((content(&first).to_owned(), content(&second).to_owned()));
    }
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn a_request_that_does_not_stream_gets_nothing_but_its_answer() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let id = peer.0.send("session/generate", question("a", "Hello", 20)).await.unwrap();
    match peer.receive().await {
        Received::Answer { id: answered, outcome } => {
            assert_eq!(answered, id);
            outcome.unwrap();
        }
        other => panic!("{other:?}"),
    }
}
