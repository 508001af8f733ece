//! The table of languages: a grammar and its queries (`grammars/README.md`) a line.

use std::sync::OnceLock;

use tree_sitter::{Query, QueryError};

use crate::ingest::language::Language;
use crate::ingest::prior::Class;

macro_rules! query {
    ($folder:literal) => {
        include_str!(concat!("../../../grammars/", $folder, "/structure.scm"))
    };
}

static TABLE: [Row; 9] = [
    row(Language::Rust, || tree_sitter_rust::LANGUAGE.into(), &[query!("rust")]),
    row(Language::Python, || tree_sitter_python::LANGUAGE.into(), &[query!("python")]),
    row(
        Language::JavaScript,
        || tree_sitter_javascript::LANGUAGE.into(),
        &[query!("ecmascript"), query!("jsx"), query!("javascript")],
    ),
    row(
        Language::TypeScript,
        || tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
        &[query!("ecmascript"), query!("typescript")],
    ),
    row(
        Language::Tsx,
        || tree_sitter_typescript::LANGUAGE_TSX.into(),
        &[query!("ecmascript"), query!("jsx"), query!("typescript")],
    ),
    row(Language::Go, || tree_sitter_go::LANGUAGE.into(), &[query!("go")]),
    row(Language::Java, || tree_sitter_java::LANGUAGE.into(), &[query!("java")]),
    row(Language::C, || tree_sitter_c::LANGUAGE.into(), &[query!("c_family"), query!("c")]),
    row(Language::Cpp, || tree_sitter_cpp::LANGUAGE.into(), &[query!("c_family"), query!("cpp")]),
];

/// What a capture is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Gives lines their class.
    Class(Class),
    /// The extent of a function.
    Function,
    /// The extent of what holds others: a class, an `impl`, a module.
    Container,
    /// The name of what the match defines.
    Name,
    /// To what it belongs, where the extent that it stands in does not say.
    Owner,
    Callee,
    CalleeOwner,
    /// Where the match's class ends.
    Body,
    /// Serves a predicate only.
    Helper,
}

impl Role {
    fn of(capture: &str) -> Option<Self> {
        Some(match capture {
            "definition" => Self::Class(Class::Definition),
            "definition.function" => Self::Function,
            "definition.container" => Self::Container,
            "definition.name" => Self::Name,
            "definition.owner" => Self::Owner,
            "signature" => Self::Class(Class::Signature),
            "import" => Self::Class(Class::Import),
            "test" => Self::Class(Class::Test),
            "condition" => Self::Class(Class::Condition),
            "return" => Self::Class(Class::Return),
            "call" => Self::Class(Class::Call),
            "call.name" => Self::Callee,
            "call.owner" => Self::CalleeOwner,
            "assignment" => Self::Class(Class::Assignment),
            "type" => Self::Class(Class::Type),
            "literal" => Self::Class(Class::Literal),
            "comment" => Self::Class(Class::Comment),
            "docstring" => Self::Class(Class::Docstring),
            "body" => Self::Body,
            helper if helper.starts_with('_') => Self::Helper,
            _ => return None,
        })
    }
}

/// A grammar with its compiled query.
pub(super) struct Grammar {
    pub language: tree_sitter::Language,
    pub query: Query,
    roles: Vec<Role>,
}

/// Why a language's query cannot be used; only a change of this source can bring it about.
#[derive(Debug, thiserror::Error)]
pub(super) enum GrammarError {
    #[error("the query does not fit its grammar: {0}")]
    Query(#[from] QueryError),
    #[error("nobody knows what the capture {0} is for")]
    Capture(String),
    #[error("the language has no grammar")]
    Missing,
}

impl Grammar {
    /// The grammar of `language`, compiled at first use.
    pub(super) fn of(language: Language) -> Result<&'static Self, &'static GrammarError> {
        static MISSING: GrammarError = GrammarError::Missing;
        let row = TABLE.iter().find(|row| row.language == language).ok_or(&MISSING)?;
        row.compiled.get_or_init(|| Self::compile((row.grammar)(), row.queries)).as_ref()
    }

    /// What the capture with this index is for.
    pub(super) fn role(&self, capture: u32) -> Role {
        self.roles.get(capture as usize).copied().unwrap_or(Role::Helper)
    }

    fn compile(language: tree_sitter::Language, queries: &[&str]) -> Result<Self, GrammarError> {
        let query = Query::new(&language, &queries.join("\n"))?;
        let role =
            |name: &&str| Role::of(name).ok_or_else(|| GrammarError::Capture((*name).into()));
        let roles = query.capture_names().iter().map(role).collect::<Result<_, _>>()?;
        Ok(Self { language, query, roles })
    }
}

struct Row {
    language: Language,
    grammar: fn() -> tree_sitter::Language,
    queries: &'static [&'static str],
    compiled: OnceLock<Result<Grammar, GrammarError>>,
}

const fn row(
    language: Language,
    grammar: fn() -> tree_sitter::Language,
    queries: &'static [&'static str],
) -> Row {
    Row { language, grammar, queries, compiled: OnceLock::new() }
}

#[cfg(test)]
mod tests {
    use super::{Grammar, TABLE};

    #[test]
    fn every_query_fits_its_grammar() {
        for row in &TABLE {
            if let Err(error) = Grammar::of(row.language) {
                panic!("{:?}: {error}", row.language);
            }
        }
    }
}
