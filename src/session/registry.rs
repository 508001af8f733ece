//! All sessions: which are open, which are stored, and who may touch one now.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::conversation::Conversation;
use super::error::SessionError;
use super::generation::{Outcome, Stream};
use super::live::{Session, blocking};
use super::models::Models;
use super::record::{self, CacheOptions, Entry, Header, Partial};
use super::turn::{self, Guard, Options, check_messages};
use crate::engine::{CacheStats, SequenceId};
use crate::store::Store;
use crate::trajectory::Message;

/// Between a session's id and a checkpoint's in the stored name of a checkpoint.
const CHECKPOINT: &str = ":checkpoint:";

/// What a client says when it opens a session.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// The session's id; a new one is made up where there is none.
    pub session: Option<String>,
    pub model: Option<String>,
    pub tools: Option<Vec<Value>>,
    pub policy: Option<String>,
    pub budget: Option<usize>,
    pub buffer: Option<usize>,
    /// Reads a session again whose model or tools are no longer the same.
    pub rebuild: bool,
    pub messages: Vec<Message>,
}

/// What a client learns of a session that it opened.
#[derive(Debug)]
pub struct Opened {
    pub session: String,
    pub resumed: bool,
    /// The stored cache could not be used; the text is read again.
    pub rebuilt: bool,
    pub partial: Option<Partial>,
    pub turns: u64,
    pub stats: CacheStats,
}

/// A stored session without its messages.
#[derive(Debug, Serialize)]
pub struct Listed {
    pub session: String,
    #[serde(flatten)]
    pub header: Header,
    pub open: bool,
}

/// A stored session with its messages.
#[derive(Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    pub listed: Listed,
    pub history: Vec<Message>,
    /// The cache in numbers, where it is in memory.
    pub cached: Option<CacheStats>,
}

/// A generation that has begun.
#[derive(Clone)]
pub struct Started {
    pub stream: Arc<Stream>,
    pub cancel: CancellationToken,
}

/// An open session's place.
struct Slot {
    session: Arc<AsyncMutex<Session>>,
    /// The generation that runs, or the last one.
    generation: Mutex<Option<Started>>,
    is_generating: AtomicBool,
}

impl Slot {
    fn generation(&self) -> MutexGuard<'_, Option<Started>> {
        // Replaced as a whole, so a panic elsewhere cannot have left it half-written.
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All sessions of a daemon.
pub struct Sessions {
    models: Arc<Models>,
    store: Store,
    defaults: CacheOptions,
    /// Locked while a session is opened, so that nobody opens it a second time.
    slots: AsyncMutex<HashMap<String, Arc<Slot>>>,
    next_sequence: AtomicU64,
    generations: TaskTracker,
    shutdown: CancellationToken,
}

impl Sessions {
    pub fn new(models: Arc<Models>, store: Store, defaults: CacheOptions) -> Self {
        Self {
            models,
            store,
            defaults,
            slots: AsyncMutex::default(),
            next_sequence: AtomicU64::new(1),
            generations: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        }
    }

