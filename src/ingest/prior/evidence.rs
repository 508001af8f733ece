//! Lines that the work has pointed to: those that edits changed, those that errors name.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use regex::Regex;

use super::Class;
use crate::ingest::span::Kind;
use crate::ingest::structure::{self, Given};

/// Lines of files that the work has pointed to.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Files by their last name: one file has many paths, from many folders.
    files: HashMap<String, Vec<File>>,
}

#[derive(Clone, Debug, Default)]
struct File {
    path: String,
    touched: BTreeSet<u32>,
    named: BTreeSet<u32>,
}

impl Evidence {
    /// Notes lines of a file that an edit changed, counted from one.
    pub fn touch(&mut self, path: &str, lines: impl IntoIterator<Item = u32>) {
        self.file(path).touched.extend(lines);
    }

    /// Notes lines of a file that an error or a stack trace names, counted from one.
    pub fn name(&mut self, path: &str, lines: impl IntoIterator<Item = u32>) {
        self.file(path).named.extend(lines);
    }

    /// Notes the lines that a unified diff adds.
    pub fn read_diff(&mut self, diff: &str) {
        let given = Given { kind: Kind::Diff, path: None, language: None, first_line: None };
        for structure in structure::read(diff, &given) {
            let Some(path) = &structure.path else { continue };
            let added =
                structure.lines.iter().filter(|line| diff[line.bytes.clone()].starts_with('+'));
            self.touch(path, added.filter_map(|line| line.number));
        }
    }

    /// Notes the places that a log names.
    pub fn read_log(&mut self, log: &str) {
        for (path, line) in places(log) {
            self.name(path, [line]);
        }
    }

    /// What the work makes of a line, where it has pointed to it.
    pub fn class(&self, path: Option<&str>, line: Option<u32>) -> Option<Class> {
        let (path, line) = (path?, line?);
        let files = self.files.get(last_name(path))?;
        let same = || files.iter().filter(|file| is_same_file(&file.path, path));
        if same().any(|file| file.touched.contains(&line)) {
            Some(Class::Touched)
        } else {
            same().any(|file| file.named.contains(&line)).then_some(Class::Named)
        }
    }

    fn file(&mut self, path: &str) -> &mut File {
        let files = self.files.entry(last_name(path).to_owned()).or_default();
        let index = files.iter().position(|file| file.path == path).unwrap_or_else(|| {
            files.push(File { path: path.to_owned(), ..File::default() });
            files.len() - 1
        });
        &mut files[index]
    }
}

/// The places that a log names, in order: `src/a.rs:12:5`, `File "a.py", line 12`, `A.java:12`.
pub fn places(log: &str) -> impl Iterator<Item = (&str, u32)> {
    static PLACE: LazyLock<Regex> = LazyLock::new(|| {
        let ends = "rs|pyi?|[cm]?[jt]sx?|go|java|c|h|cc|cpp|cxx|hh|hpp|hxx";
        let plain = format!(r"([\w@+.~/\\-]+\.(?:{ends})):(\d{{1,7}})\b");
        Regex::new(&format!(r#"{plain}|File "([^"\n]+)", line (\d{{1,7}})"#))
            .expect("a constant pattern")
    });
    PLACE.captures_iter(log).filter_map(|found| {
        let path = found.get(1).or_else(|| found.get(3))?;
        let line = found.get(2).or_else(|| found.get(4))?;
        Some((path.as_str(), line.as_str().parse().ok()?))
    })
}

fn last_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Whether two paths can be those of one file: the shorter is the longer's end.
pub(in crate::ingest) fn is_same_file(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let short = short.trim_start_matches("./");
    long.strip_suffix(short).is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', '\\']))
}
