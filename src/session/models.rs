//! Models that are loaded, each with its engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Mutex as AsyncMutex;

use super::chat::Chat;
use super::error::SessionError;
use crate::engine::{Engine, KvMemory};
use crate::model::decoder::Decoder;
use crate::model::registry;
use crate::model::tokenizer::Tokenizer;

/// Everything about one loaded model.
pub struct Model {
    /// A built-in's name, or the path it was loaded from.
    pub name: String,
    pub path: PathBuf,
    pub decoder: Arc<Decoder>,
    pub tokenizer: Arc<Tokenizer>,
    pub chat: Chat,
    pub engine: Engine,
    /// Identity of weights, tokenizer and template together.
    pub fingerprint: String,
}

impl Model {
    /// Loads a model; takes seconds.
    fn load(name: &str, memory: Arc<KvMemory>) -> Result<Self, SessionError> {
        let path = registry::resolve(name)?;
        let started = std::time::Instant::now();
        let decoder = Decoder::load(&path, &mut |_, _| {})
            .map_err(|source| SessionError::Model { name: name.to_owned(), source })?;
        let decoder = Arc::new(decoder);
        let tokenizer = Arc::new(Tokenizer::load(&path)?);
        let chat = Chat::of(&tokenizer)?;
        let mut identity = blake3::Hasher::new();
        identity.update(decoder.fingerprint().as_bytes());
        identity.update(tokenizer.fingerprint().as_bytes());
        let fingerprint = identity.finalize().to_hex().to_string();
        let tool_call_token = tokenizer.token_id("<tool_call>");
        let engine = Engine::start(Arc::clone(&decoder), memory, tool_call_token)
            .map_err(|e| SessionError::Internal(format!("cannot start the engine thread: {e}")))?;
        tracing::info!(name, seconds = started.elapsed().as_secs_f32(), "model loaded");
        Ok(Self { name: name.to_owned(), path, decoder, tokenizer, chat, engine, fingerprint })
    }
}

/// The loaded models by name.
pub struct Models {
    memory: Arc<KvMemory>,
    default: String,
    /// Never locked across an await: a model that loads holds up only those who want it.
    places: Mutex<BTreeMap<String, Arc<Place>>>,
}

/// One model's place, locked while it loads, so that nobody loads it a second time.
type Place = AsyncMutex<Known>;

/// What is known of a model.
#[derive(Default)]
struct Known {
    /// None before it is loaded, and once it is unloaded.
    kept: Option<Arc<Model>>,
    /// Sessions may still have one that was unloaded; it is then the one that others get too.
    last: Weak<Model>,
}

impl Models {
    pub fn new(default: String, memory: Arc<KvMemory>) -> Self {
        Self { memory, default, places: Mutex::default() }
    }

    /// The name of the model that sessions get which name none.
    pub fn default_name(&self) -> &str {
        &self.default
    }

    pub fn memory(&self) -> &Arc<KvMemory> {
        &self.memory
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Place>>> {
        // Each change is one call on the map, so a panic elsewhere spoils nothing here.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model called `name`, loaded first where it is not yet.
    pub async fn get(&self, name: &str) -> Result<Arc<Model>, SessionError> {
        loop {
            let place = Arc::clone(self.places().entry(name.to_owned()).or_default());
            let mut known = place.lock().await;
            if !self.places().get(name).is_some_and(|current| Arc::ptr_eq(current, &place)) {
                // Whoever had it before could not load the model.
                continue;
            }
            if known.kept.is_none() {
                known.kept = known.last.upgrade();
            }
            if let Some(model) = &known.kept {
                return Ok(Arc::clone(model));
            }
            let (owned, memory) = (name.to_owned(), Arc::clone(&self.memory));
            let loaded = tokio::task::spawn_blocking(move || Model::load(&owned, memory))
                .await
                .map_err(|e| SessionError::Internal(format!("loading `{name}` failed: {e}")))
                .and_then(|loaded| loaded);
            return match loaded {
                Ok(model) => {
                    let model = Arc::new(model);
                    known.last = Arc::downgrade(&model);
                    known.kept = Some(Arc::clone(&model));
                    Ok(model)
                }
                Err(error) => {
                    self.places().remove(name);
                    Err(error)
                }
            };
        }
    }

    /// The models in memory, but those that are being loaded.
    pub fn loaded(&self) -> Vec<Arc<Model>> {
        let places = self.places();
        places.values().filter_map(|place| place.try_lock().ok()?.kept.clone()).collect()
    }

    /// Forgets a model; its memory is free once its last session is closed.
    pub async fn unload(&self, name: &str) -> bool {
        let Some(place) = self.places().get(name).cloned() else { return false };
        let unloaded = place.lock().await.kept.take();
        unloaded.is_some()
    }
}
