//! Tiny models with random weights, so that whole daemons run in milliseconds.
//!
//! `ATTAR_WRITE_FIXTURES=1 cargo test --release --test it tiny` rewrites `fixtures/model`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

pub const N_LAYERS: usize = 2;
pub const N_HEADS: usize = 4;
pub const N_KV_HEADS: usize = 2;
pub const CONTEXT: usize = 32_768;
pub const THETA: f64 = 10_000.0;
pub const EPS: f64 = 1e-6;

/// Settings of the llama3 RoPE scaling: factor, low and high frequency factor, trained context.
/// The context is so short that the scaling shows within a test's prompt.
pub const LLAMA3: (f64, f64, f64, usize) = (8.0, 1.0, 4.0, 64);

/// Merged tokens and the pairs that they are merged from.
const MERGES: [&str; 4] = ["Ġ t", "h e", "Ġt he", "i n"];
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const MARKERS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
/// The ids of the 256 bytes are the bytes themselves.
pub const VOCAB: usize = 256 + MERGES.len() + CONTROL.len() + MARKERS.len();
pub const END_OF_TEXT: u32 = 256 + MERGES.len() as u32;
pub const IM_END: u32 = END_OF_TEXT + 2;

/// The sizes that differ between the tiny models.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    intermediate: usize,
    head_dim: usize,
}

impl Sizes {
    /// Types with blocks of 256 need rows that long. Qwen3's head dimension is its own setting.
    fn of(arch: &str, dtype: GgmlDType) -> Self {
        let hidden = dtype.block_size().max(64);
        let head_dim = hidden / N_HEADS * if arch == "qwen3" { 2 } else { 1 };
        Self { hidden, intermediate: 2 * hidden, head_dim }
    }
}

/// The committed tiny model: Qwen2, Q8_0.
pub fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/model/tiny-qwen2.gguf")
}

/// Writes a tiny model of `arch` (`llama`, `qwen2` or `qwen3`) as a GGUF file whose matrices are
/// of `dtype`, with a byte-level tokenizer and a ChatML template.
pub fn gguf(path: &Path, arch: &str, dtype: GgmlDType, seed: u64) {
    let sizes = Sizes::of(arch, dtype);
    let mut tensors: Vec<(String, QTensor)> = weights(arch, sizes, seed)
        .into_iter()
        .map(|(name, tensor)| {
            let n_heads = match name.rsplit('.').nth(1) {
                Some("attn_q") => N_HEADS,
                _ => N_KV_HEADS,
            };
            let is_permuted =
                arch == "llama" && (name.contains("attn_q") || name.contains("attn_k"));
            let tensor = if is_permuted { interleaved(&tensor, n_heads) } else { tensor };
            let dtype = if tensor.rank() == 1 { GgmlDType::F32 } else { dtype };
            (name, QTensor::quantize(&tensor, dtype).unwrap())
        })
        .collect();
    if arch == "llama" {
        let divisors = llama3_divisors(sizes.head_dim);
        let divisors = Tensor::new(divisors.as_slice(), &Device::Cpu).unwrap();
        let divisors = QTensor::quantize(&divisors, GgmlDType::F32).unwrap();
        tensors.push(("rope_freqs.weight".to_owned(), divisors));
    }
    let metadata = metadata(arch, sizes);
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// Writes the model that [`gguf`] writes in f32 as a Hugging Face folder, without a tokenizer.
pub fn hf_folder(folder: &Path, arch: &str, seed: u64) {
    let sizes = Sizes::of(arch, GgmlDType::F32);
    let (factor, low, high, original) = LLAMA3;
    let mut config = json!({
        "model_type": arch,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": sizes.head_dim,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "tie_word_embeddings": arch != "llama",
        "hidden_act": "silu",
        "eos_token_id": [IM_END, END_OF_TEXT],
        // What only candle's config types ask for.
        "sliding_window": CONTEXT,
        "max_window_layers": N_LAYERS,
        "use_sliding_window": false,
        "attention_bias": false,
    });
    if arch == "llama" {
        config["rope_scaling"] = json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        });
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tensors: HashMap<String, Tensor> = weights(arch, sizes, seed)
        .into_iter()
        .map(|(name, tensor)| (hf_name(&name), tensor))
        .collect();
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
}

