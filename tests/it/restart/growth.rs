//! What a session takes on disk as it goes on.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::daemon::{Daemon, message, tiny};

/// Bytes of all files under a folder.
fn size(path: &Path) -> u64 {
    if path.is_file() {
        return fs::metadata(path).unwrap().len();
    }
    let Ok(files) = fs::read_dir(path) else { return 0 };
    files.map(|file| size(&file.unwrap().path())).sum()
}

#[test]
fn turns_that_rewrite_a_cache_take_its_space_again_instead_of_more() {
    const N_TURNS: u64 = 240;
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let args = ["--budget", "512", "--buffer", "32"];
    let (daemon, mut client) = Daemon::start(dir.path(), &tiny(), &args);
    client.call("session/open", json!({"session": "s"}));
    let mut bytes = 0;
    for seed in 0..N_TURNS {
        let answer = client.call(
            "session/generate",
            json!({"session": "s", "messages": [message("user", 8, seed)], "max_tokens": 32}),
        );
        bytes = answer["cache"]["bytes"].as_u64().unwrap();
    }
    let on_disk = size(dir.path());
    println!("{N_TURNS} turns of a {bytes} byte cache take {on_disk} bytes on disk");
    // Two databases of 8 MiB segments come to so much with a single turn.
    let first = 48 * MIB;
    assert!(N_TURNS * bytes > first / 2, "not enough was written to tell");
    assert!(on_disk < first + 5 * bytes, "{on_disk} bytes");
    daemon.kill();
}
