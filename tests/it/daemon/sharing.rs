//! One daemon, many clients: joining, cancelling, hanging up, and not standing in the way.

use serde_json::json;

use super::{Daemon, Peer, content, endless, long_text, question, user};
use attar::wire::client::Received;

#[tokio::test]
async fn another_connection_joins_a_generation_wherever_it_wants() {
    let daemon = Daemon::start().await;
    let (mut first, mut second) = (daemon.peer().await, daemon.peer().await);
    first.open("a").await;
    let error = second.refused("session/attach", json!({"session": "a"})).await;
    assert_eq!(error.code, -32_602, "nothing was generated yet: {error}");

    let id = first.start_endless("a").await;
    let attached = second.0.send("session/attach", json!({"session": "a"})).await.unwrap();
    first.0.cancel(id).await.unwrap();
    let result = first.answer(id).await.unwrap();
    assert_eq!(second.answer(attached).await.unwrap(), result);

    let result = first.say("a", "Again.", 200).await;
    let whole = content(&result).to_owned();
    for (from, n_wanted) in [(0, usize::MAX), (3, usize::MAX), (usize::MAX >> 12, 0)] {
        let mut seqs = Vec::new();
        let mut text = String::new();
        let params = json!({"session": "a", "from_seq": from});
        let again = second.0.call_streaming("session/attach", params, |_, delta| {
            seqs.push(delta["seq"].as_u64().unwrap() as usize);
            text.push_str(delta["text"].as_str().unwrap());
        });
        assert_eq!(again.await.unwrap(), result);
        assert!(seqs.iter().copied().eq((from..).take(seqs.len())), "{from}");
        assert!(if n_wanted == 0 { text.is_empty() } else { whole.ends_with(&text) }, "{from}");
        assert!(from > 0 || text == whole);
    }
}

#[tokio::test]
async fn cancelled_generations_keep_what_they_have() {
    let daemon = Daemon::start().await;
    let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
    for by_request in [true, false] {
        let session = if by_request { "request" } else { "session" };
        peer.open(session).await;
        let id = peer.start_endless(session).await;
        if by_request {
            peer.0.cancel(id).await.unwrap();
        } else {
            let cancelled = other.ok("session/cancel", json!({"session": session})).await;
            assert_eq!(cancelled["cancelled"], true);
        }
        let result = peer.answer(id).await.unwrap();
        assert_eq!(result["finish_reason"], "cancelled");
        assert!(!content(&result).is_empty());
        let shown = peer.ok("session/show", json!({"session": session})).await;
        assert_eq!(shown["history"][1], result["message"], "it stands in the session");
        let idle = other.ok("session/cancel", json!({"session": session})).await;
        assert_eq!(idle["cancelled"], false);
        peer.say(session, "Go on.", 4).await;
    }
}

