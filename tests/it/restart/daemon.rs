//! A daemon of its own for a test, that can be killed at any moment and started again.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use attar::store::{DEFAULT_LIMIT_BYTES, Store};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// The tiny random model.
pub fn tiny() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model/tiny-qwen2.gguf").to_owned()
}

/// A real model, if it is on this machine.
pub fn real(name: &str) -> Option<String> {
    let home = || std::env::home_dir().map(|home| home.join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home)?;
    let path = data.join("attar/models").join(name).with_extension("gguf");
    if !path.exists() {
        println!("{} is not there, so this is not tested with it", path.display());
        return None;
    }
    Some(path.display().to_string())
}

/// A running `attar serve`. It is killed, not asked to end, when it is dropped.
pub struct Daemon {
    pub process: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon that keeps its sessions in `dir`, and does not wait for it.
    pub fn launch(dir: &Path, model: &str, args: &[&str]) -> Self {
        let socket = dir.join("attar.sock");
        let process = Command::new(env!("CARGO_BIN_EXE_attar"))
            .args(["serve", "--model", model, "--threads", "2"])
            .args(args)
            .arg("--socket")
            .arg(&socket)
            .arg("--data-dir")
            .arg(store_dir(dir))
            .env("RUST_LOG", "off")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, socket }
    }

    /// Waits for the daemon to listen.
    pub fn client(&mut self) -> Client {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(client) = Client::connect(&self.socket) {
                return client;
            }
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("the daemon ended with {status}");
            }
            assert!(Instant::now() < deadline, "the daemon does not listen");
            std::thread::yield_now();
        }
    }

    pub fn start(dir: &Path, model: &str, args: &[&str]) -> (Self, Client) {
        let mut daemon = Self::launch(dir, model, args);
        let client = daemon.client();
        (daemon, client)
    }

    /// What a crash does: no signal that could be caught.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection to a daemon.
pub struct Client {
    reader: BufReader<UnixStream>,
    line: String,
    last_id: u64,
}

impl Client {
    fn connect(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        Ok(Self { reader: BufReader::new(stream), line: String::new(), last_id: 0 })
    }

    pub fn send(&mut self, method: &str, params: &Value) -> std::io::Result<()> {
        self.last_id += 1;
        let request =
            json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params});
        writeln!(self.reader.get_mut(), "{request}")
    }

    /// The answer to the last request; `None` where the daemon has not given it in time.
    pub fn answer_within(&mut self, patience: Duration) -> Option<Result<Value, i64>> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())?;
            self.reader.get_ref().set_read_timeout(Some(left)).unwrap();
            // What has been read of a line when time is up stays for the next call.
            if self.reader.read_line(&mut self.line).is_err() {
                return None;
            }
            assert!(!self.line.is_empty(), "the daemon closed the connection");
            let line: Value = serde_json::from_str(&std::mem::take(&mut self.line)).unwrap();
            if line["id"] == self.last_id {
                let error = line["error"]["code"].as_i64();
                return Some(error.map_or_else(|| Ok(line["result"].clone()), Err));
            }
        }
    }

    pub fn answer(&mut self) -> Result<Value, i64> {
        self.answer_within(PATIENCE).expect("the daemon answers in time")
    }

    /// A call's result, or its error's code.
    pub fn try_call(&mut self, method: &str, params: &Value) -> Result<Value, i64> {
        self.send(method, params).unwrap();
        self.answer()
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, &params).unwrap_or_else(|code| panic!("{method} failed: {code}"))
    }

    /// Waits until the session has read all but the last, short block of its tokens.
    pub fn wait_until_read(&mut self, session: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.call("session/show", json!({"session": session}));
            if shown["cached"]["pending"].as_u64().unwrap() < 256 {
                return;
            }
            assert!(Instant::now() < deadline, "the session is not read");
            std::thread::yield_now();
        }
    }
}

fn store_dir(dir: &Path) -> PathBuf {
    dir.join("sessions")
}

/// The store of a daemon that does not run.
pub fn store(dir: &Path) -> Store {
    Store::open(&store_dir(dir), DEFAULT_LIMIT_BYTES).unwrap()
}

/// The folder of the stored caches.
pub fn cache_dir(dir: &Path) -> PathBuf {
    store_dir(dir).join("cache")
}

/// The tokens of each generated message of a session, in order.
pub fn generated(store: &Store, session: &str) -> Vec<Vec<u32>> {
    let entries = store.entries(session).unwrap();
    let entries = entries.iter().map(|entry| serde_json::from_slice::<Value>(entry).unwrap());
    entries
        .filter_map(|entry| serde_json::from_value(entry.get("generated")?.clone()).unwrap())
        .collect()
}

/// A message of `n_words` words that differ from those of other `seed`s.
pub fn message(role: &str, n_words: usize, seed: u64) -> Value {
    const WORDS: [&str; 16] = [
        "the", "parser", "reads", "a", "line", "and", "returns", "nothing", "when", "it", "fails",
        "test", "error:", "foo()", "x = 7;", "cache",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words: Vec<_> = (0..n_words)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            WORDS[(state >> 60) as usize]
        })
        .collect();
    json!({"role": role, "content": words.join(" ")})
}
