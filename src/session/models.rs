//! Models that are loaded, each with its engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;

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
    /// Held while a model loads, so that nobody loads it a second time.
    loaded: Mutex<BTreeMap<String, Arc<Model>>>,
}

impl Models {
    pub fn new(default: String, memory: Arc<KvMemory>) -> Self {
        Self { memory, default, loaded: Mutex::new(BTreeMap::new()) }
    }

    /// The name of the model that sessions get which name none.
    pub fn default_name(&self) -> &str {
        &self.default
    }

    pub fn memory(&self) -> &Arc<KvMemory> {
        &self.memory
    }

    /// The model called `name`, loaded first where it is not yet.
    pub async fn get(&self, name: &str) -> Result<Arc<Model>, SessionError> {
        let mut loaded = self.loaded.lock().await;
        if let Some(model) = loaded.get(name) {
            return Ok(Arc::clone(model));
        }
        let (owned, memory) = (name.to_owned(), Arc::clone(&self.memory));
        let model = tokio::task::spawn_blocking(move || Model::load(&owned, memory))
            .await
            .map_err(|e| SessionError::Internal(format!("loading `{name}` failed: {e}")))??;
        let model = Arc::new(model);
        loaded.insert(name.to_owned(), Arc::clone(&model));
        Ok(model)
    }

    /// Names of the models in memory; empty while one is being loaded.
    pub fn loaded(&self) -> Vec<Arc<Model>> {
        self.loaded.try_lock().map_or_else(|_| Vec::new(), |map| map.values().cloned().collect())
    }

    /// Forgets a model; its memory is free once its last session is closed.
    pub async fn unload(&self, name: &str) -> bool {
        self.loaded.lock().await.remove(name).is_some()
    }
}
