//! A session while it is open: its conversation, and the way of its cache between engine and store.

use std::sync::Arc;

use half::f16;

use super::conversation::{Conversation, Mark};
use super::error::SessionError;
use super::models::Model;
use super::record::{self, CacheOptions, Header};
use crate::cache::freeze::Frozen;
use crate::cache::{Budget, KvCache, KvElement, policy};
use crate::engine::{CacheStats, Engine, EngineError, Feed, SequenceId};
use crate::store::{Image, Store, Turn};
use crate::trajectory::Message;

/// Bytes of the stream's hash in front of a frozen cache's own meta data.
const HASH_LEN: usize = 32;

/// What an open session consists of. One task owns it at a time.
pub struct Session {
    pub id: String,
    pub header: Header,
    pub conversation: Conversation,
    pub sequence: SequenceId,
    /// Runs that the engine has been given; none while it does not hold the session.
    handed: Option<usize>,
    /// The conversation holds what the store does not, or the other way round: from the first
    /// change of a turn to its commit, and after a write that failed half-way.
    pub(super) is_stale: bool,
    pub(super) store: Store,
}

/// A cache as it came from the store.
pub enum Thawed {
    Cache(Box<KvCache<f16>>),
    /// None was stored yet.
    None,
    /// One was stored, and cannot be used.
    Damaged(String),
}

impl Session {
    pub fn new(
        id: String,
        header: Header,
        conversation: Conversation,
        sequence: SequenceId,
        store: Store,
    ) -> Self {
        Self { id, header, conversation, sequence, handed: None, is_stale: false, store }
    }

    pub fn model(&self) -> &Arc<Model> {
        self.conversation.model()
    }

