//! The forward pass of Llama, Qwen2 and Qwen3: weights meet a cache that is passed in.

use std::path::Path;

use rayon::prelude::*;

use super::config::ModelConfig;
use super::error::ModelError;
use super::layer::{Layer, Rows};
use super::rope::Rope;
use super::tensors::Reader;
use super::{gguf, safetensors};
use crate::cache::bank::Origin;
use crate::cache::compress::Scratch;
use crate::cache::kv::Staging;
use crate::cache::{CacheShape, KvCache, KvElement};
use crate::kernel::attention::{Attention, Mass, attend};
use crate::kernel::matmul::{Matrix, MatrixError};
use crate::kernel::norm::rms_norm;

/// Tokens that [`Decoder::prefill`] reads at most at once.
pub const BLOCK: usize = 256;

/// Tokens that [`Decoder::replay`] takes at most at once: weights that are floats come out slightly
/// different in larger blocks.
pub(crate) const REPLAYED: usize = 16;

/// Which tokens' logits a block is read for.
enum Wanted<'a> {
    Nobodys,
    /// `[vocab]`
    Last(&'a mut Vec<f32>),
    /// `[T, vocab]`
    All(&'a mut Vec<f32>),
}

/// Everything that a step writes besides caches; one for all sessions, and once it has grown,
/// steps allocate nothing.
#[derive(Default)]
pub struct Workspace<E> {
    /// Working memory for compactions, also of those between steps.
    pub scratch: Scratch,
    staging: Staging<E>,
    rows: Rows,
    /// Cosine and sine for each token's position, `[T, pairs]`.
    turns: Vec<[f32; 2]>,
}

impl<E: KvElement> Workspace<E> {
    /// Gives back all buffers of keys and values.
    pub fn release(&mut self) {
        self.scratch = Scratch::default();
        self.staging = Staging::default();
    }

    /// Bytes of the buffers of keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.scratch.bytes() + self.staging.bytes()
    }
}

/// A model: weights and constants, no run state.
pub struct Decoder {
    config: ModelConfig,
    rope: Rope,
    /// `[vocab, hidden]`
    embedding: Matrix,
    layers: Vec<Layer>,
    /// `[hidden]`
    norm: Vec<f32>,
    /// `[vocab, hidden]`; the embedding itself where the two are tied.
    output: Option<Matrix>,
    fingerprint: String,
}

