//! Weights by name, read from their files one tensor at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;

use super::error::ModelError;
use crate::kernel::matmul::Matrix;

/// A file that holds tensors.
pub(super) struct Source {
    pub path: PathBuf,
    pub file: File,
    pub n_bytes: u64,
}

impl Source {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let failed = |source| ModelError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let n_bytes = file.metadata().map_err(failed)?.len();
        Ok(Self { path: path.to_owned(), file, n_bytes })
    }

    /// The error that this file could not be read.
    pub fn failed(&self, source: std::io::Error) -> ModelError {
        ModelError::Io { path: self.path.clone(), source }
    }
}

/// Where one tensor lies.
pub(super) struct Entry {
    pub source_idx: usize,
    /// First byte in its file.
    pub start: u64,
    pub dtype: GgmlDType,
    /// Outermost first: rows, columns.
    pub shape: Vec<usize>,
}

/// The tensors of a model, asked for by their GGUF names.
pub(super) struct Tensors {
    /// The file or folder that was asked for.
    pub path: PathBuf,
    pub sources: Vec<Source>,
    /// By the names that the files use.
    pub entries: HashMap<String, Entry>,
    /// From a GGUF name to the files' own.
    pub spelling: fn(&str) -> String,
}

impl Tensors {
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(&(self.spelling)(name))
    }

    /// Rows of a matrix, if it is there.
    pub fn n_rows(&self, name: &str) -> Option<usize> {
        self.entries.get(&(self.spelling)(name))?.shape.first().copied()
    }
}

/// Reads tensors, and hashes them on the way.
pub(super) struct Reader<'a> {
    pub tensors: Tensors,
    hasher: blake3::Hasher,
    progress: &'a mut dyn FnMut(usize, usize),
    n_read: usize,
    /// One tensor as it lies in the file; its memory serves all.
    bytes: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub fn new(tensors: Tensors, progress: &'a mut dyn FnMut(usize, usize)) -> Self {
        Self { tensors, hasher: blake3::Hasher::new(), progress, n_read: 0, bytes: Vec::new() }
    }

    /// The matrix called `name`, `[n_rows, n_cols]`.
    ///
    /// # Errors
    /// The tensor is missing, of another shape, of a type without a kernel, or cut off.
    pub fn matrix(
        &mut self,
        name: &str,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Matrix, ModelError> {
        self.read(name, &[n_rows, n_cols])
    }

    /// The vector called `name`, `[len]`, widened to f32.
    ///
    /// # Errors
    /// See [`Self::matrix`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; len];
        self.read(name, &[len])?.row(0, &mut values);
        Ok(values)
    }

    /// Like [`Self::vector`], or none where the files have no such tensor.
    pub fn vector_if_any(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        if self.tensors.contains(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Ends the reading; a hash of `config` and of every tensor that was read, in hexadecimal.
    pub fn finish(mut self, config: &[u8]) -> String {
        // Some files hold tensors that nobody asks for.
        let n_tensors = self.tensors.entries.len();
        (self.progress)(n_tensors, n_tensors);
        self.hasher.update(config).finalize().to_hex().to_string()
    }

    fn read(&mut self, name: &str, expected: &[usize]) -> Result<Matrix, ModelError> {
        let Tensors { path, sources, entries, spelling } = &mut self.tensors;
        let name = spelling(name);
        let Some(entry) = entries.get(&name) else {
            return Err(ModelError::MissingTensor { name, path: path.clone() });
        };
        if entry.shape != expected {
            let (found, expected) = (entry.shape.clone(), expected.to_vec());
            return Err(ModelError::TensorShape { name, found, expected });
        }
        // The shape is the checked config's by now, so that these products are small.
        let n_cols = expected[expected.len() - 1];
        let n_rows = if expected.len() == 1 { 1 } else { expected[0] };
        let dtype = entry.dtype;
        if !n_cols.is_multiple_of(dtype.block_size()) {
            return Err(ModelError::TensorBlocks { name, dtype, n_cols });
        }
        let n_bytes = n_rows * n_cols / dtype.block_size() * dtype.type_size();
        let source = &mut sources[entry.source_idx];
        let end = entry.start.saturating_add(n_bytes as u64);
        if end > source.n_bytes {
            let (path, file_bytes) = (source.path.clone(), source.n_bytes);
            return Err(ModelError::Truncated { path, name, end, file_bytes });
        }
        self.bytes.resize(n_bytes, 0);
        source
            .file
            .seek(SeekFrom::Start(entry.start))
            .and_then(|_| source.file.read_exact(&mut self.bytes))
            .map_err(|err| source.failed(err))?;
        let (hasher, bytes) = (&mut self.hasher, &self.bytes);
        let (_, matrix) = rayon::join(
            || hasher.update(format!("{name} {dtype:?} {expected:?}").as_bytes()).update(bytes),
            || Matrix::from_ggml(dtype, bytes, n_rows, n_cols),
        );
        self.n_read += 1;
        (self.progress)(self.n_read, entries.len());
        matrix.map_err(|source| ModelError::Tensor { name, source })
    }
}
