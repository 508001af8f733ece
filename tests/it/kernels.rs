//! The kernels against plain arithmetic in f64.

use attar::cache::kv::{CacheShape, KvElement, Slots};
use attar::kernel::attention::{Attention, Mass, attend};
use attar::kernel::matmul::{Matrix, MatrixError, multiply_many};
use attar::kernel::norm;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const DTYPES: [GgmlDType; 15] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q8_1,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
];

/// Types that are held as floats, and multiplied as such.
const FLOATS: [GgmlDType; 4] = [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16, GgmlDType::Q8K];

/// Numbers between -1 and 1, the same for the same seed.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// A matrix of noise in a file's type, beside candle's reading of the same bytes.
fn quantised(dtype: GgmlDType, n_rows: usize, n_cols: usize, seed: u64) -> (Matrix, Vec<f32>) {
    let values = noise(n_rows * n_cols, seed);
    let bytes = match dtype {
        // candle quantises to these in no public way.
        GgmlDType::Q8_1 => q8_1(&values),
        GgmlDType::Q8K => q8k(&values),
        GgmlDType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        GgmlDType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        GgmlDType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => {
            let tensor = Tensor::from_vec(values, (n_rows, n_cols), &Device::Cpu).unwrap();
            QTensor::quantize(&tensor, dtype).unwrap().data().unwrap().into_owned()
        }
    };
    let matrix = Matrix::from_ggml(dtype, &bytes, n_rows, n_cols).unwrap();
    let storage = dtype.from_data(bytes.into()).dequantize(n_rows * n_cols).unwrap();
    (matrix, storage.as_slice::<f32>().unwrap().to_vec())
}

fn q8_1(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in values.chunks_exact(32) {
        bytes.extend(f16::from_f32(1.0 / 127.0).to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(block.iter().map(|v| (v * 127.0).round() as i8 as u8));
    }
    bytes
}

fn q8k(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in values.chunks_exact(256) {
        bytes.extend((1f32 / 127.0).to_le_bytes());
        bytes.extend(block.iter().map(|v| (v * 127.0).round() as i8 as u8));
        bytes.extend([0; 32]);
    }
    bytes
}

/// The product in f64, and for each output the sum of its terms' sizes.
fn product(weights: &[f32], x: &[f32], n_cols: usize) -> Vec<(f64, f64)> {
    let mut products = Vec::new();
    for x in x.chunks_exact(n_cols) {
        for row in weights.chunks_exact(n_cols) {
            let terms = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            products.push(terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs())));
        }
    }
    products
}

/// Activations that 8 bits hold exactly, with the largest of either sign in each block of 32.
fn whole(x: &[f32]) -> Vec<f32> {
    let whole = |(i, x): (usize, &f32)| match i % 32 {
        0 => 127f32.copysign(*x),
        _ => (x * 127.0).round(),
    };
    x.iter().enumerate().map(whole).collect()
}

/// The most that rounding activations to 8 bits can change each output: half a step of a block of
/// 32 for each weight.
fn rounding_bounds(weights: &[f32], x: &[f32], n_cols: usize) -> Vec<f64> {
    let mut bounds = Vec::new();
    for x in x.chunks_exact(n_cols) {
        for row in weights.chunks_exact(n_cols) {
            let blocks = row.chunks(32).zip(x.chunks(32));
            bounds.push(
                blocks
                    .map(|(row, x)| {
                        let top = x.iter().fold(0f32, |top, x| top.max(x.abs()));
                        let weights: f32 = row.iter().map(|w| w.abs()).sum();
                        f64::from(top) / 254.0 * f64::from(weights)
                    })
                    .sum(),
            );
        }
    }
    bounds
}

