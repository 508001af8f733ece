//! What one program prints.

use super::lines::{awk_range, count, from_line, script_at, sed_range, view};
use crate::ingest::span::Kind;

/// What one pipeline prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shows {
    /// None where only the text can tell.
    pub kind: Option<Kind>,
    pub path: Option<String>,
    pub lines: Option<(u32, Option<u32>)>,
}

/// What one program prints; none where nothing is known of it.
pub(super) fn shows(words: &[&str]) -> Option<Shows> {
    let (program, arguments) = words.split_first()?;
    let kind = |kind| Some(Shows { kind: Some(kind), ..Shows::default() });
    let subcommand = arguments.iter().find(|word| !word.starts_with(['-', '+'])).copied();
    let has = |flag: &str| arguments.contains(&flag);
    match *program {
        "cat" | "nl" | "bat" | "batcat" | "less" | "more" => view(arguments, &[], (1, None)),
        "head" => {
            let n = count(words).unwrap_or(10);
            view(arguments, &["-n", "-c"], (1, Some(n)))
        }
        "tail" => {
            let lines = from_line(words).map(|first| (first, None));
            let view = view(arguments, &["-n", "-c"], (1, None));
            view.map(|view| Shows { lines, ..view })
        }
        "sed" if has("-n") || arguments.iter().any(|word| word.starts_with("-n")) => {
            let files = view(arguments.get(script_at(arguments)? + 1..)?, &[], (1, None));
            files.map(|view| Shows { lines: sed_range(words), ..view })
        }
        "awk" => {
            let script = arguments.iter().position(|word| word.contains("NR"))?;
            let lines = awk_range(arguments[script])?;
            view(&arguments[script + 1..], &[], lines)
        }
        "grep" | "egrep" | "fgrep" | "rg" | "ag" | "ack" | "zgrep" => {
            let counts = has("-c") || has("--count");
            let kind = (!counts).then_some(Kind::Search);
            Some(Shows { kind, ..searched(arguments) })
        }
        // SWE-agent's own commands.
        "open" => view(arguments.get(..1)?, &[], (1, None)),
        "goto" | "scroll_up" | "scroll_down" => kind(Kind::FileView),
        "search_dir" | "search_file" => kind(Kind::Search),
        "find_file" => kind(Kind::Listing),
        "submit" => kind(Kind::Diff),
        "ls" | "ll" | "tree" | "fd" | "fdfind" | "dir" | "exa" | "eza" => kind(Kind::Listing),
        "find" => match arguments.iter().position(|word| matches!(*word, "-exec" | "-execdir")) {
            None => kind(Kind::Listing),
            Some(at) => shows(&arguments[at + 1..]).filter(|s| s.kind != Some(Kind::FileView)),
        },
        "git" => git(subcommand?, arguments),
        "diff" | "colordiff" | "interdiff" => kind(Kind::Diff),
        "pytest" | "py.test" | "unittest" | "tox" | "nox" | "mypy" | "ruff" | "flake8"
        | "pylint" | "pyright" | "black" | "isort" | "pycodestyle" | "bandit" | "cmake"
        | "ctest" | "make" | "gmake" | "ninja" | "meson" | "gcc" | "g++" | "cc" | "c++"
        | "clang" | "clang++" | "rustc" | "javac" | "tsc" | "eslint" | "jest" | "vitest"
        | "mocha" | "ava" | "biome" | "prettier" | "stylelint" | "webpack" | "vite" | "rollup"
        | "esbuild" | "mvn" | "mvnw" | "gradle" | "gradlew" | "ant" | "sbt" | "bazel" | "rspec"
        | "rake" | "bundle" | "phpunit" | "golangci-lint" | "staticcheck" | "gotestsum"
        | "nosetests" | "runtests.py" | "playwright" | "cypress" | "nextest" | "swift" | "zig"
        | "cabal" | "stack" | "mix" | "pre-commit" | "build" | "compileall" | "doctest"
        | "valgrind" | "shellcheck" | "clippy-driver" | "trial" => kind(Kind::Log),
        "cargo" => match subcommand? {
            "run" | "metadata" | "search" | "tree" | "locate-project" | "expand" => None,
            _ => kind(Kind::Log),
        },
        "go" => match subcommand? {
            "test" | "build" | "vet" | "install" | "get" | "mod" | "generate" => kind(Kind::Log),
            _ => None,
        },
        "npm" | "yarn" | "pnpm" | "bun" | "deno" => match subcommand? {
            "view" | "ls" | "list" | "config" | "info" => None,
            _ => kind(Kind::Log),
        },
        "pip" | "pip3" | "uv" | "poetry" | "conda" | "apt" | "apt-get" | "brew" | "gem"
        | "docker" | "composer" => match subcommand? {
            "install" | "sync" | "add" | "build" | "update" | "upgrade" | "uninstall"
            | "remove" | "lock" | "pip" | "create" => kind(Kind::Log),
            "list" | "freeze" => kind(Kind::Listing),
            _ => None,
        },
        "dotnet" => kind(Kind::Log),
        "python" => match subcommand? {
            script if script.ends_with("runtests.py") => kind(Kind::Log),
            script if script.ends_with("setup.py") => kind(Kind::Log),
            script if script.ends_with("manage.py") && has("test") => kind(Kind::Log),
            _ => None,
        },
        script if script.ends_with("/runtests.py") || script.ends_with("/gradlew") => {
            kind(Kind::Log)
        }
        _ => None,
    }
}

