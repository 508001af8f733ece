//! The light code graph of a session: who defines what, who calls whom, by name.
//!
//! It grows with every view and edit, knows only what has been seen, and resolves names cheaply:
//! the container that a call names before anything of that name in the same file before anything
//! of that name at all. From a few places (what was edited, what a stack trace names, what the
//! task speaks of) weight spreads over it.

use std::collections::{BTreeSet, HashMap};

use super::prior::is_same_file;
use super::structure::{Extent, Structure};

/// A definition, or the code of a file that lies in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(usize);
impl Id {
    pub fn index(&self) -> usize {
        self.0
    }
}

/// Who defines what and who calls whom, as far as a session has shown.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    paths: Vec<String>,
    nodes: Vec<Node>,
    /// Nodes by file, container and name. The file's own node has an empty name.
    ids: HashMap<(usize, Option<String>, String), Id>,
    by_name: HashMap<String, Vec<Id>>,
}

#[derive(Clone, Debug)]
struct Node {
    file: usize,
    owner: Option<String>,
    name: String,
    extent: Extent,
    /// First and last line, as last seen.
    numbers: Option<[u32; 2]>,
    /// Names that it calls or mentions, each with what stands before it.
    references: BTreeSet<(Option<String>, String)>,
}

impl Graph {
    /// Takes in what a view or an edit of the file at `path` shows.
    pub fn observe(&mut self, path: &str, structure: &Structure) {
        let file = self.file(path);
        let ids: Vec<Id> = structure
            .definitions
            .iter()
            .map(|definition| {
                let id =
                    self.node(file, definition.owner.clone(), &definition.name, definition.extent);
                let node = &mut self.nodes[id.0];
                node.numbers = definition.numbers.or(node.numbers);
                if definition.is_whole {
                    node.references.clear();
                }
                id
            })
            .collect();
        let mut line = structure.lines.iter().peekable();
        for reference in &structure.references {
            while line.next_if(|line| line.bytes.end <= reference.bytes.start).is_some() {}
            let number = line.peek().and_then(|line| line.number);
            let from = reference
                .from
                .map(|index| ids[index])
                .or_else(|| self.innermost(file, number?))
                .unwrap_or_else(|| self.node(file, None, "", Extent::Container));
            let name = (reference.owner.clone(), reference.name.clone());
            self.nodes[from.0].references.insert(name);
        }
    }

    fn file(&mut self, path: &str) -> usize {
        let known = self.paths.iter().position(|known| is_same_file(known, path));
        known.unwrap_or_else(|| {
            self.paths.push(path.to_owned());
            self.paths.len() - 1
        })
    }

    fn node(&mut self, file: usize, owner: Option<String>, name: &str, extent: Extent) -> Id {
        let key = (file, owner, name.to_owned());
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = Id(self.nodes.len());
        let (_, owner, name) = key.clone();
        if !name.is_empty() {
            self.by_name.entry(name.clone()).or_default().push(id);
        }
        self.nodes.push(Node {
            file,
            owner,
            name,
            extent,
            numbers: None,
            references: BTreeSet::new(),
        });
        self.ids.insert(key, id);
        id
    }

    /// The innermost function or class known around a line.
    fn innermost(&self, file: usize, line: u32) -> Option<Id> {
        let spans = self.nodes.iter().enumerate().filter_map(|(index, node)| {
            let [first, last] = node.numbers.filter(|_| node.file == file)?;
            (first..=last).contains(&line).then_some((last - first, Id(index)))
        });
        spans.min().map(|(_, id)| id)
    }

    /// The innermost function or class known around a line of a file.
    pub fn at(&self, path: &str, line: u32) -> Option<Id> {
        let file = self.paths.iter().position(|known| is_same_file(known, path))?;
        self.innermost(file, line)
    }