    /// Whether the session must be opened anew from what is stored.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub fn engine(&self) -> Engine {
        self.model().engine.clone()
    }

    /// Everything that decides what a cache's bytes mean, besides the tokens.
    fn cache_fingerprint(&self) -> String {
        let options = &self.header.cache;
        let version = policy::by_name(&options.policy).map_or(0, |policy| policy.version());
        format!(
            "{}/{}/{}.{version}/{}+{}",
            self.header.fingerprint,
            f16::NAME,
            options.policy,
            options.budget,
            options.buffer
        )
    }

    /// A cache without tokens, as the session's options have it.
    fn empty_cache(&self) -> Result<KvCache<f16>, SessionError> {
        let options = &self.header.cache;
        let budget = Budget { n_slots: options.budget, n_buffer: options.buffer };
        Ok(KvCache::new(self.model().decoder.shape(), budget, policy::by_name(&options.policy)?))
    }

    /// Reads the stored cache. One that cannot be read costs time, never the session.
    pub async fn thaw(&self) -> Result<Thawed, SessionError> {
        let empty = self.empty_cache()?;
        let fingerprint = self.cache_fingerprint();
        let (store, id) = (self.store.clone(), self.id.clone());
        let thawed = blocking(move || {
            let image = match store.image(&id) {
                Ok(Some(image)) => image,
                Ok(None) => return Ok(Err(None)),
                Err(error) => return Ok(Err(Some(error.to_string()))),
            };
            if image.fingerprint != fingerprint {
                return Ok(Err(Some("made with other settings or another version".to_owned())));
            }
            let Some((hash, meta)) = image.meta.split_at_checked(HASH_LEN) else {
                return Ok(Err(Some("its description is too short".to_owned())));
            };
            let hash = hash.to_vec();
            let frozen = Frozen { meta: meta.to_vec(), chunks: image.chunks };
            let (shape, budget) = (*empty.shape(), empty.budget());
            let policy = Arc::clone(empty.policy());
            Ok(match KvCache::thaw(&frozen, shape, budget, policy) {
                Ok(cache) => Ok((hash, cache)),
                Err(error) => Err(Some(error.to_string())),
            })
        })
        .await?;
        Ok(match thawed {
            Ok((hash, cache))
                if cache.logical() <= self.conversation.n_tokens()
                    && hash == self.conversation.stream_hash(cache.logical()) =>
            {
                Thawed::Cache(Box::new(cache))
            }
            Ok(_) => Thawed::Damaged("it was made from other tokens".to_owned()),
            Err(Some(what)) => Thawed::Damaged(what),
            Err(None) => Thawed::None,
        })
    }

    /// The session's cache, as stored or empty, with all tokens that follow it.
    /// Tells whether what a cache once held must be read again.
    async fn whole_feed(&mut self) -> Result<(Feed, bool), SessionError> {
        let (cache, is_rebuilt) = match self.thaw().await? {
            Thawed::Cache(cache) => (cache, false),
            // A turn that was answered had a cache: it was dropped for space, or is lost.
            Thawed::None => (Box::new(self.empty_cache()?), self.conversation.turns() > 0),
            Thawed::Damaged(what) => {
                tracing::warn!(session = self.id, what, "the stored cache is read again from text");
                (Box::new(self.empty_cache()?), true)
            }
        };
        let runs = self.conversation.runs_after(cache.logical());
        self.handed = Some(self.conversation.runs_since(0).1);
        Ok((Feed { id: self.sequence, cache: Some(cache), runs }, is_rebuilt))
    }

    /// The tokens that the engine has not been given; the whole session where it holds nothing.
    pub async fn feed(&mut self) -> Result<Feed, SessionError> {
        let Some(handed) = self.handed else { return Ok(self.whole_feed().await?.0) };
        let (runs, now) = self.conversation.runs_since(handed);
        let runs = runs.to_vec();
        self.handed = Some(now);
        Ok(Feed { id: self.sequence, cache: None, runs })
    }

    /// The engine parked the session, or never had it.
    pub fn is_gone_from_engine(&mut self) {
        self.handed = None;
    }

    /// The engine has written the answer's tokens into the cache itself: only what closes the
    /// message is left to hand over.
    pub fn close_turn(&mut self, tokens: Vec<u32>, message: Message) -> Result<(), SessionError> {
        self.conversation.close_turn(tokens, message)?;
        self.handed = self.handed.map(|n_runs| n_runs + 1);
        Ok(())
    }

    /// Lets the engine read what it may read before a generation; `wait` until it has.
    pub async fn read(&mut self, wait: bool) -> Result<CacheStats, SessionError> {
        let engine = self.engine();
        let feed = self.feed().await?;
        let mut read = engine.read(feed, wait).await;
        if matches!(read, Err(EngineError::NotResident)) {
            self.handed = None;
            let feed = self.feed().await?;
            read = engine.read(feed, wait).await;
        }
        if read.is_err() {
            self.handed = None;
        }
        Ok(read?)
    }

    /// Gives the engine all of the session, as after opening it. Tells whether a stored cache
    /// could not be used.
    pub async fn hand_over(&mut self) -> Result<bool, SessionError> {
        let (feed, is_rebuilt) = self.whole_feed().await?;
        if let Err(error) = self.engine().read(feed, false).await {
            self.put_off(&error.into());
        }
        Ok(is_rebuilt)
    }

    /// Lets the engine read in the background what it may read before a generation, with
    /// `n_open` tokens that it may not. No error: the session is stored already.
    pub async fn read_ahead(&mut self, n_open: usize) -> CacheStats {
        let mut stats = match self.read(false).await {
            Ok(stats) => stats,
            Err(error) => {
                self.put_off(&error);
                self.stats().await
            }
        };
        stats.pending += n_open;
        stats
    }

    /// What cannot be read now is handed over again when it is wanted, which tells why not.
    fn put_off(&mut self, error: &SessionError) {
        self.handed = None;
        tracing::debug!(session = self.id, %error, "reading is put off");
    }

    /// Stores all messages anew, as they are now.
    pub async fn rewrite(&mut self) -> Result<(), SessionError> {
        let entries: Vec<_> =
            self.conversation.entries().iter().map(record::to_bytes).collect::<Result<_, _>>()?;
        let (store, id) = (self.store.clone(), self.id.clone());
        let header = record::to_bytes(&self.header)?;
        blocking(move || Ok(store.overwrite(&id, &header, &entries)?)).await
    }

    /// Keeps the cache under other options from now on.
    pub async fn configure(&mut self, options: CacheOptions) -> Result<(), SessionError> {
        // The cache as it stands is brought under the new options; tokens are not read again.
        let budget = Budget { n_slots: options.budget, n_buffer: options.buffer };
        let policy = policy::by_name(&options.policy)?;
        let frozen = loop {
            match self.read(true).await {
                Ok(_) => {}
                // Under the new options it may fit, so it is read again under those.
                Err(SessionError::Engine(EngineError::KvMemory { .. })) => break None,
                Err(error) => return Err(error),
            }
            match self.engine().configure(self.sequence, budget, Arc::clone(&policy)).await {
                // Parked in between, for another session.
                Err(EngineError::NotResident) => self.handed = None,
                configured => break Some(configured?),
            }
        };
        let before = std::mem::replace(&mut self.header.cache, options);
        let mark = self.conversation.mark();
        let stored = self.commit(frozen, mark).await;
        if stored.is_err() {
            self.header.cache = before;
        }
        stored
    }

    /// Token positions that one head of one layer holds, once all that can be read is read; and
    /// the cache in numbers.
    pub async fn kept(
        &mut self,
        layer_idx: usize,
        head_idx: usize,
    ) -> Result<(Vec<u32>, CacheStats), SessionError> {
        loop {
            let stats = self.read(true).await?;
            match self.engine().positions(self.sequence, layer_idx, head_idx).await {
                // Parked in between, for another session.
                Err(EngineError::NotResident) => self.handed = None,
                positions => return Ok((positions?, stats)),
            }
        }
    }

    /// The engine forgets the session.
    pub async fn leave_engine(&mut self) {
        self.handed = None;
        self.engine().forget(self.sequence).await;
    }

    /// The cache in numbers; zeros while the engine does not hold it.
    pub async fn stats(&self) -> CacheStats {
        let pending = self.conversation.n_tokens();
        let absent = CacheStats { pending, ..CacheStats::default() };
        match self.handed {
            Some(_) => self.engine().stats(self.sequence).await.unwrap_or(absent),
            None => absent,
        }
    }

    /// Stores all that changed, with the cache and the number of tokens it has read, if it is
    /// given; where that fails the session is as it was at `mark`.
    pub async fn commit(
        &mut self,
        frozen: Option<(Frozen, usize)>,
        mark: Mark,
    ) -> Result<(), SessionError> {
        match self.store_turn(frozen).await {
            Ok(()) => {
                self.is_stale = false;
                Ok(())
            }
            Err(error) => {
                self.conversation.rewind(mark);
                self.leave_engine().await;
                let (store, id) = (self.store.clone(), self.id.clone());
                let stored = blocking(move || Ok(store.stats(&id)?.n_entries)).await;
                self.is_stale = stored.ok() != Some(self.header.n_entries);
                Err(error)
            }
        }
    }

    async fn store_turn(&mut self, frozen: Option<(Frozen, usize)>) -> Result<(), SessionError> {
        let stored = self.header.n_entries as usize;
        let entries = self.conversation.entries();
        let mut header = self.header.clone();
        // Checkpoints are told apart by it, so no two commits have the same.
        header.updated_ms = record::now_ms().max(header.updated_ms + 1);
        header.n_entries = entries.len() as u64;
        header.turns = self.conversation.turns();
        header.tokens = self.conversation.n_tokens() as u64;
        let new: Vec<_> =
            entries[stored..].iter().map(record::to_bytes).collect::<Result<_, _>>()?;
        let image = frozen.map(|(frozen, logical)| self.image(frozen, logical));
        let (store, id, bytes) = (self.store.clone(), self.id.clone(), record::to_bytes(&header)?);
        blocking(move || {
            let turn = Turn {
                header: &bytes,
                first_entry: stored as u64,
                entries: &new,
                image: image.as_ref(),
            };
            Ok(store.commit(&id, turn)?)
        })
        .await?;
        self.header = header;
        Ok(())
    }

    fn image(&self, frozen: Frozen, logical: usize) -> Image {
        let mut meta = self.conversation.stream_hash(logical).to_vec();
        meta.extend_from_slice(&frozen.meta);
        Image { fingerprint: self.cache_fingerprint(), meta, chunks: frozen.chunks }
    }

    /// Stores the cache as it stands in the engine, if it stands there.
    pub async fn save_cache(&mut self) -> Result<(), SessionError> {
        match self.frozen().await? {
            Some(frozen) => self.commit(Some(frozen), self.conversation.mark()).await,
            None => Ok(()),
        }
    }

    /// Stores the session as it is now, with a date of its own.
    pub async fn touch(&mut self) -> Result<(), SessionError> {
        let frozen = self.frozen().await?;
        self.commit(frozen, self.conversation.mark()).await
    }

    async fn frozen(&self) -> Result<Option<(Frozen, usize)>, SessionError> {
        if self.handed.is_none() {
            return Ok(None);
        }
        match self.engine().freeze(self.sequence).await {
            Ok((frozen, stats)) => Ok(Some((frozen, stats.logical))),
            Err(EngineError::NotResident) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs blocking work off the async thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| SessionError::Internal(format!("internal error: {e}")))?
}
