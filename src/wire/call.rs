//! What a service is given, and how it speaks back.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::frame::Framing;
use super::rpc::{Outgoing, RpcError};

/// Answers calls; one for the whole daemon.
pub trait Service: Send + Sync + 'static {
    /// Answers one call; what it returns for a notification is dropped.
    ///
    /// Calls of one connection run at the same time. A call goes on when its client goes away: it
    /// is told by [`Call::closed`] and decides for itself. Its future is dropped only when the
    /// daemon's time to shut down has run out.
    fn call(&self, call: Call) -> impl Future<Output = Result<Value, RpcError>> + Send;
}

/// One request or notification.
#[derive(Debug)]
pub struct Call {
    pub connection: Arc<Connection>,
    pub method: String,
    /// An object or an array; an empty object where the client sent none.
    pub params: Value,
    /// Cancelled when the client cancels this request.
    pub cancel: CancellationToken,
    /// Cancelled when the connection has ended, so that nobody reads the answer.
    pub closed: CancellationToken,
    /// Notifications to this call's client.
    pub notify: Notifier,
}

impl Call {
    /// Runs `work` unless the client cancels first; for calls that may stop anywhere.
    ///
    /// # Errors
    /// [`Self::cancelled_error`], with `work` dropped where it stood.
    pub async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, RpcError> {
        self.cancel.run_until_cancelled(work).await.ok_or_else(Self::cancelled_error)
    }

    /// The answer to a cancelled request that has nothing better to say.
    pub fn cancelled_error() -> RpcError {
        RpcError::cancelled()
    }
}

/// Tells connections apart; never reused while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of the user `uid`, which is ours or root.
    Unix { uid: u32 },
    /// Anyone on this machine; shows a token before it is believed.
    Tcp,
    /// The process that started us.
    Stdio,
}

/// A connection's own state.
#[derive(Debug)]
pub struct Connection {
    pub id: ConnectionId,
    pub peer: Peer,
    authorized: AtomicBool,
}

impl Connection {
    /// A new connection; only a TCP peer has yet to be authorized.
    pub fn new(id: ConnectionId, peer: Peer) -> Self {
        let authorized = AtomicBool::new(peer != Peer::Tcp);
        Self { id, peer, authorized }
    }

    /// Whether the peer may use the daemon.
    pub fn is_authorized(&self) -> bool {
        self.authorized.load(Ordering::Relaxed)
    }

    /// Lets the peer use the daemon: its token was right.
    pub fn authorize(&self) {
        self.authorized.store(true, Ordering::Relaxed);
    }
}

/// Sends notifications to one client, in order among themselves and before the call's answer.
///
/// The queue is bounded: a client that does not read holds up its sender, nobody else. Params are
/// whatever JSON can express, so maps have string keys.
#[derive(Clone, Debug)]
pub struct Notifier(pub(super) Outbox);

impl Notifier {
    /// Sends a notification, waiting while the queue is full. To a client that is gone it does
    /// nothing.
    pub async fn send(&self, method: &str, params: impl Serialize) {
        self.0.send(&Outgoing::notification(method, params)).await;
    }
}

/// The sending side of a connection.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    pub(super) framing: Framing,
    /// Whole frames.
    pub(super) queue: mpsc::Sender<Vec<u8>>,
}

impl Outbox {
    pub(super) async fn send(&self, message: &impl Serialize) {
        // Encoded before the wait, so that nothing borrowed is held across it.
        let frame = self.framing.encode(message);
        // An error means that the client is gone, which `Call::closed` tells whom it concerns.
        let _ = self.queue.send(frame).await;
    }
}
