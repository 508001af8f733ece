//! A session while it is open: its conversation, and the way of its cache between engine and store.

use std::borrow::Cow;
use std::sync::Arc;

use half::f16;

use super::conversation::{Conversation, Mark};
use super::error::SessionError;
use super::models::Model;
use super::record::{self, CacheOptions, Header};
use crate::cache::freeze::{Thaw, ThawError};
use crate::cache::{Budget, KvCache, KvElement, policy};
use crate::engine::{CacheStats, Engine, EngineError, Feed, Granted, Need, Resident, SequenceId};
use crate::ingest::condense::Condense;
use crate::store::{ImageSource, Piece, Store, Turn};
use crate::trajectory::Message;

/// Bytes of the stream's hash in front of a frozen cache's own meta data.
const HASH_LEN: usize = 32;

/// What an open session consists of. One task owns it at a time.
pub struct Session {
    pub id: String,
    pub header: Header,
    pub conversation: Conversation,
    pub sequence: SequenceId,
    /// The conversation holds what the store does not, or the other way round: from the first
    /// change of a turn to its commit, and after a write that failed half-way.
    pub(super) is_stale: bool,
    pub(super) store: Store,
}

/// What the store has of a session's cache.
enum Stored {
    /// Made from the tokens that this hash names.
    Cache(Box<KvCache<f16>>, Vec<u8>),
    None,
    /// It cannot be used.
    Damaged(String),
}

/// A cache as the store reads it.
struct CacheImage<'a> {
    fingerprint: String,
    meta: Vec<u8>,
    cache: &'a KvCache<f16>,
}

impl ImageSource for CacheImage<'_> {
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn meta(&self) -> &[u8] {
        &self.meta
    }

    fn chunks(&self) -> Box<dyn Iterator<Item = (u64, Cow<'_, [u8]>)> + '_> {
        Box::new(self.cache.frozen_chunks().map(|(key, bytes)| (key, Cow::Owned(bytes))))
    }

    fn n_bytes(&self) -> u64 {
        self.cache.frozen_bytes() + self.meta.len() as u64
    }
}

