//! What a tool call does: what it prints, and which files it may change.

use serde_json::Value;

use super::command;
use super::history::hash;
use super::span::Kind;
use crate::trajectory::ToolCall;

/// What a call does, as far as its arguments tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Act {
    /// What it prints; none where only the text itself can tell.
    pub kind: Option<Kind>,
    /// The only file that it shows, searches or edits.
    pub path: Option<String>,
    /// The first line of a view, and the last one if it is bounded.
    pub lines: Option<(u32, Option<u32>)>,
    /// The shell command, or for other tools the call as a person would write it.
    pub command: Option<String>,
    pub touches: Vec<Touch>,
}

/// A change to a file that a call may have made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    /// The file; any file where it is none.
    pub path: Option<String>,
    pub at: At,
}

/// From where on a file may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    All,
    Line(u32),
    /// The line with this hash.
    Text(u64),
}

impl Touch {
    /// Any file may have changed.
    pub(super) const ANY: Self = Self { path: None, at: At::All };

    pub(super) fn all(path: impl Into<String>) -> Self {
        Self { path: Some(path.into()), at: At::All }
    }
}

/// Arguments that hold a path, in the order of trust.
const PATHS: [&str; 9] = [
    "file_path",
    "path",
    "filename",
    "absolute_path",
    "target_file",
    "file",
    "filePath",
    "notebook_path",
    "relative_path",
];

/// What this call does.
pub(super) fn of_call(call: &ToolCall) -> Act {
    let arguments: Value = serde_json::from_str(&call.function.arguments).unwrap_or_default();
    let arguments = &arguments;
    let name = call.function.name.to_ascii_lowercase();
    let tool = name.rsplit(['.', '/']).next().unwrap_or_default();
    if let Some(command) = shell_command(tool, arguments) {
        return command::act(&command);
    }
    let path = PATHS.iter().find_map(|name| arguments[*name].as_str()).map(str::to_owned);
    let verb = arguments["command"].as_str().unwrap_or_default();
    // Editors with many commands name the one that is meant in an argument.
    let tool = if tool.starts_with("str_replace") && !verb.is_empty() { verb } else { tool };
    let mut act = Act { command: Some(describe(tool, &path, arguments)), ..Act::default() };
    match tool {
        "read" | "read_file" | "readfile" | "view" | "view_file" | "open" | "open_file" | "cat"
        | "goto" | "scroll_up" | "scroll_down" | "read_text_file" | "fs_read" => {
            act.kind = Some(Kind::FileView);
            act.lines = Some(view_range(arguments));
        }
        "grep" | "grep_search" | "search_file" | "search_dir" | "search" | "search_files"
        | "code_search" | "codebase_search" | "ripgrep" | "search_for_pattern" => {
            act.kind = Some(Kind::Search);
        }
        "glob" | "ls" | "list" | "list_dir" | "list_directory" | "list_files" | "find_file"
        | "file_search" | "glob_file_search" | "find_files" | "directory_tree" => {
            act.kind = Some(Kind::Listing);
        }
        "git_diff" | "git_show" | "submit" => act.kind = Some(Kind::Diff),
        "write"
        | "write_file"
        | "create"
        | "create_file"
        | "undo_edit"
        | "delete_file"
        | "create_or_overwrite_file"
        | "notebookedit"
        | "overwrite" => {
            act.touches = vec![Touch { path: path.clone(), at: At::All }];
        }
        "edit" | "edit_file" | "str_replace" | "search_replace" | "replace" | "multiedit"
        | "insert" | "multi_edit" | "replace_in_file" | "apply_diff" | "insert_line" => {
            act.touches = vec![Touch { path: path.clone(), at: edited_at(arguments) }];
        }
        "apply_patch" | "patch" => {
            let patch =
                ["input", "patch", "diff"].iter().find_map(|name| arguments[*name].as_str());
            let paths = patched(patch.unwrap_or(&call.function.arguments));
            act.touches = paths.iter().cloned().map(Touch::all).collect();
            if let [only] = &paths[..] {
                act.path = Some(only.clone());
            }
        }
        _ => {}
    }
    if act.path.is_none() {
        act.path = path;
    }
    act
}

