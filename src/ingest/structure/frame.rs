//! What a fragment of a file lacks to be parsed: what was opened before it begins, and what is
//! still open where it ends.
//!
//! A view begins in the middle of a function, a class, a list of arguments, a docstring. Parsed
//! as it stands, one stray bracket can turn the whole view into an error. So the missing ends are
//! guessed from brackets and indentation, and whichever guess leaves the least unread wins.

use crate::ingest::language::Language;

/// Text to put around a fragment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub before: String,
    pub after: String,
    /// How many bytes of the fragment this reading takes for the inside of a string that begins
    /// or ends outside it. Anything can be that, so it has to be worth it.
    pub in_string: usize,
}

/// Brackets without a partner that are made up for; more are no fragment of a program.
const MAX_BRACKETS: usize = 64;

/// How much of a fragment is looked at for what it lies in, in bytes.
const MAX_LOOK: usize = 4 << 10;

/// Brackets left open that a closing one may skip to find its own.
const MAX_SKIPPED: usize = 8;

/// In what a fragment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Code,
    BlockComment,
    String(&'static str),
}

/// Guesses for `code`, likeliest first; `unread` says how many bytes of a text cannot be parsed.
pub(super) fn frames(language: Language, code: &str, unread: &dyn Fn(&str) -> usize) -> Vec<Frame> {
    let starts: &[Start] = match language {
        Language::Python if code.contains("'''") => {
            &[Start::Code, Start::String("\"\"\""), Start::String("'''")]
        }
        Language::Python => &[Start::Code, Start::String("\"\"\"")],
        _ if begins_in_comment(code) => &[Start::BlockComment],
        Language::JavaScript | Language::TypeScript | Language::Tsx | Language::Go => {
            &[Start::Code, Start::String("`")]
        }
        _ => &[Start::Code],
    };
    starts.iter().filter_map(|&start| framed(language, code, start, unread)).collect()
}

/// Whether the first end of a block comment has no beginning, or the first line looks like the
/// inside of one.
fn begins_in_comment(code: &str) -> bool {
    let first = code.trim_start();
    let is_inside = first.starts_with("* ") || first.starts_with("*\n");
    match (code.find("*/"), code.find("/*")) {
        (Some(close), Some(open)) => close < open,
        (Some(_), None) => true,
        (None, _) => is_inside,
    }
}

fn framed(
    language: Language,
    code: &str,
    start: Start,
    unread: &dyn Fn(&str) -> usize,
) -> Option<Frame> {
    let scan = Scan::of(language, code, start);
    if scan.closed.len().max(scan.open.len()) > MAX_BRACKETS {
        return None;
    }
    let mut before = String::new();
    match start {
        Start::Code => {}
        Start::BlockComment => before.push_str("/*"),
        Start::String(mark) => before.push_str(mark),
    }
    let mut after = scan.ends_in.unwrap_or_default().to_owned();
    after.extend(scan.open.iter().rev());
    let head = match language {
        Language::Python => python_head(code, &scan, matches!(start, Start::String(_))),
        _ => match block_around(language, code, &scan, unread) {
            Some(block) => {
                after.push('}');
                block.to_owned()
            }
            None => openers(language, code, &scan.closed, unread),
        },
    };
    Some(Frame { before: head + &before, after, in_string: scan.in_string })
}

/// What a brace may have been opened by, the commonest first.
fn brace_openers(language: Language) -> &'static [&'static str] {
    match language {
        Language::Rust => &["fn _() {", "match _ {", "impl _ {", "struct _ {", "_ {"],
        Language::JavaScript => &["function _() {", "class _ {", "_ = {", "switch (_) {"],
        Language::TypeScript | Language::Tsx => {
            &["function _() {", "class _ {", "_ = {", "interface _ {", "switch (_) {"]
        }
        Language::Go => &["func _() {", "var _ = _{", "type _ struct {", "switch {"],
        Language::Java => &["void _() {", "class _ {", "switch (_) {", "enum _ {"],
        Language::C => &["void _() {", "struct _ {", "int _[] = {", "switch (_) {", "enum _ {"],
        Language::Cpp => &["void _() {", "class _ {", "namespace _ {", "switch (_) {", "enum _ {"],
        Language::Python => &["{"],
    }
}

