//! The wire over real sockets, in front of a service that knows nothing of models.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attar::wire::client::{ClientError, Received};
use attar::wire::frame::Framing;
use attar::wire::socket::{ListenError, MAX_PATH, bind_tcp};
use attar::wire::{Call, Client, Limits, Listener, Peer, RpcError, Service, Socket, serve};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Answers the specification's examples and a few methods that take their time.
struct Examples {
    /// What happened inside calls that nobody may be left to hear from.
    events: UnboundedSender<&'static str>,
    shutdown: CancellationToken,
}

impl Service for Examples {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        let params = &call.params;
        let number = |value: &Value| value.as_i64().ok_or(RpcError::invalid_params("no number"));
        match call.method.as_str() {
            "subtract" => {
                let names = if params.is_array() { ["0", "1"] } else { ["minuend", "subtrahend"] };
                let [a, b] = names.map(|name| params.pointer(&format!("/{name}")).cloned());
                Ok(json!(number(&a.unwrap_or_default())? - number(&b.unwrap_or_default())?))
            }
            "sum" => {
                Ok(json!(params.as_array().into_iter().flatten().flat_map(number).sum::<i64>()))
            }
            "get_data" => Ok(json!(["hello", 5])),
            "update" | "notify_hello" | "notify_sum" => Ok(Value::Null),
            "echo" => Ok(call.params),
            "length" => Ok(json!(params[0].as_str().map(str::len))),
            "panic" => panic!("as asked"),
            "peer" => Ok(match call.connection.peer {
                Peer::Unix { uid } => json!({"unix": uid, "ok": call.connection.is_authorized()}),
                Peer::Tcp => json!({"tcp": true, "ok": call.connection.is_authorized()}),
                Peer::Stdio => json!({"stdio": true, "ok": call.connection.is_authorized()}),
            }),
            "stream" => {
                for seq in 0..params["n"].as_u64().unwrap_or(0) {
                    call.notify.send("delta", json!({"seq": seq})).await;
                }
                Ok(json!("done"))
            }
            // Until the client's socket and queue are full.
            "flood" => {
                let text = "x".repeat(64 << 10);
                while call.notify.send("delta", &text).now_or_never().is_some() {
                    tokio::task::yield_now().await;
                }
                let _ = self.events.send("full");
                Ok(Value::Null)
            }
            // Until someone ends it.
            "wait" => {
                let _ = self.events.send("waiting");
                tokio::select! {
                    () = call.cancel.cancelled() => Err(Call::cancelled_error()),
                    () = call.closed.cancelled() => {
                        let _ = self.events.send("closed");
                        Ok(Value::Null)
                    }
                    () = self.shutdown.cancelled(), if params["obey"] == true => Ok(json!("parked")),
                }
            }
            method => Err(RpcError::method_not_found(method)),
        }
    }
}

/// A server on a socket of its own.
struct Server {
    path: PathBuf,
    events: UnboundedReceiver<&'static str>,
    shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    _dir: TempDir,
}

impl Server {
    async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attar.sock");
        let listener = Listener::Unix(Socket::bind(&path).await.unwrap());
        let (sender, events) = unbounded_channel();
        let shutdown = CancellationToken::new();
        let service = Arc::new(Examples { events: sender, shutdown: shutdown.clone() });
        let serving = tokio::spawn(serve(vec![listener], service, limits, shutdown.clone()));
        Self { path, events, shutdown, serving, _dir: dir }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.path).await.unwrap()
    }

    async fn raw(&self, framing: Framing) -> Raw {
        Raw { stream: BufReader::new(UnixStream::connect(&self.path).await.unwrap()), framing }
    }

    async fn event(&mut self) -> &'static str {
        self.events.recv().await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap().unwrap();
        assert!(!self.path.exists(), "the socket is removed");
    }
}

/// A client that sends any bytes.
struct Raw {
    stream: BufReader<UnixStream>,
    framing: Framing,
}

impl Raw {
    async fn send(&mut self, text: &[u8]) {
        let (before, after) = match self.framing {
            Framing::Lines => (String::new(), "\n"),
            Framing::Headers => (format!("Content-Length: {}\r\n\r\n", text.len()), ""),
        };
        let frame = [before.as_bytes(), text, after.as_bytes()].concat();
        self.stream.write_all(&frame).await.unwrap();
    }

