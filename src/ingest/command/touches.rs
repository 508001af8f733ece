//! Which files a program may change.

use super::lines::script_at;
use super::program::reads_only;
use super::strs;
use crate::ingest::act::{At, Touch};
use crate::ingest::shell::Simple;

/// The files that a program may change.
pub(super) fn touches(simple: &Simple) -> Vec<Touch> {
    let words = strs(simple);
    let is_file = |file: &&String| !file.starts_with("/dev/");
    let mut touches: Vec<_> = simple.writes.iter().filter(is_file).map(Touch::all).collect();
    let files = || words.iter().skip(1).filter(|word| !word.starts_with('-'));
    match &words[..] {
        ["sed", rest @ ..] if rest.iter().any(|word| is_in_place(word)) => {
            let arguments: Vec<&str> = rest
                .iter()
                .filter(|word| !is_in_place(word) && !word.is_empty())
                .copied()
                .collect();
            let at = script_at(&arguments).unwrap_or(0);
            let script = arguments.get(at).copied().unwrap_or_default();
            let n_digits = script.bytes().take_while(u8::is_ascii_digit).count();
            let line = script[..n_digits].parse().ok().filter(|line| *line > 0);
            let at_line = line.filter(|_| !script.contains(['\n'])).map_or(At::All, At::Line);
            let files = arguments.get(at + 1..).unwrap_or_default();
            touches.extend(files.iter().map(|file| match file.contains(['*', '?', '$']) {
                true => Touch::ANY,
                false => Touch { path: Some((*file).to_owned()), at: at_line },
            }));
        }
        ["tee" | "rm" | "touch" | "truncate", ..] => {
            touches.extend(files().copied().map(Touch::all))
        }
        ["mv" | "cp", ..] => touches.extend(files().copied().map(Touch::all)),
        ["git", ..] => {
            let writes = [
                "checkout",
                "stash",
                "reset",
                "restore",
                "apply",
                "merge",
                "pull",
                "rebase",
                "cherry-pick",
                "clean",
                "revert",
                "am",
                "switch",
            ];
            if files().next().is_some_and(|word| writes.contains(word)) {
                touches.push(Touch::ANY);
            }
        }
        [
            "ruff" | "eslint" | "prettier" | "cargo" | "black" | "isort" | "biome" | "npm" | "yarn"
            | "pnpm" | "bun" | "make" | "go",
            ..,
        ] => {
            let fixes =
                ["--fix", "--write", "-w", "fmt", "fix", "format", "generate", "run", "lint"];
            let is_formatter = matches!(words[0], "black" | "isort") && !words.contains(&"--check");
            if is_formatter || words.iter().any(|word| fixes.contains(word)) {
                touches.push(Touch::ANY);
            }
        }
        ["find" | "xargs", rest @ ..] => {
            let writes =
                |word: &&str| is_in_place(word) || matches!(*word, "-delete" | "rm" | "mv");
            if rest.iter().any(writes) {
                touches.push(Touch::ANY);
            }
        }
        words if reads_only(words) => {}
        _ => touches.push(Touch::ANY),
    }
    touches
}

/// True for `-i`, `-i.bak`, `-Ei`, `--in-place`.
fn is_in_place(word: &str) -> bool {
    word.starts_with("--in-place")
        || word
            .strip_prefix('-')
            .is_some_and(|flags| flags.starts_with('i') || flags.len() <= 3 && flags.ends_with('i'))
}
