//! What is wrong is refused by itself, clearly, and the daemon lives on.

use std::fs;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Daemon, Home, PATIENCE, content, question, user};
use crate::tiny;

#[tokio::test]
async fn every_mistake_has_its_own_error() {
    let daemon = Daemon::start().await;
    let mut peer = daemon.peer().await;
    for session in ["a", "closed", "deleted"] {
        peer.open(session).await;
    }
    peer.ok("session/close", json!({"session": "closed"})).await;
    peer.ok("session/delete", json!({"session": "deleted"})).await;
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    let says_nothing = json!([{"role": "assistant", "content": ""}]);
    let mut no_tokens = question("a", "x", 1);
    no_tokens["max_tokens"] = 0.into();
    let mut unbounded = question("a", "x", 1);
    unbounded.as_object_mut().unwrap().remove("max_tokens");
    let with = |name: &str, value: Value| {
        let mut request = question("a", "x", 1);
        request[name] = value;
        request
    };
    let open = |name: &str, value: Value| json!({"session": "new", name: value});
    let cases = [
        ("session/fly", json!({}), -32_601, "session/fly"),
        ("session/open", json!(["a"]), -32_602, "by name"),
        ("session/open", json!({"sesion": "a"}), -32_602, "sesion"),
        ("session/open", json!({"session": 7}), -32_602, "string"),
        ("session/open", json!({"session": "no spaces"}), -32_602, "no spaces"),
        ("session/open", json!({"session": ""}), -32_602, "id"),
        ("session/open", json!({"session": "../../etc"}), -32_602, "etc"),
        ("session/open", json!({"session": "x".repeat(10_000)}), -32_602, "id"),
        ("session/open", json!({"session": "x".repeat(129)}), -32_602, "128"),
        (
            "session/checkpoint",
            json!({"session": "a", "checkpoint": "x".repeat(65)}),
            -32_602,
            "64",
        ),
        ("session/generate", with("stop", json!(vec!["x"; 17])), -32_602, "16"),
        ("session/generate", with("stop", json!(["x".repeat(1_025)])), -32_602, "1024"),
        ("session/open", json!({"session": "a:checkpoint:b"}), -32_602, "checkpoint"),
        ("session/open", open("cache", json!({"budget": 255})), -32_602, "256"),
        ("session/open", open("cache", json!({"budget": -1})), -32_602, "-1"),
        ("session/open", open("cache", json!({"buffer": 0})), -32_602, "buffer"),
        ("session/open", open("cache", json!({"policy": "lru"})), -32_602, "lru"),
        ("session/open", open("cache", json!({"endless": true})), -32_602, "endless"),
        ("session/open", open("condense", json!("maybe")), -32_602, "condense"),
        ("session/open", open("condense", json!({"off": ["nothing"]})), -32_602, "nothing"),
        ("session/configure", json!({"session": "a", "condense": {"off": ["x"]}}), -32_602, "`x`"),
        ("session/recall", json!({"session": "a", "handle": "0123"}), -32_602, "0123"),
        ("session/recall", json!({"session": "unknown", "handle": "0123"}), 1_003, "unknown"),
        ("context/condense", json!({"messages": [{"content": "x"}]}), -32_602, "role"),
        ("context/condense", json!({"messages": [], "tokenizer": "no-such"}), 1_007, "no-such"),
        ("session/open", open("model", json!("no-such-model")), 1_007, "no-such-model"),
        ("session/open", open("model", json!("/no/such.gguf")), 1_007, "/no/such.gguf"),
        ("session/open", open("messages", json!([{"content": "x"}])), -32_602, "role"),
        ("session/open", json!({"session": "a", "model": "other"}), 1_007, "other"),
        ("session/open", json!({"session": "a:checkpoint"}), -32_602, ":checkpoint"),
        ("session/checkpoint", json!({"session": "a", "checkpoint": ""}), -32_602, "name"),
        ("session/checkpoint", json!({"session": "a", "checkpoint": ":b"}), -32_602, "name"),
        ("session/append", json!({"session": "a"}), -32_602, "messages"),
        ("session/append", json!({"messages": []}), -32_602, "session"),
        ("session/append", json!({"session": "unknown", "messages": []}), 1_003, "unknown"),
        ("session/append", json!({"session": "closed", "messages": []}), 1_003, "closed"),
        ("session/append", json!({"session": "deleted", "messages": []}), 1_003, "deleted"),
        ("session/append", json!({"session": "a", "messages": image}), -32_602, "image_url"),
        (
            "session/append",
            json!({"session": "a", "messages": says_nothing}),
            -32_602,
            "messages[0]",
        ),
        ("session/append", json!({"session": "a", "messages": [{"role": "dog"}]}), -32_602, "dog"),
        ("session/append", json!({"session": "a", "messages": "hi"}), -32_602, "hi"),
        ("session/generate", question("unknown", "x", 1), 1_003, "unknown"),
        ("session/generate", question("closed", "x", 1), 1_003, "open it again"),
        ("session/generate", no_tokens, -32_602, "max_tokens"),
        ("session/generate", unbounded, -32_602, "max_tokens"),
        ("session/generate", with("stop", json!([""])), -32_602, "stop"),
        ("session/generate", with("stop", json!("x")), -32_602, "x"),
        ("session/generate", with("max_token", json!(1)), -32_602, "max_token"),
        ("session/generate", with("tool_choice", json!("required")), -32_602, "tool_choice"),
        (
            "session/generate",
            with("response_format", json!({"type": "json"})),
            -32_602,
            "response_format",
        ),
        ("session/generate", with("reasoning", json!({"control": "terse"})), -32_602, "terse"),
        ("session/generate", with("on_disconnect", json!("explode")), -32_602, "explode"),
        ("session/attach", json!({"session": "unknown"}), 1_003, "unknown"),
        ("session/cancel", json!({"session": "unknown"}), 1_003, "unknown"),
        ("session/cancel", json!({"session": "closed"}), 1_003, "closed"),
        ("session/checkpoint", json!({"session": "a", "checkpoint": "a b"}), -32_602, "a b"),
        ("session/rollback", json!({"session": "closed"}), 1_003, "closed"),
        ("session/fork", json!({"session": "unknown"}), 1_003, "unknown"),
        ("session/fork", json!({"session": "a", "checkpoint": "none"}), 1_003, "none"),
        ("session/inspect", json!({"session": "unknown", "what": "kept"}), 1_003, "unknown"),
        ("session/show", json!({"session": "unknown"}), 1_003, "unknown"),
        ("session/show", json!({"session": "no spaces"}), -32_602, "no spaces"),
        ("session/list", json!({"all": true}), -32_602, "all"),
        ("model/load", json!({"model": "no-such-model"}), 1_007, "no-such-model"),
        ("model/load", json!({}), -32_602, "model"),
        ("daemon/status", json!({"verbose": 1}), -32_602, "verbose"),
    ];
    for (method, params, code, word) in cases {
        let shown = params.to_string();
        let error = peer.refused(method, params).await;
        assert_eq!(error.code, code, "{method} {shown:.200}: {error}");
        assert!(error.message.contains(word), "{method} {shown:.200}: {error}");
    }
    let said = peer.say("a", "Hello", 4).await;
    assert_eq!(said["usage"]["completion_tokens"], 4, "the session is as it was");
    let shown = peer.ok("session/show", json!({"session": "a"})).await;
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn bytes_that_are_no_request_get_an_error_and_the_connection_lives_on() {
    let daemon = Daemon::with(&["--max-message", "1MiB"]).await;
    let mut stream = BufReader::new(UnixStream::connect(daemon.home.socket()).await.unwrap());
    let huge = vec![b'x'; 100 << 20];
    let cases: [(&[u8], i64); 6] = [
        (b"{\"jsonrpc\": \"2.0\", ", -32_700),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"\xff\xfe\"}", -32_700),
        (b"[]", -32_600),
        (b"{\"id\": 1}", -32_600),
        (b"7", -32_600),
        (&huge, 1_009),
    ];
    for (text, code) in cases {
        let (mut reader, mut writer) = stream.into_inner().into_split();
        let sending = async {
            writer.write_all(text).await.unwrap();
            writer.write_all(b"\n").await.unwrap();
        };
        let mut line = String::new();
        let mut lines = BufReader::new(&mut reader);
        let (_, read) = tokio::join!(sending, timeout(PATIENCE, lines.read_line(&mut line)));
        read.unwrap().unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
        stream = BufReader::new(reader.reunite(writer).unwrap());
    }
    let status = b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"daemon/status\"}\n";
    stream.write_all(status).await.unwrap();
    let mut line = String::new();
    timeout(PATIENCE, stream.read_line(&mut line)).await.unwrap().unwrap();
    assert!(line.contains("\"result\""), "{line}");
}