/// What opens the block that the whole of an indented fragment lies in.
fn block_around(
    language: Language,
    code: &str,
    scan: &Scan,
    unread: &dyn Fn(&str) -> usize,
) -> Option<&'static str> {
    let mut lines = code.lines().filter(|line| !line.trim().is_empty());
    let is_indented = lines.clone().next().is_some()
        && lines.all(|line| line.starts_with([' ', '\t']) && !line.starts_with(" *"));
    if !is_indented || !scan.closed.is_empty() || scan.begin > 0 {
        return None;
    }
    // The beginning tells as much as the whole.
    let beginning = code.lines().scan(0, |end, line| {
        *end += line.len() + 1;
        (*end <= MAX_LOOK).then_some(*end)
    });
    let beginning = &code[..beginning.last().unwrap_or(0).min(code.len())];
    let ends: String = Scan::of(language, beginning, Start::Code).open.iter().rev().collect();
    let cost = |opener: &&&str| unread(&format!("{opener} {beginning}{ends}}}"));
    brace_openers(language).iter().min_by_key(cost).copied()
}

/// Openers for closing brackets that close nothing in the fragment, the outermost first. Of what
/// is closed only the innermost brace shows its inside, so this tells what it was.
fn openers(
    language: Language,
    code: &str,
    closed: &[(usize, char)],
    unread: &dyn Fn(&str) -> usize,
) -> String {
    let braces = brace_openers(language);
    let with = |closed: &[(usize, char)], innermost: &str| {
        let n_braces = closed.iter().filter(|(_, bracket)| *bracket == '}').count();
        let mut left = n_braces;
        let openers = closed.iter().rev().map(|(_, bracket)| match bracket {
            '}' => {
                left -= 1;
                if left == 0 { innermost } else { braces[0] }
            }
            ']' => "[",
            _ => "_(",
        });
        openers.flat_map(|opener| [opener, " "]).collect::<String>()
    };
    let Some(brace) = closed.iter().position(|(_, bracket)| *bracket == '}') else {
        return with(closed, braces[0]);
    };
    let (inside, closed_inside) = (&code[..=closed[brace].0], &closed[..=brace]);
    let cost = |opener: &&&str| unread(&(with(closed_inside, opener) + inside));
    let innermost = braces.iter().min_by_key(cost).unwrap_or(&braces[0]);
    with(closed, innermost)
}

/// Blocks for the indentation that a fragment of Python begins with, and for every smaller one
/// that it falls back to.
fn python_head(code: &str, scan: &Scan, in_docstring: bool) -> String {
    // A bracket that was opened before is closed in the last line of its statement.
    let begin = scan.closed.last().map_or(scan.begin, |(at, _)| *at);
    let begin = code[..begin].rfind('\n').map_or(0, |newline| newline + 1);
    let mut levels: Vec<(usize, &str)> = Vec::new();
    for line in code[begin..].lines() {
        let content = line.trim_start();
        let is_filled = !content.is_empty() && !content.starts_with('#');
        let indent = line.len() - content.len();
        if is_filled && levels.last().is_none_or(|(least, _)| indent < *least) {
            levels.push((indent, content));
        }
    }
    let Some(&(first, content)) = levels.first() else { return String::new() };
    let mut head = String::new();
    let mut blocks: Vec<_> = levels[1..].iter().rev().copied().collect();
    if levels.last().is_some_and(|(least, _)| *least > 0) {
        blocks.insert(0, (0, ""));
    }
    for (index, (indent, content)) in blocks.iter().enumerate() {
        let plain = if in_docstring && index + 1 == blocks.len() { "def _():" } else { "if 1:" };
        head.extend(std::iter::repeat_n(' ', *indent));
        head.push_str(opener_of(content).unwrap_or(plain));
        head.push('\n');
    }
    if in_docstring {
        head.extend(std::iter::repeat_n(' ', first));
        return head;
    }
    if let Some(opener) = opener_of(content) {
        let indent = " ".repeat(first);
        head.push_str(&format!("{indent}{opener}\n{indent} pass\n"));
    }
    if !scan.closed.is_empty() {
        head.extend(std::iter::repeat_n(' ', first));
    }
    for (index, (at, bracket)) in scan.closed.iter().rev().enumerate() {
        let ends_head = index == 0
            && matches!(code[at + 1..].trim_start().as_bytes().first(), Some(b':' | b'-'));
        head.push_str(match bracket {
            ')' if ends_head => "def _(",
            ')' => "_(",
            ']' => "[",
            _ => "{",
        });
    }
    head
}

/// What must stand before a line that goes on with an earlier statement.
fn opener_of(line: &str) -> Option<&'static str> {
    let word = line.split(|c: char| !c.is_alphanumeric()).next()?;
    match word {
        "else" | "elif" => Some("if 1:"),
        "except" | "finally" => Some("try:"),
        _ => None,
    }
}

/// Brackets and strings of a fragment, read without a grammar.
#[derive(Debug, Default)]
struct Scan {
    /// Closing brackets without an opening one, in order.
    closed: Vec<(usize, char)>,
    /// What closes the brackets that are open at the end, the outermost first.
    open: Vec<char>,
    /// What ends the string or the comment in which the fragment ends.
    ends_in: Option<&'static str>,
    /// Where the code begins, behind the string or comment in which the fragment does.
    begin: usize,
    in_string: usize,
}