impl Session {
    pub fn new(
        id: String,
        header: Header,
        conversation: Conversation,
        sequence: SequenceId,
        store: Store,
    ) -> Self {
        Self { id, header, conversation, sequence, is_stale: false, store }
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

    /// What work on the cache takes until it has read `n_tokens` in all.
    pub(super) fn need(&self, n_tokens: usize) -> Result<Need, SessionError> {
        Ok(Need::of(&self.empty_cache()?, n_tokens, false))
    }

    /// Waits for memory, and brings the cache there: the one that rests in memory, the stored one,
    /// or an empty one. Tells whether what a cache once held must be read again.
    pub(super) async fn admit(&self, need: Need) -> Result<(Resident, bool), SessionError> {
        let granted = self.engine().admit(self.sequence, need).await?;
        self.bring(granted).await
    }

    async fn bring(&self, granted: Granted) -> Result<(Resident, bool), SessionError> {
        let empty = Box::new(self.empty_cache()?);
        if granted.cache.is_some() {
            return Ok((granted.or_make(|| empty), false));
        }
        let fingerprint = self.cache_fingerprint();
        let (store, id) = (self.store.clone(), self.id.clone());
        let n_tokens = self.conversation.n_tokens();
        // What was granted goes along, so that it is held for as long as the cache is.
        let (granted, stored) =
            blocking(move || Ok((granted, thaw(&store, &id, &fingerprint, *empty, n_tokens))))
                .await?;
        let what = match stored {
            Stored::Cache(cache, hash)
                if hash == self.conversation.stream_hash(cache.logical()) =>
            {
                return Ok((granted.or_make(|| cache), false));
            }
            Stored::Cache(..) => "it was made from other tokens".to_owned(),
            // A turn that was answered had a cache: it was dropped for space, or is lost.
            Stored::None => {
                let empty = Box::new(self.empty_cache()?);
                return Ok((granted.or_make(|| empty), self.conversation.turns() > 0));
            }
            Stored::Damaged(what) => what,
        };
        tracing::warn!(session = self.id, what, "the stored cache is read again from text");
        let empty = Box::new(self.empty_cache()?);
        Ok((granted.or_make(|| empty), true))
    }

    /// The cache with all that is known of its tokens, and the tokens that it has not read.
    pub(super) fn feed(&self, mut resident: Resident) -> Feed {
        resident.cache.set_notes(self.conversation.notes());
        let runs = self.conversation.runs_after(resident.cache.logical());
        Feed { id: self.sequence, resident, runs }
    }

    /// Ends the message that [`Conversation::open_turn`] began.
    pub fn close_turn(&mut self, tokens: Vec<u32>, message: Message) -> Result<(), SessionError> {
        self.conversation.close_turn(tokens, message)
    }

    /// Lets the engine read what it may read before a generation; waits until it has.
    async fn read(&self, need: Need) -> Result<Resident, SessionError> {
        let (resident, _) = self.admit(need).await?;
        Ok(self.engine().read(self.feed(resident)).await?)
    }

    /// Lets the engine read all that it may read before a generation; waits until it has.
    pub async fn read_all(&self) -> Result<CacheStats, SessionError> {
        let resident = self.read(self.need(self.conversation.n_tokens())?).await?;
        self.rest(resident);
        Ok(self.stats())
    }

    /// Lets the engine read in the background what it may read before a generation, with
    /// `n_open` tokens that it may not. No error: the session is stored already, and what cannot
    /// be read now is read when it is wanted. Also tells whether a stored cache could not be used.
    pub async fn read_ahead(&self, n_open: usize) -> (CacheStats, bool) {
        let is_rebuilt = self.try_read_ahead().await.unwrap_or_else(|error| {
            tracing::debug!(session = self.id, %error, "reading is put off");
            false
        });
        let stats = self.stats();
        (CacheStats { pending: stats.pending + n_open, ..stats }, is_rebuilt)
    }

    async fn try_read_ahead(&self) -> Result<bool, SessionError> {
        let need = self.need(self.conversation.n_tokens())?;
        let Some(granted) = self.engine().try_admit(self.sequence, need).await else {
            tracing::debug!(session = self.id, "reading is put off until there is memory");
            return self.must_rebuild().await;
        };
        let (resident, is_rebuilt) = self.bring(granted).await?;
        self.engine().read_ahead(self.feed(resident)).await?;
        Ok(is_rebuilt)
    }

    /// Whether the cache, if it does not rest in memory, is to be computed again as far as the
    /// store's description tells.
    async fn must_rebuild(&self) -> Result<bool, SessionError> {
        if self.engine().memory().stats(self.sequence).is_some() {
            return Ok(false);
        }
        let (store, id, fingerprint) =
            (self.store.clone(), self.id.clone(), self.cache_fingerprint());
        let is_fit = blocking(move || {
            let mut is_fit = false;
            let is_there = store.read_image(&id, &mut |piece| {
                is_fit = matches!(piece, Piece::Head { fingerprint: of, .. } if of == fingerprint);
                false
            });
            Ok(is_there.unwrap_or(false) && is_fit)
        });
        Ok(!is_fit.await? && self.conversation.turns() > 0)
    }

    /// Stores all messages anew, as they are now.
    pub async fn rewrite(&mut self) -> Result<(), SessionError> {
        let entries: Vec<_> =
            self.conversation.entries().iter().map(record::to_bytes).collect::<Result<_, _>>()?;
        let (store, id) = (self.store.clone(), self.id.clone());
        let header = record::to_bytes(&self.header)?;
        blocking(move || Ok(store.overwrite(&id, &header, &entries)?)).await
    }

    /// Keeps the cache, and takes messages in, under other options from now on.
    pub async fn configure(
        &mut self,
        cache: CacheOptions,
        condense: Condense,
    ) -> Result<(), SessionError> {
        let resident = match cache == self.header.cache {
            true => None,
            false => self.reconfigure_cache(&cache).await?,
        };
        let before = (self.header.cache.clone(), self.header.condense.clone());
        (self.header.cache, self.header.condense) = (cache, condense);
        let stored = self.commit(resident, self.conversation.mark()).await;
        if stored.is_err() {
            (self.header.cache, self.header.condense) = before;
        }
        self.conversation.set_intake(self.header.intake())?;
        stored
    }

    /// Brings the cache as it stands under other options; tokens are not read again. None where
    /// the cache does not fit in memory as it is.
    async fn reconfigure_cache(
        &mut self,
        options: &CacheOptions,
    ) -> Result<Option<Resident>, SessionError> {
        let budget = Budget { n_slots: options.budget, n_buffer: options.buffer };
        let policy = policy::by_name(&options.policy)?;
        let need = Need::of(&self.empty_cache()?, self.conversation.n_tokens(), true);
        match self.read(need).await {
            Ok(resident) => Ok(Some(self.engine().configure(resident, budget, policy).await?)),
            // Under the new options it may fit, so it is read again under those.
            Err(SessionError::Engine(EngineError::KvMemory { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Token positions that one head of one layer holds, once all that can be read is read; and
    /// the cache in numbers.
    pub async fn kept(
        &self,
        layer_idx: usize,
        head_idx: usize,
    ) -> Result<(Vec<u32>, CacheStats), SessionError> {
        let resident = self.read(self.need(self.conversation.n_tokens())?).await?;
        let cache = &resident.cache;
        let is_head = head_idx < cache.shape().n_kv_heads;
        let layer = cache.layers().get(layer_idx).filter(|_| is_head);
        let positions = layer.map_or(Vec::new(), |layer| layer.positions(head_idx).to_vec());
        self.rest(resident);
        Ok((positions, self.stats()))
    }

    fn rest(&self, resident: Resident) {
        self.engine().memory().rest(self.sequence, resident);
    }

    /// The cache goes from memory.
    pub fn leave_memory(&self) {
        self.engine().memory().forget(self.sequence);
    }

    /// The cache in numbers; zeros while it is not in memory.
    pub fn stats(&self) -> CacheStats {
        let stats = self.engine().memory().stats(self.sequence).unwrap_or_default();
        CacheStats { pending: self.conversation.n_tokens().saturating_sub(stats.logical), ..stats }
    }

    /// Stores all that changed, with the cache if it is given, which rests in memory then; where
    /// that fails the session is as it was at `mark`.
    pub async fn commit(
        &mut self,
        resident: Option<Resident>,
        mark: Mark,
    ) -> Result<(), SessionError> {
        match self.store_turn(resident).await {
            Ok(resident) => {
                self.is_stale = false;
                if let Some(resident) = resident {
                    self.rest(resident);
                }
                Ok(())
            }
            Err(error) => {
                self.conversation.rewind(mark);
                self.leave_memory();
                let (store, id) = (self.store.clone(), self.id.clone());
                let stored = blocking(move || Ok(store.stats(&id)?.n_entries)).await;
                self.is_stale = stored.ok() != Some(self.header.n_entries);
                Err(error)
            }
        }
    }

    async fn store_turn(
        &mut self,
        resident: Option<Resident>,
    ) -> Result<Option<Resident>, SessionError> {
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
        let fingerprint = self.cache_fingerprint();
        let hash =
            resident.as_ref().map(|held| self.conversation.stream_hash(held.cache.logical()));
        let (store, id, bytes) = (self.store.clone(), self.id.clone(), record::to_bytes(&header)?);
        let resident = blocking(move || {
            let image = resident.as_ref().zip(hash).map(|(held, hash)| CacheImage {
                fingerprint,
                meta: [&hash[..], &held.cache.frozen_meta()].concat(),
                cache: &held.cache,
            });
            let turn = Turn {
                header: &bytes,
                first_entry: stored as u64,
                entries: &new,
                image: image.as_ref().map(|image| image as &dyn ImageSource),
            };
            store.commit(&id, turn)?;
            Ok(resident)
        })
        .await?;
        self.header = header;
        Ok(resident)
    }

    /// Stores the cache as it stands in memory, if it stands there.
    pub async fn save_cache(&mut self) -> Result<(), SessionError> {
        match self.engine().take(self.sequence).await {
            Some(resident) => self.commit(Some(resident), self.conversation.mark()).await,
            None => Ok(()),
        }
    }

    /// Stores the session as it is now, with a date of its own.
    pub async fn touch(&mut self) -> Result<(), SessionError> {
        let resident = self.engine().take(self.sequence).await;
        self.commit(resident, self.conversation.mark()).await
    }
}

/// Reads the stored cache, chunk by chunk, into `empty`. One that cannot be read costs time, never
/// the session.
fn thaw(
    store: &Store,
    id: &str,
    fingerprint: &str,
    empty: KvCache<f16>,
    n_tokens: usize,
) -> Stored {
    let mut empty = Some(empty);
    let mut thaw: Option<Thaw<f16>> = None;
    let mut made_from = Vec::new();
    let mut damage: Option<String> = None;
    let mut begin = |of: &str, meta: &[u8], n_bytes| {
        if of != fingerprint {
            return Err("made with other settings or another version".to_owned());
        }
        let (hash, meta) = meta.split_at_checked(HASH_LEN).ok_or("its description is too short")?;
        made_from = hash.to_vec();
        let Some(empty) = empty.take() else { return Err("it begins twice".to_owned()) };
        let told = |error: ThawError| error.to_string();
        Thaw::begin(meta, n_bytes, n_tokens, empty).map_err(told)
    };
    let read = store.read_image(id, &mut |piece| {
        let taken = match (piece, &mut thaw) {
            (Piece::Head { fingerprint, meta, n_bytes }, _) => {
                begin(fingerprint, meta, n_bytes).map(|begun| thaw = Some(begun))
            }
            (Piece::Chunk(key, bytes), Some(thaw)) => {
                thaw.take(key, bytes).map_err(|error| error.to_string())
            }
            (Piece::Chunk(..), None) => Err("it has no head".to_owned()),
        };
        damage = taken.err();
        damage.is_none()
    });
    match (read, damage, thaw) {
        (Err(error), ..) => Stored::Damaged(error.to_string()),
        (Ok(_), Some(what), _) => Stored::Damaged(what),
        (Ok(_), None, None) => Stored::None,
        (Ok(_), None, Some(thaw)) => match thaw.finish() {
            Ok(cache) => Stored::Cache(Box::new(cache), made_from),
            Err(error) => Stored::Damaged(error.to_string()),
        },
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
