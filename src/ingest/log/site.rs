//! Places in code, as tools write them.

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site<'a> {
    pub path: &'a str,
    /// Counted from one.
    pub line: u32,
}

/// The first place that a line names: `--> src/x.rs:3:9`, `src/x.c:3:9: error`, `x.ts(3,9)`,
/// `File "x.py", line 3`.
pub fn find(line: &str) -> Option<Site<'_>> {
    quoted(line).or_else(|| coloned(line))
}

/// `File "x.py", line 3`, as Python writes it, and `CMakeLists.txt:3` through [`coloned`].
fn quoted(line: &str) -> Option<Site<'_>> {
    let (head, rest) = super::cut(line, "\", line ")?;
    let (_, path) = head.rsplit_once('"')?;
    Some(Site { path, line: number(rest)? })
}

fn coloned(line: &str) -> Option<Site<'_>> {
    let bytes = line.as_bytes();
    memchr::memchr2_iter(b':', b'(', bytes).find_map(|at| {
        let line_number = number(line.get(at + 1..)?)?;
        let before = line.get(..at)?;
        let outside = |c: char| !(c.is_alphanumeric() || "._-/\\+@$[]".contains(c));
        let start = before.char_indices().rev().find(|(_, c)| outside(*c));
        let path = before.get(start.map_or(0, |(i, c)| i + c.len_utf8())..)?;
        is_path(path).then_some(Site { path, line: line_number })
    })
}

/// The number at the start of a text.
fn number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..digits)?.parse().ok().filter(|n| *n > 0)
}

/// Whether a word is a file's name: it has a folder, or an extension that begins with a letter.
fn is_path(word: &str) -> bool {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    let extension = name.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty() && extension.starts_with(|c: char| c.is_ascii_alphabetic())
    });
    let bare = matches!(name, "Makefile" | "makefile" | "GNUmakefile" | "Dockerfile");
    extension || bare || (name.len() < word.len() && !name.is_empty() && !word.contains("//"))
}
