//! What a text is by its own shape.

use crate::ingest::span::Kind;

/// Bytes at a text's beginning and end that are looked at.
const SAMPLE: usize = 8 << 10;

/// The kind of a text of which nothing else is known.
pub(super) fn of(text: &str) -> Kind {
    if is_diff(text) {
        Kind::Diff
    } else if is_log(text) {
        Kind::Log
    } else if is_search(text) {
        Kind::Search
    } else if is_listing(text) {
        Kind::Listing
    } else {
        Kind::Other
    }
}

/// The kind that a call promises, if the text may be that.
pub(super) fn checked(kind: Kind, text: &str) -> Kind {
    match kind {
        Kind::Diff if !is_diff(text) && !text.contains("\n@@ ") => of(text),
        kind => kind,
    }
}

/// [`Kind::Screen`] for what a full-screen program draws.
pub(super) fn screen(text: &str) -> Option<Kind> {
    let codes = ["\x1b[?1049h", "\x1b[2J", "\x1b[H\x1b["];
    let first = memchr::memchr(b'\x1b', text.as_bytes())?;
    codes.iter().any(|code| text[first..].contains(code)).then_some(Kind::Screen)
}

fn is_diff(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let second = lines.next().unwrap_or_default();
    first.starts_with("diff --git ")
        || first.starts_with("--- ") && second.starts_with("+++ ")
        || first.starts_with("Index: ") && second.starts_with("=====")
        || first.starts_with("commit ") && text.contains("\ndiff --git ")
}

/// Lines that only test runners, compilers, installers and failing programs write.
const LOG_LINES: [&str; 35] = [
    "Traceback (most recent call last)",
    "= test session starts =",
    "test result: ",
    "error[E",
    "error: could not compile",
    "   Compiling ",
    "    Checking ",
    "    Finished ",
    "--- FAIL: ",
    "--- PASS: ",
    "' panicked at ",
    ") panicked at ",
    "npm ERR!",
    "npm error ",
    "make: *** ",
    "]: *** [",
    " passed in ",
    " failed in ",
    "Test Suites: ",
    "Requirement already satisfied",
    "Successfully installed ",
    "BUILD FAILED",
    "BUILD SUCCESS",
    ": error TS",
    ": error: ",
    ": warning: ",
    ": fatal error: ",
    "(pass) ",
    "(fail) ",
    "FAILED (",
    "\nOK\n",
    "goroutine 1 [",
    "Exception in thread ",
    "System check identified ",
    "Segmentation fault",
];

fn is_log(text: &str) -> bool {
    let head = &text[..text.floor_char_boundary(SAMPLE)];
    let tail = &text[text.floor_char_boundary(text.len().saturating_sub(SAMPLE))..];
    LOG_LINES.iter().any(|line| head.contains(line) || tail.contains(line))
}

/// The first lines, for a look.
fn sample(text: &str) -> impl Iterator<Item = &str> + Clone {
    let head = &text[..text.floor_char_boundary(SAMPLE)];
    head.lines().filter(|line| !line.trim().is_empty()).take(100)
}

fn is_search(text: &str) -> bool {
    let is_hit = |line: &&str| {
        let mut parts = line.splitn(3, ':');
        let (path, number) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        parts.next().is_some()
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && is_path(path)
    };
    let (hits, all) = (sample(text).filter(is_hit).count(), sample(text).count());
    hits >= 2 && hits * 10 >= all * 8
}

fn is_listing(text: &str) -> bool {
    let is_entry = |line: &&str| {
        let mode = line.as_bytes().get(..10).unwrap_or_default();
        let is_mode = |byte: &u8| b"rwxst-STl@".contains(byte);
        let is_long =
            mode.len() == 10 && b"d-lbcps.".contains(&mode[0]) && mode[1..].iter().all(is_mode);
        is_long || is_path(line) && line.contains(['/', '.'])
    };
    let (entries, all) = (sample(text).filter(is_entry).count(), sample(text).count());
    entries >= 3 && entries * 10 >= all * 9
}

fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 300
        && !text.contains([' ', '\t', '(', '"', '\'', '=', '<', '{', ','])
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}
