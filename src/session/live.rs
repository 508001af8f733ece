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
use crate::store::{Image, ImageError, Store, Turn};

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
        Self { id, header, conversation, sequence, handed: None, store }
    }

    pub fn model(&self) -> &Arc<Model> {
        self.conversation.model()
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

    /// Reads the stored cache.
    pub async fn thaw(&self) -> Result<Thawed, SessionError> {
        let empty = self.empty_cache()?;
        let fingerprint = self.cache_fingerprint();
        let (store, id) = (self.store.clone(), self.id.clone());
        let thawed = blocking(move || {
            let image = match store.image(&id) {
                Ok(Some(image)) => image,
                Ok(None) => return Ok(Err(None)),
                Err(ImageError::Damaged { what }) => return Ok(Err(Some(what))),
                Err(ImageError::Store(error)) => return Err(error.into()),
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
            Ok((hash, cache)) if hash == self.conversation.stream_hash(cache.logical()) => {
                Thawed::Cache(Box::new(cache))
            }
            Ok(_) => Thawed::Damaged("it was made from other tokens".to_owned()),
            Err(Some(what)) => Thawed::Damaged(what),
            Err(None) => Thawed::None,
        })
    }

    /// Gives the engine the session's cache, as stored or empty, with all tokens that follow it.
    /// Tells whether a stored cache could not be used.
    pub async fn hand_over(&mut self) -> Result<(Feed, bool), SessionError> {
        let (cache, is_damaged) = match self.thaw().await? {
            Thawed::Cache(cache) => (cache, false),
            Thawed::None => (Box::new(self.empty_cache()?), false),
            Thawed::Damaged(what) => {
                tracing::warn!(session = self.id, what, "the stored cache is read again from text");
                (Box::new(self.empty_cache()?), true)
            }
        };
        let runs = self.conversation.runs_after(cache.logical());
        self.handed = Some(self.conversation.runs_since(0).1);
        Ok((Feed { id: self.sequence, cache: Some(cache), runs }, is_damaged))
    }

    /// The tokens that the engine has not been given; the whole session where it holds nothing.
    pub async fn feed(&mut self) -> Result<Feed, SessionError> {
        let Some(handed) = self.handed else { return Ok(self.hand_over().await?.0) };
        let (runs, now) = self.conversation.runs_since(handed);
        let runs = runs.to_vec();
        self.handed = Some(now);
        Ok(Feed { id: self.sequence, cache: None, runs })
    }

    /// The engine parked the session, or never had it.
    pub fn is_gone_from_engine(&mut self) {
        self.handed = None;
    }

    /// Lets the engine read what it may read before a generation; `wait` until it has.
    pub async fn read(&mut self, wait: bool) -> Result<CacheStats, SessionError> {
        let engine = self.engine();
        let feed = self.feed().await?;
        match engine.read(feed, wait).await {
            Err(EngineError::NotResident) => {
                self.handed = None;
                let feed = self.feed().await?;
                Ok(engine.read(feed, wait).await?)
            }
            Err(error) => {
                self.handed = None;
                Err(error.into())
            }
            Ok(stats) => Ok(stats),
        }
    }

    /// Gives a feed to the engine; reading goes on in the background. A session that finds no
    /// memory now is handed over again when it is wanted.
    pub async fn start_reading(&mut self, feed: Feed) -> Result<CacheStats, SessionError> {
        match self.engine().read(feed, false).await {
            Ok(stats) => Ok(stats),
            Err(EngineError::KvMemory { .. }) => {
                self.handed = None;
                Ok(self.stats().await)
            }
            Err(error) => Err(error.into()),
        }
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
        self.read(true).await?;
        let budget = Budget { n_slots: options.budget, n_buffer: options.buffer };
        let policy = policy::by_name(&options.policy)?;
        let frozen = self.engine().configure(self.sequence, budget, policy).await?;
        let before = std::mem::replace(&mut self.header.cache, options);
        let mark = self.conversation.mark();
        let stored = self.commit(Some(frozen), mark).await;
        if stored.is_err() {
            self.header.cache = before;
        }
        stored
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
            Ok(()) => Ok(()),
            Err(error) => {
                self.conversation.rewind(mark);
                self.leave_engine().await;
                Err(error)
            }
        }
    }

    async fn store_turn(&mut self, frozen: Option<(Frozen, usize)>) -> Result<(), SessionError> {
        let stored = self.header.n_entries as usize;
        let entries = self.conversation.entries();
        let mut header = self.header.clone();
        header.updated_ms = record::now_ms();
        header.n_entries = entries.len() as u64;
        header.turns = self.conversation.turns();
        header.tokens = self.conversation.n_tokens() as u64;
        let new: Vec<_> =
            entries[stored..].iter().map(record::to_bytes).collect::<Result<_, _>>()?;
        let image = match frozen {
            Some((frozen, logical)) => Some(self.image(frozen, logical)),
            None => None,
        };
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
        let mark = self.conversation.mark();
        match self.engine().freeze(self.sequence).await {
            Ok((frozen, stats)) if self.handed.is_some() => {
                self.commit(Some((frozen, stats.logical)), mark).await
            }
            Ok(_) | Err(EngineError::NotResident) => Ok(()),
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
