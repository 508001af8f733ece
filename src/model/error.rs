//! What can go wrong with a model.

use std::path::PathBuf;

use candle_core::quantized::GgmlDType;

use super::config::Family;
use crate::kernel::matmul::MatrixError;

/// Why a model cannot be opened, or cannot take a step.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{} is not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"; give a .gguf \
         file, or a folder with config.json and safetensors",
        path.display()
    )]
    NotGguf { path: PathBuf, found: Vec<u8> },
    #[error("the header of {} cannot be read: {reason}; fetch the file again", path.display())]
    Header { path: PathBuf, reason: String },
    #[error(
        "{}: tensor {name} ends at byte {end}, but the file has {file_bytes}; the file is \
         truncated, fetch it again",
        path.display()
    )]
    Truncated { path: PathBuf, name: String, end: u64, file_bytes: u64 },
    #[error("unknown architecture `{name}`; known are {}", Family::NAMES.join(", "))]
    UnknownArchitecture { name: String },
    #[error("the model's `{key}` {reason}")]
    Config { key: String, reason: String },
    #[error("tensor {name} is missing from {}", path.display())]
    MissingTensor { name: String, path: PathBuf },
    #[error("tensor {name} has the shape {found:?} where the config asks for {expected:?}")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name} of type {dtype:?} has rows of {n_cols} numbers, no whole blocks")]
    TensorBlocks { name: String, dtype: GgmlDType, n_cols: usize },
    #[error("tensor {name}: {source}")]
    Tensor { name: String, source: MatrixError },
    #[error("token {token} is outside the vocabulary of {n_vocab}")]
    UnknownToken { token: u32, n_vocab: usize },
    #[error("a block of {n_tokens} tokens; it must hold 1 to {max}")]
    BlockLength { n_tokens: usize, max: usize },
    #[error("{n_tokens} tokens for {n_caches} caches; a step takes one token for each")]
    Unpaired { n_tokens: usize, n_caches: usize },
    #[error("position {position} is past the model's context of {context_length} tokens")]
    PastContext { position: usize, context_length: usize },
    #[error("the cache holds its bound of {n_slots} slots; compact it before the next token")]
    CacheFull { n_slots: usize },
    #[error("the cache is of another model's shape")]
    CacheShape,
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}
