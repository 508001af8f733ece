//! The decoder against candle-transformers and against llama.cpp.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use attar::cache::policy::by_name;
use attar::cache::{Budget, KvCache, KvElement};
use attar::model::tokenizer::Tokenizer;
use attar::model::{BLOCK, Decoder, Workspace};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2, qwen3};
use half::f16;
use serde::Deserialize;
use serde_json::{Value, json};

use super::tiny;

pub const ARCHS: [&str; 3] = ["llama", "qwen2", "qwen3"];

pub fn load(path: &Path) -> Decoder {
    Decoder::load(path, &mut |_, _| {}).unwrap()
}

/// A tiny model in f32, beside candle-transformers' model of the same weights.
fn tiny_pair(arch: &str) -> (Decoder, Reference) {
    let folder = tempfile::tempdir().unwrap();
    tiny::hf_folder(folder.path(), arch, 3);
    let config = fs::read(folder.path().join("config.json")).unwrap();
    let weights = folder.path().join("model.safetensors");
    let weights = candle_core::safetensors::load(weights, &Device::Cpu).unwrap();
    let reference = Reference::new(arch, serde_json::from_slice(&config).unwrap(), weights);
    (load(folder.path()), reference)
}

pub fn tiny_gguf(arch: &str, dtype: GgmlDType) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny::gguf(&path, arch, dtype, 3);
    load(&path)
}

/// A model of the user's, if it is there.
pub fn real_model(name: &str) -> Option<PathBuf> {
    let data = match std::env::var_os("XDG_DATA_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".local/share"),
    };
    let path = data.join("attar/models").join(format!("{name}.gguf"));
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// Text-like tokens: some come often, most seldom.
pub fn prompt(n_tokens: usize, n_vocab: usize) -> Vec<u32> {
    let mut state = 1u64;
    let mut token = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (state >> 40) as f64 / (1u64 << 24) as f64;
        (x * x * n_vocab as f64) as u32
    };
    (0..n_tokens).map(|_| token()).collect()
}

pub fn cache<E: KvElement>(decoder: &Decoder, policy: &str, n_slots: usize) -> KvCache<E> {
    let budget = Budget { n_slots, n_buffer: 128 };
    KvCache::new(decoder.shape(), budget, by_name(policy).unwrap())
}

/// Reads `tokens` in blocks of at most `block`; logits of the last token.
pub fn read<E: KvElement>(
    decoder: &Decoder,
    cache: &mut KvCache<E>,
    tokens: &[u32],
    block: usize,
) -> Vec<f32> {
    let (mut work, mut logits) = (Workspace::default(), Vec::new());
    for block in tokens.chunks(block) {
        decoder.prefill(block, cache, &mut work, Some(&mut logits)).unwrap();
    }
    logits
}

/// Takes `tokens` one by one; logits of the last one.
pub fn step<E: KvElement>(decoder: &Decoder, cache: &mut KvCache<E>, tokens: &[u32]) -> Vec<f32> {
    let (mut work, mut logits) = (Workspace::default(), Vec::new());
    for token in tokens {
        if cache.is_full() {
            cache.compact(decoder.rope(), &work.scratch);
        }
        decoder.decode(&[*token], &mut [cache], &mut work, Some(&mut logits)).unwrap();
    }
    logits
}

/// Logits of the last of `tokens` under the policy `full`.
pub fn full<E: KvElement>(decoder: &Decoder, tokens: &[u32], block: usize) -> Vec<f32> {
    read(decoder, &mut cache::<E>(decoder, "full", 256), tokens, block)
}

#[track_caller]
pub fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32, what: &str) {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let apart = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
    println!("{what}: {apart:.1e}");
    assert!(apart < tolerance, "{what}: logits differ by {apart:.1e} of the largest");
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
}

/// candle-transformers' models, in f32.
enum Reference {
    Llama(llama::Llama, llama::Config),
    Qwen2(qwen2::ModelForCausalLM),
    Qwen3(qwen3::ModelForCausalLM),
}