impl Scan {
    fn of(language: Language, code: &str, start: Start) -> Self {
        let mut scan = Self::default();
        let mut at = 0;
        // Where a string that reaches over an edge begins.
        match start {
            Start::Code => {}
            Start::BlockComment => match end_of(code, 0, "*/") {
                Some(end) => at = end,
                None => {
                    scan.ends_in = Some("*/");
                    return scan;
                }
            },
            Start::String(mark) => {
                at = end_of(code, 0, mark).unwrap_or(code.len());
                scan.in_string = at;
                if at == code.len() && !code.trim_end().ends_with(mark) {
                    scan.ends_in = Some(mark);
                    return scan;
                }
            }
        }
        scan.begin = at;
        let bytes = code.as_bytes();
        while at < bytes.len() {
            let rest = &bytes[at..];
            if let Some(comment) = line_comment(language, rest) {
                at += memchr::memchr(b'\n', rest).unwrap_or(comment.max(rest.len()));
                continue;
            }
            if language != Language::Python && rest.starts_with(b"/*") {
                match end_of(code, at + 2, "*/") {
                    Some(end) => at = end,
                    None => {
                        scan.ends_in = Some("*/");
                        return scan;
                    }
                }
                continue;
            }
            if let Some(string) = StringMark::of(language, rest) {
                match string.end(code, at) {
                    Some(end) => at = end,
                    None if string.spans_lines => {
                        scan.ends_in = Some(string.mark);
                        scan.in_string += code.len() - at;
                        return scan;
                    }
                    None => at += string.mark.len(),
                }
                continue;
            }
            match rest[0] {
                b'(' => scan.open.push(')'),
                b'[' => scan.open.push(']'),
                b'{' => scan.open.push('}'),
                close @ (b')' | b']' | b'}') => {
                    let close = char::from(close);
                    let last = scan.open.len().saturating_sub(MAX_SKIPPED);
                    match scan.open[last..].iter().rposition(|&open| open == close) {
                        // What is still open inside was never meant to be.
                        Some(opened) => scan.open.truncate(last + opened),
                        None if scan.open.is_empty() => scan.closed.push((at, close)),
                        None => {}
                    }
                }
                _ => {}
            }
            at += 1;
        }
        scan
    }
}

fn line_comment(language: Language, rest: &[u8]) -> Option<usize> {
    let mark: &[u8] = if language == Language::Python { b"#" } else { b"//" };
    rest.starts_with(mark).then_some(mark.len())
}

/// Behind the next `mark` from `from` on.
fn end_of(code: &str, from: usize, mark: &str) -> Option<usize> {
    let found = memchr::memmem::find(&code.as_bytes()[from..], mark.as_bytes())?;
    Some(from + found + mark.len())
}

/// How a string begins, and ends.
struct StringMark {
    mark: &'static str,
    spans_lines: bool,
}

impl StringMark {
    fn of(language: Language, rest: &[u8]) -> Option<Self> {
        let marks: &[(&'static str, bool)] = match language {
            Language::Python => &[("\"\"\"", true), ("'''", true), ("\"", false), ("'", false)],
            Language::Rust => &[("\"", true), ("'", false)],
            Language::JavaScript | Language::TypeScript | Language::Tsx | Language::Go => {
                &[("`", true), ("\"", false), ("'", false)]
            }
            Language::Java => &[("\"\"\"", true), ("\"", false), ("'", false)],
            Language::C | Language::Cpp => &[("\"", false), ("'", false)],
        };
        let (mark, spans_lines) =
            marks.iter().find(|(mark, _)| rest.starts_with(mark.as_bytes()))?;
        // A lifetime is no character.
        let is_lifetime = language == Language::Rust
            && *mark == "'"
            && rest.get(1) != Some(&b'\\')
            && !rest.iter().skip(2).take(4).any(|&byte| byte == b'\'');
        (!is_lifetime).then_some(Self { mark, spans_lines: *spans_lines })
    }

    /// Behind the string that begins at `at`, if it ends.
    fn end(&self, code: &str, at: usize) -> Option<usize> {
        let bytes = code.as_bytes();
        let mut at = at + self.mark.len();
        while at < bytes.len() {
            match bytes[at] {
                b'\\' => at += 1,
                b'\n' if !self.spans_lines => return None,
                _ if bytes[at..].starts_with(self.mark.as_bytes()) => {
                    return Some(at + self.mark.len());
                }
                _ => {}
            }
            at += 1;
        }
        None
    }
}
