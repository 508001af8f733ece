//! What a shell command line prints, and which files it may change.

use super::act::{Act, Touch};
use super::shell::{Pipeline, Simple, parse};
use super::span::Kind;
use lines::{count, from_line, sed_range};
use program::{Shows, is_silent, reads_only, shows};
use touches::touches;

mod lines;
mod program;
#[cfg(test)]
mod tests;
mod touches;

/// What a command line does.
pub(super) fn act(line: &str) -> Act {
    let mut act = Act { command: Some(line.trim().to_owned()), ..Act::default() };
    let mut folder = String::new();
    let mut shown: Vec<Shows> = Vec::new();
    for pipeline in unwrapped(line) {
        let Some(first) = pipeline.first() else { continue };
        if let ["cd" | "pushd", to] = &strs(first)[..] {
            folder = join(&folder, to);
            continue;
        }
        for simple in &pipeline {
            act.touches.extend(touches(simple).into_iter().map(|touch| Touch {
                path: touch.path.map(|path| join(&folder, &path)),
                at: touch.at,
            }));
        }
        if let Some(mut shows) = pipeline_shows(&pipeline) {
            shows.path = shows.path.map(|path| join(&folder, &path));
            shown.push(shows);
        }
    }
    act.touches.dedup();
    match &shown[..] {
        [only] => (act.kind, act.path, act.lines) = (only.kind, only.path.clone(), only.lines),
        [first, rest @ ..] if rest.iter().all(|other| other.kind == first.kind) => {
            act.kind = first.kind;
        }
        // Silent commands print nothing, or why they failed.
        _ => {}
    }
    act
}

/// The tool and subcommand of a command line's only program that writes a log or runs a script,
/// and that program's whole command; pipes, folders and time limits are left out.
pub(super) fn family(line: &str) -> Option<(String, String)> {
    let mut found = None;
    for pipeline in unwrapped(line) {
        let Some(first) = pipeline.first() else { continue };
        let words = strs(first);
        let is_log = shows(&words).is_some_and(|shows| shows.kind == Some(Kind::Log));
        if words.is_empty() || !is_log && reads_only(&words) {
            continue;
        }
        let subcommands = match words[0] {
            "cargo" | "go" | "git" | "npm" | "yarn" | "pnpm" | "bun" | "dotnet" | "docker" => 2,
            "python" | "node" | "bash" | "sh" | "ruby" | "perl" | "deno" | "java" => 2,
            _ => 1,
        };
        let is_word = |word: &&&str| !word.starts_with(['-', '+']);
        let tool: Vec<&str> = words.iter().filter(is_word).take(subcommands).copied().collect();
        let tool = if tool[..] == ["npm", "run"] || tool[..] == ["bun", "run"] {
            words.iter().filter(is_word).take(3).copied().collect()
        } else {
            tool
        };
        // The last one decides how the run ended.
        found = Some((tool.join(" "), words.join(" ")));
    }
    found
}

/// How many shells within shells are looked into.
const DEPTH: usize = 3;

/// The pipelines with wrappers such as `timeout 60` and `bash -c` taken off.
fn unwrapped(line: &str) -> Vec<Pipeline> {
    unwrapped_to(line, DEPTH)
}

fn unwrapped_to(line: &str, depth: usize) -> Vec<Pipeline> {
    let mut pipelines = Vec::new();
    for mut pipeline in parse(line) {
        pipeline.iter_mut().for_each(unwrap_program);
        let first = pipeline.first().map(strs).unwrap_or_default();
        let inner = match first[..] {
            ["bash" | "sh" | "zsh", flag, inner, ..] if depth > 0 => {
                let is_script = flag.starts_with('-') && flag.ends_with('c');
                is_script.then(|| unwrapped_to(inner, depth - 1))
            }
            _ => None,
        };
        let Some(mut inner) = inner else {
            pipelines.push(pipeline);
            continue;
        };
        if let Some(last) = inner.last_mut() {
            last.extend(pipeline.drain(1..));
        }
        pipelines.extend(inner);
    }
    pipelines
}

fn strs(simple: &Simple) -> Vec<&str> {
    simple.words.iter().map(String::as_str).collect()
}

