//! What a long session takes on disk: a thousand turns through a daemon, with the tiny model.
//!
//! `cargo bench --bench growth -- [turns]`

#[path = "../tests/it/restart/daemon.rs"]
#[allow(dead_code, reason = "the tests, whose file this is, use more of it")]
mod daemon;

use std::fs;
use std::path::Path;

use serde_json::json;

use daemon::{Daemon, message, tiny};

fn main() {
    let n_turns = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(1000);
    // Beside the build, because the system's folder for temporary files may be in memory.
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("it is writable");
    let args = ["--budget", "512", "--buffer", "32"];
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &args);
    client.call("session/open", json!({"session": "s"}));
    println!(
        "{:>6} {:>8} {:>8} {:>10} {:>12} {:>12}",
        "turn", "tokens", "kept", "KiB cache", "KiB a turn", "MiB on disk"
    );
    let mut written_before = written(daemon.process.id());
    let mut turn_before = 0;
    for turn in 1..=n_turns {
        // A turn of some 30 tokens: a thousand fit the tiny model's context.
        let text = message("user", 1, turn);
        let answer = client
            .call("session/generate", json!({"session": "s", "messages": [text], "max_tokens": 4}));
        if ![n_turns / 10, n_turns / 2, n_turns].contains(&turn) {
            continue;
        }
        let now = written(daemon.process.id());
        println!(
            "{turn:>6} {:>8} {:>8} {:>10} {:>12} {:>12.1}",
            answer["usage"]["prompt_tokens"].to_string(),
            answer["cache"]["kept"].to_string(),
            answer["cache"]["bytes"].as_u64().unwrap_or(0) >> 10,
            (now - written_before) / (turn - turn_before) / 1024,
            size(dir.path()) as f64 / f64::from(1 << 20),
        );
        (written_before, turn_before) = (now, turn);
    }
}

/// Bytes that a process has handed to files so far, where the system tells; else 0.
fn written(process: u32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let count = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Bytes of all files under a folder.
fn size(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| size(&file.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |file| file.len()),
    }
}