pub(super) fn git(subcommand: &str, arguments: &[&str]) -> Option<Shows> {
    let is_list = arguments.iter().any(|word| {
        matches!(*word, "--stat" | "--name-only" | "--name-status" | "--shortstat" | "--numstat")
    });
    let kind = match subcommand {
        "diff" | "show" | "format-patch" if is_list => Kind::Listing,
        "show" => match arguments.last()?.split_once(':') {
            Some((revision, path)) if !revision.is_empty() && !path.is_empty() => {
                let (path, lines) = (Some(path.to_owned()), Some((1, None)));
                return Some(Shows { kind: Some(Kind::FileView), path, lines });
            }
            _ => Kind::Diff,
        },
        "diff" => Kind::Diff,
        "stash" if arguments.contains(&"-p") => Kind::Diff,
        "log" if arguments.iter().any(|word| matches!(*word, "-p" | "--patch" | "-u")) => {
            Kind::Diff
        }
        "log" | "status" | "ls-files" | "branch" | "tag" | "reflog" | "ls-tree" | "remote"
        | "shortlog" => Kind::Listing,
        "grep" => Kind::Search,
        _ => return None,
    };
    let path = arguments.iter().skip_while(|word| **word != "--").nth(1);
    let path = path.filter(|_| kind == Kind::Diff).map(|path| (*path).to_owned());
    Some(Shows { kind: Some(kind), path, lines: None })
}

/// The only file or folder that is searched.
pub(super) fn searched(arguments: &[&str]) -> Shows {
    let with_value = ["-A", "-B", "-C", "-m", "--include", "--exclude", "-g", "-t", "--type", "-f"];
    let mut is_value = false;
    let mut has_pattern = false;
    let mut places = Vec::new();
    for word in arguments {
        if is_value {
            is_value = false;
        } else if *word == "-e" || with_value.contains(word) {
            is_value = true;
            has_pattern |= *word == "-e";
        } else if !word.starts_with('-') || word.len() == 1 {
            places.extend(has_pattern.then_some(*word));
            has_pattern = true;
        }
    }
    match places[..] {
        [only] if !only.contains('*') => Shows { path: Some(only.to_owned()), ..Shows::default() },
        _ => Shows::default(),
    }
}

/// True for a program that prints nothing of interest.
pub(super) fn is_silent(words: &[&str]) -> bool {
    matches!(
        words,
        [
            "cd" | "pushd"
                | "popd"
                | "export"
                | "set"
                | "unset"
                | "source"
                | "."
                | "mkdir"
                | "touch"
                | "true"
                | ":"
                | "sleep"
                | "rm"
                | "cp"
                | "mv"
                | "chmod"
                | "ln"
                | "echo"
                | "printf"
                | "kill"
                | "wait"
                | "alias"
                | "shopt"
                | "ulimit"
                | "fi"
                | "done"
                | "esac"
                | "}"
                | "for"
                | "while"
                | "exit"
                | "conda"
                | "trap"
                | "test"
                | "["
                | "[["
                | "pwd"
                | "which"
                | "date"
                | "umask"
                | "read"
                | "local"
                | "return"
                | "break",
            ..
        ] | []
            | ["git", "add" | "commit" | "checkout" | "stash" | "config" | "reset" | "clean", ..]
    ) || matches!(words, ["grep" | "rg", flag, ..] if *flag == "-q")
}

/// True for a program that changes no file.
pub(super) fn reads_only(words: &[&str]) -> bool {
    let is_filter = matches!(
        words,
        [
            "wc" | "sort"
                | "uniq"
                | "cut"
                | "tr"
                | "head"
                | "tail"
                | "less"
                | "more"
                | "jq"
                | "file"
                | "stat"
                | "du"
                | "df"
                | "ps"
                | "env"
                | "printenv"
                | "uname"
                | "whoami"
                | "id"
                | "hostname"
                | "awk"
                | "sed"
                | "column"
                | "xxd"
                | "od"
                | "strings"
                | "basename"
                | "dirname"
                | "realpath"
                | "readlink"
                | "diff"
                | "cmp"
                | "md5sum"
                | "sha256sum"
                | "type"
                | "seq"
                | "yes"
                | "nproc"
                | "free"
                | "tac"
                | "rev"
                | "curl"
                | "wget",
            ..
        ] | ["pip" | "git", ..]
    );
    is_filter || is_silent(words) || shows(words).is_some()
}
