//! The whole daemon: the real program on a real socket, with a tiny model.

mod generate;
mod lifecycle;
mod memory;
mod refusals;
mod sharing;
mod states;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attar::wire::client::{ClientError, Received};
use attar::wire::{Client, RpcError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::tiny;

/// Far more than anything here takes, so that a hang fails instead of hanging the tests.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// More tokens than the context has: greedy text of the tiny model, line ends only, never ends by
/// itself.
const ENDLESS: usize = 1_000_000;

/// A folder in which daemons live, one after another.
pub struct Home {
    pub dir: TempDir,
}

impl Home {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { dir: tempfile::tempdir().unwrap() })
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("attar.sock")
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The program with nothing of the caller's surroundings.
    pub fn attar(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attar"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("TMPDIR", self.dir.path())
            .env("ATTAR_SOCKET", self.socket())
            .env("ATTAR_DATA_DIR", self.data())
            .env("ATTAR_MODEL", tiny::fixture())
            .env("ATTAR_THREADS", "1")
            .stdin(Stdio::null());
        command
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// A daemon that runs; it is killed when this is dropped.
pub struct Daemon {
    pub home: Arc<Home>,
    child: Child,
}

impl Daemon {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(args: &[&str]) -> Self {
        Self::in_home(&Home::new(), args).await
    }

    pub async fn in_home(home: &Arc<Home>, args: &[&str]) -> Self {
        let log = File::create(home.dir.path().join("log")).unwrap();
        let mut command = home.attar(&[&["serve"], args].concat());
        let child = command.stderr(log).spawn().unwrap();
        let mut daemon = Self { home: Arc::clone(home), child };
        let deadline = Instant::now() + PATIENCE;
        while Client::connect(&home.socket()).await.is_err() {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}: {}", home.log());
            sleep(POLL).await;
        }
        daemon
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn peer(&self) -> Peer {
        Peer(Client::connect(&self.home.socket()).await.unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the daemon's own end.
    pub async fn ended(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.home.log());
            sleep(POLL).await;
        }
    }

    /// Ends the daemon in good order.
    pub async fn stop(self) -> Arc<Home> {
        let home = Arc::clone(&self.home);
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}: {}", home.log());
        home
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that expects answers.
pub struct Peer(pub Client);

impl Peer {
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        match timeout(PATIENCE, self.0.call(method, params)).await.expect(method) {
            Ok(result) => Ok(result),
            Err(ClientError::Rpc(error)) => Err(error),
            Err(error) => panic!("{method}: {error}"),
        }
    }

    pub async fn ok(&mut self, method: &str, params: Value) -> Value {
        let shown = params.to_string();
        self.call(method, params).await.unwrap_or_else(|e| panic!("{method} {shown:.300}: {e}"))
    }

    pub async fn refused(&mut self, method: &str, params: Value) -> RpcError {
        let shown = params.to_string();
        self.call(method, params).await.expect_err(&format!("{method} {shown:.300}"))
    }

    pub async fn open(&mut self, session: &str) -> Value {
        self.ok("session/open", json!({"session": session})).await
    }

    pub async fn append(&mut self, session: &str, text: &str) -> Value {
        self.ok("session/append", json!({"session": session, "messages": user(text)})).await
    }

    /// Generates after a user's message, always with the same seed.
    pub async fn say(&mut self, session: &str, text: &str, max_tokens: usize) -> Value {
        self.ok("session/generate", question(session, text, max_tokens)).await
    }

    /// Starts text that does not end, and waits until there is some of it.
    pub async fn start_endless(&mut self, session: &str) -> u64 {
        let id = self.0.send("session/generate", endless(session)).await.unwrap();
        self.under_way().await;
        id
    }

    pub async fn receive(&mut self) -> Received {
        timeout(PATIENCE, self.0.receive()).await.expect("something comes").unwrap()
    }

    /// Waits for the progress report of a generation that has begun to write.
    pub async fn under_way(&mut self) {
        while self.notification("$/progress").await["phase"] != "decode" {}
    }

    /// The next notification called `wanted`; others are skipped.
    pub async fn notification(&mut self, wanted: &str) -> Value {
        loop {
            match self.receive().await {
                Received::Notification { method, params } if method == wanted => return params,
                Received::Notification { .. } => {}
                Received::Answer { outcome, .. } => panic!("no {wanted}, but {outcome:?}"),
            }
        }
    }

    /// The answer to request `wanted`; all else is skipped.
    pub async fn answer(&mut self, wanted: u64) -> Result<Value, RpcError> {
        loop {
            if let Received::Answer { id, outcome } = self.receive().await
                && id == wanted
            {
                return outcome;
            }
        }
    }

    /// Waits until `daemon/status` has the value.
    pub async fn until_status(&mut self, pointer: &str, wanted: Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.ok("daemon/status", json!({})).await;
            if status.pointer(pointer) == Some(&wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{pointer} is never {wanted}: {status}");
            sleep(POLL).await;
        }
    }
}

pub fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Asks for text that is different after every prompt, and may end early.
pub fn question(session: &str, text: &str, max_tokens: usize) -> Value {
    json!({
        "session": session,
        "messages": user(text),
        "max_tokens": max_tokens,
        "sampling": {"temperature": 3.0, "top_k": 40, "seed": 7},
    })
}

pub fn endless(session: &str) -> Value {
    json!({"session": session, "messages": user("Hello"), "max_tokens": ENDLESS, "stream": true})
}

pub fn content(result: &Value) -> &str {
    result["message"]["content"].as_str().unwrap()
}

/// Text of so many tokens that reading it takes the tiny model seconds.
pub fn long_text() -> String {
    "abc def ".repeat(3_500)
}
