//! Writes a trajectory file anew with other contents, and every other byte as it was.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::{Document, FormatError, Shape, Source};

/// The file `text` with other contents for some messages: `contents` has an element for each
/// message that [`super::read`] gives, none where it stays. A content that is spread over several
/// places of the file stays as well.
///
/// # Errors
/// As [`super::read`].
pub fn rewrite(text: &str, contents: &[Option<&str>]) -> Result<String, FormatError> {
    let document = Document::parse(text)?;
    let mut by_entry: HashMap<usize, Replacements> = HashMap::new();
    for (said, content) in document.draft()?.1.messages.iter().zip(contents) {
        let (Some(Source { entry, pointer }), Some(content)) = (&said.source, content) else {
            continue;
        };
        let new = Value::from(*content).to_string();
        match document.shape {
            Shape::Single => by_entry.entry(1).or_default().insert(pointer.clone(), new),
            Shape::List => {
                let pointer = format!("/{}{pointer}", entry - 1);
                by_entry.entry(1).or_default().insert(pointer, new)
            }
            Shape::Lines => by_entry.entry(*entry).or_default().insert(pointer.clone(), new),
        };
    }
    let start = text.len() - text.trim_start_matches('\u{FEFF}').len();
    let (mark, text) = text.split_at(start);
    let mut whole = mark.to_owned();
    match document.shape {
        Shape::Single | Shape::List => {
            whole += &splice(text, &by_entry.remove(&1).unwrap_or_default())
        }
        Shape::Lines => {
            for (number, line) in (1..).zip(text.split_inclusive('\n')) {
                match by_entry.get(&number) {
                    Some(replacements) => whole += &splice(line, replacements),
                    None => whole += line,
                }
            }
        }
    }
    Ok(whole)
}

/// JSON texts by the pointer to the value that they replace.
type Replacements = HashMap<String, String>;

/// The JSON `text` with some of its values replaced.
fn splice(text: &str, replacements: &Replacements) -> String {
    let mut scan = Scan {
        text: text.as_bytes(),
        at: 0,
        pointer: String::new(),
        replacements,
        found: Vec::new(),
    };
    scan.value();
    let mut whole = String::with_capacity(text.len());
    let mut copied = 0;
    for (bytes, new) in scan.found {
        whole.push_str(&text[copied..bytes.start]);
        whole.push_str(new);
        copied = bytes.end;
    }
    whole + &text[copied..]
}

/// A walk through valid JSON that finds the bytes of the values to be replaced.
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the walk is.
    pointer: String,
    replacements: &'a Replacements,
    found: Vec<(Range<usize>, &'a str)>,
}

impl Scan<'_> {
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn value(&mut self) {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'{') => self.children(true),
            Some(b'[') => self.children(false),
            Some(b'"') => self.string(),
            _ => {
                let rest = self.text.get(self.at + 1..).unwrap_or_default();
                let is_end = |b: &u8| b.is_ascii_whitespace() || b",]}".contains(b);
                self.at += 1 + rest.iter().position(is_end).unwrap_or(rest.len());
            }
        }
        if let Some(new) = self.replacements.get(&self.pointer) {
            self.found.push((start..self.at, new));
        }
    }

    fn children(&mut self, is_object: bool) {
        self.at += 1;
        let n_parent = self.pointer.len();
        let mut index = 0;
        loop {
            match self.peek() {
                None => return,
                Some(b',') => self.at += 1,
                Some(b'}' | b']') => {
                    self.at += 1;
                    return;
                }
                Some(_) => {
                    let name = if is_object { self.name() } else { index.to_string() };
                    self.pointer += "/";
                    self.pointer += &name;
                    self.value();
                    self.pointer.truncate(n_parent);
                    index += 1;
                }
            }
        }
    }

    /// A field's name as pointers have it, and the colon behind it.
    fn name(&mut self) -> String {
        let start = self.at;
        self.string();
        let name: String = serde_json::from_slice(&self.text[start..self.at]).unwrap_or_default();
        if self.peek() == Some(b':') {
            self.at += 1;
        }
        name.replace('~', "~0").replace('/', "~1")
    }

    fn string(&mut self) {
        self.at += 1;
        while let Some(&byte) = self.text.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        self.at = self.at.min(self.text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_replaced_changes() {
        let text =
            "{ \"a/b\" : [1e5, {\"c\":\"x\\\"]\" ,\"d\": null}],\n\t\"e\":\"\u{e9}\\u00e9\"} \n";
        let replacements = [("/a~1b/1/c", "\"y\""), ("/a~1b/0", "2"), ("/e", "[]"), ("/no", "0")];
        let replacements = replacements.map(|(at, new)| (at.to_owned(), new.to_owned())).into();
        assert_eq!(
            splice(text, &replacements),
            "{ \"a/b\" : [2, {\"c\":\"y\" ,\"d\": null}],\n\t\"e\":[]} \n"
        );
        assert_eq!(splice(text, &Replacements::new()), text);
    }
}
