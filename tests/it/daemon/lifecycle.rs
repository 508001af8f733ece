//! Beginnings and ends: restarts, crashes, second daemons, other transports, other models.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use attar::wire::Client;
use candle_core::quantized::GgmlDType;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Daemon, Home, Peer, content, question};
use crate::tiny;

#[tokio::test]
async fn a_daemon_that_is_told_to_end_keeps_the_turn_it_is_in() {
    for by_signal in [true, false] {
        let daemon = Daemon::start().await;
        let home = std::sync::Arc::clone(&daemon.home);
        let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
        peer.open("a").await;
        let id = peer.start_endless("a").await;
        if by_signal {
            daemon.signal(Signal::TERM);
        } else {
            other.ok("daemon/shutdown", json!({})).await;
        }
        let result = peer.answer(id).await.unwrap();
        assert_eq!(result["finish_reason"], "cancelled");
        assert!(daemon.ended().await.success(), "{}", home.log());
        assert!(!home.socket().exists());

        let daemon = Daemon::in_home(&home, &[]).await;
        let mut peer = daemon.peer().await;
        let opened = peer.open("a").await;
        assert_eq!((&opened["resumed"], &opened["rebuilt"]), (&true.into(), &false.into()));
        assert!(opened.get("partial").is_none(), "{opened}");
        let shown = peer.ok("session/show", json!({"session": "a"})).await;
        assert_eq!(shown["history"][1], result["message"]);
        let next = peer.say("a", "Go on.", 4).await;
        let n_before = result["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(next["usage"]["cached_tokens"].as_u64().unwrap() > n_before, "{next}");
    }
}

#[tokio::test]
async fn a_killed_daemon_leaves_what_the_turn_had_come_to() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    peer.open("a").await;
    peer.say("a", "Hello", 8).await;
    peer.start_endless("a").await;
    let home = std::sync::Arc::clone(&daemon.home);
    drop(daemon);
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    let opened = peer.open("a").await;
    assert_eq!((&opened["resumed"], &opened["turns"]), (&true.into(), &1.into()), "{opened}");
    assert!(opened["partial"]["tokens"].as_u64().unwrap() > 0, "{opened}");
    assert_eq!(opened["partial"]["messages"][0]["content"], "Hello");
    peer.say("a", "Go on.", 4).await;
}

#[tokio::test]
async fn there_is_one_daemon_a_socket_and_one_a_data_folder() {
    let daemon = Daemon::start().await;
    let home = &daemon.home;
    let other = home.dir.path().join("other");
    let other = other.to_str().unwrap();
    let pid = daemon.pid().to_string();
    for args in [["serve", "--data-dir", other], ["serve", "--socket", other]] {
        let second = home.attar(&args).output().unwrap();
        let told = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(1), "{told}");
        let errors: Vec<_> = told.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(matches!(errors[..], [error] if error.contains(&pid)), "{told}");
    }
    daemon.peer().await.open("a").await;
}

#[tokio::test]
async fn tcp_needs_the_token_of_the_data_folder() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addr = free.to_string();
    let daemon = Daemon::with(&["--tcp", &addr]).await;
    let mut peer = Peer(Client::connect_tcp(&addr).await.unwrap());
    let error = peer.refused("daemon/status", json!({})).await;
    assert_eq!(error.code, 1_001, "{error}");
    for wrong in [json!({}), json!({"token": "wrong"}), json!({"token": ""})] {
        assert_eq!(peer.refused("initialize", wrong).await.code, 1_002);
    }
    // The daemon waits with it until the store is its own.
    daemon.peer().await.ok("daemon/status", json!({})).await;
    let is_token = |name: &str| name.contains("token");
    let files = fs::read_dir(daemon.home.data()).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let token = fs::read_to_string(daemon.home.data().join(names.find(|n| is_token(n)).unwrap()));
    let token = json!({"token": token.unwrap().trim()});
    peer.ok("initialize", token).await;
    peer.open("a").await;
    assert_eq!(peer.say("a", "Hello", 4).await["finish_reason"], "length");
}

