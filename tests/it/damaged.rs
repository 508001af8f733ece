//! Model files that are not what they claim to be.

use std::fs::{self, File};
use std::path::Path;

use attar::cache::policy::by_name;
use attar::cache::{Budget, KvCache};
use attar::model::{Decoder, Workspace};
use candle_core::quantized::gguf_file::{self, Value};
use half::f16;
use proptest::prelude::*;

use super::tiny::{fixture, hf_folder};

#[track_caller]
fn error_of(path: &Path) -> String {
    match Decoder::load(path, &mut |_, _| {}) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(err) => err.to_string(),
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let whole = fs::read(fixture()).unwrap();
    let check = |bytes: &[u8], expected: &str| {
        fs::write(&path, bytes).unwrap();
        let error = error_of(&path);
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    };
    check(b"", "is not a GGUF file");
    check(b"PK\x03\x04 a zip archive", "is not a GGUF file");
    check(&whole[..1_000], "cannot be read");
    check(&whole[..whole.len() - 2_000], "the file is truncated");
    let replaced = |from: &str, to: &str| {
        let mut bytes = whole.clone();
        let n = from.len();
        assert_eq!(n, to.len());
        let at: Vec<_> =
            (0..bytes.len() - n).filter(|i| &bytes[*i..i + n] == from.as_bytes()).collect();
        at.iter().for_each(|i| bytes[*i..i + n].copy_from_slice(to.as_bytes()));
        bytes
    };
    check(&replaced("qwen2", "qwenX"), "unknown architecture `qwenX`; known are llama, qwen2");
    check(&replaced("blk.1.ffn_up", "blk.1.ffn_xx"), "tensor blk.1.ffn_up.weight is missing");
    check(&replaced("blk.1.attn_q.bias", "blk.1.attn_q.xxxx"), "blk.1.attn_q.bias is missing");
    check(&replaced("blk.0.ffn_up.", "blk.0.ffn_xx."), "blk.0.ffn_up.weight is missing");
    check(&replaced("embedding_length", "embedding_lengtx"), "`qwen2.embedding_length` is missing");
    let mut more_layers = whole.clone();
    let key = b"qwen2.block_count";
    let at = whole.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len() + 4;
    more_layers[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    check(&more_layers, "number of layers");
    more_layers[at..at + 4].copy_from_slice(&3u32.to_le_bytes());
    check(&more_layers, "tensor blk.2.attn_norm.weight is missing");

    let zero = Value::U32(0);
    gguf_file::write(&mut File::create(&path).unwrap(), &[("general.alignment", &zero)], &[])
        .unwrap();
    assert!(error_of(&path).contains("out of range"));

    assert!(error_of(&folder.path().join("none.gguf")).contains("none.gguf"));
    assert!(error_of(folder.path()).contains("config.json"));
    hf_folder(folder.path(), "qwen3", 1);
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert!(error_of(folder.path()).contains("model.safetensors"));
}

/// Opens what may be damaged, and uses it where it opens.
fn try_out(path: &Path) {
    let Ok(decoder) = Decoder::load(path, &mut |_, _| {}) else { return };
    let budget = Budget { n_slots: 256, n_buffer: 128 };
    let policy = by_name("full").unwrap();
    let mut cache = KvCache::<f16>::new(decoder.shape(), budget, policy);
    let mut work = Workspace::default();
    let _ = decoder.prefill(&[1, 2, 3], &mut cache, &mut work, Some(&mut Vec::new()));
    let _ = decoder.decode(&[4], &mut [&mut cache], &mut work, Some(&mut Vec::new()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_damaged_gguf_never_panics(
        flips in prop::collection::vec((0.0..1.0f64, any::<u8>()), 0..4),
        kept in 0.0..2.0f64,
    ) {
        // Squaring draws the damage to the front, where lengths and counts stand.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let mut bytes = fs::read(fixture()).unwrap();
        for (at, value) in flips {
            let at = (at * at * at * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((kept * bytes.len() as f64) as usize);
        fs::write(&path, &bytes).unwrap();
        try_out(&path);
    }

    #[test]
    fn a_damaged_folder_never_panics(
        which in 0..2usize,
        flips in prop::collection::vec((0.0..1.0f64, any::<u8>()), 0..4),
        kept in 0.0..2.0f64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        hf_folder(folder.path(), "qwen2", 1);
        let path = folder.path().join(["config.json", "model.safetensors"][which]);
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in flips {
            let at = (at * at * at * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((kept * bytes.len() as f64) as usize);
        fs::write(&path, &bytes).unwrap();
        try_out(folder.path());
    }
}