#[tokio::test]
async fn a_prefill_can_be_cancelled_and_leaves_the_question() {
    let daemon = Daemon::start().await;
    let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
    peer.open("a").await;
    let mut request = question("a", &long_text(), 4);
    request["stream"] = true.into();
    let id = peer.0.send("session/generate", request).await.unwrap();
    peer.notification("$/progress").await;
    other.ok("session/cancel", json!({"session": "a"})).await;
    let result = peer.answer(id).await.unwrap();
    assert_eq!(result["finish_reason"], "cancelled");
    assert_eq!(result["usage"]["completion_tokens"], 0);
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_its_turn() {
    let daemon = Daemon::start().await;
    let mut watcher = daemon.peer().await;
    for (session, on_disconnect, expected) in
        [("cancelled", "cancel", "cancelled"), ("finished", "finish", "length")]
    {
        watcher.open(session).await;
        let mut leaving = daemon.peer().await;
        let mut request = endless(session);
        request["on_disconnect"] = on_disconnect.into();
        leaving.0.send("session/generate", request).await.unwrap();
        leaving.under_way().await;
        drop(leaving);
        let attached = watcher.0.send("session/attach", json!({"session": session})).await.unwrap();
        let result = watcher.answer(attached).await.unwrap();
        assert_eq!(result["finish_reason"], expected);
        let shown = watcher.ok("session/show", json!({"session": session})).await;
        assert_eq!(shown["history"][1], result["message"]);
    }
}

#[tokio::test]
async fn a_session_that_generates_is_busy_and_says_when_to_try_again() {
    let daemon = Daemon::start().await;
    let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
    peer.open("a").await;
    let id = peer.start_endless("a").await;
    let calls = [
        ("session/open", json!({"session": "a"})),
        ("session/append", json!({"session": "a", "messages": user("x")})),
        ("session/generate", question("a", "x", 1)),
        ("session/configure", json!({"session": "a", "cache": {"budget": 512}})),
        ("session/checkpoint", json!({"session": "a"})),
        ("session/rollback", json!({"session": "a"})),
        ("session/fork", json!({"session": "a"})),
        ("session/inspect", json!({"session": "a", "what": "kept"})),
        ("session/show", json!({"session": "a"})),
        ("session/close", json!({"session": "a"})),
        ("session/delete", json!({"session": "a"})),
    ];
    for (method, params) in calls {
        let error = other.refused(method, params).await;
        assert_eq!(error.code, 1_004, "{method}: {error}");
        let data = error.data.unwrap();
        assert_eq!((&data["kind"], &data["retryable"]), (&"session_busy".into(), &true.into()));
        assert!(data["retry_after_ms"].is_u64(), "{method}");
    }
    other.ok("session/cancel", json!({"session": "a"})).await;
    assert!(peer.answer(id).await.is_ok());
    other.ok("session/delete", json!({"session": "a"})).await;
}

#[tokio::test]
async fn sessions_side_by_side_say_what_they_say_alone() {
    const N_SESSIONS: usize = 16;
    let daemon = Daemon::start().await;
    let ask = |name: String, n: usize| {
        let mut request = question(&name, &format!("Number {n}."), 60);
        request["sampling"]["seed"] = n.into();
        request
    };
    let mut alone = Vec::new();
    let mut peer = daemon.peer().await;
    for n in 0..N_SESSIONS {
        let name = format!("alone-{n}");
        peer.open(&name).await;
        alone.push(content(&peer.ok("session/generate", ask(name, n)).await).to_owned());
    }
    let mut asked = Vec::new();
    for pair in 0..N_SESSIONS / 2 {
        let mut peer = daemon.peer().await;
        let mut ids = Vec::new();
        for n in [2 * pair, 2 * pair + 1] {
            let name = format!("together-{n}");
            peer.open(&name).await;
            ids.push((n, name));
        }
        asked.push((peer, ids));
    }
    let mut sent = Vec::new();
    for (mut peer, names) in asked {
        let mut ids = Vec::new();
        for (n, name) in names {
            ids.push((peer.0.send("session/generate", ask(name, n)).await.unwrap(), n));
        }
        sent.push((peer, ids));
    }
    for (mut peer, ids) in sent {
        // Either of a connection's two may be answered first.
        for _ in 0..ids.len() {
            let Received::Answer { id, outcome } = peer.receive().await else {
                panic!("no stream")
            };
            let n = ids.iter().find(|(sent, _)| id == *sent).unwrap().1;
            assert_eq!(content(&outcome.unwrap()), alone[n], "{n}");
        }
    }
}

#[tokio::test]
async fn a_long_prefill_holds_up_nobody() {
    let daemon = Daemon::start().await;
    let (mut reading, mut quick) = (daemon.peer().await, daemon.peer().await);
    reading.open("long").await;
    quick.open("quick").await;
    let mut request = question("long", &long_text(), 4);
    request["stream"] = true.into();
    reading.0.send("session/generate", request).await.unwrap();
    quick.until_status("/sessions/generating", 1.into()).await;
    let said = quick.say("quick", "Hello", 12).await;
    assert!(said["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let status = quick.ok("daemon/status", json!({})).await;
    assert_eq!(status["sessions"]["generating"], 1, "the long one is not done yet");
}

#[tokio::test]
async fn opening_closing_and_deleting_at_once_neither_hangs_nor_loses_a_message() {
    let daemon = Daemon::start().await;
    let hammer = |mut peer: Peer| async move {
        let mut n_appended = 0;
        for round in 0..30 {
            let outcomes = [
                peer.call("session/open", json!({"session": "a"})).await,
                peer.call("session/append", json!({"session": "a", "messages": user("x")})).await,
                match round % 3 {
                    0 => peer.call("session/close", json!({"session": "a"})).await,
                    1 => peer.call("session/list", json!({})).await,
                    _ => peer.call("session/checkpoint", json!({"session": "a"})).await,
                },
            ];
            n_appended += usize::from(outcomes[1].is_ok());
            for error in outcomes.into_iter().filter_map(Result::err) {
                assert_eq!(error.code, 1_003, "only a closed session may be in the way: {error}");
            }
        }
        n_appended
    };
    let mut hammering = tokio::task::JoinSet::new();
    for _ in 0..4 {
        hammering.spawn(hammer(daemon.peer().await));
    }
    let n_appended: usize = hammering.join_all().await.into_iter().sum();
    let mut peer = daemon.peer().await;
    for is_restarted in [false, true] {
        peer.open("a").await;
        let shown = peer.ok("session/show", json!({"session": "a"})).await;
        assert_eq!(shown["history"].as_array().unwrap().len(), n_appended, "{is_restarted}");
        peer.ok("session/close", json!({"session": "a"})).await;
    }
}

#[tokio::test]
async fn a_cancelled_call_is_answered_at_once_and_done_to_its_end() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let answer = json!({"role": "assistant", "content": "So."});
    let messages = json!([user(&long_text())[0], answer, user("Next.")[0]]);
    peer.ok("session/append", json!({"session": "a", "messages": messages})).await;

    let inspect = json!({"session": "a", "what": "kept"});
    let id = peer.0.send("session/inspect", inspect.clone()).await.unwrap();
    peer.0.cancel(id).await.unwrap();
    assert_eq!(peer.answer(id).await.unwrap_err().code, -32_800);
    let kept = peer.ok("session/inspect", inspect).await;
    assert!(kept["logical"].as_u64().unwrap() > 10_000, "all of it was read: {}", kept["logical"]);
}