/// The command line of a call of a shell, in any of the shapes agents use.
fn shell_command(tool: &str, arguments: &Value) -> Option<String> {
    let is_shell = matches!(
        tool,
        "bash"
            | "shell"
            | "sh"
            | "execute_bash"
            | "run"
            | "run_command"
            | "local_shell"
            | "exec"
            | "exec_command"
            | "terminal"
            | "run_terminal_cmd"
            | "run_in_terminal"
            | "command"
            | "execute_command"
            | "shell_command"
            | "run_shell_command"
            | "run_shell"
            | "cmd"
            | "unified_exec"
            | "execute"
            | "powershell"
            | "zsh"
            | "console"
    );
    if !is_shell {
        return None;
    }
    let arguments = match &arguments["action"] {
        action @ Value::Object(_) => action,
        _ => arguments,
    };
    let given = ["command", "cmd", "script", "input", "commands", "code"]
        .iter()
        .map(|name| &arguments[*name])
        .find(|value| !value.is_null())?;
    let line = match given {
        Value::String(line) => line.clone(),
        Value::Array(words) => {
            let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            match &words[..] {
                ["bash" | "sh" | "zsh" | "/bin/bash" | "/bin/sh", flag, line]
                    if flag.starts_with('-') =>
                {
                    (*line).to_owned()
                }
                words => words.join(" "),
            }
        }
        _ => return None,
    };
    let folder = ["workdir", "cwd"].iter().find_map(|name| arguments[*name].as_str());
    Some(match folder.filter(|folder| !folder.is_empty() && *folder != ".") {
        Some(folder) => format!("cd {folder} && {line}"),
        None => line,
    })
}

/// The call in short, for those that are no shell commands.
fn describe(tool: &str, path: &Option<String>, arguments: &Value) -> String {
    let pattern = ["pattern", "query", "search_term", "regex"]
        .iter()
        .find_map(|name| arguments[*name].as_str());
    [Some(tool), pattern, path.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn number(value: &Value) -> Option<u32> {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    u32::try_from(number).ok()
}

fn any_number(arguments: &Value, names: &[&str]) -> Option<u32> {
    names.iter().find_map(|name| number(&arguments[*name]))
}

/// The lines that a call asks to see.
fn view_range(arguments: &Value) -> (u32, Option<u32>) {
    if let [first, last] = &arguments["view_range"].as_array().map_or(&[][..], Vec::as_slice) {
        return (number(first).unwrap_or(1).max(1), number(last));
    }
    let first = any_number(
        arguments,
        &["offset", "start_line", "line_start", "start_line_one_indexed", "startLine"],
    );
    let first = first.unwrap_or(1).max(1);
    let last = any_number(
        arguments,
        &["end_line", "line_end", "end_line_one_indexed_inclusive", "endLine"],
    );
    let limit = any_number(arguments, &["limit"]).filter(|limit| *limit > 0);
    (first, last.or_else(|| Some(first.saturating_add(limit? - 1))))
}

/// Where an edit begins: at a line that it names, or at the first whole line that it replaces.
fn edited_at(arguments: &Value) -> At {
    let line = any_number(arguments, &["insert_line", "start_line", "line", "line_number"]);
    if let Some(line) = line {
        return At::Line(line.max(1));
    }
    let names = ["old_string", "old_str", "search", "oldString"];
    let old = names.iter().find_map(|name| arguments[*name].as_str()).unwrap_or_default();
    let replaces_all = arguments["replace_all"] == true;
    // The first line of what is replaced may be the end of one; the second is whole.
    match old.split_once('\n') {
        Some((first, _)) if !replaces_all && first.starts_with([' ', '\t']) => {
            At::Text(hash(first))
        }
        _ => At::All,
    }
}

/// The files that a patch names, in Codex' form or as `diff` writes it.
fn patched(patch: &str) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for line in patch.lines() {
        let path = ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ b/"]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        if let Some(path) = path.map(str::trim).filter(|path| !paths.iter().any(|p| p == path)) {
            paths.push(path.to_owned());
        }
    }
    paths
}
