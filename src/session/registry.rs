//! All sessions: which are open, which are stored, and who may touch one now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::conversation::Conversation;
use super::error::SessionError;
use super::generation::Stream;
use super::live::{Session, blocking};
use super::models::{Model, Models};
use super::record::{self, CacheOptions, Entry, Header, Partial};
use super::slots::{Guard, Place, Slot, Slots, Started};
use super::turn::{self, Item, check_messages};
use crate::engine::{CacheStats, SequenceId};
use crate::ingest::condense::Condense;
use crate::ingest::fold::RULES;
use crate::ingest::reader;
use crate::store::Store;
use crate::trajectory::Message;

/// Between a session's id and a checkpoint's in the stored name of a checkpoint.
pub(super) const CHECKPOINT: &str = ":checkpoint:";
/// The longest session id, in bytes; as much is left for checkpoints' names.
const ID_BYTES_MAX: usize = 128;

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
    pub condense: Option<Condense>,
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

/// How a session's cache is kept and its messages are taken in.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub cache: CacheOptions,
    pub condense: Condense,
}

/// All sessions of a daemon.
pub struct Sessions {
    models: Arc<Models>,
    store: Store,
    /// Of new sessions, where they do not say.
    defaults: Options,
    pub(super) slots: Slots,
    next_sequence: AtomicU64,
    generations: TaskTracker,
    shutdown: CancellationToken,
}

