//! What a model file says about its model.

use serde::Serialize;

use super::error::ModelError;
use super::rope::{RopeConfig, Scaling};
use crate::cache::CacheShape;

/// Architectures that the decoder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

impl Family {
    /// Their names in GGUF (`general.architecture`) and in config.json (`model_type`).
    pub const NAMES: [&str; 3] = ["llama", "qwen2", "qwen3"];

    /// # Errors
    /// Names the known architectures where `name` is none of them.
    pub fn by_name(name: &str) -> Result<Self, ModelError> {
        match name {
            "llama" => Ok(Family::Llama),
            "qwen2" => Ok(Family::Qwen2),
            "qwen3" => Ok(Family::Qwen3),
            _ => Err(ModelError::UnknownArchitecture { name: name.to_owned() }),
        }
    }

    /// True where the projections of queries, keys and values have a bias.
    pub(super) fn has_qkv_bias(self) -> bool {
        self == Family::Qwen2
    }

    /// True where each head of the queries and keys is normalised before RoPE.
    pub(super) fn has_qk_norm(self) -> bool {
        self == Family::Qwen3
    }
}

/// A model's sizes and constants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    pub family: Family,
    /// `L`
    pub n_layers: usize,
    /// Query heads of a layer, `H * G`.
    pub n_heads: usize,
    /// `H`
    pub n_kv_heads: usize,
    /// `D`; not always `hidden / n_heads`.
    pub head_dim: usize,
    /// Numbers a token is carried as between layers.
    pub hidden: usize,
    /// Inner width of the MLP.
    pub intermediate: usize,
    /// Rows of the embedding; a tokenizer may know fewer tokens.
    pub vocab: usize,
    /// Tokens the model was trained to look back over.
    pub context_length: usize,
    pub rms_eps: f32,
    pub rope: RopeConfig,
    /// True where the output projection is the embedding.
    pub tied_embeddings: bool,
    /// Tokens that end a turn, as far as the file names them.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// The shape of this model's cache.
    pub fn shape(&self) -> CacheShape {
        CacheShape {
            n_layers: self.n_layers,
            n_kv_heads: self.n_kv_heads,
            n_groups: self.n_heads / self.n_kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Hands the config on where every number in it can be computed with.
    pub(super) fn checked(self) -> Result<Self, ModelError> {
        for (key, size) in [
            ("number of layers", self.n_layers),
            ("number of heads", self.n_heads),
            ("number of KV heads", self.n_kv_heads),
            ("head dimension", self.head_dim),
            ("hidden size", self.hidden),
            ("intermediate size", self.intermediate),
            ("vocabulary", self.vocab),
            ("context length", self.context_length),
        ] {
            // The upper bound keeps products of two sizes far from overflow.
            if size == 0 || size > 1 << 30 {
                return Err(invalid(key, format!("is {size}, which no model has")));
            }
        }
        let Self { n_heads, n_kv_heads, head_dim, ref rope, .. } = self;
        if n_heads % n_kv_heads != 0 {
            let reason = format!("is {n_kv_heads}, which does not divide the {n_heads} heads");
            return Err(invalid("number of KV heads", reason));
        }
        if rope.dim == 0 || rope.dim % 2 != 0 || rope.dim > head_dim {
            let reason = format!("is {}, which does not fit heads of {head_dim}", rope.dim);
            return Err(invalid("RoPE dimension", reason));
        }
        if !(rope.theta.is_finite() && rope.theta > 1.0) {
            return Err(invalid("RoPE theta", format!("is {}, not above one", rope.theta)));
        }
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return Err(invalid("RMS epsilon", format!("is {}", self.rms_eps)));
        }
        let is_legal = match rope.scaling {
            Scaling::None => true,
            Scaling::Linear { factor } => is_positive(factor),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                is_positive(factor)
                    && low_freq_factor.is_finite()
                    && high_freq_factor > low_freq_factor
                    && original_context > 0
            }
            Scaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
                original_context > 0
                    && [factor, attention_factor, beta_fast, beta_slow].into_iter().all(is_positive)
            }
        };
        if !is_legal {
            return Err(invalid("RoPE scaling", format!("is {:?}", rope.scaling)));
        }
        Ok(self)
    }
}

fn is_positive(number: f32) -> bool {
    number.is_finite() && number > 0.0
}

/// The error that the value called `key` is missing or cannot be used.
pub(super) fn invalid(key: impl Into<String>, reason: impl Into<String>) -> ModelError {
    ModelError::Config { key: key.into(), reason: reason.into() }
}
