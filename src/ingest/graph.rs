//! The light code graph of a session: who defines what, who calls whom, by name.
//!
//! It grows with every view and edit, knows only what has been seen, and resolves names cheaply:
//! the container that a call names before anything of that name in the same file before anything
//! of that name at all. From a few places (what was edited, what a stack trace names, what the
//! task speaks of) weight spreads over it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::prior::is_same_file;
use super::structure::{Definition, Structure};

/// How much weight is left a step further, and how many steps it goes: breadth-first, since on
/// recorded sessions that ranked functions edited or viewed later higher than personalised page
/// rank did.
const DECAY: f32 = 0.7;
const MAX_HOPS: usize = 4;

/// Shorter words of a text name nothing.
const MIN_NAME: usize = 4;

/// A name with more meanings says nothing.
const MAX_MEANINGS: usize = 8;

/// A definition, or the code of a file that lies in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(usize);

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
                let id = self.node(file, definition.owner.as_deref(), &definition.name);
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
                .unwrap_or_else(|| self.node(file, None, ""));
            let name = (reference.owner.clone(), reference.name.clone());
            self.nodes[from.0].references.insert(name);
        }
    }

    /// The innermost definition known around a line of a file.
    pub fn at(&self, path: &str, line: u32) -> Option<Id> {
        self.innermost(self.known(path)?, line)
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

    /// How near each definition is to those of `seeds`, which weigh as much as given, in [0, 1].
    pub fn spread(&self, seeds: &[(Id, f32)]) -> Weights {
        let neighbours = self.neighbours();
        let mut weights = vec![0.0_f32; self.nodes.len()];
        let mut front = BTreeSet::new();
        for &(id, weight) in seeds {
            if let Some(known) = weights.get_mut(id.0) {
                *known = known.max(weight.clamp(0.0, 1.0));
                front.insert(id.0);
            }
        }
        for _ in 0..MAX_HOPS {
            let mut next = BTreeSet::new();
            for from in front {
                for &(to, share) in &neighbours[from] {
                    let weight = weights[from] * DECAY * share;
                    if weight > weights[to] {
                        weights[to] = weight;
                        next.insert(to);
                    }
                }
            }
            front = next;
        }
        Weights(weights)
    }

    /// The definitions of a view of the file at `path` that weigh anything, by their bytes.
    pub fn weigh(
        &self,
        path: &str,
        structure: &Structure,
        weights: &Weights,
    ) -> Vec<(Range<usize>, f32)> {
        let Some(file) = self.known(path) else { return Vec::new() };
        let weigh = |definition: &Definition| {
            let key = (file, definition.owner.clone(), definition.name.clone());
            let weight = weights.of(*self.ids.get(&key)?);
            (weight > 0.0).then(|| (definition.bytes.clone(), weight))
        };
        structure.definitions.iter().filter_map(weigh).collect()
    }

    /// For each definition those it names and those that name it, each with a share that is less
    /// where a name may mean several.
    fn neighbours(&self) -> Vec<Vec<(usize, f32)>> {
        let mut neighbours = vec![Vec::new(); self.nodes.len()];
        for (from, node) in self.nodes.iter().enumerate() {
            for (owner, name) in &node.references {
                let meanings = self.meanings(node, owner.as_deref(), name);
                let share = (meanings.len() as f32).sqrt().recip();
                for Id(to) in meanings.into_iter().filter(|id| id.0 != from) {
                    neighbours[from].push((to, share));
                    neighbours[to].push((from, share));
                }
            }
        }
        neighbours
    }

    /// What a name may mean where `from` uses it.
    fn meanings(&self, from: &Node, owner: Option<&str>, name: &str) -> Vec<Id> {
        let Some(all) = self.by_name.get(name) else { return Vec::new() };
        let owner = match owner {
            Some("self" | "Self" | "this" | "cls") => from.owner.as_deref(),
            owner => owner,
        };
        let of_owner = |node: &Node| owner.is_some() && node.owner.as_deref() == owner;
        let of_file = |node: &Node| node.file == from.file;
        let choices: [&dyn Fn(&Node) -> bool; 3] = [&of_owner, &of_file, &|_| true];
        let meanings = choices.into_iter().map(|is_meant| -> Vec<Id> {
            all.iter().filter(|id| is_meant(&self.nodes[id.0])).copied().collect()
        });
        let found = meanings.into_iter().find(|ids| !ids.is_empty()).unwrap_or_default();
        if found.len() <= MAX_MEANINGS { found } else { Vec::new() }
    }

    fn known(&self, path: &str) -> Option<usize> {
        self.paths.iter().position(|known| is_same_file(known, path))
    }

    fn file(&mut self, path: &str) -> usize {
        self.known(path).unwrap_or_else(|| {
            self.paths.push(path.to_owned());
            self.paths.len() - 1
        })
    }

    fn node(&mut self, file: usize, owner: Option<&str>, name: &str) -> Id {
        let key = (file, owner.map(str::to_owned), name.to_owned());
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = Id(self.nodes.len());
        if !name.is_empty() {
            self.by_name.entry(name.to_owned()).or_default().push(id);
        }
        let owner = key.1.clone();
        self.nodes.push(Node { file, owner, numbers: None, references: BTreeSet::new() });
        self.ids.insert(key, id);
        id
    }

    /// The innermost definition known around a line.
    fn innermost(&self, file: usize, line: u32) -> Option<Id> {
        let around = self.nodes.iter().enumerate().filter_map(|(index, node)| {
            let [first, last] = node.numbers.filter(|_| node.file == file)?;
            (first..=last).contains(&line).then_some((last - first, Id(index)))
        });
        around.min().map(|(_, id)| id)
    }
}

/// Weights that [`Graph::spread`] gave to the definitions of its graph.
#[derive(Clone, Debug, Default)]
pub struct Weights(Vec<f32>);

impl Weights {
    /// A definition's weight, 0 where it is not near anything.
    pub fn of(&self, id: Id) -> f32 {
        self.0.get(id.0).copied().unwrap_or(0.0)
    }
}

/// Whether a word of a text looks like a name in code.
fn is_name(word: &str) -> bool {
    word.contains('_') || word.chars().skip(1).any(char::is_uppercase)
}

#[cfg(test)]
mod tests;
