//! What reading costs: logs to their findings, and each rule on a long log.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use attar::ingest::fold::RULES;
use attar::ingest::history::History;
use attar::ingest::log::Log;
use attar::ingest::span::{Kind, Part, Span};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Bytes of the log.
const LENGTH: usize = 8_000_000;

/// The recorded logs, one after the other, over and over.
fn long_log() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/logs");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    let all: String = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    all.repeat(LENGTH / all.len() + 1)
}

fn ingest(criterion: &mut Criterion) {
    let log = long_log();
    let mut group = criterion.benchmark_group("ingest");
    group.throughput(Throughput::Bytes(log.len() as u64)).sample_size(10);
    group.bench_function("log", |bencher| bencher.iter(|| Log::read(black_box(&log))));
    let history = History::default();
    let span = Span::new(Part::Content, 0..log.len(), Kind::Log);
    for rule in RULES {
        group.bench_function(BenchmarkId::new("rule", rule.name()), |bencher| {
            bencher.iter(|| rule.fold(&span, black_box(&log), &history));
        });
    }
    group.finish();
}

criterion_group!(benches, ingest);
criterion_main!(benches);