    /// The next message, or null where the server has hung up.
    async fn receive(&mut self) -> Value {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await.unwrap() == 0 {
            return Value::Null;
        }
        if self.framing == Framing::Lines {
            return serde_json::from_str(&line).unwrap();
        }
        let length = line.trim().strip_prefix("Content-Length: ").unwrap().parse().unwrap();
        self.stream.read_line(&mut line).await.unwrap();
        assert!(line.ends_with("\r\n\r\n"), "{line:?}");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    async fn works(&mut self) {
        self.send(br#"{"jsonrpc":"2.0","id":"after","method":"echo","params":[1]}"#).await;
        assert_eq!(self.receive().await, json!({"jsonrpc": "2.0", "id": "after", "result": [1]}));
    }
}

/// Whether `found` has all that `expected` names; arrays in any order.
fn agrees(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            expected.iter().all(|(name, value)| found.get(name).is_some_and(|f| agrees(f, value)))
        }
        (Value::Array(found), Value::Array(expected)) => {
            let mut left: Vec<&Value> = expected.iter().collect();
            found.len() == expected.len()
                && found.iter().all(|found| {
                    let at = left.iter().position(|expected| agrees(found, expected));
                    at.map(|at| left.swap_remove(at)).is_some()
                })
        }
        _ => found == expected,
    }
}

/// Fails a test that would wait for ever.
async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("waits for ever")
}

#[tokio::test]
async fn conversations_go_as_written_in_both_framings() {
    let server = Server::start().await;
    let mut n_checked = 0;
    for entry in fs::read_dir("fixtures/wire").unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for framing in [Framing::Lines, Framing::Headers] {
            let mut client = server.raw(framing).await;
            for line in text.lines() {
                if let Some(sent) = line.strip_prefix("> ") {
                    client.send(sent.as_bytes()).await;
                } else if let Some(expected) = line.strip_prefix("< ") {
                    let expected: Value = serde_json::from_str(expected).unwrap();
                    let found = in_time(client.receive()).await;
                    assert!(agrees(&found, &expected), "{path:?}: {found} for {expected}");
                    n_checked += 1;
                }
            }
            client.stream.get_mut().shutdown().await.unwrap();
            assert_eq!(in_time(client.receive()).await, Value::Null, "{path:?}: nothing is left");
        }
    }
    assert!(n_checked > 50, "{n_checked} answers");
    server.stop().await;
}

#[tokio::test]
async fn bad_texts_are_answered_and_the_connection_lives_on() {
    let server = Server::start().await;
    for framing in [Framing::Lines, Framing::Headers] {
        let mut client = server.raw(framing).await;
        let deep = "[".repeat(100_000);
        for bad in [&b"{not json"[..], b"{\"id\": \"\xff\xfe\"}", b"{\"a\": \0}", deep.as_bytes()] {
            client.send(bad).await;
            let answer = in_time(client.receive()).await;
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32_700), &Value::Null));
            client.works().await;
        }
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_the_connection_lives_on() {
    let server = Server::start().await;
    let limit = Limits::default().max_message;
    let text = vec![b'x'; 100 << 20];
    for framing in [Framing::Lines, Framing::Headers] {
        let mut client = server.raw(framing).await;
        client.send(br#"{"jsonrpc":"2.0","id":1,"method":"echo"}"#).await;
        client.receive().await;
        in_time(client.send(&text)).await;
        let error = in_time(client.receive()).await["error"].take();
        assert_eq!(error["code"], 1009);
        let data =
            json!({"kind": "too_large", "retryable": false, "limit": limit, "asked": text.len()});
        assert_eq!(error["data"], data);
        client.works().await;
    }
}

#[tokio::test]
async fn a_message_just_under_the_limit_is_read() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let text = "x".repeat(Limits::default().max_message - 100);
    assert_eq!(in_time(client.call("length", [&text])).await.unwrap(), text.len());
}

#[tokio::test]
async fn a_malformed_header_is_answered_and_the_connection_closed() {
    let server = Server::start().await;
    let mut client = server.raw(Framing::Headers).await;
    client.stream.write_all(b"Content-Length: -1\r\n\r\n{}").await.unwrap();
    assert_eq!(in_time(client.receive()).await["error"]["code"], -32_600);
    assert_eq!(in_time(client.receive()).await, Value::Null);
}

#[tokio::test]
async fn a_half_closed_client_still_gets_its_answers() {
    let server = Server::start().await;
    let mut client = server.raw(Framing::Lines).await;
    // No newline at the end, as `printf '…' | nc -N -U` sends it.
    client.stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"get_data"}"#).await.unwrap();
    client.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(in_time(client.receive()).await["result"], json!(["hello", 5]));
}

#[tokio::test]
async fn hanging_up_ends_calls_and_disturbs_nobody() {
    let mut server = Server::start().await;
    let mut client = server.client().await;
    client.send("wait", json!({})).await.unwrap();
    assert_eq!(in_time(server.event()).await, "waiting");
    drop(client);
    assert_eq!(in_time(server.event()).await, "closed");

    for half in [&b"{\"jsonrpc\":"[..], b"Content-Length: 100\r\n\r\n{", b"Content-", b" "] {
        let mut client = server.raw(Framing::Lines).await;
        client.stream.write_all(half).await.unwrap();
    }
    server.raw(Framing::Lines).await.works().await;
    server.stop().await;
}

