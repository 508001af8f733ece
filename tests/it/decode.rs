//! The decoder against itself: blocks, batches, budgets, and steps that cannot be taken.

use attar::model::{BLOCK, ModelError, Workspace};
use candle_core::quantized::GgmlDType;
use half::f16;

use super::parity::{
    ARCHS, assert_close, cache, full, load, prompt, read, real_model, step, tiny_gguf,
};
use super::tiny;

#[test]
fn prefill_and_decode_agree_for_every_weight_type() {
    use GgmlDType::*;
    for dtype in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K] {
        let decoder = tiny_gguf("qwen2", dtype);
        let tokens = prompt(64, tiny::VOCAB);
        let expected = full::<f32>(&decoder, &tokens, BLOCK);
        let mut cache = cache::<f32>(&decoder, "full", 256);
        read(&decoder, &mut cache, &tokens[..32], BLOCK);
        let ours = step(&decoder, &mut cache, &tokens[32..]);
        assert_close(&ours, &expected, 3e-2, &format!("{dtype:?}"));
    }
}

#[test]
fn block_borders_do_not_matter_to_the_full_cache() {
    let mut decoders: Vec<_> = ARCHS.iter().map(|arch| tiny_gguf(arch, GgmlDType::Q8_0)).collect();
    decoders.extend(real_model("smollm2-135m-instruct").map(|path| load(&path)));
    for decoder in decoders {
        let tokens = prompt(256, decoder.config().vocab);
        let whole = full::<f16>(&decoder, &tokens, BLOCK);
        for block in [100, 33] {
            let what = format!("{:?} in blocks of {block}", decoder.config().family);
            assert_close(&full::<f16>(&decoder, &tokens, block), &whole, 1e-3, &what);
        }
    }
}

#[test]
fn a_budget_that_is_not_reached_changes_nothing() {
    let decoder = tiny_gguf("qwen2", GgmlDType::Q8_0);
    let tokens = prompt(700, tiny::VOCAB);
    let (mut bounded, mut unbounded) =
        (cache::<f16>(&decoder, "rkv", 1_024), cache::<f16>(&decoder, "full", 1_024));
    assert_eq!(
        read(&decoder, &mut bounded, &tokens[..600], BLOCK),
        read(&decoder, &mut unbounded, &tokens[..600], BLOCK)
    );
    assert_eq!(
        step(&decoder, &mut bounded, &tokens[600..]),
        step(&decoder, &mut unbounded, &tokens[600..])
    );
    assert_eq!(bounded.n_compactions(), 0);
}

#[test]
fn a_sequence_decodes_the_same_alone_and_among_others() {
    for dtype in [GgmlDType::F32, GgmlDType::Q8_0, GgmlDType::Q4K] {
        let decoder = tiny_gguf("qwen3", dtype);
        let tokens = prompt(400, tiny::VOCAB);
        let mut caches: Vec<_> = [7, 150, 300]
            .map(|n_tokens| {
                let mut cache = cache::<f16>(&decoder, "rkv", 256);
                read(&decoder, &mut cache, &tokens[..n_tokens], BLOCK);
                cache
            })
            .into();
        let mut alone = caches.clone();
        let (mut work, mut logits) = (Workspace::default(), Vec::new());
        for i in 0..20 {
            let batch = [tokens[i], tokens[i + 100], tokens[i + 200]];
            let mut together: Vec<_> = caches.iter_mut().collect();
            decoder.decode(&batch, &mut together, &mut work, Some(&mut logits)).unwrap();
            for (j, cache) in alone.iter_mut().enumerate() {
                let expected = step(&decoder, cache, &batch[j..=j]);
                let ours = &logits[j * tiny::VOCAB..(j + 1) * tiny::VOCAB];
                assert!(ours == expected, "{dtype:?}: step {i} of sequence {j} differs");
            }
        }
    }
}

#[test]
fn tokens_replayed_together_have_the_bits_of_single_steps() {
    for dtype in [GgmlDType::F32, GgmlDType::Q8_0, GgmlDType::Q4K] {
        let decoder = tiny_gguf("qwen2", dtype);
        let tokens = prompt(430, tiny::VOCAB);
        let mut single = cache::<f16>(&decoder, "rkv", 256);
        read(&decoder, &mut single, &tokens[..380], BLOCK);
        let mut together = single.clone();
        let (mut work, mut logits) = (Workspace::default(), Vec::new());
        let mut rest = &tokens[380..];
        while !rest.is_empty() {
            if together.is_full() {
                together.compact(decoder.rope(), &work.scratch);
            }
            let n_now = rest.len().min(16).min(together.limit() - together.kept());
            let (now, later) = rest.split_at(n_now);
            decoder.replay(now, &mut together, &mut work, Some(&mut logits)).unwrap();
            for (token, ours) in now.iter().zip(logits.chunks(tiny::VOCAB)) {
                assert!(ours == step(&decoder, &mut single, &[*token]), "{dtype:?}");
            }
            rest = later;
        }
        assert!(together.n_compactions() > 0);
        assert_eq!(together.kept(), single.kept());
    }
}

