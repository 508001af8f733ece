//! What a turn costs on disk: 1,000 turns of about 1 KB of text and an 8 MiB image.
//!
//! `cargo bench --bench store -- [turns]`

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use attar::store::{DEFAULT_LIMIT_BYTES, Durability, Image, MAX_CHUNK_BYTES, Store, Turn};
use tempfile::TempDir;

const N_CHUNKS: u64 = 128;
/// Chunks that a turn changes which only appends to the cache.
const N_TAIL: u64 = 4;

fn main() {
    let n_turns = env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(1000);
    println!("{n_turns} turns, 1 KB of text and an image of 8 MiB in chunks of 64 KiB each");
    println!();
    println!(
        "{:<10} {:<8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "changes",
        "outlives",
        "ms/turn",
        "median",
        "p99",
        "KiB/turn",
        "MiB@10%",
        "MiB@50%",
        "MiB@100%",
        "restore",
        "RSS MiB"
    );
    for (changes, n_changed) in [("all", N_CHUNKS), ("last 4", N_TAIL), ("none", 0)] {
        for durability in [Durability::Power, Durability::Process] {
            run(n_turns, changes, n_changed, durability);
        }
    }
}

fn run(n_turns: u64, changes: &str, n_changed: u64, durability: Durability) {
    // Beside the build, because the system's folder for temporary files may be in memory.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the build folder is writable");
    let open = || Store::open_with(dir.path(), DEFAULT_LIMIT_BYTES, durability).expect("opens");
    let store = open();
    let mut image = Image {
        fingerprint: "bench".into(),
        meta: vec![0; 4096],
        chunks: (0..N_CHUNKS).map(|key| (key, vec![0; MAX_CHUNK_BYTES])).collect(),
    };
    let text = [b"Some text of a turn. ".repeat(50)];
    let (mut times, mut n_bytes, mut sizes) = (Vec::new(), 0, Vec::new());
    for turn in 0..n_turns {
        for (key, bytes) in &mut image.chunks[(N_CHUNKS - n_changed) as usize..] {
            let seed = [turn.to_le_bytes(), key.to_le_bytes()].concat();
            blake3::Hasher::new().update(&seed).finalize_xof().fill(bytes);
        }
        image.meta[0] = turn as u8;
        let begin = Instant::now();
        let turn_record =
            Turn { header: b"header", first_entry: turn, entries: &text, image: Some(&image) };
        let written = store.commit("bench", turn_record).expect("is kept");
        times.push(begin.elapsed());
        assert!(written.image_error.is_none());
        n_bytes += written.bytes;
        if [n_turns / 10, n_turns / 2, n_turns].contains(&(turn + 1)) {
            sizes.push(store.size_on_disk() >> 20);
        }
    }
    let rss = rss_mib();
    drop(store);
    let store = open();
    let begin = Instant::now();
    let restored = store.image("bench").expect("is read").expect("is there");
    let restore = begin.elapsed();
    assert!(restored == image);

    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    times.sort_unstable();
    let at = |part: usize| ms(times[(times.len() - 1) * part / 100]);
    sizes.resize(3, 0);
    println!(
        "{:<10} {:<8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
        changes,
        if durability == Durability::Power { "power" } else { "process" },
        ms(mean),
        at(50),
        at(99),
        n_bytes / n_turns / 1024,
        sizes[0],
        sizes[1],
        sizes[2],
        ms(restore),
        rss
    );
}

/// Resident memory of this process, where the system tells; else 0.
fn rss_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}
