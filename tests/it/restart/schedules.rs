//! One conversation under many schedules: only its tokens decide what comes next.

use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::{Client, Daemon, cache_dir, generated, message, store, tiny};

const ARGS: [&str; 4] = ["--budget", "256", "--buffer", "32"];
const N_TURNS: u64 = 6;

/// The messages before each answer.
fn conversation(seed: u64) -> Vec<Vec<Value>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut turn = |turn_idx: u64| -> Vec<Value> {
        let roles: &[&str] = match (turn_idx, rng.random_range(0..3)) {
            (0, _) => &["system", "user"],
            (_, 0) => &["user"],
            (_, 1) => &["tool", "tool"],
            _ => &["tool", "user", "user"],
        };
        let mut message = |role: &&str| {
            let n_words = *[1, 12, 60, 150].get(rng.random_range(0..4)).unwrap();
            message(role, n_words, rng.random())
        };
        roles.iter().map(&mut message).collect()
    };
    (0..N_TURNS).map(&mut turn).collect()
}

fn request(session: &str, messages: &[Value], seed: u64, turn_idx: usize) -> Value {
    // One token leaves nothing in the cache by itself, 100 pass several compactions.
    let max_tokens = [40, 1, 100][(seed as usize + turn_idx) % 3];
    json!({
        "session": session,
        "messages": messages,
        "max_tokens": max_tokens,
        "sampling": {"temperature": 0.8, "seed": seed + turn_idx as u64},
    })
}

fn generate(client: &mut Client, session: &str, messages: &[Value], seed: u64, turn_idx: usize) {
    client.call("session/generate", request(session, messages, seed, turn_idx));
}

fn open(client: &mut Client, session: &str) -> Value {
    client.call("session/open", json!({"session": session}))
}

fn in_one_go(client: &mut Client, session: &str, seed: u64) {
    open(client, session);
    for (turn_idx, messages) in conversation(seed).iter().enumerate() {
        generate(client, session, messages, seed, turn_idx);
    }
}

/// Reads a turn's messages as a slow agent gives them: one by one, with or without pauses.
fn append_one_by_one(client: &mut Client, session: &str, messages: &[Value], rng: &mut ChaCha8Rng) {
    for message in messages {
        client.call("session/append", json!({"session": session, "messages": [message]}));
        if rng.random_bool(0.5) {
            client.wait_until_read(session);
        }
    }
}

/// Asserts that the sessions chose the tokens of the references, which repeat.
fn assert_same(dir: &Path, sessions: &[String], reference: &[Vec<Vec<u32>>]) {
    let store = store(dir);
    for (i, session) in sessions.iter().enumerate() {
        assert_eq!(generated(&store, session), reference[i % reference.len()], "{session}");
    }
}

/// The tokens of `n` conversations, each held in one go.
fn references(n: u64) -> Vec<Vec<Vec<u32>>> {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    (0..n).for_each(|seed| in_one_go(&mut client, &format!("s{seed}"), seed));
    let compactions = client.call("session/show", json!({"session": "s0"}));
    assert!(compactions["cached"]["compactions"].as_u64().unwrap() > 2);
    daemon.kill();
    let store = store(dir.path());
    (0..n).map(|seed| generated(&store, &format!("s{seed}"))).collect()
}

#[test]
fn neither_pauses_nor_closing_nor_crashes_nor_a_lost_cache_change_a_token() {
    const N: u64 = 12;
    let references = references(N);
    let dir = tempfile::tempdir().unwrap();
    let sessions: Vec<_> = (0..N).map(|seed| format!("s{seed}")).collect();
    let (mut daemon, mut client) = Daemon::start(dir.path(), &tiny(), &ARGS);
    for (seed, session) in (0..).zip(&sessions) {
        let mut rng = ChaCha8Rng::seed_from_u64(1_000 + seed);
        open(&mut client, session);
        for (turn_idx, messages) in conversation(seed).iter().enumerate() {
            let n_given = rng.random_range(0..=messages.len());
            let (before, with) = messages.split_at(n_given);
            append_one_by_one(&mut client, session, before, &mut rng);
            match rng.random_range(0..5) {
                0 => drop(client.call("session/close", json!({"session": session}))),
                1 => {
                    daemon.kill();
                    (daemon, client) = Daemon::start(dir.path(), &tiny(), &ARGS);
                }
                2 => {
                    daemon.kill();
                    std::fs::remove_dir_all(cache_dir(dir.path())).unwrap();
                    (daemon, client) = Daemon::start(dir.path(), &tiny(), &ARGS);
                }
                _ => {}
            }
            let opened = open(&mut client, session);
            if rng.random_bool(0.3) && opened["rebuilt"] == true {
                // Half-way through reading again.
                client.call("session/close", json!({"session": session}));
                open(&mut client, session);
            }
            generate(&mut client, session, with, seed, turn_idx);
        }
    }
    daemon.kill();
    assert_same(dir.path(), &sessions, &references);
}