#[test]
fn survivors_keep_the_keys_of_their_positions() {
    for arch in ARCHS {
        let decoder = tiny_gguf(arch, GgmlDType::F32);
        let tokens = prompt(2_000, tiny::VOCAB);
        let mut full = cache::<f16>(&decoder, "full", 256);
        read(&decoder, &mut full, &tokens, BLOCK);
        for policy in ["rkv", "h2o", "streaming", "snapkv"] {
            let mut bounded = cache::<f16>(&decoder, policy, 256);
            let logits = read(&decoder, &mut bounded, &tokens, BLOCK);
            assert!(logits.iter().all(|x| x.is_finite()));
            assert!(bounded.n_compactions() > 0 && bounded.kept() <= 256 + 128);
            assert_eq!(bounded.logical(), tokens.len());
            // A key of the first layer depends on its token and position alone.
            let (ours, theirs) = (bounded.layers()[0].slots(), full.layers()[0].slots());
            let dim = decoder.shape().head_dim;
            for head_idx in 0..decoder.shape().n_kv_heads {
                let positions = bounded.layers()[0].positions(head_idx);
                assert!(
                    positions.is_sorted_by(|a, b| a < b),
                    "{arch} {policy}: slots out of order"
                );
                for (slot_idx, position) in positions.iter().enumerate() {
                    let ours = &ours.keys[(head_idx * ours.stride + slot_idx) * dim..][..dim];
                    let theirs = head_idx * theirs.stride + *position as usize;
                    let theirs = &full.layers()[0].slots().keys[theirs * dim..][..dim];
                    assert_eq!(ours, theirs, "{arch} {policy}: head {head_idx} slot {slot_idx}");
                }
            }
        }
    }
}

#[test]
fn decoding_goes_on_for_long_under_a_small_budget() {
    let decoder = tiny_gguf("llama", GgmlDType::Q8_0);
    let mut cache = cache::<f16>(&decoder, "rkv", 256);
    let tokens = prompt(1_500, tiny::VOCAB);
    read(&decoder, &mut cache, &tokens[..300], BLOCK);
    let logits = step(&decoder, &mut cache, &tokens[300..]);
    assert!(logits.iter().all(|x| x.is_finite()));
    assert!(cache.n_compactions() > 5 && cache.kept() <= 256 + 128);
    assert_eq!(cache.logical(), 1_500);
}

#[test]
fn a_step_that_cannot_be_taken_says_why_and_changes_nothing() {
    let decoder = tiny_gguf("qwen2", GgmlDType::Q8_0);
    let mut cache = cache::<f16>(&decoder, "rkv", 256);
    let mut work = Workspace::default();
    let tokens = prompt(384, tiny::VOCAB);
    read(&decoder, &mut cache, &tokens, BLOCK);
    let before = cache.bytes();
    let check = |result: Result<(), ModelError>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    };
    let mut prefill = |tokens: &[u32]| decoder.prefill(tokens, &mut cache, &mut work, None);
    check(prefill(&[]), "a block of 0 tokens");
    check(prefill(&[0; 257]), "a block of 257 tokens");
    check(prefill(&[0, 9_999]), "token 9999 is outside the vocabulary of 267");
    let mut decode = |tokens: &[u32]| decoder.decode(tokens, &mut [&mut cache], &mut work, None);
    check(decode(&[1, 2]), "2 tokens for 1 caches");
    check(decode(&[1]), "384 slots; compact it");
    let mut replay = |tokens: &[u32]| decoder.replay(tokens, &mut cache, &mut work, None);
    check(replay(&[1]), "384 slots; compact it");
    check(replay(&[0; 17]), "a block of 17 tokens");
    assert_eq!((cache.logical(), cache.kept(), cache.bytes()), (384, 384, before));

    decoder.decode::<f16>(&[], &mut [], &mut work, None).unwrap();
    let mut other = self::cache::<f16>(&tiny_gguf("qwen3", GgmlDType::Q8_0), "full", 256);
    check(decoder.decode(&[1], &mut [&mut other], &mut work, None), "another model's shape");
    let mut long = self::cache::<f16>(&decoder, "full", 256);
    long.advance(tiny::CONTEXT - 1);
    check(decoder.prefill(&[1, 2], &mut long, &mut work, None), "position 32768 is past");
}

#[test]
fn fingerprints_tell_weights_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let fingerprint = |dtype, seed| {
        tiny::gguf(&path, "qwen2", dtype, seed);
        load(&path).fingerprint().to_owned()
    };
    let first = fingerprint(GgmlDType::Q8_0, 1);
    assert_eq!(fingerprint(GgmlDType::Q8_0, 1), first);
    assert_ne!(fingerprint(GgmlDType::Q8_0, 2), first);
    assert_ne!(fingerprint(GgmlDType::F16, 1), first);
}

/// Attention as it accumulates sums to one for each token and query head.
#[test]
fn accumulated_attention_is_complete() {
    let decoder = tiny_gguf("qwen2", GgmlDType::F32);
    let mut cache = cache::<f32>(&decoder, "h2o", 1_024);
    let tokens = prompt(420, tiny::VOCAB);
    read(&decoder, &mut cache, &tokens[..400], 150);
    step(&decoder, &mut cache, &tokens[400..]);
    let shape = decoder.shape();
    for layer_idx in 0..shape.n_layers {
        let n_slots = cache.kept();
        let (slots, importance) = cache.layer_mut(layer_idx).slots_and_importance();
        for head in importance.chunks(slots.stride) {
            let total: f32 = head[..n_slots].iter().sum();
            let expected = (420 * shape.n_groups) as f32;
            assert!((total - expected).abs() < 1e-3 * expected, "{total} instead of {expected}");
        }
    }
}
