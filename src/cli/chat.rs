//! `attar chat`: an interactive session with the daemon.

use std::io::{self, IsTerminal, Write, stdout};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use attar::config::Settings;
use attar::wire::client::Received;
use attar::wire::{Client, socket};
use clap::Args;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokio::signal;

use super::local;

/// How long a daemon that was started for this chat has to answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Talk to a model in the terminal; a daemon is started where none runs.
///
/// Ctrl-C ends an answer, Ctrl-D the chat. The session stays and can be opened again by its id.
///
/// Example: attar chat --session notes --budget 1024
#[derive(Args)]
pub struct ChatCommand {
    /// Open this session again, or make it.
    #[arg(long)]
    session: Option<String>,
    /// Model by name or path; a daemon that is started for it takes `ATTAR_MODEL` without it.
    #[arg(long)]
    model: Option<String>,
    /// Slots of the cache that stay.
    #[arg(long)]
    budget: Option<usize>,
    /// Which slots stay.
    #[arg(long)]
    policy: Option<String>,
    /// A system prompt for a new session.
    #[arg(long)]
    system: Option<String>,
    /// Most tokens of one answer.
    #[arg(long, default_value_t = 1_024)]
    max_tokens: usize,
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// The daemon's socket.
    #[arg(long, env = "ATTAR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl ChatCommand {
    pub fn run(self) -> anyhow::Result<()> {
        local::block_on(self.chat())
    }

    async fn chat(self) -> anyhow::Result<()> {
        let path = self.socket.clone().unwrap_or_else(socket::default_path);
        let mut client = connect_or_start(&path, self.model.as_deref()).await?;
        client
            .call(
                "initialize",
                json!({"client": {"name": "attar chat", "version": env!("CARGO_PKG_VERSION")}}),
            )
            .await?;
        let mut cache = json!({});
        if let Some(budget) = self.budget {
            cache["budget"] = budget.into();
        }
        if let Some(policy) = &self.policy {
            cache["policy"] = policy.as_str().into();
        }
        let mut open = json!({"cache": cache});
        if let Some(session) = &self.session {
            open["session"] = session.as_str().into();
        }
        if let Some(model) = &self.model {
            open["model"] = model.as_str().into();
        }
        let opened = client.call("session/open", open).await?;
        let session = opened["session"].as_str().context("the daemon named no session")?.to_owned();
        if let Some(system) = self.system.as_ref().filter(|_| opened["resumed"] == false) {
            let messages = json!([{"role": "system", "content": system}]);
            client
                .call("session/append", json!({"session": session, "messages": messages}))
                .await?;
        }
        eprintln!("session {session}, {} tokens; Ctrl-D ends", opened["tokens"]["logical"]);
        loop {
            let Some(line) = read_line().await? else { return Ok(()) };
            if line.trim().is_empty() {
                continue;
            }
            let request = json!({
                "session": session,
                "messages": [{"role": "user", "content": line}],
                "max_tokens": self.max_tokens,
                "sampling": {"temperature": self.temperature},
                "stream": true,
            });
            match answer(&mut client, request).await {
                Ok(result) => eprintln!("\n{}", status_line(&result)),
                Err(error) => eprintln!("\nerror: {error:#}"),
            }
        }
    }
}

/// One line from the terminal; none at its end.
async fn read_line() -> anyhow::Result<Option<String>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut editor = rustyline::DefaultEditor::new()?;
        editor.readline("> ")
    })
    .await?;
    match line {
        Ok(line) => Ok(Some(line)),
        Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Streams one answer; Ctrl-C ends it early and keeps what is there.
async fn answer(client: &mut Client, request: Value) -> anyhow::Result<Value> {
    let id = client.send("session/generate", request).await?;
    let is_terminal = stdout().is_terminal();
    loop {
        let received = tokio::select! {
            received = client.receive() => received?,
            _ = signal::ctrl_c() => {
                client.cancel(id).await?;
                continue;
            }
        };
        match received {
            Received::Notification { method, params } if method == "session/delta" => {
                print_delta(&params, is_terminal)?;
            }
            Received::Notification { .. } => {}
            Received::Answer { id: answered, outcome } if answered == id => return Ok(outcome?),
            Received::Answer { .. } => {}
        }
    }
}

fn print_delta(delta: &Value, is_terminal: bool) -> io::Result<()> {
    let text = delta["text"].as_str().unwrap_or_default();
    match delta["kind"].as_str() {
        Some("reasoning") if is_terminal => write!(stdout(), "\x1b[2m{text}\x1b[0m")?,
        Some("tool_call") => {
            let name = delta["name"].as_str().unwrap_or_default();
            write!(stdout(), "{name}{}", delta["arguments"].as_str().unwrap_or_default())?;
        }
        _ => write!(stdout(), "{text}")?,
    }
    stdout().flush()
}

fn status_line(result: &Value) -> String {
    let (usage, cache) = (&result["usage"], &result["cache"]);
    format!(
        "[{} tokens, {} cached; kept {} of budget {}; {} tok/s]",
        usage["prompt_tokens"],
        usage["cached_tokens"],
        cache["kept"],
        cache["budget"],
        result["timing"]["tokens_per_second"]
    )
}

/// A connection to the daemon on `path`, which is started first where there is none.
async fn connect_or_start(path: &Path, model: Option<&str>) -> anyhow::Result<Client> {
    if let Ok(client) = Client::connect(path).await {
        return Ok(client);
    }
    // As the daemon itself would choose.
    let model = match model {
        Some(model) => model.to_owned(),
        None => {
            Settings { model: std::env::var("ATTAR_MODEL").ok(), ..Settings::default() }
                .check()?
                .model
        }
    };
    local::ensure_model(&model)?;
    let program = std::env::current_exe().context("cannot find the attar program")?;
    let mut daemon = Command::new(program)
        .arg("serve")
        .arg("--socket")
        .arg(path)
        .arg("--model")
        .arg(&model)
        // Not in our process group: Ctrl-C here ends an answer, not the daemon.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the daemon")?;
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        if let Ok(client) = Client::connect(path).await {
            return Ok(client);
        }
        if let Some(status) = daemon.try_wait()? {
            bail!("the daemon ended at once ({status}); run `attar serve` to see why");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the daemon did not answer on {}; run `attar serve` to see why", path.display())
}
