//! What two outputs have in common when only the run differs: times, durations, addresses, ids.
//!
//! Replaced are times and dates, durations, hex of four digits and more behind `0x` and hashes of
//! seven and more, UUIDs, process ids, the random part of temp paths, and numbers of four digits
//! and more that stand alone. Nothing else: two errors with different words, another path, another
//! version or a smaller number never become the same.

use std::borrow::Cow;

/// What stands in place of each class of volatile text.
mod mark {
    pub(super) const TIME: &str = "<time>";
    pub(super) const DURATION: &str = "<duration>";
    pub(super) const HEX: &str = "<hex>";
    pub(super) const UUID: &str = "<uuid>";
    pub(super) const PID: &str = "<pid>";
    pub(super) const TEMP: &str = "<temp>";
    pub(super) const NUMBER: &str = "<number>";
}

/// Beginnings of names that programs make up below a temp folder.
const TEMP_NAMES: [&str; 10] =
    ["tmp.", ".tmp", "tmp", "pytest-of-", "pip-", "go-build", "rustc", "rustdoctest", "npm-", "cc"];

/// The text with all that differs between runs replaced by a mark of its class.
pub fn template(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let end = word_end(bytes, at);
        let found = match bytes[at] {
            // A random name below a temp folder may lack digits, so the folder is looked for.
            b't' | b'T' => temp_name(bytes, at, end),
            b'0'..=b'9' => volatile(bytes, at, end),
            // Shorter words are neither hashes nor the first part of a UUID.
            b'a'..=b'f' | b'A'..=b'F' if end - at >= 7 => hex(bytes, at, end),
            _ => None,
        };
        at = match (found, bytes[at]) {
            (Some((mark, start, end)), _) => {
                out.push_str(&text[copied..start]);
                out.push_str(mark);
                copied = end;
                end
            }
            (None, b'0'..=b'9') => end.max(number_end(bytes, at)),
            _ => end,
        };
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// A mark and the bytes that it replaces.
type Found = Option<(&'static str, usize, usize)>;

const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let is_ascii_word = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_';
        // Letters beyond ASCII are word letters.
        table[byte] = is_ascii_word || byte >= 128;
        byte += 1;
    }
    table
};

fn is_word(byte: u8) -> bool {
    WORD[usize::from(byte)]
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at;
    while bytes.get(end).is_some_and(|byte| is_word(*byte)) {
        end += 1;
    }
    end
}

fn digits(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Where a version, an address or a decimal fraction that begins at `at` ends; `at` if none does.
fn number_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + digits(bytes, at);
    if end == at || bytes.get(end) != Some(&b'.') {
        return at;
    }
    while bytes.get(end) == Some(&b'.') && digits(bytes, end + 1) > 0 {
        end += 1 + digits(bytes, end + 1);
    }
    end
}

/// What a word that begins with a digit stands for.
fn volatile(bytes: &[u8], at: usize, end: usize) -> Found {
    if let Some(end) = time(bytes, at) {
        return Some((mark::TIME, at, end));
    }
    if is_pid(bytes, at) && at + digits(bytes, at) == end {
        return Some((mark::PID, at, end));
    }
    if let Some(end) = duration(bytes, at) {
        return Some((mark::DURATION, at, end));
    }
    if bytes[at..end].starts_with(b"0x") {
        let is_hex = bytes[at + 2..end].iter().all(u8::is_ascii_hexdigit);
        return (is_hex && end - at >= 6).then_some((mark::HEX, at, end));
    }
    let whole = digits(bytes, at);
    if at + whole < end {
        return hex(bytes, at, end);
    }
    if let Some(end) = uuid(bytes, at) {
        return Some((mark::UUID, at, end));
    }
    let (number, n_digits) = grouped(bytes, at, whole);
    let all = number_end(bytes, at);
    let dots = bytes[at..all.max(at)].iter().filter(|byte| **byte == b'.').count();
    (n_digits >= 4 && dots <= 1).then_some((mark::NUMBER, at, number.max(all)))
}

/// The end of a number that may have commas between its thousands, and its digits.
fn grouped(bytes: &[u8], at: usize, whole: usize) -> (usize, usize) {
    let (mut end, mut n_digits) = (at + whole, whole);
    while whole <= 3
        && bytes.get(end) == Some(&b',')
        && digits(bytes, end + 1) == 3
        && bytes.get(end + 4).is_none_or(|byte| !is_word(*byte))
    {
        end += 4;
        n_digits += 3;
    }
    (end, n_digits)
}