impl Decoder {
    /// Opens a GGUF file, or a folder with config.json and safetensors. `progress` is told the
    /// number of tensors read and of all tensors.
    ///
    /// Memory peaks at the weights and one tensor.
    ///
    /// # Errors
    /// The file cannot be read, is damaged or cut off, is of an unknown architecture, or lacks a
    /// tensor of the shape that its config asks for.
    pub fn load(path: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<Self, ModelError> {
        let (mut config, tensors) =
            if path.is_dir() { safetensors::open(path)? } else { gguf::open(path)? };
        let mut reader = Reader::new(tensors, progress);
        if let Some(divisors) = reader.vector_if_any("rope_freqs.weight", config.rope.dim / 2)? {
            config.rope.divisors = divisors;
        }
        let ModelConfig { vocab, hidden, .. } = config;
        let embedding = reader.matrix("token_embd.weight", vocab, hidden)?;
        let layers = (0..config.n_layers)
            .map(|layer_idx| Layer::load(&mut reader, &config, layer_idx))
            .collect::<Result<_, _>>()?;
        let norm = reader.vector("output_norm.weight", hidden)?;
        let output = if config.tied_embeddings {
            None
        } else {
            Some(reader.matrix("output.weight", vocab, hidden)?)
        };
        let described = serde_json::to_vec(&config).expect("a config has only plain fields");
        let fingerprint = reader.finish(&described);
        let rope = Rope::new(&config.rope);
        Ok(Self { config, rope, embedding, layers, norm, output, fingerprint })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The shape that this model's caches must have.
    pub fn shape(&self) -> CacheShape {
        self.config.shape()
    }

    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Bytes that the weights hold in memory.
    pub fn weight_bytes(&self) -> usize {
        self.embedding.bytes()
            + self.layers.iter().map(Layer::bytes).sum::<usize>()
            + self.output.as_ref().map_or(0, Matrix::bytes)
    }

    /// A hash of the config and of every weight; a stored cache is valid only under the same.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Reads a block of at most [`BLOCK`] tokens at the positions from [`KvCache::logical`] on,
    /// and writes the last token's logits, `[vocab]`, where they are asked for. The cache may
    /// compact itself on the way.
    ///
    /// # Errors
    /// Nothing has changed after any error but [`ModelError::Matrix`]; then the cache is lost.
    pub fn prefill<E: KvElement>(
        &self,
        tokens: &[u32],
        cache: &mut KvCache<E>,
        work: &mut Workspace<E>,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<(), ModelError> {
        let wanted = logits.map_or(Wanted::Nobodys, Wanted::Last);
        // Inside the pool, where a step's many short parallel loops start fastest.
        rayon::scope(|_| self.prefill_in_pool(tokens, Origin::Read, cache, work, wanted))
    }

    /// Takes up to 16 tokens of one sequence at once, and writes the logits of each, `[T, vocab]`,
    /// where they are asked for. What comes out has the same bits as with a step of
    /// [`Self::decode`] for each token, if the cache has slots for all of them.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn replay<E: KvElement>(
        &self,
        tokens: &[u32],
        cache: &mut KvCache<E>,
        work: &mut Workspace<E>,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<(), ModelError> {
        let n_tokens = tokens.len();
        if n_tokens > REPLAYED {
            return Err(ModelError::BlockLength { n_tokens, max: REPLAYED });
        }
        if n_tokens > cache.limit() - cache.kept() {
            return Err(ModelError::CacheFull { n_slots: cache.kept() });
        }
        let wanted = logits.map_or(Wanted::Nobodys, Wanted::All);
        rayon::scope(|_| self.prefill_in_pool(tokens, Origin::Written, cache, work, wanted))
    }

    fn prefill_in_pool<E: KvElement>(
        &self,
        tokens: &[u32],
        origin: Origin,
        cache: &mut KvCache<E>,
        work: &mut Workspace<E>,
        wanted: Wanted<'_>,
    ) -> Result<(), ModelError> {
        let (n_tokens, first) = (tokens.len(), cache.logical());
        if !(1..=BLOCK).contains(&n_tokens) {
            return Err(ModelError::BlockLength { n_tokens, max: BLOCK });
        }
        self.check_tokens(tokens)?;
        self.check_cache(cache, n_tokens)?;
        let shape = self.shape();
        let Workspace { scratch, staging, rows, turns } = work;
        self.begin(tokens, first..first + n_tokens, rows, turns);
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            layer.project(&self.config, rows)?;
            cache.observe(layer_idx, &rows.queries, n_tokens, origin);
            self.rotate(&mut rows.queries, turns);
            self.rotate(&mut rows.keys, turns);
            staging.fill(&shape, &rows.keys, &rows.values, n_tokens);
            // Taken out because attention reads the block while it adds to this.
            let mut importance = std::mem::take(&mut staging.importance);
            let accumulates = cache.policy().accumulates_attention();
            let (live, mass) = cache.layer_mut(layer_idx).slots_and_importance();
            let attention = Attention { live, staged: Some(staging.slots()), shape: &shape };
            let mass = accumulates.then_some(Mass { live: mass, staged: &mut importance });
            attend(&attention, &rows.queries, n_tokens, self.scale(), mass, &mut rows.mixed);
            staging.importance = importance;
            cache.absorb(layer_idx, staging, &self.rope, scratch);
            let is_last = layer_idx + 1 == self.layers.len();
            if is_last && !matches!(wanted, Wanted::All(_)) {
                // No other token's output is of use behind the last attention.
                rows.keep_last(&self.config);
            }
            if !is_last || !matches!(wanted, Wanted::Nobodys) {
                layer.finish(&self.config, rows)?;
            }
        }
        cache.advance(n_tokens);
        match wanted {
            Wanted::Nobodys => Ok(()),
            Wanted::Last(logits) | Wanted::All(logits) => Ok(self.project_out(rows, logits)?),
        }
    }

    /// Takes one token for each of several sequences and writes their logits, `[n, vocab]`, where
    /// they are asked for. What comes out for a sequence does not depend on the others.
    ///
    /// # Errors
    /// As [`Self::prefill`]; also where a cache is full, which is to be compacted before.
    pub fn decode<E: KvElement>(
        &self,
        tokens: &[u32],
        caches: &mut [&mut KvCache<E>],
        work: &mut Workspace<E>,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<(), ModelError> {
        rayon::scope(|_| self.decode_in_pool(tokens, caches, work, logits))
    }

    fn decode_in_pool<E: KvElement>(
        &self,
        tokens: &[u32],
        caches: &mut [&mut KvCache<E>],
        work: &mut Workspace<E>,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<(), ModelError> {
        let (n_tokens, n_caches) = (tokens.len(), caches.len());
        if n_tokens != n_caches {
            return Err(ModelError::Unpaired { n_tokens, n_caches });
        }
        self.check_tokens(tokens)?;
        for cache in caches.iter() {
            self.check_cache(cache, 1)?;
            if cache.is_full() {
                return Err(ModelError::CacheFull { n_slots: cache.kept() });
            }
        }
        let shape = self.shape();
        let n_query = shape.n_heads() * shape.head_dim;
        let n_key = shape.n_kv_heads * shape.head_dim;
        let Workspace { rows, turns, .. } = work;
        self.begin(tokens, caches.iter().map(|cache| cache.logical()), rows, turns);
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            layer.project(&self.config, rows)?;
            let sessions = (
                rows.queries.par_chunks_exact_mut(n_query),
                rows.keys.par_chunks_exact_mut(n_key),
                rows.values.par_chunks_exact(n_key),
                rows.mixed.par_chunks_exact_mut(n_query),
                turns.par_chunks_exact(self.rope.n_pairs()),
                caches.par_iter_mut(),
            );
            sessions.into_par_iter().for_each(|(queries, keys, values, mixed, turns, cache)| {
                cache.observe(layer_idx, queries, 1, Origin::Written);
                self.rotate(queries, turns);
                self.rotate(keys, turns);
                cache.push(layer_idx, keys, values);
                let accumulates = cache.policy().accumulates_attention();
                let (live, mass) = cache.layer_mut(layer_idx).slots_and_importance();
                let attention = Attention { live, staged: None, shape: &shape };
                let mass = accumulates.then_some(Mass { live: mass, staged: &mut [] });
                attend(&attention, queries, 1, self.scale(), mass, mixed);
            });
            layer.finish(&self.config, rows)?;
        }
        caches.iter_mut().for_each(|cache| cache.advance(1));
        match logits {
            Some(logits) => Ok(self.project_out(rows, logits)?),
            None => Ok(()),
        }
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), ModelError> {
        let n_vocab = self.config.vocab;
        match tokens.iter().find(|token| **token as usize >= n_vocab) {
            Some(&token) => Err(ModelError::UnknownToken { token, n_vocab }),
            None => Ok(()),
        }
    }

    fn check_cache<E: KvElement>(
        &self,
        cache: &KvCache<E>,
        n_new: usize,
    ) -> Result<(), ModelError> {
        let context_length = self.config.context_length;
        if *cache.shape() != self.shape() {
            return Err(ModelError::CacheShape);
        }
        if cache.logical() + n_new > context_length {
            let position = cache.logical() + n_new - 1;
            return Err(ModelError::PastContext { position, context_length });
        }
        Ok(())
    }

    /// Brings in the tokens' embeddings, and their positions' rotations.
    fn begin(
        &self,
        tokens: &[u32],
        positions: impl Iterator<Item = usize>,
        rows: &mut Rows,
        turns: &mut Vec<[f32; 2]>,
    ) {
        rows.fit(&self.config, tokens.len());
        for (token, x) in tokens.iter().zip(rows.x.chunks_exact_mut(self.config.hidden)) {
            self.embedding.row(*token as usize, x);
        }
        turns.resize(tokens.len() * self.rope.n_pairs(), [0.0; 2]);
        for (position, turns) in positions.zip(turns.chunks_exact_mut(self.rope.n_pairs())) {
            self.rope.turns(position as u32, turns);
        }
    }

    /// Rotates the heads of as many tokens as there are `turns` for, `[T, n, D]`.
    fn rotate(&self, heads: &mut [f32], turns: &[[f32; 2]]) {
        let n_pairs = self.rope.n_pairs();
        let n_tokens = turns.len() / n_pairs;
        let width = heads.len() / n_tokens;
        for (heads, turns) in heads.chunks_exact_mut(width).zip(turns.chunks_exact(n_pairs)) {
            self.rope.apply(heads, self.config.head_dim, turns);
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }

    /// The logits of the rows in `x`.
    fn project_out(&self, rows: &mut Rows, logits: &mut Vec<f32>) -> Result<(), MatrixError> {
        rms_norm(&rows.x, &self.norm, self.config.rms_eps, &mut rows.normed);
        logits.resize(rows.n_tokens * self.config.vocab, 0.0);
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        output.multiply(&rows.normed, rows.n_tokens, logits)
    }
}
