//! One connection from its first byte to its last answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{tcp, unix};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::bytes::BytesMut;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::{Call, Connection, Notifier, Outbox, Service};
use super::frame::{Frame, Frames, Framing};
use super::pending::{Open, Pending};
use super::rpc::{Answer, Item, Message, RpcError};
use super::server::Shared;

/// Bytes asked of the socket at once, at least.
const READ: usize = 16 << 10;

/// An idle connection keeps no larger buffer than this.
const KEEP: usize = 1 << 20;

/// Texts from this size on are parsed off the async thread, which others are waiting for.
const LARGE: usize = 1 << 20;

/// Elements of one batch that run at the same time.
const BATCH_WIDTH: usize = 64;

/// How often a client that sends nothing more is looked at, while it has calls under way.
const LOOK: Duration = Duration::from_millis(50);

/// Time to write out what is queued, once the time of the calls has run out.
const FLUSH: Duration = Duration::from_secs(1);

/// The receiving side of a client.
pub(super) trait Source: AsyncRead + Unpin + Send + Sync {
    /// Waits until the client reads no more answers.
    fn hung_up(&self) -> impl Future<Output = ()> + Send;
}

impl Source for unix::OwnedReadHalf {
    async fn hung_up(&self) {
        // The end of its bytes alone may be a half-close: it can still read.
        while self.ready(Interest::WRITABLE).await.is_ok_and(|ready| !ready.is_write_closed()) {
            sleep(LOOK).await;
        }
    }
}

impl Source for tcp::OwnedReadHalf {
    async fn hung_up(&self) {
        // TCP does not tell a half-close from a full one; answers are still tried.
        let both = Interest::READABLE | Interest::WRITABLE;
        while self.ready(both).await.is_ok_and(|ready| !ready.is_read_closed()) {
            sleep(LOOK).await;
        }
    }
}

impl Source for io::Stdin {
    async fn hung_up(&self) {
        // Only a failed write tells, and the writer acts on that.
        std::future::pending().await
    }
}

/// Serves one client until it is gone or the daemon shuts down, and every call is answered.
pub(super) async fn drive<S: Service>(
    mut reader: impl Source,
    writer: impl AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    shared: Arc<Shared<S>>,
) {
    let mut input = BytesMut::new();
    let framing = loop {
        match Framing::sniff(&mut input) {
            Some(framing) => break framing,
            None if fill(&mut reader, &mut input, shared.shutdown.cancelled()).await => {}
            None => return,
        }
    };

    let (queue, queued) = mpsc::channel(shared.limits.outbox);
    let closed = CancellationToken::new();
    let finish = CancellationToken::new();
    let mut writing = tokio::spawn(write_out(writer, queued, closed.clone(), finish.clone()));
    let conversation = Conversation {
        connection: Arc::new(connection),
        outbox: Outbox { framing, queue },
        pending: Pending::default(),
        credit: Arc::new(Semaphore::new(shared.limits.max_in_flight.max(1))),
        calls: TaskTracker::new(),
        closed: closed.clone(),
        shared: Arc::clone(&shared),
    };
    let whole = async {
        conversation.read(&mut reader, &mut input).await;
        conversation.calls.close();
        tokio::select! {
            () = conversation.calls.wait() => {}
            () = reader.hung_up() => {
                closed.cancel();
                conversation.calls.wait().await;
            }
        }
        closed.cancel();
        finish.cancel();
        // It ends by itself; how it ended does not matter any more.
        let _ = (&mut writing).await;
    };
    // A client that does not read would hold up its answers, and so the shutdown, for ever.
    let late = async {
        shared.expired.cancelled().await;
        sleep(FLUSH).await;
    };
    tokio::select! {
        () = whole => {}
        () = late => closed.cancel(),
    }
    writing.abort();
}

/// Reads some bytes; false at their end, at a fault, or once `stop` resolves.
async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    stop: impl Future<Output = ()>,
) -> bool {
    if input.is_empty() && input.capacity() > KEEP {
        *input = BytesMut::new();
    }
    input.reserve(READ);
    tokio::select! {
        read = reader.read_buf(input) => matches!(read, Ok(1..)),
        () = stop => false,
    }
}

/// Writes frames until the queue is finished or the client is gone.
async fn write_out(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
    closed: CancellationToken,
    finish: CancellationToken,
) {
    loop {
        let frame = tokio::select! {
            biased;
            frame = queue.recv() => frame,
            () = finish.cancelled(), if !queue.is_closed() => {
                queue.close();
                continue;
            }
        };
        let Some(frame) = frame else { break };
        let written = async {
            writer.write_all(&frame).await?;
            writer.flush().await
        };
        if written.await.is_err() {
            closed.cancel();
            return;
        }
    }
    // Whether the client still listens does not matter any more.
    let _ = writer.shutdown().await;
}

/// What one connection's calls share.
struct Conversation<S> {
    connection: Arc<Connection>,
    outbox: Outbox,
    pending: Pending,
    /// Bounds the messages under way by number and by size; see [`Self::cost`].
    credit: Arc<Semaphore>,
    calls: TaskTracker,
    closed: CancellationToken,
    shared: Arc<Shared<S>>,
}

/// What is to be done about one element of a message.
enum Job {
    Answered(Answer),
    /// Without an `Open` it is a notification.
    Run(Option<Open>, Call),
}