/// A hash or an id: hexadecimal, seven digits at least, with letters and digits.
fn hex(bytes: &[u8], at: usize, end: usize) -> Found {
    if let Some(end) = uuid(bytes, at) {
        return Some((mark::UUID, at, end));
    }
    let word = &bytes[at..end];
    let is_hash = word.len() >= 7
        && word.iter().all(u8::is_ascii_hexdigit)
        && word.iter().any(u8::is_ascii_digit)
        && word.iter().any(u8::is_ascii_alphabetic);
    is_hash.then_some((mark::HEX, at, end))
}

fn uuid(bytes: &[u8], at: usize) -> Option<usize> {
    let text = bytes.get(at..at + 36)?;
    let is_uuid = text.iter().enumerate().all(|(i, byte)| match i {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    (is_uuid && bytes.get(at + 36).is_none_or(|byte| !is_word(*byte))).then_some(at + 36)
}

/// `12:34:56.7`, `2024-01-31`, and both joined with a zone.
fn time(bytes: &[u8], at: usize) -> Option<usize> {
    let is_place = at > 0 && bytes[at - 1] == b':';
    if !is_place && let Some(end) = clock(bytes, at) {
        return Some(end);
    }
    let separator = *bytes.get(at + 4)?;
    let is_date = digits(bytes, at) == 4
        && matches!(separator, b'-' | b'/')
        && digits(bytes, at + 5) == 2
        && bytes.get(at + 7) == Some(&separator)
        && digits(bytes, at + 8) == 2;
    if !is_date {
        return None;
    }
    let end = at + 10;
    let joined = match bytes.get(end) {
        Some(b'T' | b' ' | b'_') => clock(bytes, end + 1),
        _ => None,
    };
    let end = joined.unwrap_or(end);
    bytes.get(end).is_none_or(|byte| !is_word(*byte)).then_some(end)
}

fn clock(bytes: &[u8], at: usize) -> Option<usize> {
    let hours = digits(bytes, at);
    let minutes = at + hours + 1;
    let is_clock = matches!(hours, 1 | 2)
        && bytes.get(at + hours) == Some(&b':')
        && digits(bytes, minutes) == 2
        && bytes.get(minutes + 2) == Some(&b':')
        && digits(bytes, minutes + 3) == 2;
    if !is_clock {
        return None;
    }
    let mut end = minutes + 5;
    if matches!(bytes.get(end), Some(b'.' | b',')) {
        end += match digits(bytes, end + 1) {
            0 => 0,
            n => n + 1,
        };
    }
    match bytes.get(end) {
        Some(b'Z') => end += 1,
        Some(b'+' | b'-') if digits(bytes, end + 1) == 2 && bytes.get(end + 3) == Some(&b':') => {
            end += 4 + digits(bytes, end + 4);
        }
        Some(b'+' | b'-') if digits(bytes, end + 1) == 4 => end += 5,
        _ => {}
    }
    bytes.get(end).is_none_or(|byte| !is_word(*byte)).then_some(end)
}

/// `0.05s`, `12 ms`, `3.4 seconds`, `2m 05s`, `1h2m3s`.
fn duration(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = at + digits(bytes, at);
    if bytes.get(end) == Some(&b'.') && digits(bytes, end + 1) > 0 {
        end += 1 + digits(bytes, end + 1);
    }
    let rest = bytes.get(end..)?;
    if let [b'm' | b'h', after, ..] = rest {
        // Minutes and hours alone may be anything, a colour code too.
        let next = end + if *after == b' ' { 2 } else { 1 };
        return (digits(bytes, next) > 0).then(|| duration(bytes, next)).flatten();
    }
    let space = usize::from(rest.first() == Some(&b' '));
    let unit_end = (end + space..bytes.len()).find(|i| !is_word(bytes[*i])).unwrap_or(bytes.len());
    let unit = bytes.get(end + space..unit_end)?;
    let is_unit = matches!(
        unit,
        b"s" | b"ms"
            | b"us"
            | b"ns"
            | b"sec"
            | b"secs"
            | b"second"
            | b"seconds"
            | b"min"
            | b"mins"
            | b"minute"
            | b"minutes"
    ) || unit == "µs".as_bytes()
        || unit == "μs".as_bytes();
    is_unit.then_some(unit_end)
}

/// True where `pid` stands before the number.
fn is_pid(bytes: &[u8], at: usize) -> bool {
    let mut before = &bytes[..at];
    while let [rest @ .., b' ' | b'=' | b':'] = before {
        if at - rest.len() > 2 {
            return false;
        }
        before = rest;
    }
    let [rest @ .., p, i, d] = before else { return false };
    before.len() < at
        && [*p, *i, *d].eq_ignore_ascii_case(b"pid")
        && rest.last().is_none_or(|byte| !is_word(*byte))
}

/// The made-up name behind `/tmp/`, `\Temp\`, or `/T/` of macOS.
fn temp_name(bytes: &[u8], at: usize, end: usize) -> Found {
    let is_folder = bytes[at..end].eq_ignore_ascii_case(b"tmp")
        || bytes[at..end].eq_ignore_ascii_case(b"temp")
        || &bytes[at..end] == b"T";
    let is_separator = |at: usize| matches!(bytes.get(at), Some(b'/' | b'\\'));
    if !is_folder || at == 0 || !is_separator(at - 1) || !is_separator(end) {
        return None;
    }
    let start = end + 1;
    let is_part = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'-');
    let length = bytes[start..].iter().take_while(|byte| is_part(**byte)).count();
    let name = &bytes[start..start + length];
    let beginning = TEMP_NAMES.iter().find(|known| name.starts_with(known.as_bytes()))?;
    // `tmp_path` or `tmp.py` is a name that someone chose.
    let random = &name[beginning.len()..];
    let stem = random.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let is_made_up = match *beginning {
        "pytest-of-" | "pip-" | "npm-" => true,
        "go-build" => digits(random, 0) > 3,
        "cc" => stem == 6 && matches!(random.get(6), Some(b'.')),
        "tmp" => stem >= 6 || stem + random.iter().filter(|b| **b == b'_').count() == 8,
        _ => stem >= 6,
    };
    let mut end = start + length;
    if *beginning == "pytest-of-" && is_separator(end) && bytes[end + 1..].starts_with(b"pytest-") {
        end += 8 + digits(bytes, end + 8);
    }
    is_made_up.then_some((mark::TEMP, start, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_differs_between_runs_is_replaced() {
        let cases = [
            ("finished in 2.34s", "finished in <duration>"),
            ("ok (12 ms), then 3.5 seconds", "ok (<duration>), then <duration>"),
            ("Finished in 1m 05s.", "Finished in <duration>."),
            ("took 1h2m3s", "took <duration>"),
            ("--- FAIL: TestX (0.00s)", "--- FAIL: TestX (<duration>)"),
            ("at 12:34:56.789 it", "at <time> it"),
            ("[2024-01-31T12:34:56.789Z] up", "[<time>] up"),
            ("2024-01-31 12:34:56,789 INFO", "<time> INFO"),
            ("on 2024/01/31", "on <time>"),
            ("<Foo object at 0x7f3a2b10>", "<Foo object at <hex>>"),
            ("commit 1a2b3c4 done", "commit <hex> done"),
            ("id 9d1d338c-a895-4c47-bd6d-ccab96cfa509.", "id <uuid>."),
            ("id 12345678-1234-1234-1234-123456789012", "id <uuid>"),
            ("pid 12, PID: 7 (pid=99)", "pid <pid>, PID: <pid> (pid=<pid>)"),
            ("listening on 51234", "listening on <number>"),
            ("1,234,567 bytes, 4096.5 KiB", "<number> bytes, <number> KiB"),
            ("/tmp/tmpab12cd_x/a.py", "/tmp/<temp>/a.py"),
            ("/tmp/.tmpA1b2C3/x", "/tmp/<temp>/x"),
            ("/tmp/tmp.Abcdefghij/x", "/tmp/<temp>/x"),
            ("/tmp/ccAbCdEf.o: in main", "/tmp/<temp>: in main"),
            ("/tmp/pytest-of-root/pytest-12/test_a0", "/tmp/<temp>/test_a0"),
            ("seed 12ab34cd56", "seed <hex>"),
        ];
        for (text, expected) in cases {
            assert_eq!(template(text), expected);
            assert_eq!(template(&template(text)), expected, "a template stays as it is");
        }
    }

    #[test]
    fn what_tells_two_errors_apart_stays() {
        for text in [
            "src/a.rs:12:34: error",
            "src/a.rs:10:20:30",
            "expected 123, got 124",
            "assert 0.12345 == 0.12346",
            "version 1.2.3456 at 127.0.0.1",
            "error 0x1 and 0xff",
            "test_2023 worker1234 port_8080",
            "/tmp/test1.py /tmp/tmp.py /tmp/tmp_path",
            "the facade, deadbeef, added",
            "\u{1b}[31mred",
            "rapid 12, 5m of rope, 3 sheep",
            "naïve 1s2x ünïcode",
        ] {
            assert_eq!(template(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_template_that_stays(text in "\\PC*|[0-9a-f:.,T /tmpids<>-]*") {
            let once = template(&text).into_owned();
            prop_assert_eq!(template(&once), once.as_str());
        }
    }
}
