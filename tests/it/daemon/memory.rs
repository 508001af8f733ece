//! One account for all KV memory: what does not fit is parked or refused, and all is given back.

use candle_core::quantized::GgmlDType;
use serde_json::json;

use super::{Daemon, content, endless, question};
use crate::tiny;

#[tokio::test]
async fn all_memory_is_given_back() {
    let daemon = Daemon::start().await;
    let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
    for session in ["closed", "deleted", "cancelled", "forked"] {
        peer.open(session).await;
        peer.say(session, "Hello", 8).await;
    }
    let id = peer.start_endless("cancelled").await;
    other.ok("session/cancel", json!({"session": "cancelled"})).await;
    peer.answer(id).await.unwrap();
    peer.ok("session/configure", json!({"session": "closed", "cache": {"budget": 256}})).await;
    peer.ok("session/checkpoint", json!({"session": "forked"})).await;
    peer.ok("session/rollback", json!({"session": "forked"})).await;
    let fork = peer.ok("session/fork", json!({"session": "forked"})).await;
    peer.ok("session/delete", json!({"session": fork["session"]})).await;
    peer.refused("session/generate", question("closed", &"x".repeat(40_000), 1)).await;
    let status = peer.ok("daemon/status", json!({})).await;
    assert_eq!(status["sessions"]["open"], 4);
    assert!(status["kv_memory"]["used"].as_u64().unwrap() > 0);
    for session in ["closed", "cancelled", "forked"] {
        peer.ok("session/close", json!({"session": session})).await;
    }
    peer.ok("session/delete", json!({"session": "deleted"})).await;
    peer.until_status("/kv_memory/used", 0.into()).await;
    peer.until_status("/sessions/open", 0.into()).await;
}

#[tokio::test]
async fn a_session_larger_than_all_memory_is_refused_with_numbers_and_its_messages_stay() {
    let daemon = Daemon::with(&["--kv-memory", "1MiB"]).await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let appended = peer.append("a", &"x".repeat(8_000)).await;
    assert!(appended["tokens"]["pending"].as_u64().unwrap() > 0, "{appended}");
    let error = peer.refused("session/generate", question("a", "Hello", 4)).await;
    assert_eq!(error.code, 1_006, "{error}");
    let data = error.data.unwrap();
    assert_eq!(data["limit"], 1 << 20);
    assert!(data["asked"].as_u64().unwrap() > 1 << 20, "{data}");
    assert!(error.message.contains("budget"), "it says what to do: {}", error.message);
    // What the error advises works.
    peer.ok("session/configure", json!({"session": "a", "cache": {"budget": 256}})).await;
    assert_eq!(peer.say("a", "Hello", 4).await["usage"]["completion_tokens"], 4);
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"].as_array().unwrap().len(), 3, "the refused question is not there");
}

#[tokio::test]
async fn sessions_that_do_not_fit_together_take_turns_and_say_the_same() {
    let mut texts = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.gguf");
    tiny::gguf(&other, "llama", GgmlDType::Q8_0, 5);
    for memory in ["64MiB", "2MiB"] {
        let daemon = Daemon::with(&["--kv-memory", memory]).await;
        let mut peer = daemon.peer().await;
        let mut said = Vec::new();
        for session in ["a", "b", "c"] {
            // One account for the sessions of all models.
            let model = if session == "b" { other.clone() } else { tiny::fixture() };
            peer.ok("session/open", json!({"session": session, "model": model})).await;
            peer.append(session, &format!("{session} knows. ").repeat(200)).await;
        }
        for round in 0..3 {
            for session in ["a", "b", "c"] {
                let result = peer.say(session, &format!("Round {round}."), 20).await;
                said.push(content(&result).to_owned());
            }
        }
        let status = peer.ok("daemon/status", json!({})).await;
        let memory = &status["kv_memory"];
        assert!(memory["peak"].as_u64() <= memory["limit"].as_u64(), "{memory}");
        texts.push(said);
    }
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn generations_that_wait_for_memory_can_be_cancelled_and_the_others_end() {
    let daemon = Daemon::with(&["--kv-memory", "2MiB"]).await;
    let mut control = daemon.peer().await;
    let mut waiting = Vec::new();
    for session in ["a", "b", "c"] {
        let mut peer = daemon.peer().await;
        peer.open(session).await;
        let id = peer.0.send("session/generate", endless(session)).await.unwrap();
        waiting.push((session, peer, id));
    }
    for (session, mut peer, id) in waiting {
        control.ok("session/cancel", json!({"session": session})).await;
        match peer.answer(id).await {
            Ok(result) => assert_eq!(result["finish_reason"], "cancelled"),
            Err(error) => assert_eq!(error.code, 1_006, "{error}"),
        }
        control.ok("session/close", json!({"session": session})).await;
    }
    control.until_status("/kv_memory/used", 0.into()).await;
}