#[tokio::test]
async fn a_cancelled_request_is_answered_once_and_others_go_on() {
    let mut server = Server::start().await;
    let mut client = server.client().await;
    let one = client.send("wait", json!({})).await.unwrap();
    let two = client.send("wait", json!({})).await.unwrap();
    in_time(server.event()).await;
    in_time(server.event()).await;
    client.cancel(one).await.unwrap();
    client.cancel(one).await.unwrap();
    let answer = in_time(client.receive()).await.unwrap();
    assert_eq!(answer, Received::Answer { id: json!(one), outcome: Err(RpcError::cancelled()) });
    assert_eq!(in_time(client.call("echo", [1])).await.unwrap(), json!([1]));
    client.cancel(one).await.unwrap();
    client.cancel(two).await.unwrap();
    let answer = in_time(client.receive()).await.unwrap();
    assert_eq!(answer, Received::Answer { id: json!(two), outcome: Err(RpcError::cancelled()) });
    server.stop().await;
}

#[tokio::test]
async fn notifications_come_in_order_before_their_answer() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let mut seen = Vec::new();
    let streamed = client.call_streaming("stream", json!({"n": 2000}), |method, params| {
        assert_eq!(method, "delta");
        seen.push(params["seq"].as_u64().unwrap());
    });
    assert_eq!(in_time(streamed).await.unwrap(), "done");
    assert_eq!(seen, (0..2000).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_only_itself() {
    let mut server = Server::start().await;
    let mut deaf = server.client().await;
    deaf.send("flood", json!({})).await.unwrap();
    assert_eq!(in_time(server.event()).await, "full");
    for _ in 0..100 {
        deaf.send("echo", ["x"]).await.unwrap();
    }
    let mut client = server.client().await;
    assert_eq!(in_time(client.call("echo", ["y"])).await.unwrap(), json!(["y"]));

    // Nothing was lost meanwhile.
    let (mut n_deltas, mut n_answers) = (0, 0);
    while n_answers < 101 {
        match in_time(deaf.receive()).await.unwrap() {
            Received::Notification { .. } => n_deltas += 1,
            Received::Answer { outcome, .. } => n_answers += usize::from(outcome.is_ok()),
        }
    }
    assert!(n_deltas >= Limits::default().outbox);
}

#[tokio::test]
async fn more_requests_than_may_be_under_way_are_all_answered() {
    let server = Server::with(Limits { max_in_flight: 4, outbox: 2, ..Limits::default() }).await;
    let mut client = server.client().await;
    // Fewer than fill the socket, so that they can be sent before any answer is read.
    let mut waiting: Vec<u64> = Vec::new();
    for n in 0..200 {
        waiting.push(client.send("echo", [n]).await.unwrap());
    }
    while !waiting.is_empty() {
        let Received::Answer { id, outcome: Ok(_) } = in_time(client.receive()).await.unwrap()
        else {
            panic!("an answer without fault");
        };
        waiting.retain(|&sent| id != sent);
    }
}

#[tokio::test]
async fn a_large_batch_is_answered_whole() {
    let server = Server::start().await;
    let mut client = server.raw(Framing::Lines).await;
    let batch: Vec<Value> = (0..5000)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "echo", "params": [id]}))
        .collect();
    client.send(&serde_json::to_vec(&batch).unwrap()).await;
    let answers = in_time(client.receive()).await;
    let mut ids: Vec<u64> =
        answers.as_array().unwrap().iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..5000).collect::<Vec<u64>>());
}