impl Sessions {
    pub fn new(models: Arc<Models>, store: Store, defaults: Options) -> Self {
        Self {
            models,
            store,
            defaults,
            slots: Slots::default(),
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
        if id.len() > ID_BYTES_MAX {
            return Err(SessionError::Invalid(format!(
                "a session id of {} bytes is too long; use at most {ID_BYTES_MAX}",
                id.len()
            )));
        }
        let reserved = CHECKPOINT.trim_end_matches(':');
        if id.contains(reserved) {
            return Err(SessionError::Invalid(format!(
                "session id `{id}` contains `{reserved}`, which names checkpoints"
            )));
        }
        let mut place = self.slots.hold(&id).await?;
        let opened = self.open_in(&mut place, &id, &request).await;
        self.slots.settle(&id, place);
        let mut opened = opened?;
        if opened.resumed && !request.messages.is_empty() {
            opened.stats = self.append(&id, request.messages).await?.1;
        }
        Ok(opened)
    }

    async fn open_in(
        &self,
        place: &mut Place,
        id: &str,
        request: &Open,
    ) -> Result<Opened, SessionError> {
        if request.rebuild
            && let Some(session) = place.session.as_mut()
        {
            // What is asked may differ from what is open, so it comes from the store again.
            session.save_cache().await?;
            session.leave_memory();
            *place.session = None;
        }
        if let Some(session) = place.session.as_ref() {
            let header = &session.header;
            if let Some(name) = request.model.as_ref().filter(|name| **name != header.model) {
                check_model(header, id, &*self.models.get(name).await?)?;
            }
            check_tools(header, id, request)?;
            check_options(header, id, request)?;
            return Ok(Opened {
                session: id.to_owned(),
                resumed: true,
                rebuilt: false,
                partial: None,
                turns: session.conversation.turns(),
                stats: session.stats(),
            });
        }
        let (session, opened) = self.load(id, request).await?;
        *place.session = Some(session);
        Ok(opened)
    }

    /// Makes a session, from the store where it is there.
    pub(super) async fn load(
        &self,
        id: &str,
        request: &Open,
    ) -> Result<(Session, Opened), SessionError> {
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
        let defaults = &self.defaults.cache;
        let cache = CacheOptions {
            policy: request.policy.clone().unwrap_or_else(|| defaults.policy.clone()),
            budget: request.budget.unwrap_or(defaults.budget),
            buffer: request.buffer.unwrap_or(defaults.buffer),
        };
        cache.validate()?;
        let condense = request.condense.clone().unwrap_or_else(|| self.defaults.condense.clone());
        condense.check(RULES)?;
        let name = request.model.as_deref().unwrap_or(self.models.default_name());
        let model = self.models.get(name).await?;
        let tools = request.tools.clone().unwrap_or_default();
        let header = Header::new(&model.name, &model.fingerprint, tools.clone(), cache, condense);
        let conversation = Conversation::new(model, tools, header.intake())?;
        let session = Box::new(self.session(id, header, conversation));
        let (session, taken) = turn::append(session, request.messages.clone()).await?;
        let (stats, _) = session.read_ahead(taken.n_open).await;
        let opened = Opened {
            session: id.to_owned(),
            resumed: false,
            rebuilt: false,
            partial: None,
            turns: 0,
            stats,
        };
        Ok((*session, opened))
    }

    async fn resume(
        &self,
        id: &str,
        request: &Open,
        mut header: Header,
        mut entries: Vec<Entry>,
    ) -> Result<(Session, Opened), SessionError> {
        check_options(&header, id, request)?;
        let name = request.model.as_deref().unwrap_or(&header.model);
        let model = self.models.get(name).await?;
        let is_other = model.fingerprint != header.fingerprint;
        let has_other_tools = request.tools.as_ref().is_some_and(|tools| *tools != header.tools);
        if !request.rebuild {
            check_model(&header, id, &model)?;
            check_tools(&header, id, request)?;
        }
        if let Some(tools) = request.tools.clone() {
            header.tools = tools;
        }
        header.model.clone_from(&model.name);
        if is_other {
            // Another tokenizer's ids mean nothing here: what was generated is read as text.
            entries.iter_mut().for_each(|entry| entry.generated = None);
            header.fingerprint.clone_from(&model.fingerprint);
        }
        let (tools, intake) = (header.tools.clone(), header.intake());
        let limit = model.decoder.config().context_length;
        let restore = move || Conversation::restore(model, tools, intake, entries);
        let conversation = blocking(restore).await?;
        let asked = conversation.n_tokens() + conversation.n_open_tokens()?;
        if request.rebuild && asked >= limit {
            return Err(SessionError::ContextOverflow { limit, asked });
        }
        let mut session = self.session(id, header, conversation);
        if is_other || has_other_tools {
            session.rewrite().await?;
        }
        let partial = session.partial().await;
        let (stats, rebuilt) = session.read_ahead(0).await;
        let opened = Opened {
            session: id.to_owned(),
            resumed: true,
            rebuilt: rebuilt || is_other || has_other_tools,
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

    /// Why a session that is not open cannot be used.
    async fn not_open(&self, id: &str) -> SessionError {
        let (store, key) = (self.store.clone(), id.to_owned());
        match blocking(move || Ok(store.header(&key)?.is_some())).await {
            Ok(true) => SessionError::Closed(id.to_owned()),
            Ok(false) => SessionError::NotFound(id.to_owned()),
            Err(error) => error,
        }
    }

    /// The place of a session that is open.
    pub(super) async fn place(&self, id: &str) -> Result<Place, SessionError> {
        match self.slots.held(id).await? {
            Some(place) => Ok(place),
            None => Err(self.not_open(id).await),
        }
    }

    /// The session called `id`, for as long as the guard lives.
    ///
    /// Waits for other short work on the session; a generation is not waited for.
    pub async fn guard(&self, id: &str) -> Result<Guard, SessionError> {
        Ok(self.slot_and_guard(id).await?.1)
    }

    async fn slot_and_guard(&self, id: &str) -> Result<(Arc<Slot>, Guard), SessionError> {
        let Place { slot, session } = self.place(id).await?;
        match OwnedMutexGuard::try_map(session, Option::as_mut) {
            Ok(guard) => Ok((slot, guard)),
            Err(_) => Err(self.not_open(id).await),
        }
    }

    /// Appends messages; they are read in the background.
    ///
    /// Gives what became of each message, and the cache as it stands.
    pub async fn append(
        &self,
        id: &str,
        messages: Vec<Message>,
    ) -> Result<(Vec<Item>, CacheStats), SessionError> {
        self.refuse_while_shutting_down()?;
        check_messages(&messages)?;
        let guard = self.guard(id).await?;
        let (guard, taken) = turn::append(guard, messages).await?;
        let (stats, _) = guard.read_ahead(taken.n_open).await;
        Ok((taken.items, stats))
    }

    /// Begins a generation, which runs to its end whoever listens.
    pub async fn generate(
        self: &Arc<Self>,
        id: &str,
        messages: Vec<Message>,
        options: turn::Options,
    ) -> Result<Started, SessionError> {
        self.refuse_while_shutting_down()?;
        check_messages(&messages)?;
        let (slot, guard) = self.slot_and_guard(id).await?;
        let number = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let name = format!("gen-{}-{number}", record::now_ms());
        let started =
            Started { stream: Arc::new(Stream::new(name)), cancel: self.shutdown.child_token() };
        slot.begin(started.clone());
        let running = started.clone();
        self.generations.spawn(async move {
            let Started { stream, cancel } = running.clone();
            // A task of its own, so that a panic ends this generation and nothing else.
            let task = tokio::spawn(async move {
                turn::generate(guard, messages, &options, &stream, &cancel).await
            });
            let outcome = match task.await {
                Ok(outcome) => outcome,
                Err(fault) => {
                    slot.evict().await;
                    Err(SessionError::Internal(format!("the generation failed: {fault}")))
                }
            };
            slot.end();
            running.stream.finish(outcome);
        });
        Ok(started)
    }

    /// The generation that runs, or the last one.
    pub async fn generation(&self, id: &str) -> Result<Option<Started>, SessionError> {
        match self.slots.get(id) {
            Some(slot) => Ok(slot.generation()),
            None => Err(self.not_open(id).await),
        }
    }

    /// Ends the session's generation; false where none runs.
    pub async fn cancel(&self, id: &str) -> Result<bool, SessionError> {
        match self.slots.get(id) {
            Some(slot) => Ok(slot.cancel()),
            None => Err(self.not_open(id).await),
        }
    }

    /// Changes how a session's cache is kept and its messages are taken in.
    pub async fn configure(
        &self,
        id: &str,
        change: impl FnOnce(&mut Options),
    ) -> Result<Options, SessionError> {
        let mut guard = self.guard(id).await?;
        let header = &guard.header;
        let before = Options { cache: header.cache.clone(), condense: header.condense.clone() };
        let mut options = before.clone();
        change(&mut options);
        options.cache.validate()?;
        options.condense.check(RULES)?;
        if options != before {
            let Options { cache, condense } = options.clone();
            guard.configure(cache, condense).await?;
        }
        Ok(options)
    }

    /// The content of a message of the session as it came, by its handle; and the message's index.
    pub async fn recall(&self, id: &str, handle: &str) -> Result<(usize, String), SessionError> {
        let find = |entries: &[Entry]| {
            let is_wanted = |entry: &Entry| reader::handle(&entry.message.content) == handle;
            let index = entries.iter().position(is_wanted)?;
            Some((index, entries[index].message.content.clone()))
        };
        let found = match self.guard(id).await {
            Ok(session) => find(session.conversation.entries()),
            Err(SessionError::Closed(_)) => {
                self.stored(id).await?.and_then(|(_, entries)| find(&entries))
            }
            Err(error) => return Err(error),
        };
        found.ok_or_else(|| SessionError::NoHandle {
            session: id.to_owned(),
            handle: handle.to_owned(),
        })
    }

    /// Stored sessions; checkpoints are left out, and what another version has written.
    pub async fn list(&self) -> Result<Vec<Listed>, SessionError> {
        let store = self.store.clone();
        let headers = blocking(move || Ok(store.list()?)).await?;
        let listed = headers.into_iter().filter(|(id, _)| !id.contains(CHECKPOINT)).filter_map(
            |(id, bytes)| {
                let header = readable_header(&id, &bytes)?;
                let open = self.slots.get(&id).is_some();
                Some(Listed { session: id, header, open })
            },
        );
        Ok(listed.collect())
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
                cached: Some(session.stats()),
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
        let mut place = self.place(id).await?;
        if let Some(session) = place.session.as_mut() {
            session.save_cache().await?;
            session.leave_memory();
        }
        *place.session = None;
        self.slots.settle(id, place);
        Ok(())
    }

    /// Removes a session and all its checkpoints.
    pub async fn delete(&self, id: &str) -> Result<(), SessionError> {
        // Held to the end, so that nobody opens what is half removed.
        let mut place = self.slots.hold(id).await?;
        if let Some(session) = place.session.as_mut() {
            session.leave_memory();
        }
        *place.session = None;
        let (store, key) = (self.store.clone(), id.to_owned());
        let deleted = blocking(move || {
            if store.header(&key)?.is_none() {
                return Err(SessionError::NotFound(key));
            }
            let prefix = checkpoint_id(&key, "");
            // Checkpoints sort behind their session and go first: none outlives it.
            for (known, _) in store.list()?.into_iter().rev() {
                if known == key || known.starts_with(&prefix) {
                    store.delete(&known)?;
                }
            }
            Ok(())
        })
        .await;
        self.slots.settle(id, place);
        deleted
    }

    /// Names of the sessions that are open.
    pub fn open_ids(&self) -> Vec<String> {
        self.slots.ids()
    }

    /// Bytes of the store on disk. Asked off the async thread, since a commit may hold it.
    pub async fn store_bytes(&self) -> Result<u64, SessionError> {
        let store = self.store.clone();
        blocking(move || Ok(store.size_on_disk())).await
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
        for id in self.open_ids() {
            if let Err(error) = self.close(&id).await {
                tracing::warn!(session = id, %error, "the session's cache could not be stored");
            }
        }
    }
}

/// Whether a session can go on with `model`.
fn check_model(header: &Header, id: &str, model: &Model) -> Result<(), SessionError> {
    if model.fingerprint == header.fingerprint {
        return Ok(());
    }
    let asked = if model.name == header.model {
        format!("the `{}` that is there now", model.name)
    } else {
        format!("`{}`", model.name)
    };
    let stored = format!("`{}`", header.model);
    Err(SessionError::ModelMismatch { session: id.to_owned(), stored, asked })
}

/// Whether the request names the tools that the session has, or none.
fn check_tools(header: &Header, id: &str, request: &Open) -> Result<(), SessionError> {
    match &request.tools {
        Some(tools) if *tools != header.tools => Err(SessionError::ToolsMismatch(id.to_owned())),
        _ => Ok(()),
    }
}

/// Whether the request names no other options than the session has.
fn check_options(header: &Header, id: &str, request: &Open) -> Result<(), SessionError> {
    let cache = &header.cache;
    let is_same = request.policy.as_ref().is_none_or(|policy| *policy == cache.policy)
        && request.budget.is_none_or(|budget| budget == cache.budget)
        && request.buffer.is_none_or(|buffer| buffer == cache.buffer)
        && request.condense.as_ref().is_none_or(|condense| *condense == header.condense);
    if is_same {
        return Ok(());
    }
    Err(SessionError::Invalid(format!(
        "session `{id}` has policy {}, budget {}, buffer {}, condense {}; change them with `session/configure`",
        cache.policy, cache.budget, cache.buffer, header.condense
    )))
}

/// A header, unless it cannot be read: then the others are not hidden for its sake.
pub(super) fn readable_header(id: &str, bytes: &[u8]) -> Option<Header> {
    let header = record::header(bytes);
    if let Err(error) = &header {
        tracing::warn!(session = id, %error, "session left out");
    }
    header.ok()
}

pub(super) fn checkpoint_id(id: &str, name: &str) -> String {
    format!("{id}{CHECKPOINT}{name}")
}

/// An id that no other session has.
pub(super) fn new_id() -> String {
    format!("s-{:016x}", rand::random::<u64>())
}
