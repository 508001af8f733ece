//! A small client for our own commands and tests: one JSON text a line, one call at a time.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::bytes::BytesMut;

use super::frame::{Frame, FrameError, Frames, Framing};
use super::rpc::{Outgoing, RpcError};
use super::socket::is_trusted;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon listens at {path}; start one with `attar serve`")]
    NotRunning { path: PathBuf },
    #[error("{path} belongs to user {uid}, who could read all that is sent; use another --socket")]
    Untrusted { path: PathBuf, uid: u32 },
    #[error("the daemon closed the connection; its log says why")]
    Closed,
    #[error("the daemon sent what is not JSON-RPC: {0}")]
    Malformed(String),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("cannot talk to the daemon: {0}")]
    Io(#[from] io::Error),
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// What the daemon sends.
#[derive(Debug, PartialEq)]
pub enum Received {
    Notification {
        method: String,
        params: Value,
    },
    /// `id` is null where the daemon could not read the request's.
    Answer {
        id: Value,
        outcome: Result<Value, RpcError>,
    },
}

/// A connection to a daemon.
pub struct Client {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    input: BytesMut,
    frames: Frames,
    last_id: u64,
}

impl Client {
    /// Connects to the daemon's Unix socket.
    ///
    /// # Errors
    /// Nobody listens there, or a user other than ours and root does.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error) => {
                use io::ErrorKind::{ConnectionRefused, NotFound};
                return Err(if matches!(error.kind(), NotFound | ConnectionRefused) {
                    ClientError::NotRunning { path: path.to_owned() }
                } else {
                    error.into()
                });
            }
        };
        let uid = stream.peer_cred()?.uid();
        if !is_trusted(uid) {
            return Err(ClientError::Untrusted { path: path.to_owned(), uid });
        }
        let (reader, writer) = stream.into_split();
        Ok(Self::over(reader, writer))
    }

    /// Connects to a daemon's TCP port; `initialize` must carry its token.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn connect_tcp(addr: &str) -> Result<Self, ClientError> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self::over(reader, writer))
    }

    /// Speaks over any pair of byte streams, such as a child's stdout and stdin.
    pub fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            input: BytesMut::new(),
            // What our own daemon answers is as large as what we asked for.
            frames: Frames::new(Framing::Lines, usize::MAX),
            last_id: 0,
        }
    }

    /// Calls `method` and waits for its result; notifications meanwhile are dropped.
    ///
    /// # Errors
    /// The daemon's own error as [`ClientError::Rpc`], or the connection failed.
    pub async fn call(
        &mut self,
        method: &str,
        params: impl Serialize,
    ) -> Result<Value, ClientError> {
        self.call_streaming(method, params, |_, _| ()).await
    }

    /// Calls `method` and hands every notification that comes before its result, as method and
    /// params, to `on_notification`.
    ///
    /// Dropping the future once the request is sent is safe: the next call skips the late answer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_streaming(
        &mut self,
        method: &str,
        params: impl Serialize,
        mut on_notification: impl FnMut(&str, Value),
    ) -> Result<Value, ClientError> {
        let sent = self.send(method, params).await?;
        loop {
            match self.receive().await? {
                Received::Notification { method, params } => on_notification(&method, params),
                Received::Answer { id, outcome } if id == sent => return Ok(outcome?),
                // Ours could not be read, as when it is over the daemon's limit.
                Received::Answer { id: Value::Null, outcome } => return Ok(outcome?),
                Received::Answer { .. } => {}
            }
        }
    }

    /// Sends a request and returns its id, for callers that [`Self::receive`] by themselves.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn send(&mut self, method: &str, params: impl Serialize) -> Result<u64, ClientError> {
        self.last_id += 1;
        self.write(&Outgoing::request(self.last_id, method, params)).await?;
        Ok(self.last_id)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn notify(
        &mut self,
        method: &str,
        params: impl Serialize,
    ) -> Result<(), ClientError> {
        self.write(&Outgoing::notification(method, params)).await
    }

    /// Asks the daemon to end request `id`, which is answered all the same.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn cancel(&mut self, id: u64) -> Result<(), ClientError> {
        self.notify("$/cancelRequest", json!({"id": id})).await
    }

    /// Waits for what comes next. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection ended or failed, or the daemon sent no JSON-RPC.
    pub async fn receive(&mut self) -> Result<Received, ClientError> {
        loop {
            match self.frames.next(&mut self.input)? {
                Some(Frame::Message(text)) => return read(&text),
                Some(Frame::TooLarge { .. }) => {}
                None => {
                    if self.reader.read_buf(&mut self.input).await? == 0 {
                        return Err(ClientError::Closed);
                    }
                }
            }
        }
    }

    async fn write(&mut self, message: &impl Serialize) -> Result<(), ClientError> {
        self.writer.write_all(&Framing::Lines.encode(message)).await?;
        Ok(self.writer.flush().await?)
    }
}

fn read(text: &[u8]) -> Result<Received, ClientError> {
    let malformed = |error: serde_json::Error| ClientError::Malformed(error.to_string());
    let mut value: Value = serde_json::from_slice(text).map_err(malformed)?;
    let mut take = |name| value.get_mut(name).map(Value::take);
    if let Some(Value::String(method)) = take("method") {
        return Ok(Received::Notification { method, params: take("params").unwrap_or_default() });
    }
    let id = take("id").unwrap_or_default();
    let outcome = match (take("result"), take("error")) {
        (_, Some(error)) => Err(serde_json::from_value(error).map_err(malformed)?),
        (Some(result), None) => Ok(result),
        (None, None) => return Err(ClientError::Malformed("neither result nor error".to_owned())),
    };
    Ok(Received::Answer { id, outcome })
}
