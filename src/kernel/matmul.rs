//! Weight matrices and their products with rows of activations.
//!
//! Quantised weights keep the numbers of their file, repacked by `packed` so that eight rows are
//! multiplied at a time; others are held as they come (`dense`).

mod activations;
mod dense;
mod format;
mod output;
mod packed;

use std::cell::Cell;
use std::ops::Range;

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use rayon::prelude::*;

use activations::Activations;
use dense::Dense;
use format::*;
use output::Output;
use packed::Packed;

/// Rows that are multiplied together.
const GROUP: usize = 8;

/// Bytes of weights that are worth a task of their own.
const TASK: usize = 64 * 1024;

/// Why a matrix cannot be made or multiplied.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    #[error("{n_cols} columns do not divide into blocks of {block} as {dtype:?} asks")]
    Columns { dtype: GgmlDType, n_cols: usize, block: usize },
    #[error("{n_rows} rows of {n_cols} columns take {expected} bytes as {dtype:?}, found {found}")]
    Weights { dtype: GgmlDType, n_rows: usize, n_cols: usize, expected: usize, found: usize },
    #[error("a matrix of {n_rows} rows and {n_cols} columns is empty")]
    Empty { n_rows: usize, n_cols: usize },
    #[error("{n_tokens} tokens take {expected} numbers as {what}, found {found}")]
    Tokens { n_tokens: usize, expected: usize, found: usize, what: &'static str },
}

/// A weight matrix, `[n_rows (outputs), n_cols (inputs)]`.
pub struct Matrix {
    n_rows: usize,
    n_cols: usize,
    weights: Weights,
}

/// The forms in which weights are held.
enum Weights {
    F32(Dense<f32>),
    F16(Dense<f16>),
    Bf16(Dense<bf16>),
    Q2K(Packed<Q2K>),
    Q3K(Packed<Q3K>),
    Q4_0(Packed<Q4_0>),
    Q4_1(Packed<Q4_1>),
    Q4K(Packed<Q4K>),
    Q5_0(Packed<Q5_0>),
    Q5_1(Packed<Q5_1>),
    Q5K(Packed<Q5K>),
    Q6K(Packed<Q6K>),
    Q8_0(Packed<Q8_0>),
    Q8_1(Packed<Q8_1>),
}

/// Runs the same expression on whichever form the weights have.
macro_rules! each {
    ($weights:expr, $form:ident => $run:expr) => {
        match $weights {
            Weights::F32($form) => $run,
            Weights::F16($form) => $run,
            Weights::Bf16($form) => $run,
            Weights::Q2K($form) => $run,
            Weights::Q3K($form) => $run,
            Weights::Q4_0($form) => $run,
            Weights::Q4_1($form) => $run,
            Weights::Q4K($form) => $run,
            Weights::Q5_0($form) => $run,
            Weights::Q5_1($form) => $run,
            Weights::Q5K($form) => $run,
            Weights::Q6K($form) => $run,
            Weights::Q8_0($form) => $run,
            Weights::Q8_1($form) => $run,
        }
    };
}

/// What a form of weights can do.
trait Form {
    /// Whether it meets activations that are rounded to 8 bits.
    const ROUNDS: bool;

    fn bytes(&self) -> usize;

    /// Widens a row to f32, `[n_cols]`.
    fn row(&self, row_idx: usize, out: &mut [f32]);

