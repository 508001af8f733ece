//! `attar sessions`: what is stored. Asks the daemon where one runs, else reads the store itself.

use std::fs::File;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attar::config::Settings;
use attar::store::{Store, StoreError};
use attar::wire::{Client, socket};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::local;

/// List, show, delete, export and import stored sessions.
///
/// Example: attar sessions list
#[derive(Args)]
pub struct SessionsCommand {
    #[command(subcommand)]
    action: Option<Action>,
    /// The daemon's socket.
    #[arg(long, env = "ATTAR_SOCKET", value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Subcommand)]
enum Action {
    /// All stored sessions.
    List,
    /// One session's messages.
    Show { session: String },
    /// Remove a session and its checkpoints.
    Delete { session: String },
    /// Write a session to a file (the daemon must not run).
    Export { session: String, file: PathBuf },
    /// Read a session from a file (the daemon must not run).
    Import {
        file: PathBuf,
        /// Another id than the file's.
        #[arg(long)]
        session: Option<String>,
    },
}

impl SessionsCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let config = self.settings.clone().check()?;
        let open = || match Store::open(&config.data_dir, config.store_limit) {
            Err(error @ StoreError::Locked { .. }) => {
                Err(error).context("a daemon holds the store; stop it first")
            }
            other => Ok(other?),
        };
        match self.action.as_ref().unwrap_or(&Action::List) {
            Action::Export { session, file } => export(&open()?, session, file),
            Action::Import { file, session } => {
                let mut source =
                    File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
                writeln!(stdout(), "{}", open()?.import(&mut source, session.as_deref())?)?;
                Ok(())
            }
            action => {
                let (method, params) = match action {
                    Action::Show { session } => ("session/show", json!({"session": session})),
                    Action::Delete { session } => ("session/delete", json!({"session": session})),
                    _ => ("session/list", json!({})),
                };
                let result = local::block_on(self.ask(method, params, open))?;
                if self.json {
                    writeln!(stdout(), "{result}")?;
                } else {
                    print(method, &result)?;
                }
                Ok(())
            }
        }
    }

    async fn ask(
        &self,
        method: &str,
        params: Value,
        open: impl Fn() -> anyhow::Result<Store>,
    ) -> anyhow::Result<Value> {
        let config = self.settings.clone().check()?;
        let store = match open() {
            Ok(store) => store,
            // Whoever holds this very store answers for it.
            Err(locked) if is_locked(&locked) => {
                let path = self.socket.clone().unwrap_or_else(socket::default_path);
                let Ok(mut client) = Client::connect(&path).await else { return Err(locked) };
                return Ok(client.call(method, params).await?);
            }
            Err(error) => return Err(error),
        };
        let sessions = local::sessions(&config, store);
        let id = params["session"].as_str().unwrap_or_default();
        Ok(match method {
            "session/show" => json!(sessions.show(id).await?),
            "session/delete" => {
                sessions.delete(id).await?;
                json!({"session": id})
            }
            _ => json!({"sessions": sessions.list().await?}),
        })
    }
}

fn is_locked(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Locked { .. }))
}

fn export(store: &Store, session: &str, file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!("{} exists already; choose another name", file.display());
    }
    let mut target =
        File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    let written = store.export(session, &mut target);
    if written.is_err() {
        // Half an export would only be taken for a whole one.
        let _ = std::fs::remove_file(file);
    }
    Ok(written?)
}

fn print(method: &str, result: &Value) -> io::Result<()> {
    match method {
        "session/show" => {
            for message in result["history"].as_array().into_iter().flatten() {
                writeln!(stdout(), "--- {}", message["role"].as_str().unwrap_or("?"))?;
                writeln!(stdout(), "{}", message["content"].as_str().unwrap_or_default())?;
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    writeln!(stdout(), "-> {} {}", function["name"], function["arguments"])?;
                }
            }
        }
        "session/delete" => {
            writeln!(stdout(), "deleted {}", result["session"].as_str().unwrap_or("?"))?;
        }
        _ => {
            let sessions = result["sessions"].as_array().cloned().unwrap_or_default();
            if sessions.is_empty() {
                writeln!(stdout(), "no sessions are stored")?;
            }
            for session in sessions {
                writeln!(
                    stdout(),
                    "{:<32} {:>5} messages {:>7} tokens  {}  {}",
                    session["session"].as_str().unwrap_or("?"),
                    session["messages"],
                    session["tokens"],
                    session["model"].as_str().unwrap_or("?"),
                    if session["open"] == true { "open" } else { "" },
                )?;
            }
        }
    }
    Ok(())
}
