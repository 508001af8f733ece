//! The structure of source code: what each line is, what is defined, what is called.
//!
//! A text is cut into pieces of code (a file view without its gutter, the sides of a diff's hunks,
//! what stands between fences), each is parsed by its language's grammar and asked its language's
//! query (`grammars/`), and the answers are mapped back to the text as it was given. Nothing here
//! fails: code that cannot be parsed has fewer captures, text that is no code has none.

mod frame;
mod grammar;
mod lines;
mod parse;
#[cfg(test)]
mod tests;
mod view;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::language::Language;
use super::prior::Class;
use super::span::{Kind, Span};
use grammar::{Grammar, Role};
use view::Piece;

/// How many texts a cache remembers.
const MAX_CACHED: usize = 256;

/// What is known about a text beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    pub kind: Kind,
    pub path: Option<&'a str>,
    pub language: Option<Language>,
    /// The number of the first line in its file, where the lines do not carry theirs.
    pub first_line: Option<u32>,
}

impl Given<'_> {
    fn language(&self) -> Option<Language> {
        self.language.or_else(|| self.path.and_then(Language::of_path))
    }
}

impl<'a> From<&'a Span> for Given<'a> {
    fn from(span: &'a Span) -> Self {
        Self {
            kind: span.kind,
            path: span.path.as_deref(),
            language: span.language,
            first_line: span.lines.map(|[first, _]| first),
        }
    }
}

/// The structure of consecutive lines of one file. All bytes are those of the given text, and all
/// ranges lie on its character borders.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    pub path: Option<String>,
    pub language: Language,
    /// Every line, in order; of a diff's old side only the lines that it takes away.
    pub lines: Vec<Line>,
    /// What the query found, in order of beginning.
    pub captures: Vec<Capture>,
    /// Functions, types, constants, in order of beginning. None of what a diff takes away.
    pub definitions: Vec<Definition>,
    /// Calls and mentions of types, in order.
    pub references: Vec<Reference>,
}

/// A line of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// With what stands before the code, and with its newline.
    pub bytes: Range<usize>,
    /// Its number in the file, counted from one, where that is known.
    pub number: Option<u32>,
    pub class: Class,
    /// A comment behind code, up to the line's end.
    pub comment: Option<Range<usize>>,
}

/// A capture of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    pub class: Class,
    /// Up to the body, where what is captured has one.
    pub bytes: Range<usize>,
}

/// What a definition can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Statements.
    Function,
    /// Other definitions: a class, an `impl`, a module.
    Container,
    /// Neither: a struct, a constant.
    Data,
}

/// Something that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    /// The container it belongs to.
    pub owner: Option<String>,
    pub extent: Extent,
    /// From its head to its end, or to where the fragment ends.
    pub bytes: Range<usize>,
    /// First and last line in the file, where these are known.
    pub numbers: Option<[u32; 2]>,
    /// Whether its end is within the text.
    pub is_whole: bool,
}

/// A name that is called, or a type that is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub name: String,
    /// What stands before the name: a type, a module, `self`.
    pub owner: Option<String>,
    /// Where the name stands.
    pub bytes: Range<usize>,
    pub is_call: bool,
    /// The innermost definition around it, by its place in `definitions`.
    pub from: Option<usize>,
}

/// The structure of every piece of code in `text`.
pub fn read(text: &str, given: &Given<'_>) -> Vec<Structure> {
    view::pieces(text, given).into_iter().map(structure).collect()
}

/// Structures of texts that have been read: where a text comes again, which agents' views do, it
/// is not read again.
#[derive(Debug, Default)]
pub struct Cache {
    read: HashMap<blake3::Hash, Arc<[Structure]>>,
}

impl Cache {
    /// As [`read`].
    pub fn read(&mut self, text: &str, given: &Given<'_>) -> Arc<[Structure]> {
        let mut key = blake3::Hasher::new();
        // What is given takes part by its debug form, which holds all of it and no newline.
        key.update(format!("{given:?}\n").as_bytes()).update(text.as_bytes());
        let key = key.finalize();
        if let Some(known) = self.read.get(&key) {
            return Arc::clone(known);
        }
        if self.read.len() >= MAX_CACHED {
            self.read.clear();
        }
        let structures: Arc<[Structure]> = read(text, given).into();
        self.read.insert(key, Arc::clone(&structures));
        structures
    }
}

fn structure(piece: Piece) -> Structure {
    let found = Grammar::of(piece.language)
        .map(|grammar| Found::of(piece.language, grammar, &piece.code))
        .unwrap_or_default();
    let lines = lines::classify(&piece, &found.captures);
    let place = |bytes: &Range<usize>| piece.given(bytes);
    let captures = found
        .captures
        .iter()
        .map(|capture| Capture { class: capture.class, bytes: place(&capture.bytes) })
        .collect();
    let (mut definitions, mut references) = (Vec::new(), Vec::new());
    if !piece.is_old {
        let number = |byte: usize| {
            let next = piece.lines.partition_point(|line| line.start <= byte);
            piece.lines[..next].last()?.number
        };
        definitions = found.definitions;
        references = found.references;
        for definition in &mut definitions {
            let last = definition.bytes.end.saturating_sub(1);
            definition.numbers =
                number(definition.bytes.start).zip(number(last)).map(|(first, last)| [first, last]);
            definition.bytes = place(&definition.bytes);
        }
        for reference in &mut references {
            reference.bytes = place(&reference.bytes);
        }
    }
    Structure {
        path: piece.path,
        language: piece.language,
        lines,
        captures,
        definitions,
        references,
    }
}