impl Reference {
    fn new(arch: &str, config: Value, weights: HashMap<String, Tensor>) -> Self {
        let weights = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
        match arch {
            "llama" => {
                let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
                let config = config.into_config(false);
                Self::Llama(llama::Llama::load(weights, &config).unwrap(), config)
            }
            "qwen2" => {
                let config = serde_json::from_value(config).unwrap();
                Self::Qwen2(qwen2::ModelForCausalLM::new(&config, weights).unwrap())
            }
            _ => {
                let config = serde_json::from_value(config).unwrap();
                Self::Qwen3(qwen3::ModelForCausalLM::new(&config, weights).unwrap())
            }
        }
    }

    /// Logits of the last of `tokens`, read in one go from an empty cache.
    fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let tokens = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let logits = match self {
            Self::Llama(model, config) => {
                let mut cache = llama::Cache::new(true, DType::F32, config, &Device::Cpu).unwrap();
                model.forward(&tokens, 0, &mut cache)
            }
            Self::Qwen2(model) => {
                model.clear_kv_cache();
                model.forward(&tokens, 0)
            }
            Self::Qwen3(model) => {
                model.clear_kv_cache();
                model.forward(&tokens, 0)
            }
        };
        logits.unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }
}

#[test]
fn logits_equal_candle_transformers_for_every_family() {
    for arch in ARCHS {
        let (decoder, mut reference) = tiny_pair(arch);
        let tokens = prompt(600, tiny::VOCAB);
        for (n_tokens, block) in [(1, 1), (200, 200), (600, BLOCK), (600, 97)] {
            let tokens = &tokens[..n_tokens];
            let theirs = reference.logits(tokens);
            let what = format!("{arch}, {n_tokens} tokens in blocks of {block}");
            assert_close(&full::<f32>(&decoder, tokens, block), &theirs, 1e-3, &what);
            assert_close(&full::<f16>(&decoder, tokens, block), &theirs, 1e-2, &what);
        }
    }
}

#[test]
fn decoded_steps_equal_candle_transformers() {
    for arch in ARCHS {
        let (decoder, mut reference) = tiny_pair(arch);
        let tokens = prompt(300, tiny::VOCAB);
        let mut cache = cache::<f32>(&decoder, "full", 256);
        read(&decoder, &mut cache, &tokens[..200], BLOCK);
        let ours = step(&decoder, &mut cache, &tokens[200..]);
        assert_close(&ours, &reference.logits(&tokens), 1e-3, arch);
    }
}

#[test]
fn gguf_and_safetensors_of_the_same_weights_agree() {
    for arch in ARCHS {
        let (folder, _) = tiny_pair(arch);
        let tokens = prompt(300, tiny::VOCAB);
        let expected = full::<f32>(&folder, &tokens, BLOCK);
        for (dtype, tolerance) in [(GgmlDType::F32, 1e-4), (GgmlDType::F16, 1e-2)] {
            let ours = full::<f32>(&tiny_gguf(arch, dtype), &tokens, BLOCK);
            assert_close(&ours, &expected, tolerance, &format!("{arch} {dtype:?}"));
        }
    }
}

/// A real file's weights widened to f32, in candle-transformers' model.
fn widened(path: &Path, decoder: &Decoder) -> Reference {
    let config = decoder.config();
    let mut file = File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let Some(arch) = content.metadata["general.architecture"].to_string().ok() else { panic!() };
    let weights = content.tensor_infos.keys().map(|name| {
        let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
        let mut tensor = tensor.dequantize(&Device::Cpu).unwrap();
        if arch == "llama" && (name.contains("attn_q") || name.contains("attn_k")) {
            let (n_rows, n_cols) = tensor.dims2().unwrap();
            let dim = config.head_dim;
            let pairs = tensor.reshape((n_rows / dim, dim / 2, 2, n_cols)).unwrap();
            let halves = pairs.transpose(1, 2).unwrap().contiguous().unwrap();
            tensor = halves.reshape((n_rows, n_cols)).unwrap();
        }
        (tiny::hf_name(name), tensor)
    });
    let weights = weights.collect();
    let config = json!({
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "vocab_size": config.vocab,
        "max_position_embeddings": 1_024,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "sliding_window": 1_024,
        "max_window_layers": config.n_layers,
        "use_sliding_window": false,
    });
    Reference::new(arch, config, weights)
}