#[tokio::test]
async fn fifty_clients_talk_at_once() {
    let server = Server::start().await;
    let mut talking = tokio::task::JoinSet::new();
    for n in 0..50 {
        let mut client = server.client().await;
        talking.spawn(async move {
            for i in 0..20 {
                assert_eq!(client.call("subtract", [n, i]).await.unwrap(), n - i);
            }
        });
    }
    while let Some(talked) = in_time(talking.join_next()).await {
        talked.unwrap();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_client_too_many_is_told_so() {
    let server = Server::with(Limits { max_connections: 1, ..Limits::default() }).await;
    let mut first = server.client().await;
    in_time(first.call("echo", [1])).await.unwrap();
    let mut second = server.raw(Framing::Lines).await;
    let error = in_time(second.receive()).await["error"].take();
    assert_eq!((&error["code"], &error["data"]["limit"]), (&json!(1011), &json!(1)));
    assert_eq!(in_time(first.call("echo", [2])).await.unwrap(), json!([2]));
}

#[tokio::test]
async fn calls_may_end_in_order_when_the_daemon_shuts_down() {
    let mut server = Server::start().await;
    let mut client = server.client().await;
    let id = client.send("wait", json!({"obey": true})).await.unwrap();
    in_time(server.event()).await;
    server.shutdown.cancel();
    let answer = in_time(client.receive()).await.unwrap();
    assert_eq!(answer, Received::Answer { id: json!(id), outcome: Ok(json!("parked")) });
    assert!(matches!(in_time(client.receive()).await, Err(ClientError::Closed)));
    server.stop().await;
}

#[tokio::test]
async fn calls_that_do_not_end_are_answered_all_the_same() {
    let mut server = Server::with(Limits { grace: Duration::ZERO, ..Limits::default() }).await;
    let mut client = server.client().await;
    let id = client.send("wait", json!({})).await.unwrap();
    in_time(server.event()).await;
    server.shutdown.cancel();
    let answer = in_time(client.receive()).await.unwrap();
    assert_eq!(answer, Received::Answer { id: json!(id), outcome: Err(RpcError::shutting_down()) });
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_stop_the_shutdown() {
    let mut server = Server::with(Limits { grace: Duration::ZERO, ..Limits::default() }).await;
    let mut deaf = server.client().await;
    deaf.send("flood", json!({})).await.unwrap();
    assert_eq!(in_time(server.event()).await, "full");
    for _ in 0..100 {
        deaf.send("echo", ["x"]).await.unwrap();
    }
    in_time(server.stop()).await;
}

#[tokio::test]
async fn the_socket_is_its_users_own() {
    let server = Server::start().await;
    let metadata = fs::symlink_metadata(&server.path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    let lock = fs::metadata(server.path.with_extension("sock.lock")).unwrap();
    assert_eq!(lock.mode() & 0o777, 0o600);
    let peer = in_time(server.client().await.call("peer", json!({}))).await.unwrap();
    assert_eq!(peer, json!({"unix": metadata.uid(), "ok": true}));
}

#[tokio::test]
async fn a_second_server_names_the_first() {
    let server = Server::start().await;
    match Socket::bind(&server.path).await {
        Err(ListenError::InUse { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("bound twice: {other:?}"),
    }
    in_time(server.client().await.call("echo", [1])).await.unwrap();
    // Also one that holds no lock.
    let foreign = server.path.with_file_name("foreign.sock");
    let _listener = tokio::net::UnixListener::bind(&foreign).unwrap();
    let pid = std::process::id();
    match Socket::bind(&foreign).await {
        Err(error @ ListenError::InUse { .. }) => {
            assert!(error.to_string().contains(&format!("process {pid}")), "{error}");
        }
        other => panic!("bound twice: {other:?}"),
    }
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/folder/attar.sock");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let socket = Socket::bind(&path).await.unwrap();
    drop(socket);
    assert!(!path.exists());
    // The lock file stays behind, but nobody holds it.
    drop(Socket::bind(&path).await.unwrap());

    fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::bind(&path).await, Err(ListenError::NotASocket { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_socket_that_was_replaced_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attar.sock");
    let socket = Socket::bind(&path).await.unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(socket);
    assert!(path.exists());
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_refused() {
    let path = Path::new("/tmp").join("x".repeat(MAX_PATH - 4));
    let error = Socket::bind(&path).await.unwrap_err();
    assert!(matches!(error, ListenError::PathTooLong { len, .. } if len == MAX_PATH + 1));
}

#[tokio::test]
async fn no_daemon_is_told_from_a_broken_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attar.sock");
    assert!(matches!(Client::connect(&path).await, Err(ClientError::NotRunning { .. })));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(Client::connect(&path).await, Err(ClientError::NotRunning { .. })));
}

#[tokio::test]
async fn tcp_is_loopback_only_and_begins_unauthorized() {
    for addr in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        assert!(matches!(bind_tcp(addr).await, Err(ListenError::NotLoopback { .. })), "{addr}");
    }
    let listener = bind_tcp("localhost:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (events, mut seen) = unbounded_channel();
    let shutdown = CancellationToken::new();
    let service = Arc::new(Examples { events, shutdown: shutdown.clone() });
    let listeners = vec![Listener::Tcp(listener)];
    let serving = tokio::spawn(serve(listeners, service, Limits::default(), shutdown.clone()));

    let mut client = Client::connect_tcp(&addr).await.unwrap();
    let peer = in_time(client.call("peer", json!({}))).await.unwrap();
    assert_eq!(peer, json!({"tcp": true, "ok": false}));
    client.send("wait", json!({})).await.unwrap();
    assert_eq!(in_time(seen.recv()).await, Some("waiting"));
    drop(client);
    assert_eq!(in_time(seen.recv()).await, Some("closed"));
    shutdown.cancel();
    in_time(serving).await.unwrap().unwrap();
}