    /// Multiplies some groups of rows with every token.
    fn multiply(&self, groups: Range<usize>, x: &Activations, out: &Output<'_>);
}

/// [`Form::ROUNDS`] of a form at hand.
fn rounds<F: Form>(_: &F) -> bool {
    F::ROUNDS
}

impl Matrix {
    /// From a tensor's raw bytes, little-endian and row after row, in any type of GGUF files that
    /// candle reads; floats serve for safetensors too.
    ///
    /// # Errors
    /// Where the columns are no whole number of blocks, the bytes are not as many as the shape
    /// takes, or there are none.
    pub fn from_ggml(
        dtype: GgmlDType,
        bytes: &[u8],
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Self, MatrixError> {
        let block = dtype.block_size();
        if !n_cols.is_multiple_of(block) {
            return Err(MatrixError::Columns { dtype, n_cols, block });
        }
        let row_bytes = (n_cols / block).saturating_mul(dtype.type_size());
        let (expected, found) = (n_rows.saturating_mul(row_bytes), bytes.len());
        if expected != found {
            return Err(MatrixError::Weights { dtype, n_rows, n_cols, expected, found });
        }
        if expected == 0 {
            return Err(MatrixError::Empty { n_rows, n_cols });
        }
        let weights = match dtype {
            GgmlDType::F32 => Weights::F32(Dense::read(bytes, n_cols, f32::from_le_bytes)),
            GgmlDType::F16 => Weights::F16(Dense::read(bytes, n_cols, f16::from_le_bytes)),
            GgmlDType::BF16 => Weights::Bf16(Dense::read(bytes, n_cols, bf16::from_le_bytes)),
            GgmlDType::Q2K => Weights::Q2K(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q3K => Weights::Q3K(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q4_0 => Weights::Q4_0(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q4_1 => Weights::Q4_1(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q4K => Weights::Q4K(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q5_0 => Weights::Q5_0(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q5_1 => Weights::Q5_1(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q5K => Weights::Q5K(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q6K => Weights::Q6K(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q8_0 => Weights::Q8_0(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q8_1 => Weights::Q8_1(Packed::pack(bytes, n_rows, n_cols)),
            GgmlDType::Q8K => Weights::F32(Dense::new(format::read_q8k(bytes), n_cols)),
        };
        Ok(Self { n_rows, n_cols, weights })
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Bytes that the weights take in memory.
    pub fn bytes(&self) -> usize {
        each!(&self.weights, form => form.bytes())
    }

    /// Widens one row to f32, `[n_cols]`: an embedding's look-up.
    ///
    /// # Panics
    /// Where there is no such row, or `out` is of another length.
    pub fn row(&self, row_idx: usize, out: &mut [f32]) {
        assert!(row_idx < self.n_rows, "row {row_idx} of {}", self.n_rows);
        assert_eq!(out.len(), self.n_cols, "a row is widened to its own length");
        each!(&self.weights, form => form.row(row_idx, out));
    }

    /// The product with one matrix, see [`multiply_many`].
    ///
    /// # Errors
    /// Where `x` or `out` is not as long as the shapes ask.
    pub fn multiply(&self, x: &[f32], n_tokens: usize, out: &mut [f32]) -> Result<(), MatrixError> {
        multiply_many([self], x, n_tokens, [out])
    }

    fn expect_tokens(&self, x: &[f32], n_tokens: usize, out: &[f32]) -> Result<(), MatrixError> {
        for (what, width, found) in
            [("input", self.n_cols, x.len()), ("output", self.n_rows, out.len())]
        {
            let expected = n_tokens.saturating_mul(width);
            if found != expected {
                return Err(MatrixError::Tokens { n_tokens, expected, found, what });
            }
        }
        Ok(())
    }

    fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(GROUP)
    }
}

/// Products of the same rows with several matrices of one width (queries, keys and values; gate
/// and up), in one parallel region: `out[t, r] = sum_c x[t, c] * w[r, c]`, where `x` is
/// `[n_tokens, n_cols]` and each of `outs` is `[n_tokens, n_rows]`.
///
/// Quantised weights meet activations that are rounded to 8 bits in blocks of 32 (as in
/// llama.cpp): integer products within a block, f32 sums over blocks. Floats are multiplied in
/// f32. A token's result has the same bits whatever other matrices or threads take part, and
/// with quantised weights whatever other tokens.
///
/// # Errors
/// Where `x` or one of `outs` is not as long as the shapes ask.
pub fn multiply_many<const N: usize>(
    matrices: [&Matrix; N],
    x: &[f32],
    n_tokens: usize,
    outs: [&mut [f32]; N],
) -> Result<(), MatrixError> {
    for (matrix, out) in matrices.iter().zip(&outs) {
        matrix.expect_tokens(x, n_tokens, out)?;
    }
    if n_tokens == 0 || N == 0 {
        return Ok(());
    }
    let mut rows = matrices.iter().map(|matrix| matrix.n_rows);
    let outs = outs.map(|out| Output::new(out, rows.next().expect("a matrix for each output")));
    let n_groups: usize = matrices.iter().map(|matrix| matrix.n_groups()).sum();
    let work: usize = matrices.iter().map(|matrix| matrix.bytes()).sum::<usize>() * n_tokens;
    let n_tasks = (work / TASK).clamp(1, 8 * rayon::current_num_threads()).min(n_groups);

    let run = |x: &Activations| {
        (0..n_tasks).into_par_iter().for_each(|task_idx| {
            let mut start = task_idx * n_groups / n_tasks;
            let mut end = (task_idx + 1) * n_groups / n_tasks;
            for (matrix, out) in matrices.iter().zip(&outs) {
                let here = matrix.n_groups();
                if start < here && end > 0 {
                    let groups = start..end.min(here);
                    each!(&matrix.weights, form => form.multiply(groups, x, out));
                }
                start = start.saturating_sub(here);
                end = end.saturating_sub(here);
            }
        });
    };
    let n_cols = matrices[0].n_cols;
    if matrices.iter().any(|matrix| each!(&matrix.weights, form => rounds(form))) {
        Activations::with(x, n_tokens, n_cols, run);
    } else {
        run(&Activations::exact(x, n_tokens, n_cols));
    }
    Ok(())
}

/// Lends a buffer of `len` numbers of any value that the thread keeps for the next call.
///
/// The buffer is taken out of its place meanwhile: a thread that waits for others may begin other
/// work that asks for one too.
fn with_scratch<R>(len: usize, run: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local!(static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });
    let mut scratch = SCRATCH.take();
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    let result = run(&mut scratch[..len]);
    SCRATCH.set(scratch);
    result
}