/// Every weight by its GGUF name, with queries and keys in Hugging Face's order.
fn weights(arch: &str, sizes: Sizes, seed: u64) -> Vec<(String, Tensor)> {
    let Sizes { hidden, intermediate, head_dim } = sizes;
    let (query, key) = (N_HEADS * head_dim, N_KV_HEADS * head_dim);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut all = Vec::new();
    let mut random = |name: String, shape: &[usize], center: f32, spread: f32| {
        let n = shape.iter().product();
        let values: Vec<f32> =
            (0..n).map(|_| center + spread * rng.random_range(-1.0f32..1.0)).collect();
        all.push((name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap()));
    };
    random("token_embd.weight".into(), &[VOCAB, hidden], 0.0, 1.0);
    for layer_idx in 0..N_LAYERS {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        for (part, n_rows, n_cols) in [
            ("attn_q", query, hidden),
            ("attn_k", key, hidden),
            ("attn_v", key, hidden),
            ("attn_output", hidden, query),
            ("ffn_gate", intermediate, hidden),
            ("ffn_up", intermediate, hidden),
            ("ffn_down", hidden, intermediate),
        ] {
            // Rows of about unit gain, so that every layer counts.
            let spread = (3.0 / n_cols as f32).sqrt();
            random(name(&format!("{part}.weight")), &[n_rows, n_cols], 0.0, spread);
            if arch == "qwen2" && matches!(part, "attn_q" | "attn_k" | "attn_v") {
                random(name(&format!("{part}.bias")), &[n_rows], 0.0, 0.3);
            }
        }
        random(name("attn_norm.weight"), &[hidden], 1.0, 0.3);
        random(name("ffn_norm.weight"), &[hidden], 1.0, 0.3);
        if arch == "qwen3" {
            random(name("attn_q_norm.weight"), &[head_dim], 1.0, 0.3);
            random(name("attn_k_norm.weight"), &[head_dim], 1.0, 0.3);
        }
    }
    random("output_norm.weight".into(), &[hidden], 1.0, 0.3);
    if arch == "llama" {
        random("output.weight".into(), &[VOCAB, hidden], 0.0, 0.3);
    }
    all
}

pub fn hf_name(name: &str) -> String {
    [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_output", "self_attn.o_proj"),
        ("output.", "lm_head."),
        ("blk.", "model.layers."),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ]
    .iter()
    .fold(name.to_owned(), |name, (ggml, hf)| name.replace(ggml, hf))
}

/// Rows of queries or keys as GGUF's llama wants them: the halves of each head interleaved.
fn interleaved(tensor: &Tensor, n_heads: usize) -> Tensor {
    let (n_rows, n_cols) = tensor.dims2().unwrap();
    let halves = tensor.reshape((n_heads, 2, n_rows / n_heads / 2, n_cols)).unwrap();
    halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape((n_rows, n_cols)).unwrap()
}