    /// What the words of a text may mean, such as a task's: definitions of these names, where a
    /// name has few.
    pub fn mentioned(&self, text: &str) -> Vec<Id> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let words: BTreeSet<_> = text
            .split(|c| !is_part(c))
            .filter(|word| word.len() >= MIN_NAME && is_name(word))
            .collect();
        let known = words.into_iter().filter_map(|word| self.by_name.get(word));
        known.filter(|ids| ids.len() <= MAX_MEANINGS).flatten().copied().collect()
    }

    fn meanings(&self, from: &Node, owner: Option<&str>, name: &str) -> Vec<Id> {
        let Some(all) = self.by_name.get(name) else { return Vec::new() };
        let owner = match owner {
            Some("self" | "Self" | "this" | "cls") => from.owner.as_deref(),
            owner => owner,
        };
        let of_owner = |id: &&Id| owner.is_some() && self.nodes[id.0].owner.as_deref() == owner;
        let of_file = |id: &&Id| self.nodes[id.0].file == from.file;
        for ids in [
            all.iter().filter(of_owner).copied().collect(),
            all.iter().filter(of_file).copied().collect(),
            all.clone(),
        ] {
            let ids: Vec<Id> = ids;
            if !ids.is_empty() {
                return if ids.len() <= MAX_MEANINGS { ids } else { Vec::new() };
            }
        }
        Vec::new()
    }

    fn edges(&self, contain: f32, types: bool) -> Vec<Vec<(usize, f32)>> {
        let _ = types;
        let mut edges = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for (owner, name) in &node.references {
                let ids = self.meanings(node, owner.as_deref(), name);
                for id in &ids {
                    if id.0 != index {
                        let w = 1.0 / ids.len() as f32;
                        edges[index].push((id.0, w));
                        edges[id.0].push((index, w));
                    }
                }
            }
            if contain > 0.0
                && let Some(owner) = &node.owner
            {
                for id in self.by_name.get(owner).into_iter().flatten() {
                    if id.0 != index && self.nodes[id.0].file == node.file {
                        edges[index].push((id.0, contain));
                        edges[id.0].push((index, contain));
                    }
                }
            }
        }
        edges
    }

    pub fn pagerank(&self, seeds: &[(Id, f32)], restart: f32, contain: f32) -> Vec<f32> {
        let edges = self.edges(contain, true);
        let n = self.nodes.len();
        let mut seed = vec![0.0; n];
        for (id, w) in seeds {
            seed[id.0] += w;
        }
        let total: f32 = seed.iter().sum();
        if total == 0.0 {
            return seed;
        }
        seed.iter_mut().for_each(|s| *s /= total);
        let mut p = seed.clone();
        for _ in 0..20 {
            let mut q = vec![0.0; n];
            for i in 0..n {
                let out: f32 = edges[i].iter().map(|(_, w)| w).sum();
                if out == 0.0 {
                    for j in 0..n {
                        q[j] += (1.0 - restart) * p[i] * seed[j];
                    }
                    continue;
                }
                for (j, w) in &edges[i] {
                    q[*j] += (1.0 - restart) * p[i] * w / out;
                }
            }
            for i in 0..n {
                q[i] += restart * seed[i];
            }
            p = q;
        }
        p
    }

    pub fn breadth(&self, seeds: &[(Id, f32)], decay: f32, hops: usize, contain: f32) -> Vec<f32> {
        let edges = self.edges(contain, true);
        let mut score = vec![0.0_f32; self.nodes.len()];
        for (id, w) in seeds {
            score[id.0] = score[id.0].max(*w);
        }
        let mut front: Vec<usize> = seeds.iter().map(|(id, _)| id.0).collect();
        for _ in 0..hops {
            let mut next = Vec::new();
            for &i in &front {
                for (j, w) in &edges[i] {
                    let s = score[i] * decay * w.sqrt();
                    if s > score[*j] + 1e-6 {
                        score[*j] = s;
                        next.push(*j);
                    }
                }
            }
            front = next;
        }
        score
    }

    pub fn all(&self) -> impl Iterator<Item = (Id, &str, Option<&str>, &str, Extent)> {
        self.nodes.iter().enumerate().map(|(i, n)| {
            (Id(i), self.paths[n.file].as_str(), n.owner.as_deref(), n.name.as_str(), n.extent)
        })
    }
}

/// Shorter words of a text name nothing.
const MIN_NAME: usize = 4;

/// A name with more meanings says nothing.
const MAX_MEANINGS: usize = 8;

/// Whether a word of a text looks like a name in code.
fn is_name(word: &str) -> bool {
    word.contains('_') || word.chars().skip(1).any(char::is_uppercase)
}