impl<S: Service> Conversation<S> {
    /// Takes messages until the client sends no more or the daemon shuts down.
    async fn read(&self, reader: &mut impl Source, input: &mut BytesMut) {
        let limit = self.shared.limits.max_message;
        let mut frames = Frames::new(self.outbox.framing, limit);
        let (shutdown, closed) = (&self.shared.shutdown, &self.closed);
        let mut ended = false;
        while !shutdown.is_cancelled() && !closed.is_cancelled() {
            let frame = match frames.next(input) {
                Ok(None) if ended => frames.end(input),
                Ok(None) => {
                    let stop = async {
                        tokio::select! {
                            () = shutdown.cancelled() => {}
                            () = closed.cancelled() => {}
                        }
                    };
                    ended = !fill(reader, input, stop).await;
                    continue;
                }
                Ok(frame) => frame,
                Err(error) => {
                    let error = RpcError::invalid_request(format!("{error}; closing"));
                    return self.outbox.send(&Answer::refusal(error)).await;
                }
            };
            let read = match frame {
                None => return,
                Some(Frame::TooLarge { asked }) => Err(RpcError::too_large(limit, asked)),
                Some(Frame::Message(text)) => {
                    let cost = self.cost(text.len());
                    parse(text).await.map(|message| (message, cost))
                }
            };
            match read {
                Ok((message, cost)) => self.start(message, cost, reader).await,
                Err(error) => self.outbox.send(&Answer::refusal(error)).await,
            }
        }
    }

    /// Credit for a message of `len` bytes: one for being there and a share for its size. The
    /// largest takes half of all credit, so that a `$/cancelRequest` still gets past it.
    fn cost(&self, len: usize) -> u32 {
        let limits = &self.shared.limits;
        let half = (limits.max_in_flight / 2).max(1);
        let share = len.saturating_mul(half) / limits.max_message.max(1);
        u32::try_from((1 + share).min(half)).unwrap_or(u32::MAX)
    }

    /// Begins a message's calls; waits while too much is under way.
    async fn start(&self, message: Message, cost: u32, reader: &impl Source) {
        let credit = tokio::select! {
            biased;
            credit = Arc::clone(&self.credit).acquire_many_owned(cost) => credit,
            () = reader.hung_up() => return self.closed.cancel(),
            () = self.closed.cancelled() => return,
        };
        let (batch, items) = match message {
            Message::One(item) => (false, vec![item]),
            Message::Batch(items) => (true, items),
        };
        // Ids are registered in the order in which they come, before any cancel that follows.
        let jobs: Vec<Job> = items.into_iter().filter_map(|item| self.admit(item)).collect();
        if jobs.is_empty() {
            return;
        }
        let (outbox, shared) = (self.outbox.clone(), Arc::clone(&self.shared));
        self.calls.spawn(async move {
            if batch {
                let answers = run_batch(jobs, &shared).await;
                if !answers.is_empty() {
                    outbox.send(&answers).await;
                }
            } else {
                for job in jobs {
                    if let Some(answer) = run(job, Arc::clone(&shared)).await {
                        outbox.send(&answer).await;
                    }
                }
            }
            drop(credit);
        });
    }

    fn admit(&self, item: Item) -> Option<Job> {
        let (id, method, params) = match item {
            Item::Response => return None,
            Item::Invalid { id, error } => return Some(Job::Answered(Answer::new(id, Err(error)))),
            Item::Notification { method, params } if method == "$/cancelRequest" => {
                self.pending.cancel(&params["id"]);
                return None;
            }
            Item::Notification { method, params } => (None, method, params),
            Item::Request { id, method, params } => (Some(id), method, params),
        };
        let cancel = CancellationToken::new();
        let open = match id.map(|id| self.pending.open(id, cancel.clone())).transpose() {
            Ok(open) => open,
            Err(error) => return Some(Job::Answered(Answer::refusal(error))),
        };
        let call = Call {
            connection: Arc::clone(&self.connection),
            method,
            params,
            cancel,
            closed: self.closed.clone(),
            notify: Notifier(self.outbox.clone()),
        };
        Some(Job::Run(open, call))
    }
}

/// Reads a message; a large one elsewhere, so that other connections go on.
async fn parse(text: BytesMut) -> Result<Message, RpcError> {
    if text.len() < LARGE {
        return Message::read(&text);
    }
    let parsed = tokio::task::spawn_blocking(move || Message::read(&text)).await;
    parsed.unwrap_or_else(|fault| Err(RpcError::internal(fault)))
}

/// Does one job; `None` for a notification.
async fn run<S: Service>(job: Job, shared: Arc<Shared<S>>) -> Option<Answer> {
    let (open, call) = match job {
        Job::Answered(answer) => return Some(answer),
        Job::Run(open, call) => (open, call),
    };
    let method = call.method.clone();
    let service = Arc::clone(&shared.service);
    // A task of its own, so that a panic ends this call and nothing else.
    let mut task = tokio::spawn(async move { service.call(call).await });
    let outcome = tokio::select! {
        joined = &mut task => joined.unwrap_or_else(|fault| {
            tracing::error!(method, %fault, "a call failed");
            Err(RpcError::internal(format!("{method} failed; the daemon's log says where")))
        }),
        () = shared.expired.cancelled() => {
            task.abort();
            Err(RpcError::shutting_down())
        }
    };
    match open {
        Some(open) => Some(open.close(outcome)),
        None => {
            if let Err(error) = outcome {
                tracing::debug!(method, %error, "a notification was refused");
            }
            None
        }
    }
}

async fn run_batch<S: Service>(jobs: Vec<Job>, shared: &Arc<Shared<S>>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut running = JoinSet::new();
    for job in jobs {
        if running.len() == BATCH_WIDTH
            && let Some(Ok(answer)) = running.join_next().await
        {
            answers.extend(answer);
        }
        running.spawn(run(job, Arc::clone(shared)));
    }
    while let Some(Ok(answer)) = running.join_next().await {
        answers.extend(answer);
    }
    answers
}