    pub fn models(&self) -> &Arc<Models> {
        &self.models
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Opens a session: the open one, a stored one, or a new one.
    pub async fn open(&self, request: Open) -> Result<Opened, SessionError> {
        self.refuse_while_shutting_down()?;
        check_messages(&request.messages)?;
        let id = match &request.session {
            Some(id) => id.clone(),
            None => new_id(),
        };
        if id.contains(CHECKPOINT) {
            return Err(SessionError::Invalid(format!(
                "session id `{id}` contains `{CHECKPOINT}`, which names checkpoints"
            )));
        }
        let mut slots = self.slots.lock().await;
        let mut opened = match slots.get(&id) {
            Some(slot) => self.describe_open(slot, &request).await?,
            None => {
                let (session, opened) = self.load(&id, &request).await?;
                let slot = Slot {
                    session: Arc::new(AsyncMutex::new(session)),
                    generation: Mutex::new(None),
                    is_generating: AtomicBool::new(false),
                };
                slots.insert(id.clone(), Arc::new(slot));
                opened
            }
        };
        drop(slots);
        if !request.messages.is_empty() {
            opened.stats = self.append(&id, request.messages).await?.1;
        }
        Ok(opened)
    }

    async fn describe_open(&self, slot: &Slot, request: &Open) -> Result<Opened, SessionError> {
        let session = self.lock(slot, request.session.as_deref().unwrap_or_default()).await?;
        check_same(&session.header, &session.id, request)?;
        Ok(Opened {
            session: session.id.clone(),
            resumed: true,
            rebuilt: false,
            partial: None,
            turns: session.conversation.turns(),
            stats: session.stats().await,
        })
    }

    /// Makes a session, from the store where it is there.
    async fn load(&self, id: &str, request: &Open) -> Result<(Session, Opened), SessionError> {
        match self.stored(id).await? {
            None => self.create(id, request).await,
            Some((header, entries)) => self.resume(id, request, header, entries).await,
        }
    }

    /// A session's text as it is stored.
    async fn stored(&self, id: &str) -> Result<Option<(Header, Vec<Entry>)>, SessionError> {
        let (store, key) = (self.store.clone(), id.to_owned());
        blocking(move || {
            let Some(bytes) = store.header(&key)? else { return Ok(None) };
            let header = record::header(&bytes)?;
            let mut entries = Vec::new();
            for bytes in store.entries(&key)? {
                entries.push(record::from_bytes::<Entry>(&bytes)?);
            }
            // Entries are written before the header that counts them.
            entries.truncate(header.n_entries as usize);
            Ok(Some((header, entries)))
        })
        .await
    }

    async fn create(&self, id: &str, request: &Open) -> Result<(Session, Opened), SessionError> {
        let cache = CacheOptions {
            policy: request.policy.clone().unwrap_or_else(|| self.defaults.policy.clone()),
            budget: request.budget.unwrap_or(self.defaults.budget),
            buffer: request.buffer.unwrap_or(self.defaults.buffer),
        };
        cache.validate()?;
        let name = request.model.as_deref().unwrap_or(self.models.default_name());
        let model = self.models.get(name).await?;
        let tools = request.tools.clone().unwrap_or_default();
        let header = Header::new(&model.name, &model.fingerprint, tools.clone(), cache);
        let conversation = Conversation::new(model, tools);
        let mut session = self.session(id, header, conversation);
        let mark = session.conversation.mark();
        session.commit(None, mark).await?;
        let opened = Opened {
            session: id.to_owned(),
            resumed: false,
            rebuilt: false,
            partial: None,
            turns: 0,
            stats: CacheStats::default(),
        };
        Ok((session, opened))
    }

    async fn resume(
        &self,
        id: &str,
        request: &Open,
        mut header: Header,
        mut entries: Vec<Entry>,
    ) -> Result<(Session, Opened), SessionError> {
        check_same(&header, id, request)?;
        let name = request.model.as_deref().unwrap_or(&header.model);
        let model = self.models.get(name).await?;
        let is_other = model.fingerprint != header.fingerprint;
        if is_other && !request.rebuild {
            return Err(SessionError::ModelMismatch {
                session: id.to_owned(),
                stored: header.model,
                asked: format!("the `{}` that is there now", model.name),
            });
        }
        if let Some(tools) = request.tools.clone().filter(|_| request.rebuild) {
            header.tools = tools;
        }
        if is_other {
            // Another tokenizer's ids mean nothing here: what was generated is read as text.
            entries.iter_mut().for_each(|entry| entry.generated = None);
            header.model.clone_from(&model.name);
            header.fingerprint.clone_from(&model.fingerprint);
        }
        let tools = header.tools.clone();
        let conversation = blocking(move || Conversation::restore(model, tools, entries)).await?;
        let mut session = self.session(id, header, conversation);
        if is_other {
            session.rewrite().await?;
        }
        let partial = session.partial().await?;
        let (feed, rebuilt) = session.hand_over().await?;
        let stats = session.start_reading(feed).await?;
        let opened = Opened {
            session: id.to_owned(),
            resumed: true,
            rebuilt: rebuilt || is_other,
            partial,
            turns: session.conversation.turns(),
            stats,
        };
        Ok((session, opened))
    }

    fn session(&self, id: &str, header: Header, conversation: Conversation) -> Session {
        let sequence = SequenceId(self.next_sequence.fetch_add(1, Ordering::Relaxed));
        Session::new(id.to_owned(), header, conversation, sequence, self.store.clone())
    }

    fn refuse_while_shutting_down(&self) -> Result<(), SessionError> {
        if self.shutdown.is_cancelled() { Err(SessionError::ShuttingDown) } else { Ok(()) }
    }

    async fn slot(&self, id: &str) -> Result<Arc<Slot>, SessionError> {
        if let Some(slot) = self.slots.lock().await.get(id) {
            return Ok(Arc::clone(slot));
        }
        let (store, key) = (self.store.clone(), id.to_owned());
        let is_stored = blocking(move || Ok(store.header(&key)?.is_some())).await?;
        Err(if is_stored {
            SessionError::Closed(id.to_owned())
        } else {
            SessionError::NotFound(id.to_owned())
        })
    }

    /// Waits for other short work on the session; a generation is not waited for.
    async fn lock(&self, slot: &Slot, id: &str) -> Result<Guard, SessionError> {
        if slot.is_generating.load(Ordering::Acquire) {
            return Err(SessionError::Busy(id.to_owned()));
        }
        let guard = Arc::clone(&slot.session).lock_owned().await;
        if slot.is_generating.load(Ordering::Acquire) {
            return Err(SessionError::Busy(id.to_owned()));
        }
        Ok(guard)
    }

    /// The session called `id`, for as long as the guard lives.
    pub async fn guard(&self, id: &str) -> Result<Guard, SessionError> {
        let slot = self.slot(id).await?;
        self.lock(&slot, id).await
    }

    /// Appends messages; they are read in the background.
    ///
    /// Gives the tokens of each message's text, and the cache as it stands.
    pub async fn append(
        &self,
        id: &str,
        messages: Vec<Message>,
    ) -> Result<(Vec<usize>, CacheStats), SessionError> {
        self.refuse_while_shutting_down()?;
        check_messages(&messages)?;
        let guard = self.guard(id).await?;
        let (mut guard, n_tokens) = turn::append(guard, messages).await?;
        let mut stats = guard.read(false).await?;
        stats.pending += guard.conversation.n_open_tokens()?;
        Ok((n_tokens, stats))
    }

    /// Begins a generation, which runs to its end whoever listens.
    pub async fn generate(
        self: &Arc<Self>,
        id: &str,
        messages: Vec<Message>,
        options: Options,
    ) -> Result<Started, SessionError> {
        self.refuse_while_shutting_down()?;
        check_messages(&messages)?;
        let slot = self.slot(id).await?;
        let guard = self.lock(&slot, id).await?;
        if slot.is_generating.swap(true, Ordering::AcqRel) {
            return Err(SessionError::Busy(id.to_owned()));
        }
        let number = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let name = format!("gen-{}-{number}", record::now_ms());
        let started =
            Started { stream: Arc::new(Stream::new(name)), cancel: self.shutdown.child_token() };
        *slot.generation() = Some(started.clone());
        let running = started.clone();
        self.generations.spawn(async move {
            let Started { stream, cancel } = running;
            let outcome: Outcome =
                turn::generate(guard, messages, &options, &stream, &cancel).await;
            slot.is_generating.store(false, Ordering::Release);
            stream.finish(outcome);
        });
        Ok(started)
    }

    /// The generation that runs, or the last one.
    pub async fn generation(&self, id: &str) -> Result<Option<Started>, SessionError> {
        Ok(self.slot(id).await?.generation().clone())
    }

    /// Ends the session's generation; false where none runs.
    pub async fn cancel(&self, id: &str) -> Result<bool, SessionError> {
        let slot = self.slot(id).await?;
        let is_running = slot.is_generating.load(Ordering::Acquire);
        if let Some(started) = slot.generation().as_ref().filter(|_| is_running) {
            started.cancel.cancel();
        }
        Ok(is_running)
    }

    /// Changes how a session's cache is kept.
    pub async fn configure(
        &self,
        id: &str,
        change: impl FnOnce(&mut CacheOptions),
    ) -> Result<CacheOptions, SessionError> {
        let mut guard = self.guard(id).await?;
        let mut options = guard.header.cache.clone();
        change(&mut options);
        options.validate()?;
        if options != guard.header.cache {
            guard.configure(options).await?;
        }
        Ok(guard.header.cache.clone())
    }

    /// Keeps the session as it is now under a name of its own.
    pub async fn checkpoint(&self, id: &str, name: Option<String>) -> Result<String, SessionError> {
        let mut guard = self.guard(id).await?;
        let name = name.unwrap_or_else(|| format!("c{}", record::now_ms()));
        guard.save_cache().await?;
        let (store, from, to) = (self.store.clone(), id.to_owned(), checkpoint_id(id, &name));
        blocking(move || {
            if store.header(&to)?.is_some() {
                store.delete(&to)?;
            }
            Ok(store.copy(&from, &to)?)
        })
        .await?;
        Ok(name)
    }

    /// Takes a session back to a checkpoint, the latest where none is named.
    pub async fn rollback(&self, id: &str, name: Option<String>) -> Result<String, SessionError> {
        let mut slots = self.slots.lock().await;
        let slot = slots.get(id).cloned();
        let Some(slot) = slot else {
            drop(slots);
            return Err(self.slot(id).await.err().unwrap_or(SessionError::Closed(id.to_owned())));
        };
        let mut guard = self.lock(&slot, id).await?;
        let name = self.find_checkpoint(id, name).await?;
        guard.leave_engine().await;
        let (store, from, to) = (self.store.clone(), checkpoint_id(id, &name), id.to_owned());
        blocking(move || Ok(store.replace(&from, &to)?)).await?;
        let (session, _) = self.load(id, &Open::default()).await?;
        *guard = session;
        slots.insert(id.to_owned(), slot);
        Ok(name)
    }

    async fn find_checkpoint(
        &self,
        id: &str,
        name: Option<String>,
    ) -> Result<String, SessionError> {
        let (store, prefix) = (self.store.clone(), checkpoint_id(id, ""));
        let known = blocking(move || {
            let mut known = BTreeMap::new();
            for (key, header) in store.list()? {
                if let Some(name) = key.strip_prefix(&prefix) {
                    known.insert(record::header(&header)?.updated_ms, name.to_owned());
                }
            }
            Ok(known)
        })
        .await?;
        let found = match &name {
            Some(name) => known.values().find(|known| *known == name).cloned(),
            None => known.values().next_back().cloned(),
        };
        found.ok_or_else(|| SessionError::NoCheckpoint {
            session: id.to_owned(),
            checkpoint: name.unwrap_or_else(|| "of any name".to_owned()),
        })
    }

    /// Copies a session, or one of its checkpoints, to a new session.
    pub async fn fork(&self, id: &str, checkpoint: Option<String>) -> Result<Opened, SessionError> {
        let from = match checkpoint {
            Some(name) => checkpoint_id(id, &self.find_checkpoint(id, Some(name)).await?),
            None => {
                self.guard(id).await?.save_cache().await?;
                id.to_owned()
            }
        };
        let (store, to) = (self.store.clone(), new_id());
        let key = to.clone();
        blocking(move || Ok(store.copy(&from, &key)?)).await?;
        self.open(Open { session: Some(to), ..Open::default() }).await
    }

    /// Stored sessions, checkpoints left out.
    pub async fn list(&self) -> Result<Vec<Listed>, SessionError> {
        let store = self.store.clone();
        let headers = blocking(move || Ok(store.list()?)).await?;
        let slots = self.slots.lock().await;
        headers
            .into_iter()
            .filter(|(id, _)| !id.contains(CHECKPOINT))
            .map(|(id, bytes)| {
                let is_open = slots.contains_key(&id);
                Ok(Listed { session: id, header: record::header(&bytes)?, open: is_open })
            })
            .collect()
    }

    /// A session's messages, whether it is open or not.
    pub async fn show(&self, id: &str) -> Result<Shown, SessionError> {
        match self.guard(id).await {
            Ok(session) => Ok(Shown {
                listed: Listed {
                    session: id.to_owned(),
                    header: session.header.clone(),
                    open: true,
                },
                history: session.conversation.messages().cloned().collect(),
                cached: Some(session.stats().await),
            }),
            Err(SessionError::Closed(_)) => {
                let (header, entries) =
                    self.stored(id).await?.ok_or_else(|| SessionError::NotFound(id.to_owned()))?;
                let listed = Listed { session: id.to_owned(), header, open: false };
                let history = entries.into_iter().map(|entry| entry.message).collect();
                Ok(Shown { listed, history, cached: None })
            }
            Err(error) => Err(error),
        }
    }

    /// Stores a session whole and frees its memory.
    pub async fn close(&self, id: &str) -> Result<(), SessionError> {
        let mut guard = self.guard(id).await?;
        guard.save_cache().await?;
        guard.leave_engine().await;
        self.slots.lock().await.remove(id);
        Ok(())
    }

    /// Removes a session and all its checkpoints.
    pub async fn delete(&self, id: &str) -> Result<(), SessionError> {
        match self.guard(id).await {
            Ok(mut guard) => {
                guard.leave_engine().await;
                self.slots.lock().await.remove(id);
            }
            Err(SessionError::Closed(_)) => {}
            Err(error) => return Err(error),
        }
        let (store, id) = (self.store.clone(), id.to_owned());
        blocking(move || {
            let prefix = checkpoint_id(&id, "");
            for (key, _) in store.list()? {
                if key == id || key.starts_with(&prefix) {
                    store.delete(&key)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Names of the sessions that are open.
    pub async fn open_ids(&self) -> Vec<String> {
        self.slots.lock().await.keys().cloned().collect()
    }

    /// Generations that run now.
    pub fn n_generating(&self) -> usize {
        self.generations.len()
    }

    /// Ends all generations, keeping what they have; nothing new begins.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// After [`Self::begin_shutdown`]: waits for the last generation, and stores every session.
    pub async fn shut_down(&self) {
        self.begin_shutdown();
        self.generations.close();
        self.generations.wait().await;
        for id in self.open_ids().await {
            if let Err(error) = self.close(&id).await {
                tracing::warn!(session = id, %error, "the session's cache could not be stored");
            }
        }
    }
}

/// Whether the request names the same model, tools and cache options as the session has.
fn check_same(header: &Header, id: &str, request: &Open) -> Result<(), SessionError> {
    if let Some(model) = request.model.as_ref().filter(|m| **m != header.model && !request.rebuild)
    {
        return Err(SessionError::ModelMismatch {
            session: id.to_owned(),
            stored: format!("`{}`", header.model),
            asked: format!("`{model}`"),
        });
    }
    if request.tools.as_ref().is_some_and(|t| *t != header.tools && !request.rebuild) {
        return Err(SessionError::ToolsMismatch(id.to_owned()));
    }
    let cache = &header.cache;
    let is_same = request.policy.as_ref().is_none_or(|policy| *policy == cache.policy)
        && request.budget.is_none_or(|budget| budget == cache.budget)
        && request.buffer.is_none_or(|buffer| buffer == cache.buffer);
    if is_same {
        return Ok(());
    }
    Err(SessionError::Invalid(format!(
        "session `{id}` has policy {}, budget {}, buffer {}; change them with `session/configure`",
        cache.policy, cache.budget, cache.buffer
    )))
}

fn checkpoint_id(id: &str, name: &str) -> String {
    format!("{id}{CHECKPOINT}{name}")
}

/// An id that no other session has.
fn new_id() -> String {
    format!("s-{:016x}", rand::random::<u64>())
}