#[test]
fn logits_of_real_models_equal_candle_transformers() {
    for name in ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"] {
        let Some(path) = real_model(name) else { continue };
        let decoder = load(&path);
        // Rare tokens at the vocabulary's end make logits that no text does.
        let tokens = prompt(200, 20_000);
        let theirs = widened(&path, &decoder).logits(&tokens);
        let mut cache = cache::<f16>(&decoder, "full", 256);
        read(&decoder, &mut cache, &tokens[..190], BLOCK);
        let stepped = step(&decoder, &mut cache, &tokens[190..]);
        // The decoder rounds activations to 8 bits, the reference does not.
        assert_close(&full::<f32>(&decoder, &tokens, BLOCK), &theirs, 5e-2, name);
        assert_close(&full::<f16>(&decoder, &tokens, BLOCK), &theirs, 5e-2, name);
        assert_close(&stepped, &theirs, 5e-2, &format!("{name}, last ten decoded"));
    }
}

/// What llama.cpp generates greedily, as `fixtures/parity/MODEL-NN.json` holds it.
#[derive(Deserialize)]
struct Recording {
    /// The file's name in the models folder, without its ending.
    model: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    /// Of each token: its logit less the runner-up's.
    margins: Vec<f32>,
}

/// Margin from which on the two engines' 8-bit activations do not change the likeliest token. Both
/// round them, and the least difference makes them round differently: over all recorded tokens the
/// margins of the two differ by 0.19 (SmolLM2) and 0.10 (Qwen2.5), one standard deviation; this is
/// four of the larger.
const SURE: f32 = 0.75;

#[test]
fn greedy_tokens_equal_llama_cpp() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/parity");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .map(|files| files.map(|file| file.unwrap().path()).collect())
        .unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let mut decoders = HashMap::new();
    let (mut n_files, mut n_compared) = (0, 0);
    for path in files {
        let recording: Recording = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let name = recording.model.trim_end_matches(".gguf").to_owned();
        let Some(decoder) = decoders
            .entry(name)
            .or_insert_with_key(|name| real_model(name).map(|path| load(&path)))
        else {
            continue;
        };
        let prompt = folder.join("prompts").join(path.with_extension("txt").file_name().unwrap());
        let tokenizer = Tokenizer::load(real_model(&recording.model).unwrap()).unwrap();
        let ours = tokenizer.encode(&fs::read_to_string(prompt).unwrap()).unwrap();
        assert_eq!(ours, recording.prompt_tokens, "{}", path.display());
        let mut cache = cache::<f16>(decoder, "full", 256);
        let mut logits = read(decoder, &mut cache, &recording.prompt_tokens, BLOCK);
        // Behind each of llama.cpp's tokens, where it was sure of the next: two engines may part
        // where two tokens are about as likely.
        for (i, (token, margin)) in recording.tokens.iter().zip(&recording.margins).enumerate() {
            if *margin >= SURE {
                assert_eq!(argmax(&logits), *token, "{}, token {i}", path.display());
                n_compared += 1;
            }
            logits = step(decoder, &mut cache, &[*token]);
        }
        n_files += 1;
    }
    println!("{n_compared} tokens of {n_files} files are llama.cpp's");
    assert!(n_compared >= 8 * n_files, "only {n_compared} tokens of {n_files} files compared");
}
