//! Runs llama.cpp on a GGUF file and prints one JSON line a measurement, in the form of
//! `attar bench --json`; with `--greedy FILE` it prints the tokens that it generates after the
//! file's text, and how sure each was.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use serde_json::json;

/// Tokens of one call of llama.cpp.
const BATCH: usize = 512;

#[derive(Clone, Copy, ValueEnum)]
enum Switch {
    Auto,
    On,
    Off,
}

#[derive(Parser)]
struct Options {
    model: PathBuf,
    #[arg(long, default_value_t = 2)]
    threads: i32,
    /// Tokens of the prefill measurement.
    #[arg(long, default_value_t = 512)]
    prefill: usize,
    /// Tokens that stand in each sequence's cache before decoding is measured.
    #[arg(long, value_delimiter = ',', default_value = "0,2048")]
    depths: Vec<usize>,
    /// Tokens that are decoded for each depth.
    #[arg(long, default_value_t = 32)]
    decode: usize,
    /// Sequences that decode together.
    #[arg(long, default_value_t = 1)]
    seqs: usize,
    /// Flash attention.
    #[arg(long, value_enum, default_value = "auto")]
    fa: Switch,
    /// Generate after this file's text instead of measuring.
    #[arg(long)]
    greedy: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let model =
        LlamaModel::load_from_file(&backend, &options.model, &LlamaModelParams::default())?;
    match &options.greedy {
        Some(prompt) => greedy(&backend, &model, &std::fs::read_to_string(prompt)?, &options),
        None => measure(&backend, &model, &options),
    }
}

fn params(options: &Options, n_ctx: usize, n_batch: usize) -> LlamaContextParams {
    LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(n_ctx as u32))
        .with_n_batch(n_batch as u32)
        .with_n_threads(options.threads)
        .with_n_threads_batch(options.threads)
}

fn measure(backend: &LlamaBackend, model: &LlamaModel, options: &Options) -> Result<()> {
    let &Options { prefill, decode, seqs, .. } = options;
    let deepest = options.depths.iter().copied().max().unwrap_or(0).max(prefill);
    let n_batch = BATCH.max(seqs);
    let flash = match options.fa {
        Switch::Auto => -1,
        Switch::On => 1,
        Switch::Off => 0,
    };
    let params = params(options, (deepest + decode + 64) * seqs, n_batch)
        .with_n_ubatch(n_batch as u32)
        .with_n_seq_max(seqs as u32)
        .with_flash_attention_policy(flash)
        .with_type_k(KvCacheType::F16)
        .with_type_v(KvCacheType::F16);
    let mut ctx = model.new_context(backend, params)?;
    let n_vocab = model.n_vocab() as usize;
    let token = |i: usize| LlamaToken(((1000 + i * 7919) % (n_vocab - 1000)) as i32);
    let feed = |ctx: &mut LlamaContext, seq: i32, n_tokens: usize| -> Result<()> {
        for from in (0..n_tokens).step_by(BATCH) {
            let to = n_tokens.min(from + BATCH);
            let mut batch = LlamaBatch::new(to - from, 1);
            for i in from..to {
                batch.add(token(i), i as i32, &[seq], i + 1 == to)?;
            }
            ctx.decode(&mut batch)?;
        }
        ctx.synchronize();
        Ok(())
    };

    feed(&mut ctx, 0, 32)?; // wakes its threads and pages in the weights
    ctx.clear_kv_cache();
    let started = Instant::now();
    feed(&mut ctx, 0, prefill)?;
    let rate = prefill as f64 / started.elapsed().as_secs_f64();
    println!("{}", json!({"what": "prefill", "tokens": prefill, "tok_s": rate}));

    for &depth in &options.depths {
        ctx.clear_kv_cache();
        for seq in 0..seqs {
            feed(&mut ctx, seq as i32, depth)?;
        }
        let started = Instant::now();
        for i in 0..decode {
            let mut batch = LlamaBatch::new(seqs, 1);
            for seq in 0..seqs {
                batch.add(token(depth + i + seq), (depth + i) as i32, &[seq as i32], true)?;
            }
            ctx.decode(&mut batch)?;
            ctx.synchronize();
        }
        let rate = (decode * seqs) as f64 / started.elapsed().as_secs_f64();
        println!("{}", json!({"what": "decode", "depth": depth, "seqs": seqs, "tok_s": rate}));
    }
    Ok(())
}

fn greedy(
    backend: &LlamaBackend,
    model: &LlamaModel,
    prompt: &str,
    options: &Options,
) -> Result<()> {
    let vocab = model.vocab();
    let prompt_tokens = vocab.tokenize(prompt.as_bytes(), false, true);
    let n_prompt = prompt_tokens.len();
    let params = params(options, n_prompt + options.decode + 8, n_prompt.max(32));
    let mut ctx = model.new_context(backend, params)?;
    let mut batch = LlamaBatch::new(n_prompt.max(1), 1);
    for (i, token) in prompt_tokens.iter().enumerate() {
        batch.add(*token, i as i32, &[0], i + 1 == n_prompt)?;
    }
    ctx.decode(&mut batch)?;
    let (mut tokens, mut margins) = (Vec::new(), Vec::new());
    let mut row = batch.n_tokens() - 1;
    while tokens.len() < options.decode {
        let mut best = (0, f32::NEG_INFINITY);
        let mut second = f32::NEG_INFINITY;
        for (id, &logit) in ctx.get_logits_ith(row).iter().enumerate() {
            if logit > best.1 {
                second = best.1;
                best = (id, logit);
            } else if logit > second {
                second = logit;
            }
        }
        let token = LlamaToken(best.0 as i32);
        if vocab.is_eog(token) {
            break;
        }
        let mut batch = LlamaBatch::new(1, 1);
        batch.add(token, (n_prompt + tokens.len()) as i32, &[0], true)?;
        tokens.push(token.0);
        margins.push(best.1 - second);
        ctx.decode(&mut batch)?;
        row = 0;
    }
    let model = options.model.file_stem().unwrap_or_default().to_string_lossy();
    let prompt_tokens: Vec<_> = prompt_tokens.iter().map(|token| token.0).collect();
    println!(
        "{}",
        json!({
            "model": model,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "margins": margins,
        })
    );
    Ok(())
}
