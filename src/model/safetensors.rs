//! Hugging Face folders: config.json beside one or several safetensors files.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;

use candle_core::quantized::GgmlDType;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::config::{Family, ModelConfig, invalid};
use super::error::ModelError;
use super::rope::{Pairing, RopeConfig, Scaling};
use super::tensors::{Entry, Source, Tensors};

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Opens a folder: what its model is, and its tensors.
pub(super) fn open(folder: &Path) -> Result<(ModelConfig, Tensors), ModelError> {
    let config = config(folder)?;
    let index = folder.join("model.safetensors.index.json");
    let files: BTreeSet<String> = if index.exists() {
        read_json::<Index>(&index)?.weight_map.into_values().collect()
    } else {
        BTreeSet::from(["model.safetensors".to_owned()])
    };
    let mut tensors = Tensors {
        path: folder.to_owned(),
        sources: Vec::new(),
        entries: HashMap::new(),
        spelling: hf_name,
    };
    for file in files {
        let source = Source::open(&folder.join(file))?;
        read_header(&source, tensors.sources.len(), &mut tensors.entries)?;
        tensors.sources.push(source);
    }
    Ok((config, tensors))
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The header is read here because candle's readers hold a whole file in memory, or map it, which
/// is `unsafe`.
fn read_header(
    source: &Source,
    source_idx: usize,
    entries: &mut HashMap<String, Entry>,
) -> Result<(), ModelError> {
    let damaged = |reason: String| ModelError::Header { path: source.path.clone(), reason };
    let mut file = BufReader::new(&source.file);
    let mut n_bytes = [0; 8];
    file.read_exact(&mut n_bytes).map_err(|err| source.failed(err))?;
    let n_bytes = u64::from_le_bytes(n_bytes);
    if n_bytes > MAX_HEADER || n_bytes + 8 > source.n_bytes {
        let reason = format!("it claims {n_bytes} bytes in a file of {}", source.n_bytes);
        return Err(damaged(reason));
    }
    let mut header = vec![0; n_bytes as usize];
    file.read_exact(&mut header).map_err(|err| source.failed(err))?;
    let header: HashMap<String, Value> =
        serde_json::from_slice(&header).map_err(|err| damaged(err.to_string()))?;
    for (name, value) in header {
        if name == "__metadata__" {
            continue;
        }
        let tensor: TensorHeader = serde_json::from_value(value)
            .map_err(|err| damaged(format!("tensor {name}: {err}")))?;
        let dtype = match tensor.dtype.as_str() {
            "F32" => GgmlDType::F32,
            "F16" => GgmlDType::F16,
            "BF16" => GgmlDType::BF16,
            // Buffers of other types lie beside the weights of some models; nobody asks for them.
            _ => continue,
        };
        let start = (n_bytes + 8).saturating_add(tensor.data_offsets[0]);
        entries.insert(name, Entry { source_idx, start, dtype, shape: tensor.shape });
    }
    Ok(())
}

/// A tensor's name in Hugging Face's checkpoints, from its name in GGUF.
fn hf_name(ggml: &str) -> String {
    let Some((layer_idx, (part, kind))) = ggml
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(layer_idx, rest)| Some((layer_idx, rest.rsplit_once('.')?)))
    else {
        return match ggml {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            other => other.to_owned(),
        };
    };
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => other,
    };
    format!("model.layers.{layer_idx}.{part}.{kind}")
}

#[derive(Deserialize)]
struct HfConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<HfRope>,
    /// The same since transformers 5, with the theta inside.
    rope_parameters: Option<HfRope>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    use_sliding_window: bool,
    hidden_act: Option<String>,
    eos_token_id: Option<OneOrMany>,
}

#[derive(Default, Deserialize)]
struct HfRope {
    rope_type: Option<String>,
    /// Its name in older files; some give both.
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
    attention_factor: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
}