#[test]
fn stdio_speaks_both_framings() {
    for with_headers in [false, true] {
        let home = Home::new();
        let mut command = home.attar(&["serve", "--stdio"]);
        command.env_remove("ATTAR_SOCKET").stderr(Stdio::null());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let calls = [
            ("session/open", json!({"session": "a"})),
            ("session/generate", question("a", "Hello", 8)),
            ("session/close", json!({"session": "a"})),
        ];
        for (id, (method, params)) in calls.into_iter().enumerate() {
            let text = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            let text = text.to_string();
            match with_headers {
                true => write!(stdin, "Content-Length: {}\r\n\r\n{text}", text.len()).unwrap(),
                false => writeln!(stdin, "{text}").unwrap(),
            }
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            if with_headers {
                let length = line.trim().strip_prefix("Content-Length: ").unwrap();
                let mut rest = vec![0; length.parse::<usize>().unwrap() + 2];
                stdout.read_exact(&mut rest).unwrap();
                line = String::from_utf8(rest).unwrap();
            }
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer["id"] == id && answer["result"].is_object(), "{answer}");
        }
        drop(stdin);
        let status = child.wait().unwrap();
        assert!(status.success(), "the end of its input is the end: {status}");
    }
}

#[cfg(target_os = "linux")]
fn threads_called(pid: u32, wanted: &str) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == wanted)).count()
}

#[tokio::test]
async fn two_models_serve_side_by_side_and_go_when_told() {
    let home = Home::new();
    let llama = home.dir.path().join("llama.gguf");
    tiny::gguf(&llama, "llama", GgmlDType::F32, 3);
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    let loaded = peer.ok("model/load", json!({"model": llama})).await;
    assert_eq!((&loaded["layers"], &loaded["context_length"]), (&2.into(), &tiny::CONTEXT.into()));
    peer.ok("session/open", json!({"session": "llama", "model": llama})).await;
    peer.open("default").await;
    let ids = [
        peer.0.send("session/generate", question("llama", "Hello", 30)).await.unwrap(),
        peer.0.send("session/generate", question("default", "Hello", 30)).await.unwrap(),
    ];
    let mut texts = Vec::new();
    for _ in ids {
        if let attar::wire::client::Received::Answer { outcome, .. } = peer.receive().await {
            texts.push(content(&outcome.unwrap()).to_owned());
        }
    }
    assert_eq!(texts.len(), 2);
    assert_ne!(texts[0], texts[1]);
    let list = peer.ok("model/list", json!({})).await;
    assert_eq!(list["loaded"].as_array().unwrap().len(), 2);
    assert_eq!(peer.ok("model/unload", json!({"model": llama})).await["unloaded"], true);
    assert_eq!(peer.ok("model/unload", json!({"model": llama})).await["unloaded"], false);
    let list = peer.ok("model/list", json!({})).await;
    assert_eq!(list["loaded"], json!([tiny::fixture()]));
    peer.say("llama", "An open session keeps its model.", 4).await;
    // Who wants it again shares it with that session.
    peer.ok("session/open", json!({"session": "another", "model": llama})).await;
    peer.say("another", "Hello", 4).await;
    #[cfg(target_os = "linux")]
    assert_eq!(threads_called(daemon.pid(), "engine"), 2);
    peer.ok("session/delete", json!({"session": "another"})).await;
    let other = json!({"session": "llama", "model": tiny::fixture()});
    assert_eq!(peer.refused("session/open", other.clone()).await.code, 1_008);
    // Another model reads the session's text again.
    let mut rebuild = other;
    rebuild["rebuild"] = true.into();
    let opened = peer.ok("session/open", rebuild).await;
    assert_eq!((&opened["rebuilt"], &opened["resumed"]), (&true.into(), &true.into()));
    peer.say("llama", "Go on.", 4).await;
    for session in ["llama", "default"] {
        peer.ok("session/close", json!({"session": session})).await;
    }
    peer.until_status("/kv_memory/used", 0.into()).await;
}

#[tokio::test]
async fn flags_override_variables_which_override_the_file() {
    let home = Home::new();
    let config = home.dir.path().join("attar.toml");
    fs::write(&config, "policy = \"snapkv\"\nbudget = 300\nbuffer = 40\n").unwrap();
    let config = config.to_str().unwrap();
    let mut command = home.attar(&["serve", "--config", config, "--budget", "700"]);
    command.env("ATTAR_BUDGET", "500").env("ATTAR_BUFFER", "50").stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut peer = loop {
        if let Ok(client) = Client::connect(&home.socket()).await {
            break Peer(client);
        }
        assert!(child.try_wait().unwrap().is_none());
        tokio::time::sleep(super::POLL).await;
    };
    peer.open("a").await;
    let in_force = peer.ok("session/configure", json!({"session": "a"})).await;
    assert_eq!(in_force["cache"], json!({"policy": "snapkv", "budget": 700, "buffer": 50}));
    peer.ok("daemon/shutdown", json!({})).await;
    child.wait().unwrap();

    fs::write(config, "budgets = 300\n").unwrap();
    let refused = home.attar(&["serve", "--config", config]).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.starts_with("error: ") && told.contains("budgets"), "{told}");
}
