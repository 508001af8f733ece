//! Listening, limits and the orderly end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::{Connection, ConnectionId, Peer, Service};
use super::connection::drive;
use super::frame::Framing;
use super::rpc::{Answer, Kind, RpcError};
use super::socket::{Socket, is_trusted};

/// What clients may ask of the daemon at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub max_message: usize,
    /// Connections at the same time.
    pub max_connections: usize,
    /// Messages of one connection under way. With as many, or with twice `max_message` bytes of
    /// them, it is read no further until some are answered.
    pub max_in_flight: usize,
    /// Answers and notifications of one connection that wait to be written.
    pub outbox: usize,
    /// Time that calls have to end in when the daemon shuts down.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            max_connections: 256,
            max_in_flight: 1024,
            outbox: 256,
            grace: Duration::from_secs(5),
        }
    }
}

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    Unix(Socket),
    /// Loopback; see [`super::socket::bind_tcp`].
    Tcp(TcpListener),
    /// One client, over our own stdin and stdout. Reading stdin cannot be interrupted: end the
    /// runtime with `shutdown_background` when it served this.
    Stdio,
}

/// What all connections share.
pub(super) struct Shared<S> {
    pub(super) service: Arc<S>,
    pub(super) limits: Limits,
    /// No more messages are taken.
    pub(super) shutdown: CancellationToken,
    /// No more time is left for calls.
    pub(super) expired: CancellationToken,
    connections: TaskTracker,
    places: Arc<Semaphore>,
    next_id: AtomicU64,
}

/// Serves until `shutdown` is cancelled or the last listener has ended (only stdio's ends).
///
/// Then nothing more is accepted or read; calls under way have [`Limits::grace`] to end in, after
/// which they are dropped and answered with `shutting_down`; answers are written out; and the
/// socket is removed last, so that no other daemon starts before this one is done.
///
/// # Errors
/// A listener failed for good. The others are ended in order first.
pub async fn serve<S: Service>(
    listeners: Vec<Listener>,
    service: Arc<S>,
    limits: Limits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let shared = Arc::new(Shared {
        service,
        limits,
        shutdown,
        expired: CancellationToken::new(),
        connections: TaskTracker::new(),
        places: Arc::new(Semaphore::new(limits.max_connections)),
        next_id: AtomicU64::new(1),
    });
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let shared = Arc::clone(&shared);
        accepting.spawn(async move {
            let outcome = shared.listen(&listener).await;
            (listener, outcome)
        });
    }
    let mut ended = Vec::new();
    while let Some(joined) = accepting.join_next().await {
        let (listener, outcome) = joined.map_err(io::Error::other)?;
        if outcome.is_err() {
            shared.shutdown.cancel();
        }
        ended.push((listener, outcome));
    }
    shared.drain().await;
    // The listeners are dropped here, and no sooner.
    ended.into_iter().try_for_each(|(_listener, outcome)| outcome)
}

/// A client's connection of either kind.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Says why in a line and hangs up. The line fits any socket's buffer; whether the client
    /// reads it is up to the client.
    fn refuse(self, error: RpcError) {
        let line = Framing::Lines.encode(&Answer::refusal(error));
        let _ = match self {
            Self::Unix(stream) => stream.try_write(&line),
            Self::Tcp(stream) => stream.try_write(&line),
        };
    }
}

impl<S: Service> Shared<S> {
    async fn listen(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        loop {
            let accepted = match listener {
                Listener::Unix(socket) => {
                    let accept = async { socket.accept().await.map(Stream::Unix) };
                    self.shutdown.run_until_cancelled(accept).await
                }
                Listener::Tcp(listener) => {
                    let accept = async { Ok(Stream::Tcp(listener.accept().await?.0)) };
                    self.shutdown.run_until_cancelled(accept).await
                }
                Listener::Stdio => {
                    let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
                    let connection = Connection::new(self.next_id(), Peer::Stdio);
                    let driven = drive(stdin, stdout, connection, Arc::clone(self));
                    // What is under way at the shutdown is waited for with all the others.
                    let driven = self.connections.spawn(driven);
                    self.shutdown.run_until_cancelled(driven).await;
                    return Ok(());
                }
            };
            match accepted {
                None => return Ok(()),
                Some(Ok(stream)) => self.welcome(stream),
                Some(Err(error)) if is_passing(&error) => {
                    tracing::warn!(%error, "cannot take a connection now");
                    // The backlog stays readable, so trying again at once would spin.
                    sleep(Duration::from_millis(100)).await;
                }
                Some(Err(error)) => return Err(error),
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: Stream) {
        let peer = match &stream {
            Stream::Tcp(_) => Peer::Tcp,
            Stream::Unix(unix) => match unix.peer_cred() {
                Ok(cred) if is_trusted(cred.uid()) => Peer::Unix { uid: cred.uid() },
                _ => {
                    let why = "this socket is for the user who started the daemon";
                    return stream.refuse(RpcError::of(Kind::Unauthorized, why));
                }
            },
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let limit = self.limits.max_connections;
            let why = format!("all {limit} connections are taken; close some or try again");
            return stream.refuse(RpcError::of(Kind::Overloaded, why).with("limit", limit));
        };
        let connection = Connection::new(self.next_id(), peer);
        tracing::debug!(id = connection.id.0, ?peer, "connected");
        match stream {
            Stream::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                self.keep(place, drive(reader, writer, connection, Arc::clone(self)));
            }
            Stream::Tcp(stream) => {
                // Deltas are small and each is awaited; a failure only costs latency.
                let _ = stream.set_nodelay(true);
                let (reader, writer) = stream.into_split();
                self.keep(place, drive(reader, writer, connection, Arc::clone(self)));
            }
        }
    }

    /// Runs a connection, which holds its place until it has ended.
    fn keep(&self, place: impl Send + 'static, driven: impl Future<Output = ()> + Send + 'static) {
        self.connections.spawn(async move {
            driven.await;
            drop(place);
        });
    }

    fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    async fn drain(&self) {
        self.shutdown.cancel();
        self.connections.close();
        if timeout(self.limits.grace, self.connections.wait()).await.is_err() {
            self.expired.cancel();
            self.connections.wait().await;
        }
    }
}

/// Whether accepting may work again without our doing.
fn is_passing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionAborted
        || Errno::from_io_error(error).is_some_and(|errno| {
            matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
        })
}
