//! The kernels at the shapes of small models.

use std::hint::black_box;

use attar::cache::kv::{CacheShape, Slots};
use attar::kernel::attention::{Attention, attend};
use attar::kernel::matmul::Matrix;
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Types with the `[n_rows, n_cols]` in which they occur in Qwen2.5-Coder-0.5B and -1.5B (Q4_K_M)
/// and in SmolLM2-135M (Q4_1).
const MATRICES: [(GgmlDType, &[(usize, usize)]); 6] = [
    (GgmlDType::Q5_0, &[(896, 896), (4864, 896)]),
    (GgmlDType::Q8_0, &[(128, 896), (49_152, 576)]),
    (GgmlDType::Q4_1, &[(576, 576), (576, 1536), (1536, 576)]),
    (GgmlDType::Q4K, &[(896, 4864), (1536, 1536), (8960, 1536), (1536, 8960)]),
    (GgmlDType::Q6K, &[(896, 4864), (1536, 8960)]),
    (GgmlDType::F16, &[(896, 4864)]),
];

fn noise(n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// A matrix with 1 to 256 tokens, beside candle's product of the same bytes: weights read in
/// bytes a second at one token, else operations (two a weight and token) a second.
fn matmul(c: &mut Criterion) {
    for (dtype, shapes) in MATRICES {
        for &(n_rows, n_cols) in shapes {
            let values = Tensor::from_vec(noise(n_rows * n_cols), (n_rows, n_cols), &Device::Cpu);
            let tensor =
                QTensor::quantize(&values.expect("a matrix"), dtype).expect("whole blocks");
            let bytes = tensor.data().expect("bytes of the CPU");
            let matrix = Matrix::from_ggml(dtype, &bytes, n_rows, n_cols).expect("whole blocks");
            drop(bytes);
            let candle = QMatMul::from_qtensor(tensor).expect("a matrix");
            let mut group = c.benchmark_group(format!("{dtype:?} {n_rows}x{n_cols}"));
            for n_tokens in [1, 4, 8, 16, 256] {
                let x = noise(n_tokens * n_cols);
                let mut out = vec![0.0; n_tokens * n_rows];
                group.throughput(match n_tokens {
                    1 => Throughput::Bytes(matrix.bytes() as u64),
                    _ => Throughput::Elements((2 * n_rows * n_cols * n_tokens) as u64),
                });
                group.bench_function(BenchmarkId::new("attar", n_tokens), |b| {
                    b.iter(|| matrix.multiply(black_box(&x), n_tokens, &mut out));
                });
                let x = Tensor::from_vec(x, (n_tokens, n_cols), &Device::Cpu).expect("a matrix");
                group.bench_function(BenchmarkId::new("candle", n_tokens), |b| {
                    b.iter(|| candle.forward(black_box(&x)));
                });
            }
        }
    }
}

fn attention(c: &mut Criterion) {
    for (name, n_kv_heads, n_groups) in [("0.5b", 2, 7), ("135m", 3, 3)] {
        let shape = CacheShape { n_layers: 1, n_kv_heads, n_groups, head_dim: 64 };
        let mut group = c.benchmark_group(format!("attention {name}"));
        for (n_live, n_tokens) in [(1024, 1), (8192, 1), (1024, 256), (8192, 256)] {
            let cache: Vec<f16> =
                noise(n_kv_heads * n_live * 64).into_iter().map(f16::from_f32).collect();
            let live = Slots { keys: &cache, values: &cache, n_slots: n_live, stride: n_live };
            let staged =
                Slots { keys: &cache, values: &cache, n_slots: n_tokens, stride: n_tokens };
            let staged = (n_tokens > 1).then_some(staged);
            let attention = Attention { live, staged, shape: &shape };
            let queries = noise(n_tokens * shape.n_heads() * 64);
            let mut out = vec![0.0; queries.len()];
            let pairs = n_tokens * n_live + n_tokens * n_tokens / 2;
            group.throughput(Throughput::Elements((4 * 64 * shape.n_heads() * pairs) as u64));
            group.bench_function(format!("{n_tokens} over {n_live}"), |b| {
                b.iter(|| attend(&attention, black_box(&queries), n_tokens, 0.125, None, &mut out));
            });
        }
    }
}

/// Makes this thread one of the pool, as the engine's is: a call from outside pays for waking it.
fn in_pool(_: &mut Criterion) {
    let pool = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    pool.expect("no pool was started before");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(50))
        .measurement_time(std::time::Duration::from_millis(300));
    targets = in_pool, matmul, attention
}
criterion_main!(benches);