/// What a query found; bytes are those of a piece's code.
#[derive(Default)]
struct Found {
    captures: Vec<Capture>,
    definitions: Vec<Definition>,
    references: Vec<Reference>,
}

impl Found {
    fn of(language: Language, grammar: &Grammar, code: &str) -> Self {
        let mut found = Self::default();
        for (start, parsed) in parse::parts(language, grammar, code) {
            parsed.each_match(grammar, start, |nodes| found.take(nodes, code));
        }
        found
            .captures
            .sort_by_key(|capture| (capture.bytes.start, capture.bytes.end, capture.class));
        found.captures.dedup();
        found.place_definitions();
        found.place_references();
        found
    }

    /// One match: its captures, as far as they lie in the code.
    fn take(&mut self, nodes: &[parse::Node], code: &str) {
        let text = |role: Role| {
            let node = nodes.iter().find(|node| node.role == role)?;
            let text = code.get(node.bytes.clone())?.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let body = nodes.iter().find(|node| node.role == Role::Body).map(|body| body.bytes.start);
        let name = text(Role::Name);
        for node in nodes {
            let bytes = node.bytes.clone();
            match node.role {
                Role::Class(class) => {
                    if class == Class::Type
                        && let Some(name) = code.get(bytes.clone())
                        && name.contains(char::is_alphabetic)
                    {
                        self.references.push(Reference {
                            name: name.to_owned(),
                            owner: None,
                            bytes: bytes.clone(),
                            is_call: false,
                            from: None,
                        });
                    }
                    let ends = class.ends_at_body().then_some(body).flatten();
                    let end = ends.map_or(bytes.end, |body| body.clamp(bytes.start, bytes.end));
                    // Before a body there may be a newline and the body's indentation.
                    let end = bytes.start
                        + code.get(bytes.start..end).map_or(0, |head| head.trim_end().len());
                    if bytes.start < end {
                        self.captures.push(Capture { class, bytes: bytes.start..end });
                    }
                }
                Role::Callee => {
                    let Some(name) = text(Role::Callee) else { continue };
                    let owner = text(Role::CalleeOwner);
                    self.references.push(Reference {
                        name,
                        owner,
                        bytes,
                        is_call: true,
                        from: None,
                    });
                }
                _ => {}
            }
            let extent = match node.role {
                Role::Function => Extent::Function,
                Role::Container => Extent::Container,
                Role::Class(Class::Definition) => Extent::Data,
                _ => continue,
            };
            // What begins before the fragment and ends in it has no name here.
            let Some(name) = name.clone() else { continue };
            self.definitions.push(Definition {
                name,
                owner: text(Role::Owner),
                extent,
                bytes: node.bytes.clone(),
                numbers: None,
                is_whole: node.is_whole,
            });
        }
    }

    /// Puts definitions in order, the outer before the inner, and says in what each lies.
    fn place_definitions(&mut self) {
        let definitions = &mut self.definitions;
        definitions.sort_by_key(|found| {
            (found.bytes.start, std::cmp::Reverse(found.bytes.end), found.extent)
        });
        definitions.dedup_by(|next, kept| next.bytes == kept.bytes && next.name == kept.name);
        let mut around: Vec<usize> = Vec::new();
        for index in 0..definitions.len() {
            let start = definitions[index].bytes.start;
            while around.last().is_some_and(|&outer| definitions[outer].bytes.end <= start) {
                around.pop();
            }
            if definitions[index].owner.is_none() {
                let is_container =
                    |outer: &&usize| definitions[**outer].extent == Extent::Container;
                let container = around.iter().rev().find(is_container);
                definitions[index].owner = container.map(|&outer| definitions[outer].name.clone());
            }
            if definitions[index].extent != Extent::Data {
                around.push(index);
            }
        }
    }

    /// Puts references in order and says in what each lies.
    fn place_references(&mut self) {
        // The same call is found with and without what stands before the name.
        self.references.sort_by_key(|found| (found.bytes.start, found.owner.is_none()));
        self.references.dedup_by_key(|found| found.bytes.start);
        let mut next = 0;
        let mut around: Vec<usize> = Vec::new();
        for reference in &mut self.references {
            let start = reference.bytes.start;
            while self.definitions.get(next).is_some_and(|outer| outer.bytes.start <= start) {
                while around.last().is_some_and(|&outer| {
                    self.definitions[outer].bytes.end <= self.definitions[next].bytes.start
                }) {
                    around.pop();
                }
                around.push(next);
                next += 1;
            }
            while around.last().is_some_and(|&outer| self.definitions[outer].bytes.end <= start) {
                around.pop();
            }
            reference.from = around.last().copied();
        }
    }
}