fn check_product(dtype: GgmlDType, n_rows: usize, n_blocks: usize, n_tokens: usize, seed: u64) {
    let n_cols = n_blocks * dtype.block_size().max(32);
    let (matrix, weights) = quantised(dtype, n_rows, n_cols, seed);
    let x = noise(n_tokens * n_cols, seed + 1);
    let mut out = vec![f32::NAN; n_tokens * n_rows];
    matrix.multiply(&x, n_tokens, &mut out).unwrap();
    let mut bounds = vec![0.0; out.len()];
    if !FLOATS.contains(&dtype) {
        bounds = rounding_bounds(&weights, &x, n_cols);
    }
    for (i, (exact, size)) in product(&weights, &x, n_cols).into_iter().enumerate() {
        let error = (f64::from(out[i]) - exact).abs();
        let bound = bounds[i] * 1.001 + 1e-6 * size + 1e-6;
        assert!(error <= bound, "{dtype:?} {i}: {} for {exact}, bound {bound}", out[i]);
    }
    let x = whole(&x);
    matrix.multiply(&x, n_tokens, &mut out).unwrap();
    for (i, (exact, size)) in product(&weights, &x, n_cols).into_iter().enumerate() {
        let error = (f64::from(out[i]) - exact).abs();
        assert!(error <= 1e-6 * size + 1e-6, "{dtype:?} {i}: {} for {exact}", out[i]);
    }
    let mut row = vec![0.0; n_cols];
    matrix.row(n_rows - 1, &mut row);
    for (value, exact) in row.iter().zip(&weights[(n_rows - 1) * n_cols..]) {
        assert!((value - exact).abs() <= 1e-6, "{dtype:?} row: {value} for {exact}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn every_file_type_multiplies_as_candle_reads_it(
        n_rows in 1usize..40,
        n_blocks in 1usize..5,
        n_tokens in 1usize..20,
        seed in 0u64..1000,
    ) {
        for dtype in DTYPES {
            check_product(dtype, n_rows, n_blocks, n_tokens, seed);
        }
    }
}

#[test]
fn floats_multiply_in_f32_at_any_width() {
    for n_cols in [1, 7, 33, 100] {
        let (n_rows, n_tokens) = (11, 5);
        let (matrix, values) = quantised(GgmlDType::F32, n_rows, n_cols, 1);
        assert_eq!(matrix.bytes(), 4 * n_rows * n_cols);
        let x = noise(n_tokens * n_cols, 2);
        let mut out = vec![f32::NAN; n_tokens * n_rows];
        matrix.multiply(&x, n_tokens, &mut out).unwrap();
        for (out, (exact, size)) in out.iter().zip(product(&values, &x, n_cols)) {
            assert!((f64::from(*out) - exact).abs() <= 1e-6 * size + 1e-9);
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_in_a_batch() {
    for dtype in DTYPES {
        // Floats in larger batches are left to another library.
        let n_tokens = if FLOATS.contains(&dtype) { 16 } else { 40 };
        let (n_rows, n_cols) = (21, 512);
        let (first, _) = quantised(dtype, n_rows, n_cols, 1);
        let (second, _) = quantised(GgmlDType::Q5_0, 300, n_cols, 2);
        let x = noise(n_tokens * n_cols, 3);
        let (mut batch, mut other) = (vec![0.0; n_tokens * n_rows], vec![0.0; n_tokens * 300]);
        multiply_many([&first, &second], &x, n_tokens, [&mut batch, &mut other]).unwrap();
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for (t, x) in x.chunks_exact(n_cols).enumerate() {
            let mut alone = vec![0.0; n_rows];
            one_thread.install(|| first.multiply(x, 1, &mut alone)).unwrap();
            assert_eq!(alone, batch[t * n_rows..(t + 1) * n_rows], "{dtype:?} token {t}");
            let mut alone = vec![0.0; 300];
            second.multiply(x, 1, &mut alone).unwrap();
            assert_eq!(alone, other[t * 300..(t + 1) * 300], "second matrix, token {t}");
        }
    }
}

#[test]
fn wrong_lengths_are_refused_with_their_numbers() {
    let short = Matrix::from_ggml(GgmlDType::Q8_0, &[0; 33], 1, 32).err().unwrap();
    assert_eq!(short.to_string(), "1 rows of 32 columns take 34 bytes as Q8_0, found 33");
    let uneven = Matrix::from_ggml(GgmlDType::Q4K, &[], 1, 32).err().unwrap();
    assert_eq!(uneven.to_string(), "32 columns do not divide into blocks of 256 as Q4K asks");
    let huge = Matrix::from_ggml(GgmlDType::Q8_0, &[0; 34], usize::MAX, 32);
    assert!(matches!(huge, Err(MatrixError::Weights { .. })));
    let empty = Matrix::from_ggml(GgmlDType::F16, &[], 0, 32).err().unwrap();
    assert_eq!(empty.to_string(), "a matrix of 0 rows and 32 columns is empty");
    let matrix = Matrix::from_ggml(GgmlDType::F32, &[0; 24], 2, 3).unwrap();
    let mut out = [0.0; 4];
    for n in [1, 3] {
        assert!(matrix.multiply(&[0.0; 6], n, &mut out).is_err());
    }
    matrix.multiply(&[], 0, &mut []).unwrap();
}

/// A layer of noise, live and staged.
struct Layer<E> {
    shape: CacheShape,
    live: (Vec<E>, Vec<E>, usize, usize),
    staged: (Vec<E>, Vec<E>, usize),
}

impl<E: KvElement> Layer<E> {
    fn new(heads: usize, groups: usize, dim: usize, n_live: usize, n_staged: usize) -> Self {
        let narrow = |n: usize, seed: u64| {
            let mut to = vec![E::default(); n];
            E::narrow(&noise(n, seed), &mut to);
            to
        };
        let stride = n_live + 3;
        Self {
            shape: CacheShape { n_layers: 1, n_kv_heads: heads, n_groups: groups, head_dim: dim },
            live: (
                narrow(heads * stride * dim, 5),
                narrow(heads * stride * dim, 6),
                n_live,
                stride,
            ),
            staged: (
                narrow(heads * n_staged * dim, 7),
                narrow(heads * n_staged * dim, 8),
                n_staged,
            ),
        }
    }

    fn attention(&self) -> Attention<'_, E> {
        let (keys, values, n_slots, stride) = &self.live;
        let live = Slots { keys, values, n_slots: *n_slots, stride: *stride };
        let (keys, values, n_slots) = &self.staged;
        let staged = Slots { keys, values, n_slots: *n_slots, stride: *n_slots };
        Attention { live, staged: (*n_slots > 0).then_some(staged), shape: &self.shape }
    }
}

/// Attention in f64 of one query head of one token: outputs and the weight of each slot.
fn naive<E: KvElement>(
    attention: &Attention<'_, E>,
    head: usize,
    token: usize,
    query: &[f32],
    scale: f32,
) -> (Vec<f64>, Vec<f64>) {
    let dim = attention.shape.head_dim;
    let mut seen = Vec::new();
    let mut see = |slots: &Slots<'_, E>, n: usize| {
        for slot in 0..n {
            let start = (head * slots.stride + slot) * dim;
            let (mut key, mut value) = (vec![0.0; dim], vec![0.0; dim]);
            E::widen(&slots.keys[start..start + dim], &mut key);
            E::widen(&slots.values[start..start + dim], &mut value);
            let dot: f64 = key.iter().zip(query).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
            seen.push((dot * f64::from(scale), value));
        }
    };
    see(&attention.live, attention.live.n_slots);
    if let Some(staged) = &attention.staged {
        see(staged, token + 1);
    }
    let max = seen.iter().fold(f64::NEG_INFINITY, |max, (score, _)| max.max(*score));
    let sum: f64 = seen.iter().map(|(score, _)| (score - max).exp()).sum();
    let weights: Vec<f64> = seen.iter().map(|(score, _)| (score - max).exp() / sum).collect();
    let mut out = vec![0.0; dim];
    for (weight, (_, value)) in weights.iter().zip(&seen) {
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight * f64::from(*value);
        }
    }
    (out, weights)
}

fn check_attention<E: KvElement>(
    (heads, groups, dim): (usize, usize, usize),
    n_live: usize,
    n_tokens: usize,
    is_block: bool,
) {
    let layer = Layer::<E>::new(heads, groups, dim, n_live, if is_block { n_tokens } else { 0 });
    let attention = layer.attention();
    let width = heads * groups * dim;
    let queries: Vec<f32> = noise(n_tokens * width, 9).iter().map(|q| q * 4.0).collect();
    let scale = 1.0 / (dim as f32).sqrt();
    let mut out = vec![f32::NAN; n_tokens * width];
    let stride = attention.live.stride;
    let mut live = vec![0.5; heads * stride];
    let mut staged = vec![0.5; heads * if is_block { n_tokens } else { 0 }];
    let mass = Mass { live: &mut live, staged: &mut staged };
    attend(&attention, &queries, n_tokens, scale, Some(mass), &mut out);

    let mut exact_live = vec![0.5; heads * stride];
    let mut exact_staged = vec![0.5; staged.len()];
    for token in 0..n_tokens {
        for head in 0..heads * groups {
            let start = token * width + head * dim;
            let kv_head = head / groups;
            let (exact, weights) =
                naive(&attention, kv_head, token, &queries[start..start + dim], scale);
            for (out, exact) in out[start..start + dim].iter().zip(exact) {
                assert!(
                    (f64::from(*out) - exact).abs() < 5e-6,
                    "token {token} head {head}: {out} for {exact}"
                );
            }
            for (slot, weight) in weights.into_iter().enumerate() {
                match slot.checked_sub(n_live) {
                    None => exact_live[kv_head * stride + slot] += weight,
                    Some(slot) => exact_staged[kv_head * n_tokens + slot] += weight,
                }
            }
        }
    }
    for (mass, exact) in live.iter().chain(&staged).zip(exact_live.iter().chain(&exact_staged)) {
        assert!((f64::from(*mass) - exact).abs() < 1e-5 * exact, "mass {mass} for {exact}");
    }
    let (total, n_slots) = (live.iter().chain(&staged).sum::<f32>(), live.len() + staged.len());
    let given = if n_live > 0 || is_block { n_tokens * heads * groups } else { 0 };
    let total = f64::from(total) - n_slots as f64 * 0.5;
    assert!((total - given as f64).abs() < 1e-2, "{total} of {given} is given away");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention_is_a_softmax_over_what_a_token_sees(
        shape in prop_oneof![
            Just((2, 7, 64)), Just((3, 3, 64)), Just((1, 4, 128)), Just((2, 1, 40)), Just((1, 2, 5)),
        ],
        n_live in prop_oneof![Just(0usize), 1..70usize, 250..260usize, 500..530usize],
        n_tokens in 1usize..40,
        is_block: bool,
        is_half: bool,
    ) {
        if is_half {
            check_attention::<f16>(shape, n_live, n_tokens, is_block);
        } else {
            check_attention::<f32>(shape, n_live, n_tokens, is_block);
        }
    }
}

#[test]
fn a_block_attends_with_the_bits_of_its_tokens_alone() {
    let (heads, groups, dim, n_live, n_tokens) = (2, 7, 64, 250, 20);
    let block = Layer::<f16>::new(heads, groups, dim, n_live, n_tokens);
    let width = heads * groups * dim;
    let queries = noise(n_tokens * width, 9);
    let mut together = vec![0.0; n_tokens * width];
    attend(&block.attention(), &queries, n_tokens, 0.125, None, &mut together);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for token in 0..n_tokens {
        let mut pushed = Layer::<f16>::new(heads, groups, dim, n_live + token + 1, 0);
        let stride = pushed.live.3;
        for (to, live, staged) in [
            (&mut pushed.live.0, &block.live.0, &block.staged.0),
            (&mut pushed.live.1, &block.live.1, &block.staged.1),
        ] {
            for head in 0..heads {
                let to = &mut to[head * stride * dim..];
                let live = &live[head * block.live.3 * dim..][..n_live * dim];
                let staged = &staged[head * n_tokens * dim..][..(token + 1) * dim];
                to[..live.len()].copy_from_slice(live);
                to[live.len()..live.len() + staged.len()].copy_from_slice(staged);
            }
        }
        let row = token * width..(token + 1) * width;
        let mut alone = vec![0.0; width];
        one_thread.install(|| {
            attend(&pushed.attention(), &queries[row.clone()], 1, 0.125, None, &mut alone);
        });
        assert_eq!(alone, together[row], "token {token}");
    }
}

#[test]
fn norms_and_gates_are_what_the_formulas_say() {
    let (n, n_tokens) = (101, 3);
    let (x, weight) = (noise(n * n_tokens, 1), noise(n, 2));
    let mut out = vec![0.0; n * n_tokens];
    norm::rms_norm(&x, &weight, 1e-5, &mut out);
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact(n)) {
        let mean: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
        for ((x, weight), out) in x.iter().zip(&weight).zip(out) {
            let exact = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
            assert!((f64::from(*out) - exact).abs() < 1e-6);
        }
    }
    let up = noise(50_000, 3);
    let gate: Vec<f32> = noise(50_000, 4).iter().map(|g| g * 100.0).collect();
    let mut gated = gate.clone();
    norm::silu_mul(&mut gated, &up);
    for ((gate, up), gated) in gate.iter().zip(&up).zip(&gated) {
        let gate = f64::from(*gate);
        let exact = gate / (1.0 + (-gate).exp()) * f64::from(*up);
        assert!((f64::from(*gated) - exact).abs() <= 1e-6 * exact.abs() + 1e-30, "{gate}");
    }
    let mut rows = vec![1.0; 6];
    norm::add_bias(&mut rows, &[1.0, 2.0, 3.0]);
    assert_eq!(rows, [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]);
}
