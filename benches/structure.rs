//! Reading code: a thousand lines of each language, as a whole and as a numbered fragment.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;

use attar::ingest::span::Kind;
use attar::ingest::structure::{Given, read};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const N_LINES: usize = 1000;

const FILES: [&str; 9] = [
    "ledger.rs",
    "ledger.py",
    "ledger.js",
    "ledger.ts",
    "ledger.tsx",
    "ledger.go",
    "Ledger.java",
    "ledger.c",
    "ledger.cpp",
];

fn structure(c: &mut Criterion) {
    for name in FILES {
        let path = format!("{}/fixtures/code/{name}", env!("CARGO_MANIFEST_DIR"));
        let source = fs::read_to_string(path).expect("a fixture");
        let lines: Vec<_> = source.lines().cycle().take(N_LINES).collect();
        let whole = lines.join("\n");
        // Begins and ends in the middle of something.
        let numbered = source.lines().cycle().skip(source.lines().count() / 2).take(N_LINES);
        let fragment = (1..).zip(numbered).fold(String::new(), |mut text, (number, line)| {
            writeln!(text, "{number:>6}→{line}").expect("a string takes everything");
            text
        });
        let mut group = c.benchmark_group(format!("{N_LINES} lines of {name}"));
        for (what, text) in [("whole", &whole), ("fragment", &fragment)] {
            let given =
                Given { kind: Kind::FileView, path: Some(name), language: None, first_line: None };
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(what, |b| b.iter(|| read(black_box(text), &given)));
        }
        group.finish();
    }
}

criterion_group!(benches, structure);
criterion_main!(benches);