/// Holds `n` conversations at once, each twice, over two connections each.
fn all_at_once(args: &[&str], n: u64) -> (TempDir, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, _) = Daemon::start(dir.path(), &tiny(), args);
    let sessions: Vec<_> = (0..2 * n).map(|i| format!("s{}-{}", i % n, i / n)).collect();
    let mut clients: Vec<_> = sessions.iter().map(|_| daemon.client()).collect();
    for (client, session) in clients.iter_mut().zip(&sessions) {
        open(client, session);
    }
    for turn_idx in 0..N_TURNS as usize {
        for (i, (client, session)) in clients.iter_mut().zip(&sessions).enumerate() {
            let seed = i as u64 % n;
            let messages = &conversation(seed)[turn_idx];
            client.send("session/generate", &request(session, messages, seed, turn_idx)).unwrap();
        }
        for client in &mut clients {
            client.answer().unwrap();
        }
    }
    daemon.kill();
    (dir, sessions)
}

#[test]
fn sessions_that_run_at_once_do_not_touch_each_other() {
    let references = references(8);
    let (dir, sessions) = all_at_once(&ARGS, 8);
    assert_same(dir.path(), &sessions, &references);
}

#[test]
fn calls_that_open_close_roll_back_and_delete_one_session_at_once_are_all_answered() {
    const NOT_OPEN: i64 = 1003;
    const BUSY: i64 = 1004;
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, _) = Daemon::start(dir.path(), &tiny(), &ARGS);
    let mut clients: Vec<_> = (0..6).map(|_| daemon.client()).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for round in 0..150 {
        let in_session = json!({"session": "s"});
        let with_text = json!({"session": "s", "messages": [message("user", 3, round)]});
        let mut generate = with_text.clone();
        generate["max_tokens"] = json!(3);
        let calls = [
            ("session/open", &in_session),
            ("session/open", &with_text),
            ("session/append", &with_text),
            ("session/generate", &generate),
            ("session/close", &in_session),
            ("session/checkpoint", &in_session),
            ("session/rollback", &in_session),
            ("session/delete", &in_session),
        ];
        for client in &mut clients {
            let (method, params) = calls[rng.random_range(0..calls.len())];
            client.send(method, params).unwrap();
        }
        for client in &mut clients {
            let answer = client.answer();
            assert!(matches!(answer, Ok(_) | Err(NOT_OPEN | BUSY)), "{answer:?} in {round}");
        }
    }
    daemon.kill();
}

#[test]
fn sessions_that_are_parked_for_memory_go_on_as_they_were() {
    let references = references(6);
    // Room for two caches and a half, beside the buffers that two threads compact with.
    let args = [&ARGS[..], &["--kv-memory", "1224KiB"]].concat();
    let dir = tempfile::tempdir().unwrap();
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &args);
    let sessions: Vec<_> = (0..6).map(|seed| format!("s{seed}")).collect();
    sessions.iter().for_each(|session| drop(open(&mut client, session)));
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for turn_idx in 0..N_TURNS as usize {
        let turns: Vec<_> = (0..6).map(|seed| conversation(seed).remove(turn_idx)).collect();
        for (session, messages) in sessions.iter().zip(&turns) {
            append_one_by_one(&mut client, session, &messages[..1], &mut rng);
        }
        for (seed, (session, messages)) in (0..).zip(sessions.iter().zip(&turns)) {
            generate(&mut client, session, &messages[1..], seed, turn_idx);
        }
    }
    daemon.kill();
    assert_same(dir.path(), &sessions, &references);
}