/// The llama3 scaling as llama.cpp's converter writes it.
fn llama3_divisors(dim: usize) -> Vec<f32> {
    let (factor, low, high, original) = LLAMA3;
    let divisor = |i: usize| {
        let wavelength = std::f64::consts::TAU * THETA.powf(2.0 * i as f64 / dim as f64);
        let n_turns = original as f64 / wavelength;
        if n_turns > high {
            1.0
        } else if n_turns < low {
            factor
        } else {
            let smooth = (n_turns - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..dim / 2).map(|i| divisor(i) as f32).collect()
}

fn metadata(arch: &str, sizes: Sizes) -> Vec<(String, Value)> {
    let count = |n: usize| Value::U32(n as u32);
    let text = |text: &str| Value::String(text.to_owned());
    let texts = |all: &[String]| Value::Array(all.iter().map(|one| text(one)).collect());
    let merged = MERGES.iter().map(|pair| pair.replace(' ', ""));
    let names = (0..=255).map(|byte| byte_symbol(byte).to_string()).chain(merged);
    let specials = CONTROL.iter().chain(&MARKERS).map(|name| (*name).to_owned());
    let tokens: Vec<String> = names.chain(specials).collect();
    // 1 is a plain token, 3 a control token, 4 a user-defined one.
    let mut types = vec![Value::I32(1); 256 + MERGES.len()];
    types.extend(vec![Value::I32(3); CONTROL.len()]);
    types.extend(vec![Value::I32(4); MARKERS.len()]);
    let mut all = vec![
        ("general.architecture".to_owned(), text(arch)),
        ("general.name".to_owned(), text("tiny random model")),
        (format!("{arch}.block_count"), count(N_LAYERS)),
        (format!("{arch}.context_length"), count(CONTEXT)),
        (format!("{arch}.embedding_length"), count(sizes.hidden)),
        (format!("{arch}.feed_forward_length"), count(sizes.intermediate)),
        (format!("{arch}.attention.head_count"), count(N_HEADS)),
        (format!("{arch}.attention.head_count_kv"), count(N_KV_HEADS)),
        (format!("{arch}.rope.freq_base"), Value::F32(THETA as f32)),
        (format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(EPS as f32)),
    ];
    if arch == "qwen3" {
        all.push((format!("{arch}.attention.key_length"), count(sizes.head_dim)));
        all.push((format!("{arch}.attention.value_length"), count(sizes.head_dim)));
    }
    all.extend([
        ("tokenizer.ggml.model".to_owned(), text("gpt2")),
        ("tokenizer.ggml.pre".to_owned(), text("qwen2")),
        ("tokenizer.ggml.tokens".to_owned(), texts(&tokens)),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(types)),
        ("tokenizer.ggml.merges".to_owned(), texts(&MERGES.map(str::to_owned))),
        ("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(END_OF_TEXT)),
        ("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(IM_END)),
        ("tokenizer.ggml.padding_token_id".to_owned(), Value::U32(END_OF_TEXT)),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(false)),
        (
            "tokenizer.chat_template".to_owned(),
            text(include_str!("../../fixtures/model/chatml.jinja")),
        ),
    ]);
    all
}

/// The character that stands for a byte in byte-level BPE vocabularies (GPT-2's table).
fn byte_symbol(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_itself(byte) {
        return byte as char;
    }
    let n_before = (0..byte).filter(|byte| !is_itself(*byte)).count() as u32;
    char::from_u32(256 + n_before).unwrap()
}

#[test]
fn committed_tiny_model_is_what_this_program_writes() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("tiny.gguf");
    gguf(&written, "qwen2", GgmlDType::Q8_0, 7);
    let bytes = fs::read(&written).unwrap();
    assert!(bytes.len() < 300_000, "{} bytes are too many to commit", bytes.len());
    if std::env::var_os("ATTAR_WRITE_FIXTURES").is_some() {
        fs::write(fixture(), &bytes).unwrap();
    }
    assert!(bytes == fs::read(fixture()).unwrap(), "run again with ATTAR_WRITE_FIXTURES=1");
}

#[test]
fn tiny_models_open_with_the_sizes_they_were_written_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for arch in ["llama", "qwen2", "qwen3"] {
        gguf(&path, arch, GgmlDType::F32, 1);
        let from_gguf = attar::model::Decoder::load(&path, &mut |_, _| {}).unwrap();
        hf_folder(folder.path(), arch, 1);
        let from_folder = attar::model::Decoder::load(folder.path(), &mut |_, _| {}).unwrap();
        assert_eq!(from_gguf.shape(), from_folder.shape(), "{arch}");
        assert_eq!(from_gguf.config().vocab, VOCAB);
        assert_eq!(from_gguf.config().eos, [IM_END]);
        assert_eq!(from_folder.config().eos, [IM_END, END_OF_TEXT]);
        assert_eq!(from_gguf.config().tied_embeddings, from_folder.config().tied_embeddings);
        assert_ne!(from_gguf.fingerprint(), "");
    }
}
