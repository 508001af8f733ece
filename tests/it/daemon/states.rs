//! Checkpoints, forks, options, and looking at sessions.

use serde_json::{Value, json};

use super::{Daemon, content, user};

#[tokio::test]
async fn after_a_rollback_and_in_a_fork_the_same_seed_says_the_same() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    peer.say("a", "One.", 30).await;
    peer.ok("session/checkpoint", json!({"session": "a", "checkpoint": "here"})).await;
    let text = content(&peer.say("a", "Two.", 30).await).to_owned();

    let fork = json!({"session": "a", "checkpoint": "here"});
    let fork = peer.ok("session/fork", fork).await["session"].as_str().unwrap().to_owned();
    assert_eq!(content(&peer.say(&fork, "Two.", 30).await), text);

    let rolled = peer.ok("session/rollback", json!({"session": "a"})).await;
    assert_eq!(rolled["checkpoint"], "here");
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
    let again = peer.say("a", "Two.", 30).await;
    assert_eq!(content(&again), text);
    assert!(again["usage"]["cached_tokens"].as_u64().unwrap() > 0, "{again}");

    // A fork of the session as it stands goes on from there, and leaves it alone.
    let fork = peer.ok("session/fork", json!({"session": "a"})).await;
    assert_eq!((&fork["turns"], &fork["resumed"]), (&2.into(), &true.into()));
    let fork = fork["session"].as_str().unwrap().to_owned();
    let third = content(&peer.say(&fork, "Three.", 30).await).to_owned();
    assert_eq!(content(&peer.say("a", "Three.", 30).await), third);
}

#[tokio::test]
async fn every_checkpoint_is_kept_and_the_latest_is_the_default() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let error = peer.refused("session/rollback", json!({"session": "a"})).await;
    assert_eq!(error.code, 1_003, "{error}");
    // Nothing changes between them.
    let mut unnamed = Vec::new();
    for name in ["first", "second"] {
        peer.ok("session/checkpoint", json!({"session": "a", "checkpoint": name})).await;
        let made = peer.ok("session/checkpoint", json!({"session": "a"})).await;
        unnamed.push(made["checkpoint"].as_str().unwrap().to_owned());
    }
    assert_ne!(unnamed[0], unnamed[1]);
    for name in ["first", "second", &unnamed[0], &unnamed[1]] {
        let back = json!({"session": "a", "checkpoint": name});
        assert_eq!(peer.ok("session/rollback", back).await["checkpoint"], name);
    }
    let latest = peer.ok("session/rollback", json!({"session": "a"})).await;
    assert_eq!(latest["checkpoint"], unnamed[1].as_str());
    let error = peer.refused("session/rollback", json!({"session": "a", "checkpoint": "x"})).await;
    assert!(error.code == 1_003 && error.message.contains('x'), "{error}");
    peer.append("a", "still here").await;
}

#[tokio::test]
async fn a_smaller_budget_is_in_force_at_once_and_after_a_restart() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    let before = peer.say("a", &"word ".repeat(300), 4).await;
    assert_eq!(
        (&before["cache"]["policy"], &before["cache"]["compactions"]),
        (&"rkv".into(), &0.into())
    );
    assert!(before["cache"]["kept"].as_u64().unwrap() > 1_000);
    let cache = json!({"policy": "snapkv", "budget": 256, "buffer": 64});
    let set = peer.ok("session/configure", json!({"session": "a", "cache": cache})).await;
    assert_eq!(set["cache"], cache);
    let kept = peer.ok("session/inspect", json!({"session": "a", "what": "kept"})).await;
    assert_eq!(kept["kept"].as_array().unwrap().len(), 256);
    for budget in [255, 0] {
        let cache = json!({"budget": budget});
        let error =
            peer.refused("session/configure", json!({"session": "a", "cache": cache})).await;
        assert!(error.code == -32_602 && error.message.contains("256"), "{error}");
    }

    let home = daemon.stop().await;
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    assert_eq!(peer.open("a").await["rebuilt"], false);
    let after = peer.say("a", "Go on.", 4).await;
    assert_eq!(
        (&after["cache"]["policy"], &after["cache"]["budget"]),
        (&"snapkv".into(), &256.into())
    );
    assert!(after["cache"]["kept"].as_u64().unwrap() <= 256 + 64, "{after}");
    assert!(after["usage"]["cached_tokens"].as_u64().unwrap() > 1_000, "{after}");
    let error = json!({"session": "a", "cache": {"budget": 512}});
    assert_eq!(peer.refused("session/open", error).await.code, -32_602);
}

