//! One transformer layer around its attention.

use super::config::ModelConfig;
use super::error::ModelError;
use super::tensors::Reader;
use crate::kernel::matmul::{Matrix, MatrixError, multiply_many};
use crate::kernel::norm::{add, add_bias, rms_norm, silu_mul};

/// Run buffers of one step; `T` is its number of tokens.
#[derive(Default)]
pub(super) struct Rows {
    pub n_tokens: usize,
    /// What the layers add to, `[T, hidden]`.
    pub x: Vec<f32>,
    /// `[T, hidden]`
    pub normed: Vec<f32>,
    /// `[T, H * G, D]`
    pub queries: Vec<f32>,
    /// `[T, H, D]`
    pub keys: Vec<f32>,
    /// `[T, H, D]`
    pub values: Vec<f32>,
    /// Values as attention mixes them, `[T, H * G, D]`.
    pub mixed: Vec<f32>,
    /// What a sublayer gives to `x`, `[T, hidden]`.
    delta: Vec<f32>,
    /// `[T, intermediate]`
    gate: Vec<f32>,
    /// `[T, intermediate]`
    up: Vec<f32>,
}

impl Rows {
    /// Makes every buffer fit `n_tokens`; memory is kept when it shrinks.
    pub fn fit(&mut self, config: &ModelConfig, n_tokens: usize) {
        self.n_tokens = n_tokens;
        let query = config.n_heads * config.head_dim;
        let key = config.n_kv_heads * config.head_dim;
        for (buffer, width) in [
            (&mut self.x, config.hidden),
            (&mut self.normed, config.hidden),
            (&mut self.queries, query),
            (&mut self.keys, key),
            (&mut self.values, key),
            (&mut self.mixed, query),
            (&mut self.delta, config.hidden),
            (&mut self.gate, config.intermediate),
            (&mut self.up, config.intermediate),
        ] {
            buffer.resize(n_tokens * width, 0.0);
        }
    }

    /// Goes on with the last token only.
    pub fn keep_last(&mut self, config: &ModelConfig) {
        let last = self.n_tokens - 1;
        self.x.copy_within(last * config.hidden.., 0);
        self.mixed.copy_within(last * config.n_heads * config.head_dim.., 0);
        self.fit(config, 1);
    }
}

/// A weight with the bias that some families give it.
struct Linear {
    weight: Matrix,
    bias: Option<Vec<f32>>,
}

impl Linear {
    fn load(
        reader: &mut Reader,
        name: &str,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: reader.matrix(&format!("{name}.weight"), n_rows, n_cols)?,
            bias: reader.vector_if_any(&format!("{name}.bias"), n_rows)?,
        })
    }
}

/// What each of `linears` makes of `x`, `[T, n_cols]`.
fn apply<const N: usize>(
    linears: [&Linear; N],
    x: &[f32],
    n_tokens: usize,
    mut outs: [&mut [f32]; N],
) -> Result<(), MatrixError> {
    let weights = linears.map(|linear| &linear.weight);
    multiply_many(weights, x, n_tokens, outs.each_mut().map(|out| &mut **out))?;
    for (linear, out) in linears.iter().zip(outs) {
        if let Some(bias) = &linear.bias {
            add_bias(out, bias);
        }
    }
    Ok(())
}

/// Weights that normalise each head of the queries and of the keys, both `[D]`.
struct QkNorm {
    queries: Vec<f32>,
    keys: Vec<f32>,
}

/// The weights of one layer.
pub(super) struct Layer {
    attention_norm: Vec<f32>,
    queries: Linear,
    keys: Linear,
    values: Linear,
    qk_norm: Option<QkNorm>,
    output: Linear,
    mlp_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    pub fn load(
        reader: &mut Reader,
        config: &ModelConfig,
        layer_idx: usize,
    ) -> Result<Self, ModelError> {
        let ModelConfig { hidden, intermediate, head_dim, .. } = *config;
        let n_query = config.n_heads * head_dim;
        let n_key = config.n_kv_heads * head_dim;
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        let qk_norm = if config.family.has_qk_norm() {
            Some(QkNorm {
                queries: reader.vector(&name("attn_q_norm.weight"), head_dim)?,
                keys: reader.vector(&name("attn_k_norm.weight"), head_dim)?,
            })
        } else {
            None
        };
        let layer = Self {
            attention_norm: reader.vector(&name("attn_norm.weight"), hidden)?,
            queries: Linear::load(reader, &name("attn_q"), n_query, hidden)?,
            keys: Linear::load(reader, &name("attn_k"), n_key, hidden)?,
            values: Linear::load(reader, &name("attn_v"), n_key, hidden)?,
            qk_norm,
            output: Linear::load(reader, &name("attn_output"), hidden, n_query)?,
            mlp_norm: reader.vector(&name("ffn_norm.weight"), hidden)?,
            gate: Linear::load(reader, &name("ffn_gate"), intermediate, hidden)?,
            up: Linear::load(reader, &name("ffn_up"), intermediate, hidden)?,
            down: Linear::load(reader, &name("ffn_down"), hidden, intermediate)?,
        };
        if config.family.has_qkv_bias() && layer.queries.bias.is_none() {
            let path = reader.tensors.path.clone();
            return Err(ModelError::MissingTensor { name: name("attn_q.bias"), path });
        }
        Ok(layer)
    }

    /// Bytes of the matrices; norms and biases are too small to count.
    pub fn bytes(&self) -> usize {
        [&self.queries, &self.keys, &self.values, &self.output, &self.gate, &self.up, &self.down]
            .iter()
            .map(|linear| linear.weight.bytes())
            .sum()
    }

    /// Queries, keys and values of `x`, before RoPE.
    pub fn project(&self, config: &ModelConfig, rows: &mut Rows) -> Result<(), MatrixError> {
        let Rows { n_tokens, x, normed, queries, keys, values, mixed, .. } = rows;
        rms_norm(x, &self.attention_norm, config.rms_eps, normed);
        let linears = [&self.queries, &self.keys, &self.values];
        apply(linears, normed, *n_tokens, [queries, keys, values])?;
        if let Some(norm) = &self.qk_norm {
            // `mixed` is free until attention fills it.
            for (heads, weight) in [(queries, &norm.queries), (keys, &norm.keys)] {
                let normed = &mut mixed[..heads.len()];
                rms_norm(heads, weight, config.rms_eps, normed);
                heads.copy_from_slice(normed);
            }
        }
        Ok(())
    }

    /// Adds to `x` what attention has mixed, then what the MLP makes of it.
    pub fn finish(&self, config: &ModelConfig, rows: &mut Rows) -> Result<(), MatrixError> {
        let Rows { n_tokens, x, normed, mixed, delta, gate, up, .. } = rows;
        apply([&self.output], mixed, *n_tokens, [delta])?;
        add(x, delta);
        rms_norm(x, &self.mlp_norm, config.rms_eps, normed);
        apply([&self.gate, &self.up], normed, *n_tokens, [gate, up])?;
        silu_mul(gate, up);
        apply([&self.down], gate, *n_tokens, [delta])?;
        add(x, delta);
        Ok(())
    }
}
