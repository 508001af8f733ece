//! Programming languages that have a grammar here.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A language with a grammar and a query file under `grammars/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Rust,
    Python,
    JavaScript,
    TypeScript,
    Tsx,
    Go,
    Java,
    C,
    Cpp,
}

impl Language {
    /// The language of a file, by its name.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::by_name(Path::new(path).extension()?.to_str()?)
    }

    /// The language with this file extension, or this name behind a code fence.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "rs" | "rust" => Self::Rust,
            "py" | "pyi" | "pyw" | "python" | "python3" => Self::Python,
            "js" | "mjs" | "cjs" | "jsx" | "javascript" => Self::JavaScript,
            "ts" | "mts" | "cts" | "typescript" => Self::TypeScript,
            "tsx" => Self::Tsx,
            "go" | "golang" => Self::Go,
            "java" => Self::Java,
            "c" | "h" => Self::C,
            "cc" | "cpp" | "cxx" | "c++" | "hh" | "hpp" | "hxx" => Self::Cpp,
            _ => return None,
        })
    }
}
