//! `attar serve`: the daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use attar::config::{Config, Settings};
use attar::store::Store;
use attar::wire::auth::Token;
use attar::wire::method::Daemon;
use attar::wire::{self, Limits, Listener, Socket, socket};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::local;

/// Run the daemon in the foreground.
///
/// Example: attar serve --model qwen2.5-coder-0.5b-instruct --budget 2048
#[derive(Args)]
pub struct ServeCommand {
    /// Unix socket to listen on [default: $XDG_RUNTIME_DIR/attar/attar.sock].
    #[arg(long, env = "ATTAR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Also listen on this loopback address; clients show the token of the data folder.
    #[arg(long, env = "ATTAR_TCP", value_name = "ADDR")]
    tcp: Option<String>,
    /// Serve one client over stdin and stdout instead of a socket.
    #[arg(long)]
    stdio: bool,
    /// Settings file (TOML; the same names as the flags).
    #[arg(long, env = "ATTAR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl ServeCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let file = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        let config = self.settings.clone().over(file).check()?;
        local::start_compute(&config)?;
        local::block_on(self.serve(config))
    }

    async fn serve(self, config: Config) -> anyhow::Result<()> {
        let shutdown = CancellationToken::new();
        let listeners = self.listen().await?;
        let store = Store::open(&config.data_dir, config.store_limit)?;
        let token = match &self.tcp {
            Some(_) => Some(Token::load_or_create(&config.data_dir)?),
            None => None,
        };
        for path in store.set_aside() {
            tracing::warn!(path = %path.display(), "a damaged database was set aside; a damaged cache costs time, a damaged history its sessions");
        }
        let sessions = local::sessions(&config, store);
        let daemon = Arc::new(Daemon {
            sessions: Arc::clone(&sessions),
            token,
            started: Instant::now(),
            shutdown: shutdown.clone(),
        });
        // Clients are answered while the model loads; its errors come with the first session.
        let (models, name) = (Arc::clone(sessions.models()), config.model.clone());
        tokio::spawn(async move {
            if let Err(error) = models.get(&name).await {
                tracing::warn!(%error, "the default model cannot be loaded");
            }
        });
        tokio::spawn(stop_on_signal(shutdown.clone())?);
        let stopping = (shutdown.clone(), Arc::clone(&sessions));
        tokio::spawn(async move {
            stopping.0.cancelled().await;
            stopping.1.begin_shutdown();
        });
        let limits = Limits { max_message: config.max_message, ..Limits::default() };
        let served = wire::serve(listeners, daemon, limits, shutdown).await;
        sessions.shut_down().await;
        served.context("the daemon's listener failed")
    }

    async fn listen(&self) -> anyhow::Result<Vec<Listener>> {
        if self.stdio {
            return Ok(vec![Listener::Stdio]);
        }
        let socket = match &self.socket {
            Some(path) => Socket::bind(path).await?,
            None => Socket::bind_default().await?,
        };
        tracing::info!(socket = %socket.path().display(), "listening");
        let mut listeners = vec![Listener::Unix(socket)];
        let Some(addr) = &self.tcp else { return Ok(listeners) };
        let listener = socket::bind_tcp(addr).await?;
        match listener.local_addr() {
            Ok(addr) => tracing::info!(%addr, "listening"),
            Err(error) => bail!("the TCP listener has no address: {error}"),
        }
        listeners.push(Listener::Tcp(listener));
        Ok(listeners)
    }
}

/// Ends the daemon on SIGTERM and SIGINT.
fn stop_on_signal(shutdown: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("shutting down");
        shutdown.cancel();
    })
}