#[tokio::test]
async fn inspection_shows_what_every_head_kept() {
    let daemon = Daemon::with(&["--budget", "256", "--buffer", "32"]).await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    peer.say("a", &"Some words. ".repeat(100), 20).await;
    for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let what = json!({"session": "a", "what": "kept", "layer": layer, "head": head});
        let kept = peer.ok("session/inspect", what).await;
        let positions: Vec<u64> =
            kept["kept"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect();
        assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
        assert!(*positions.last().unwrap() < kept["logical"].as_u64().unwrap());
        let shown = peer.ok("session/show", json!({"session": "a"})).await;
        assert_eq!(positions.len() as u64, shown["cached"]["kept"].as_u64().unwrap());
    }
    let spans = peer.ok("session/inspect", json!({"session": "a", "what": "spans"})).await;
    let roles: Vec<_> = spans["messages"].as_array().unwrap().iter().map(|s| &s["role"]).collect();
    assert_eq!(roles, ["user", "assistant"]);
    for what in [
        json!({"session": "a", "what": "kept", "layer": 2}),
        json!({"session": "a", "what": "kept", "head": 2}),
        json!({"session": "a", "what": "scores"}),
        json!({"session": "a", "what": "everything"}),
    ] {
        assert_eq!(peer.refused("session/inspect", what).await.code, -32_602);
    }
}

#[tokio::test]
async fn sessions_are_listed_shown_and_deleted_open_or_closed() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    for session in ["closed", "open"] {
        peer.open(session).await;
        peer.append(session, "Hello").await;
        peer.ok("session/checkpoint", json!({"session": session})).await;
    }
    peer.ok("session/close", json!({"session": "closed"})).await;
    let listed = peer.ok("session/list", json!({})).await;
    let listed: Vec<_> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (&s["session"], &s["open"]))
        .collect();
    let (closed, open): (Value, Value) = ("closed".into(), "open".into());
    assert_eq!(listed, [(&closed, &false.into()), (&open, &true.into())], "no checkpoints");
    for session in ["closed", "open"] {
        let shown = peer.ok("session/show", json!({"session": session})).await;
        assert_eq!(shown["history"], json!([{"role": "user", "content": "Hello"}]));
        peer.ok("session/delete", json!({"session": session})).await;
        for method in ["session/show", "session/delete", "session/close"] {
            assert_eq!(peer.refused(method, json!({"session": session})).await.code, 1_003);
        }
        let opened = peer.open(session).await;
        assert_eq!((&opened["resumed"], &opened["turns"]), (&false.into(), &0.into()));
        let back = peer.refused("session/rollback", json!({"session": session})).await;
        assert_eq!(back.code, 1_003, "its checkpoints are gone: {back}");
    }
}

#[tokio::test]
async fn other_tools_need_a_rebuild_which_an_open_session_gets_too() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let tools = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    peer.ok("session/open", json!({"session": "a", "tools": tools("view")})).await;
    peer.say("a", "Hello", 4).await;
    for is_open in [true, false] {
        if !is_open {
            peer.ok("session/close", json!({"session": "a"})).await;
        }
        let name = if is_open { "edit" } else { "grep" };
        let mut open = json!({"session": "a", "tools": tools(name)});
        assert_eq!(peer.refused("session/open", open.clone()).await.code, 1_008);
        open["rebuild"] = true.into();
        let opened = peer.ok("session/open", open).await;
        assert_eq!((&opened["rebuilt"], &opened["turns"]), (&true.into(), &1.into()));
        let shown = peer.ok("session/show", json!({"session": "a"})).await;
        assert_eq!(shown["tools"], tools(name));
    }
}

#[tokio::test]
async fn a_session_that_cannot_take_its_first_messages_is_not_made() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let messages = user(&"x".repeat(40_000));
    let error = peer.refused("session/open", json!({"session": "a", "messages": messages})).await;
    assert_eq!(error.code, 1_005, "{error}");
    assert_eq!(peer.ok("session/list", json!({})).await["sessions"], json!([]));
    let opened = json!({"session": "a", "messages": user("Hello")});
    assert_eq!(peer.ok("session/open", opened.clone()).await["resumed"], false);
    assert_eq!(peer.ok("session/open", opened).await["resumed"], true);
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_longest_id_has_room_for_checkpoints() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    let session = "x".repeat(128);
    peer.open(&session).await;
    peer.say(&session, "Hello", 4).await;
    let named = json!({"session": session, "checkpoint": "y".repeat(64)});
    peer.ok("session/checkpoint", named.clone()).await;
    peer.ok("session/rollback", named).await;
}
