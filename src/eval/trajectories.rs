//! A folder of trajectory files.

use std::ffi::OsStr;
use std::path::Path;

use super::error::EvalError;
use crate::ingest::formats::{self, Trajectory};

/// A trajectory with the name of its file.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub trajectory: Trajectory,
}

/// Reads all trajectory files of a folder, in the order of their names; folders in it are not
/// looked into.
///
/// # Errors
/// Where there is none, or one cannot be read.
pub fn load(folder: &Path) -> Result<Vec<Named>, EvalError> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |source| EvalError::Read { path, source }
    };
    let entries = std::fs::read_dir(folder).map_err(error(folder))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(error(folder))?;
    let is_trajectory = |path: &Path| {
        let extension = path.extension().and_then(OsStr::to_str);
        extension.is_some_and(|extension| ["json", "jsonl", "traj"].contains(&extension))
    };
    paths.retain(|path| path.is_file() && is_trajectory(path));
    paths.sort();
    if paths.is_empty() {
        return Err(EvalError::NoTrajectory { path: folder.to_owned() });
    }
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read(path).map_err(error(path))?;
        let trajectory = formats::read(&String::from_utf8_lossy(&text))
            .map_err(|source| EvalError::Trajectory { path: path.clone(), source })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_owned();
        Ok(Named { name, trajectory })
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_by_name_and_others_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("README.md", "text");
        assert!(matches!(load(folder.path()), Err(EvalError::NoTrajectory { .. })));
        write("b.traj.json", r#"[{"role":"user","content":"b"}]"#);
        write("a.jsonl", r#"{"role":"user","content":"a"}"#);
        let names: Vec<_> = load(folder.path()).unwrap().into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["a", "b"]);
        write("c.json", "{}");
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("c.json"), "{error}");
    }
}
