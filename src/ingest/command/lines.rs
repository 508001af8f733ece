//! Which lines of which file a viewing program is asked for.

use super::program::Shows;
use crate::ingest::span::Kind;

/// A view of the only file among the arguments; logs are told by their text.
pub(super) fn view(
    arguments: &[&str],
    with_value: &[&str],
    lines: (u32, Option<u32>),
) -> Option<Shows> {
    let mut files = Vec::new();
    let mut is_value = false;
    for word in arguments {
        let is_flag = word.len() > 1 && word.starts_with(['-', '+']);
        if !is_flag && !is_value {
            files.push(*word);
        }
        is_value = with_value.contains(word);
    }
    let is_log = |file: &&str| {
        [".log", ".out", ".err", ".diff", ".patch"].iter().any(|end| file.ends_with(end))
    };
    match &files[..] {
        [] => Some(Shows::default()),
        files if files.iter().any(is_log) => Some(Shows::default()),
        [file] if !file.contains(['*', '$', '?']) => Some(Shows {
            kind: Some(Kind::FileView),
            path: Some((*file).to_owned()),
            lines: Some(lines),
        }),
        _ => Some(Shows { kind: Some(Kind::FileView), ..Shows::default() }),
    }
}

/// The number of lines that `head` or `tail` is asked for.
pub(super) fn count(words: &[&str]) -> Option<u32> {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let number = match word.strip_prefix('-') {
            Some("n") => words.next().copied(),
            Some(flag) => Some(flag.trim_start_matches("-lines=").trim_start_matches('n')),
            None => None,
        };
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            return Some(number);
        }
    }
    None
}

/// The first line that `tail -n +K` prints.
pub(super) fn from_line(words: &[&str]) -> Option<u32> {
    let numbers = words.iter().filter_map(|word| word.trim_start_matches("-n").strip_prefix('+'));
    numbers.filter_map(|number| number.parse().ok()).find(|number| *number > 0)
}

/// Where the script stands among `sed`'s arguments.
pub(super) fn script_at(arguments: &[&str]) -> Option<usize> {
    let after_flag = arguments.iter().position(|word| *word == "-e" || word.ends_with("ne"));
    match after_flag {
        Some(at) => Some(at + 1),
        None => arguments.iter().position(|word| !word.starts_with('-')),
    }
}

/// The lines that `sed -n 10,20p` prints; none for other scripts.
pub(super) fn sed_range(words: &[&str]) -> Option<(u32, Option<u32>)> {
    let arguments = words.get(1..)?;
    let script = arguments.get(script_at(arguments)?)?.trim();
    // `10,20p;20q` stops reading where it has printed all.
    let (script, rest) = script.split_once(';').unwrap_or((script, "q"));
    let quits = rest.trim().strip_suffix('q')?;
    quits.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    let range = script.strip_suffix('p')?.trim();
    let (first, last) = range.split_once(',').unwrap_or((range, range));
    let first: u32 = first.trim().parse().ok().filter(|first| *first > 0)?;
    let last = match last.trim() {
        "$" => None,
        last => match last.strip_prefix('+') {
            Some(n) => Some(first.saturating_add(n.parse().ok()?)),
            None => Some(last.parse().ok()?),
        },
    };
    Some((first, last))
}

/// The lines that `awk 'NR>=10 && NR<=20'` prints.
pub(super) fn awk_range(script: &str) -> Option<(u32, Option<u32>)> {
    let text: String = script.chars().filter(|c| !c.is_whitespace()).collect();
    let number = |start: &str| {
        let rest = &text[text.find(start)? + start.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u32>().ok()
    };
    match number("NR==") {
        Some(only) => {
            let last = text.find(",NR==").and_then(|at| {
                text[at + 5..].trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
            });
            Some((only, Some(last.unwrap_or(only))))
        }
        None => Some((number("NR>=")?, number("NR<="))),
    }
}