/// The part of generation_config.json that matters here.
#[derive(Deserialize)]
struct HfGeneration {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

fn config(folder: &Path) -> Result<ModelConfig, ModelError> {
    let path = folder.join("config.json");
    // The architecture first: another family's config may lack what is asked for below.
    let family = match &read_json::<Value>(&path)?["model_type"] {
        Value::String(name) => Family::by_name(name)?,
        _ => return Err(invalid("model_type", "is missing")),
    };
    let hf: HfConfig = read_json(&path)?;
    if hf.use_sliding_window {
        return Err(invalid("use_sliding_window", "is true; sliding windows are not supported"));
    }
    if let Some(act) = hf.hidden_act.filter(|act| act != "silu") {
        return Err(invalid("hidden_act", format!("is `{act}`; known is silu")));
    }
    let rope = hf.rope_parameters.or(hf.rope_scaling).unwrap_or_default();
    let scaling = scaling(&rope, hf.max_position_embeddings)?;
    let context_length = match scaling {
        // max_position_embeddings is often left at the length before the stretch.
        Scaling::Yarn { factor, original_context, .. } => {
            hf.max_position_embeddings.max((factor * original_context as f32) as usize)
        }
        _ => hf.max_position_embeddings,
    };
    let head_dim = hf.head_dim.unwrap_or_else(|| hf.hidden_size / hf.num_attention_heads.max(1));
    let generation = folder.join("generation_config.json");
    let generation: Option<HfGeneration> =
        if generation.exists() { Some(read_json(&generation)?) } else { None };
    let eos = generation.and_then(|generation| generation.eos_token_id).or(hf.eos_token_id);
    let config = ModelConfig {
        family,
        n_layers: hf.num_hidden_layers,
        n_heads: hf.num_attention_heads,
        n_kv_heads: hf.num_key_value_heads.unwrap_or(hf.num_attention_heads),
        head_dim,
        hidden: hf.hidden_size,
        intermediate: hf.intermediate_size,
        vocab: hf.vocab_size,
        context_length,
        rms_eps: hf.rms_norm_eps,
        rope: RopeConfig {
            theta: hf.rope_theta.or(rope.rope_theta).unwrap_or(10_000.0),
            dim: head_dim,
            pairing: Pairing::Half,
            scaling,
            divisors: Vec::new(),
        },
        tied_embeddings: hf.tie_word_embeddings,
        eos: match eos {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
        },
    };
    config.checked()
}

fn scaling(rope: &HfRope, trained_context: usize) -> Result<Scaling, ModelError> {
    let need = |key: &str, value: Option<f32>| {
        value.ok_or_else(|| invalid(format!("rope_scaling.{key}"), "is missing"))
    };
    let original_context = rope.original_max_position_embeddings.unwrap_or(trained_context);
    match rope.rope_type.as_deref().or(rope.kind.as_deref()).unwrap_or("default") {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: need("factor", rope.factor)? }),
        "llama3" => Ok(Scaling::Llama3 {
            factor: need("factor", rope.factor)?,
            low_freq_factor: need("low_freq_factor", rope.low_freq_factor)?,
            high_freq_factor: need("high_freq_factor", rope.high_freq_factor)?,
            original_context,
        }),
        "yarn" => {
            let factor = need("factor", rope.factor)?;
            Ok(Scaling::Yarn {
                factor,
                original_context,
                attention_factor: rope
                    .attention_factor
                    .unwrap_or_else(|| Scaling::yarn_attention_factor(factor)),
                beta_fast: rope.beta_fast.unwrap_or(32.0),
                beta_slow: rope.beta_slow.unwrap_or(1.0),
            })
        }
        kind => Err(invalid(
            "rope_scaling.rope_type",
            format!("is `{kind}`; known are default, linear, llama3 and yarn"),
        )),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let text = fs::read(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|err| ModelError::Header { path: path.to_owned(), reason: err.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_hugging_face() {
        for (ggml, hf) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            ("blk.17.attn_k_norm.weight", "model.layers.17.self_attn.k_norm.weight"),
            ("blk.17.ffn_norm.weight", "model.layers.17.post_attention_layernorm.weight"),
        ] {
            assert_eq!(hf_name(ggml), hf);
        }
    }

    #[test]
    fn rope_scaling_is_read_in_old_and_new_spelling() {
        for text in [
            r#"{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}"#,
            r#"{"rope_type": "yarn", "type": "yarn", "rope_theta": 1e6, "factor": 4}"#,
        ] {
            let rope: HfRope = serde_json::from_str(text).unwrap();
            let Scaling::Yarn { factor, original_context, attention_factor, .. } =
                scaling(&rope, 32_768).unwrap()
            else {
                panic!("not read as yarn: {text}")
            };
            assert_eq!((factor, original_context), (4.0, 32_768));
            assert!((attention_factor - 1.138_629).abs() < 1e-5);
        }
    }

    #[test]
    fn unknown_scaling_is_named() {
        let rope: HfRope = serde_json::from_str(r#"{"rope_type": "longrope"}"#).unwrap();
        let error = scaling(&rope, 4_096).unwrap_err().to_string();
        assert!(error.contains("longrope") && error.contains("llama3"), "{error}");
    }
}
