//! Finished results, a JSON line each, so that a measurement that was stopped goes on.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why results could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot use {} to resume: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "line {line} of {} is no result of this measurement ({reason}); resume with another file",
        path.display()
    )]
    Line { path: PathBuf, line: usize, reason: String },
}

/// Results in memory and, where one was named, in a file.
#[derive(Debug)]
pub struct Journal<T> {
    file: Option<(PathBuf, File)>,
    results: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> Journal<T> {
    /// Reads what `path` holds, if there is a path; a file that is missing is made. A last line
    /// that was cut off is dropped.
    ///
    /// # Errors
    /// Where the file cannot be read or written, or holds something else.
    pub fn open(path: Option<&Path>) -> Result<Self, JournalError> {
        let Some(path) = path else { return Ok(Self { file: None, results: Vec::new() }) };
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let read = |(line, text): (usize, &str)| {
            serde_json::from_str(text).map_err(|error| JournalError::Line {
                path: path.to_owned(),
                line,
                reason: error.to_string(),
            })
        };
        let results = (1..).zip(text[..whole].lines()).map(read).collect::<Result<_, _>>()?;
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(Self { file: Some((path.to_owned(), file)), results })
    }

    /// Everything that was kept, in order.
    pub fn results(&self) -> &[T] {
        &self.results
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn add(&mut self, result: T) -> Result<(), JournalError> {
        if let Some((path, file)) = &mut self.file {
            let write = |file: &mut File| {
                let mut line = serde_json::to_vec(&result)?;
                line.push(b'\n');
                file.write_all(&line)
            };
            write(file).map_err(|source| JournalError::Io { path: path.clone(), source })?;
        }
        self.results.push(result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_there_again_and_a_line_that_was_cut_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut journal = Journal::open(Some(&path)).unwrap();
        journal.add((1, "one".to_owned())).unwrap();
        journal.add((2, "two".to_owned())).unwrap();
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"[3,\"thr").unwrap();
        let mut journal = Journal::<(u32, String)>::open(Some(&path)).unwrap();
        assert_eq!(journal.results(), [(1, "one".to_owned()), (2, "two".to_owned())]);
        journal.add((4, "four".to_owned())).unwrap();
        let journal = Journal::<(u32, String)>::open(Some(&path)).unwrap();
        assert_eq!(journal.results().len(), 3);
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "my notes\nmore").unwrap();
        let error = Journal::<(u32, String)>::open(Some(&path)).unwrap_err().to_string();
        assert!(error.starts_with("line 1 of ") && error.contains("notes.txt"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes\nmore");
    }

    #[test]
    fn without_a_file_results_are_kept_in_memory() {
        let mut journal = Journal::open(None).unwrap();
        journal.add(7).unwrap();
        assert_eq!(journal.results(), [7]);
    }
}
