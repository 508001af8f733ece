//! What was stored is damaged, gone, or of another make.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use attar::store::Turn;
use candle_core::quantized::GgmlDType;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::{Client, Daemon, cache_dir, generated, message, store, tiny};

const ARGS: [&str; 4] = ["--budget", "256", "--buffer", "32"];

/// A session of a few compactions in a daemon that was killed.
fn stored(model: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, mut client) = Daemon::start(dir.path(), model, &ARGS);
    client.call("session/open", json!({"session": "s", "tools": [tool("look")]}));
    for seed in 0..4 {
        generate(&mut client, seed);
    }
    let shown = client.call("session/show", json!({"session": "s"}));
    assert!(shown["cached"]["compactions"].as_u64().unwrap() > 3, "{shown}");
    daemon.kill();
    dir
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "looks", "parameters": {}}})
}

fn generate(client: &mut Client, seed: u64) -> Value {
    client.call(
        "session/generate",
        json!({
            "session": "s",
            "messages": [message("user", 40, seed)],
            "max_tokens": 70,
            "sampling": {"temperature": 0.8, "seed": seed},
        }),
    )
}

/// Opens a session that was `damaged`, goes on, and gives what `session/open` said and all
/// generated tokens.
fn go_on(damage: impl FnOnce(&Path)) -> (Value, Vec<Vec<u32>>) {
    let dir = stored(&tiny());
    damage(dir.path());
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    let opened = client.call("session/open", json!({"session": "s"}));
    generate(&mut client, 4);
    generate(&mut client, 5);
    daemon.kill();
    (opened, generated(&store(dir.path()), "s"))
}

/// Asserts that damage costs nothing but time.
#[track_caller]
fn assert_rebuilt(damage: impl FnOnce(&Path)) {
    let (opened, tokens) = go_on(|_| ());
    assert_eq!(opened["rebuilt"], false);
    let (opened, after_damage) = go_on(damage);
    assert_eq!((&opened["rebuilt"], &opened["resumed"]), (&json!(true), &json!(true)));
    assert_eq!(after_damage, tokens);
}

/// Changes the bytes in the middle of a stored chunk wherever the database has them.
fn flip_a_chunk(dir: &Path) {
    let image = store(dir).image("s").unwrap().unwrap();
    let (_, chunk) = &image.chunks[image.chunks.len() / 2];
    let sample = &chunk[chunk.len() / 2..][..32];
    let path = cache_dir(dir).join("db");
    let database = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let found: Vec<_> = (0..database.len() - sample.len())
        .filter(|at| database[*at..].starts_with(sample))
        .collect();
    assert!(!found.is_empty(), "the chunk is in the database as it is");
    for at in found {
        file.write_at(&[database[at] ^ 0x40], at as u64).unwrap();
    }
}

#[test]
fn a_flipped_byte_in_a_stored_cache_costs_time_and_no_token() {
    assert_rebuilt(flip_a_chunk);
}

#[test]
fn a_deleted_cache_database_costs_time_and_no_token() {
    assert_rebuilt(|dir| fs::remove_dir_all(cache_dir(dir)).unwrap());
}

#[test]
fn a_truncated_cache_database_costs_time_and_no_token() {
    for kept in [0, 100, 50_000] {
        assert_rebuilt(|dir| {
            for file in fs::read_dir(cache_dir(dir)).unwrap() {
                let path = file.unwrap().path();
                if path.is_file() {
                    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(kept).unwrap();
                }
            }
        });
    }
}

#[test]
fn a_cache_of_another_policy_version_is_rebuilt() {
    assert_rebuilt(|dir| {
        let store = store(dir);
        let mut image = store.image("s").unwrap().unwrap();
        let older = image.fingerprint.replace("/rkv.", "/rkv.9");
        assert_ne!(image.fingerprint, older);
        image.fingerprint = older;
        let header = store.header("s").unwrap().unwrap();
        let first_entry = store.stats("s").unwrap().n_entries;
        let turn = Turn { header: &header, first_entry, entries: &[], image: Some(&image) };
        assert!(store.commit("s", turn).unwrap().image_error.is_none());
    });
}

#[test]
fn a_cache_made_from_other_tokens_is_rebuilt() {
    assert_rebuilt(|dir| {
        let store = store(dir);
        let mut image = store.image("s").unwrap().unwrap();
        let header = store.header("s").unwrap().unwrap();
        // It begins with a hash of the tokens.
        image.meta[0] ^= 1;
        let first_entry = store.stats("s").unwrap().n_entries;
        let turn = Turn { header: &header, first_entry, entries: &[], image: Some(&image) };
        assert!(store.commit("s", turn).unwrap().image_error.is_none());
    });
}

const MISMATCH: i64 = 1008;

#[test]
fn a_session_of_another_model_opens_only_to_be_rebuilt() {
    let models = tempfile::tempdir().unwrap();
    let path = models.path().join("model.gguf");
    let model = path.display().to_string();
    fs::copy(crate::tiny::fixture(), &path).unwrap();
    let dir = stored(&model);

    // The same name, other weights.
    crate::tiny::gguf(&path, "qwen2", GgmlDType::Q8_0, 8);
    let (daemon, mut client) = Daemon::start(dir.path(), &model, &ARGS);
    let open = json!({"session": "s"});
    assert_eq!(client.try_call("session/open", &open), Err(MISMATCH));
    // Another name, the weights it was made with: no other model.
    let named = json!({"session": "s", "model": tiny()});
    assert_eq!(client.call("session/open", named)["rebuilt"], false);
    let other = json!({"session": "s", "model": model});
    assert_eq!(client.try_call("session/open", &other), Err(MISMATCH), "while it is open");

    let rebuilt =
        client.call("session/open", json!({"session": "s", "model": model, "rebuild": true}));
    assert_eq!((&rebuilt["rebuilt"], &rebuilt["turns"]), (&json!(true), &json!(0)));
    generate(&mut client, 9);
    daemon.kill();
    let (daemon, mut client) = Daemon::start(dir.path(), &model, &ARGS);
    let opened = client.call("session/open", open);
    assert_eq!((&opened["rebuilt"], &opened["turns"]), (&json!(false), &json!(1)));
    let shown = client.call("session/show", json!({"session": "s"}));
    assert_eq!(shown["history"].as_array().unwrap().len(), 10, "all that was said is still there");
    daemon.kill();
}

#[test]
fn a_session_with_other_tools_opens_only_to_be_rebuilt() {
    let dir = stored(&tiny());
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    let other = json!({"session": "s", "tools": [tool("listen")]});
    assert_eq!(client.try_call("session/open", &other), Err(MISMATCH));
    let mut rebuild = other.clone();
    rebuild["rebuild"] = json!(true);
    assert_eq!(client.call("session/open", rebuild)["rebuilt"], true);
    // A crash before the next turn does not bring the old tools back.
    daemon.kill();
    let (_daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    assert_eq!(client.call("session/open", other)["turns"], 4);
}

#[test]
fn a_session_of_another_version_does_not_hide_the_others() {
    let dir = stored(&tiny());
    let header = br#"{"version":99}"#;
    let turn = Turn { header, first_entry: 0, entries: &[], image: None };
    store(dir.path()).commit("newer", turn).unwrap();
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    let list = client.call("session/list", json!({}));
    let names: Vec<_> =
        list["sessions"].as_array().unwrap().iter().map(|s| &s["session"]).collect();
    assert_eq!(names, ["s"]);
    daemon.kill();
}