#[tokio::test]
async fn files_that_are_no_model_say_so() {
    let home = Home::new();
    let whole = fs::read(tiny::fixture()).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = home.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    // The name also begins the names of its settings.
    let mut unknown = whole.clone();
    for at in 0..unknown.len() - 5 {
        if &unknown[at..at + 5] == b"qwen2" {
            unknown[at..at + 5].copy_from_slice(b"gemma");
        }
    }
    let paths = [
        file("short.gguf", &whole[..whole.len() / 2]),
        file("head.gguf", &whole[..100]),
        file("empty.gguf", b""),
        file("text.gguf", b"this is a text and no model at all"),
        file("unknown.gguf", &unknown),
        home.dir.path().to_owned(),
    ];
    let daemon = Daemon::in_home(&home, &[]).await;
    let mut peer = daemon.peer().await;
    for path in paths {
        let error = peer.refused("session/open", json!({"session": "a", "model": path})).await;
        assert_eq!(error.code, 1_007, "{}: {error}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.message.contains(name), "{}: {error}", path.display());
    }
    assert_eq!(peer.open("a").await["resumed"], false, "the failed ones left nothing");
}

#[tokio::test]
async fn a_conversation_past_the_context_is_refused_with_numbers_and_stays_as_it_was() {
    let daemon = Daemon::start().await;
    let (mut peer, mut other) = (daemon.peer().await, daemon.peer().await);
    let mut texts = Vec::new();
    for is_tried in [true, false] {
        let session = if is_tried { "tried" } else { "untried" };
        peer.open(session).await;
        peer.say(session, "Hello", 8).await;
        if is_tried {
            let too_long = "x".repeat(tiny::CONTEXT);
            let append = json!({"session": session, "messages": user(&too_long)});
            for (method, params) in
                [("session/append", append), ("session/generate", question(session, &too_long, 1))]
            {
                let error = other.refused(method, params).await;
                assert_eq!(error.code, 1_005, "{error}");
                let data = error.data.unwrap();
                assert_eq!(data["limit"], tiny::CONTEXT);
                assert!(data["asked"].as_u64().unwrap() > tiny::CONTEXT as u64, "{data}");
                assert!(error.message.contains("maximum context length is 32768 tokens"));
            }
        }
        texts.push(content(&peer.say(session, "Go on.", 20).await).to_owned());
    }
    assert_eq!(texts[0], texts[1]);
}
