//! GGUF files (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

use std::io::{BufReader, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use super::config::{Family, ModelConfig, invalid};
use super::error::ModelError;
use super::rope::{Pairing, RopeConfig, Scaling};
use super::tensors::{Entry, Source, Tensors};

/// Bytes that a header may take; the largest vocabularies need about 20 MiB. It bounds the memory
/// that a lying header can make us ask for, since every value costs at least a byte of it.
const MAX_HEADER: u64 = 64 << 20;

/// Reads a GGUF file's header: its metadata and where its tensors lie.
///
/// # Errors
/// The file cannot be read, is no GGUF file, or its header is damaged or cut off.
pub fn read_header(path: &Path) -> Result<Content, ModelError> {
    read_source(&mut Source::open(path)?)
}

fn read_source(source: &mut Source) -> Result<Content, ModelError> {
    let mut magic = Vec::new();
    (&source.file).take(4).read_to_end(&mut magic).map_err(|err| source.failed(err))?;
    if magic != b"GGUF" {
        return Err(ModelError::NotGguf { path: source.path.clone(), found: magic });
    }
    source.file.rewind().map_err(|err| source.failed(err))?;
    let mut header = BufReader::new(&source.file).take(source.n_bytes.min(MAX_HEADER));
    // candle checks counts and lengths but divides by the file's alignment, which may be zero.
    let reason = match catch_unwind(AssertUnwindSafe(|| Content::read(&mut header))) {
        Ok(Ok(content)) => return Ok(content),
        Ok(Err(err)) => err.to_string(),
        Err(_) => "a value in it is out of range".to_owned(),
    };
    Err(ModelError::Header { path: source.path.clone(), reason })
}

/// Opens a GGUF file: what its model is, and its tensors.
pub(super) fn open(path: &Path) -> Result<(ModelConfig, Tensors), ModelError> {
    let mut source = Source::open(path)?;
    let content = read_source(&mut source)?;
    let entries = content.tensor_infos.iter().map(|(name, info)| {
        let start = content.tensor_data_offset.saturating_add(info.offset);
        let shape = info.shape.dims().to_vec();
        (name.clone(), Entry { source_idx: 0, start, dtype: info.ggml_dtype, shape })
    });
    let tensors = Tensors {
        path: path.to_owned(),
        entries: entries.collect(),
        sources: vec![source],
        spelling: str::to_owned,
    };
    Ok((config(&content, &tensors)?, tensors))
}

fn config(content: &Content, tensors: &Tensors) -> Result<ModelConfig, ModelError> {
    let arch = match content.metadata.get("general.architecture") {
        Some(Value::String(arch)) => arch,
        _ => return Err(invalid("general.architecture", "is missing")),
    };
    let family = Family::by_name(arch)?;
    let meta = Metadata { content, arch };
    let n_heads = meta.need("attention.head_count")?;
    let hidden = meta.need("embedding_length")?;
    let head_dim = match meta.count("attention.key_length")? {
        Some(dim) => dim,
        None => hidden / n_heads.max(1),
    };
    let value_dim = meta.count("attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        let reason = format!("is {value_dim}, but keys have {head_dim}; they must be as long");
        return Err(invalid("attention.value_length", reason));
    }
    let eos = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let mut eos: Vec<u32> =
        eos.iter().filter_map(|key| content.metadata.get(*key)?.to_u32().ok()).collect();
    eos.dedup();
    let config = ModelConfig {
        family,
        n_layers: meta.need("block_count")?,
        n_heads,
        n_kv_heads: meta.count("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        hidden,
        intermediate: meta.need("feed_forward_length")?,
        vocab: tensors.n_rows("token_embd.weight").unwrap_or(0),
        context_length: meta.need("context_length")?,
        rms_eps: meta.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
        rope: RopeConfig {
            theta: meta.float("rope.freq_base")?.unwrap_or(10_000.0),
            dim: meta.count("rope.dimension_count")?.unwrap_or(head_dim),
            // The converter permutes the rows of llama's queries and keys.
            pairing: if family == Family::Llama { Pairing::Interleaved } else { Pairing::Half },
            scaling: scaling(&meta)?,
            divisors: Vec::new(),
        },
        tied_embeddings: !tensors.contains("output.weight"),
        eos,
    };
    config.checked()
}

fn scaling(meta: &Metadata) -> Result<Scaling, ModelError> {
    let factor = meta.float("rope.scaling.factor")?.unwrap_or(1.0);
    match meta.get("rope.scaling.type") {
        None => match meta.float("rope.scale_linear")? {
            Some(factor) => Ok(Scaling::Linear { factor }),
            None => Ok(Scaling::None),
        },
        Some(Value::String(kind)) => match kind.as_str() {
            "none" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor }),
            "yarn" => Ok(Scaling::Yarn {
                factor,
                original_context: match meta.count("rope.scaling.original_context_length")? {
                    Some(n_tokens) => n_tokens,
                    None => meta.need("context_length")?,
                },
                attention_factor: Scaling::yarn_attention_factor(factor)
                    * meta.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
                beta_fast: meta.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: meta.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            }),
            kind => Err(invalid(
                meta.key("rope.scaling.type"),
                format!("is `{kind}`; known are none, linear and yarn"),
            )),
        },
        Some(_) => Err(invalid(meta.key("rope.scaling.type"), "is not a string")),
    }
}

/// The metadata that belong to the file's architecture.
struct Metadata<'a> {
    content: &'a Content,
    arch: &'a str,
}

impl Metadata<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.content.metadata.get(&self.key(name))
    }

    fn count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count = match *value {
            Value::I32(count) => usize::try_from(count).ok(),
            Value::I64(count) => usize::try_from(count).ok(),
            ref value => value.to_u64().ok().and_then(|count| usize::try_from(count).ok()),
        };
        let count = count.ok_or_else(|| invalid(self.key(name), "is not a count"))?;
        Ok(Some(count))
    }

    fn need(&self, name: &str) -> Result<usize, ModelError> {
        self.count(name)?.ok_or_else(|| invalid(self.key(name), "is missing"))
    }

    fn float(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::F32(number)) => Ok(Some(*number)),
            Some(Value::F64(number)) => Ok(Some(*number as f32)),
            Some(_) => Err(invalid(self.key(name), "is not a floating-point number")),
        }
    }
}