/// Takes off what stands before the program that is meant, and the program's folder.
fn unwrap_program(simple: &mut Simple) {
    let is_assignment = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
    };
    loop {
        let words = strs(simple);
        let taken = match &words[..] {
            [first, ..] if is_assignment(first) => 1,
            [
                "time" | "nohup" | "sudo" | "command" | "exec" | "env" | "then" | "do" | "else"
                | "if" | "!" | "{" | "stdbuf" | "nice" | "timeout" | "gtimeout" | "unbuffer"
                | "xvfb-run",
                rest @ ..,
            ] => {
                let is_option = |word: &&&str| {
                    word.starts_with('-') || word.starts_with(|c: char| c.is_ascii_digit())
                };
                1 + rest.iter().take_while(is_option).count()
            }
            ["poetry" | "uv" | "pipenv" | "pdm" | "hatch" | "rye", "run", ..] => 2,
            ["npx" | "bunx" | "pnpx" | "uvx", _, ..] => 1,
            ["npm" | "pnpm" | "yarn" | "bun", "exec" | "x", ..] => 2,
            ["coverage", "run", "-m", _, ..] => 3,
            [python, flags @ ..] if is_python(python) => match module(flags) {
                Some(at) => 1 + at,
                None => 0,
            },
            _ => 0,
        };
        if taken == 0 || taken >= simple.words.len() {
            break;
        }
        simple.words.drain(..taken);
    }
    if let Some(program) = simple.words.first_mut() {
        let name = program.rsplit('/').next().unwrap_or_default();
        let name = if is_python(name) { "python" } else { name };
        let is_script = program.starts_with("./") || name.contains('.');
        if !name.is_empty() && !is_script {
            *program = name.to_owned();
        }
    }
}

fn is_python(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or_default();
    name.strip_prefix("python")
        .is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// Where the module's name stands behind `python … -m`.
fn module(flags: &[&str]) -> Option<usize> {
    let at = flags.iter().position(|flag| *flag == "-m")?;
    // Before it stand only options, of which two have a value.
    let mut is_value = false;
    let are_options = flags[..at].iter().all(|flag| {
        let is_option = is_value || flag.starts_with('-');
        is_value = matches!(*flag, "-W" | "-X");
        is_option
    });
    (are_options && at + 1 < flags.len()).then_some(at + 1)
}

/// What a pipeline prints; none where it prints nothing.
fn pipeline_shows(pipeline: &[Simple]) -> Option<Shows> {
    let writes_all = |simple: &Simple| simple.writes.iter().any(|file| file != "/dev/null");
    let first = pipeline.first()?;
    if pipeline.last().is_some_and(writes_all) || is_silent(&strs(first)) && pipeline.len() == 1 {
        return None;
    }
    let mut shows = match shows(&strs(first)) {
        Some(shows) if !first.has_heredoc || shows.kind == Some(Kind::Log) => shows,
        _ => Shows::default(),
    };
    for filter in &pipeline[1..] {
        shows = filtered(shows, &strs(filter));
    }
    Some(shows)
}

/// What a filter leaves of what it is given.
fn filtered(shows: Shows, words: &[&str]) -> Shows {
    let of_kind = |kind| Shows { kind: Some(kind), path: shows.path.clone(), lines: None };
    let is_view = shows.kind == Some(Kind::FileView);
    let base = shows.lines.filter(|_| is_view);
    match words {
        ["xargs", rest @ ..] => {
            let inner = rest.iter().position(|word| shows_of(word));
            let inner = inner.and_then(|at| self::shows(&rest[at..]));
            let kind = inner.and_then(|inner| inner.kind);
            Shows { kind: kind.filter(|kind| *kind != Kind::FileView), ..Shows::default() }
        }
        ["grep" | "egrep" | "fgrep" | "rg" | "ag", flags @ ..] => match shows.kind {
            Some(Kind::FileView) if !flags.contains(&"-c") => of_kind(Kind::Search),
            _ if flags.contains(&"-c") => Shows::default(),
            _ => shows,
        },
        ["head", ..] if is_view => match (base, count(words)) {
            (Some((first, last)), Some(n)) => {
                let cut = first.saturating_add(n.saturating_sub(1));
                Shows { lines: Some((first, Some(last.map_or(cut, |l| l.min(cut))))), ..shows }
            }
            _ => shows,
        },
        ["tail", ..] if is_view => {
            let from = from_line(words).zip(base);
            Shows { lines: from.map(|(n, (first, last))| (first + n - 1, last)), ..shows }
        }
        ["sed", ..] if is_view => match (base, sed_range(words)) {
            (Some((first, _)), Some((from, to))) => {
                let moved = |line: u32| line.saturating_add(first - 1);
                Shows { lines: Some((moved(from), to.map(moved))), ..shows }
            }
            _ => Shows { lines: None, ..shows },
        },
        ["nl" | "cat" | "less" | "more" | "bat" | "tee" | "expand", ..] => shows,
        ["head" | "tail" | "sed" | "tac", ..] => shows,
        ["sort" | "uniq", ..] if shows.kind != Some(Kind::FileView) => shows,
        _ => Shows::default(),
    }
}

fn shows_of(word: &str) -> bool {
    shows(&[word, "x"]).is_some_and(|shows| shows.kind.is_some())
}

fn join(folder: &str, path: &str) -> String {
    match path.starts_with(['/', '~', '$']) || folder.is_empty() {
        true => path.to_owned(),
        false => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}
