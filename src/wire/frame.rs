//! Bytes to JSON texts and back, in one of two framings.
//!
//! One JSON text a line, as MCP and ACP have it, or `Content-Length` headers before each text, as
//! LSP has it. Reading is incremental: however the bytes are cut into reads, the same frames come
//! out, and nothing is allocated on the word of a header.

use std::io::Write;

use serde::Serialize;
use tokio_util::bytes::{Buf, BytesMut};

/// Most bytes of a header block, its blank line included.
pub const MAX_HEADER: usize = 8 << 10;

/// How a connection marks where a JSON text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON text a line.
    Lines,
    /// `Content-Length: N`, a blank line, then `N` bytes.
    Headers,
}

impl Framing {
    /// Tells the framing by the first byte that is not blank, dropping the blanks before it.
    ///
    /// `C` begins a `Content-Length` header; anything else is taken as a line, so that what is no
    /// JSON at all is answered by a parse error.
    pub fn sniff(input: &mut BytesMut) -> Option<Self> {
        match skip_blanks(input)? {
            b'C' | b'c' => Some(Self::Headers),
            _ => Some(Self::Lines),
        }
    }

    /// Writes `message` as one frame.
    pub fn encode(self, message: &impl Serialize) -> Vec<u8> {
        let mut text = serde_json::to_vec(message).expect("wire messages have string keys only");
        match self {
            Self::Lines => {
                text.push(b'\n');
                text
            }
            Self::Headers => {
                let mut framed = Vec::with_capacity(text.len() + 32);
                write!(framed, "Content-Length: {}\r\n\r\n", text.len())
                    .expect("writing to a vector cannot fail");
                framed.append(&mut text);
                framed
            }
        }
    }
}

/// What a connection's bytes contain.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// A JSON text, not yet looked at.
    Message(BytesMut),
    /// A message over the limit; its `asked` bytes are skipped.
    TooLarge { asked: u64 },
}

/// Why a connection's bytes cannot be read any further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("header block is over {MAX_HEADER} bytes; send only content-length")]
    HeaderTooLong,
    #[error("header block is not utf-8 lines of `name: value`")]
    BadHeader,
    #[error("header block needs one content-length, a decimal number of bytes")]
    BadLength,
}

/// An incremental reader of frames; the caller owns the buffer.
#[derive(Debug)]
pub struct Frames {
    framing: Framing,
    max_message: usize,
    state: State,
}

/// Where in a frame the front of the buffer is.
#[derive(Clone, Copy, Debug)]
enum State {
    Between,
    /// In a line whose first `scanned` bytes hold no newline.
    Line {
        scanned: usize,
    },
    /// In a line over the limit, of which `seen` bytes are gone.
    SkipLine {
        seen: u64,
    },
    Header,
    Body {
        len: usize,
    },
    SkipBody {
        left: u64,
    },
}

impl Frames {
    /// Reads frames of at most `max_message` bytes each.
    pub fn new(framing: Framing, max_message: usize) -> Self {
        Self { framing, max_message, state: State::Between }
    }

    /// Takes the next frame off the front of `input`; `None` asks for more bytes.
    ///
    /// # Errors
    /// A malformed header block, after which the bytes have no meaning any more.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            match self.state {
                State::Between => {
                    if skip_blanks(input).is_none() {
                        return Ok(None);
                    }
                    self.state = match self.framing {
                        Framing::Lines => State::Line { scanned: 0 },
                        Framing::Headers => State::Header,
                    };
                }
                State::Line { scanned } => match newline(&input[scanned..]) {
                    Some(at) => {
                        self.state = State::Between;
                        let line = input.split_to(scanned + at);
                        return Ok(Some(if line.len() <= self.max_message {
                            Frame::Message(line)
                        } else {
                            Frame::TooLarge { asked: line.len() as u64 }
                        }));
                    }
                    None if input.len() > self.max_message => {
                        self.state = State::SkipLine { seen: input.len() as u64 };
                        input.clear();
                    }
                    None => {
                        self.state = State::Line { scanned: input.len() };
                        return Ok(None);
                    }
                },
                State::SkipLine { seen } => {
                    let Some(at) = newline(input) else {
                        self.state = State::SkipLine { seen: seen + input.len() as u64 };
                        input.clear();
                        return Ok(None);
                    };
                    self.state = State::Between;
                    input.advance(at);
                    return Ok(Some(Frame::TooLarge { asked: seen + at as u64 }));
                }
                State::Header => {
                    let Some(end) = header_end(input)? else { return Ok(None) };
                    let asked = content_length(&input.split_to(end))?;
                    match usize::try_from(asked) {
                        Ok(len) if len <= self.max_message => self.state = State::Body { len },
                        _ => {
                            self.state = State::SkipBody { left: asked };
                            return Ok(Some(Frame::TooLarge { asked }));
                        }
                    }
                }
                State::Body { len } => {
                    if input.len() < len {
                        return Ok(None);
                    }
                    self.state = State::Between;
                    return Ok(Some(Frame::Message(input.split_to(len))));
                }
                State::SkipBody { left } => {
                    let here = left.min(input.len() as u64);
                    input.advance(usize::try_from(here).expect("no more than the buffer holds"));
                    if here < left {
                        self.state = State::SkipBody { left: left - here };
                        return Ok(None);
                    }
                    self.state = State::Between;
                }
            }
        }
    }

    /// What is left when the bytes end: a last line needs no newline, half a body is nothing.
    pub fn end(&mut self, input: &mut BytesMut) -> Option<Frame> {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Line { .. } => Some(Frame::Message(input.split())),
            State::SkipLine { seen } => Some(Frame::TooLarge { asked: seen }),
            _ => None,
        }
    }
}

/// Drops leading blanks and newlines; the first byte after them.
fn skip_blanks(input: &mut BytesMut) -> Option<u8> {
    let blanks = input.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    input.advance(blanks);
    input.first().copied()
}

fn newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

/// Length of the header block with its blank line, once all of it is there.
fn header_end(input: &[u8]) -> Result<Option<usize>, FrameError> {
    let mut start = 0;
    while let Some(at) = newline(&input[start..]) {
        if start + at >= MAX_HEADER {
            break;
        }
        if matches!(&input[start..start + at], b"" | b"\r") {
            return Ok(Some(start + at + 1));
        }
        start += at + 1;
    }
    if input.len() >= MAX_HEADER { Err(FrameError::HeaderTooLong) } else { Ok(None) }
}

/// The one content length a header block names; other headers are allowed and ignored.
fn content_length(block: &[u8]) -> Result<u64, FrameError> {
    let block = std::str::from_utf8(block).map_err(|_| FrameError::BadHeader)?;
    let mut length = None;
    for line in block.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(FrameError::BadHeader)?;
        if name.trim().eq_ignore_ascii_case("content-length") {
            let value = value.trim();
            // `parse` alone would take a sign.
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let value = value.parse().ok().filter(|_| digits).ok_or(FrameError::BadLength)?;
            if length.replace(value).is_some_and(|earlier| earlier != value) {
                return Err(FrameError::BadLength);
            }
        }
    }
    length.ok_or(FrameError::BadLength)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const MAX: usize = 64;

    /// Reads `bytes` in the given pieces; the frames, and the error that ended them.
    fn read(bytes: &[u8], cuts: &[usize]) -> (Vec<Frame>, Option<FrameError>) {
        let mut input = BytesMut::new();
        let mut found = Vec::new();
        let mut frames = None;
        let mut rest = bytes;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let piece = rest.split_off(..cut.min(rest.len())).expect("within the rest");
            input.extend_from_slice(piece);
            if frames.is_none() {
                frames = Framing::sniff(&mut input).map(|framing| Frames::new(framing, MAX));
            }
            let Some(frames) = &mut frames else { continue };
            loop {
                match frames.next(&mut input) {
                    Ok(Some(frame)) => found.push(frame),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
            assert!(input.len() <= MAX.max(MAX_HEADER), "a skipped message is not buffered");
        }
        if let Some(mut frames) = frames {
            found.extend(frames.end(&mut input));
        }
        (found, None)
    }

    fn message(text: &str) -> Frame {
        Frame::Message(text.as_bytes().into())
    }

    #[test]
    fn first_byte_tells_the_framing() {
        assert_eq!(read(b"\n \r\n{}\n\n[]", &[]), (vec![message("{}"), message("[]")], None));
        let headers = b"\r\ncontent-length:2\r\nContent-Type: x\r\n\r\n{}\nContent-Length: 0\n\n";
        assert_eq!(read(headers, &[]), (vec![message("{}"), message("")], None));
    }

    #[test]
    fn too_large_is_skipped_and_the_next_one_read() {
        let long = "x".repeat(1000);
        let expected = (vec![Frame::TooLarge { asked: 1000 }, message("{}")], None);
        assert_eq!(read(format!("{long}\n{{}}\n").as_bytes(), &[30, 100, 500]), expected);
        let headers = format!("Content-Length: 1000\r\n\r\n{long}Content-Length: 2\r\n\r\n{{}}");
        assert_eq!(read(headers.as_bytes(), &[30, 100, 500]), expected);
    }

    #[test]
    fn a_lying_length_allocates_nothing() {
        let mut input = BytesMut::from(&b"Content-Length: 60\r\n\r\n{"[..]);
        let before = input.capacity();
        let mut frames = Frames::new(Framing::Headers, usize::MAX);
        assert_eq!(frames.next(&mut input), Ok(None));
        assert!(input.capacity() <= before);
        let huge = b"Content-Length: 18446744073709551615\r\n\r\n{";
        assert_eq!(read(huge, &[]), (vec![Frame::TooLarge { asked: u64::MAX }], None));
    }

    #[test]
    fn malformed_headers_end_the_reading() {
        for (block, error) in [
            ("Content-Length 2\r\n\r\n{}", FrameError::BadHeader),
            ("Content-Type: json\r\n\r\n{}", FrameError::BadLength),
            ("Content-Length: +2\r\n\r\n{}", FrameError::BadLength),
            ("Content-Length: two\r\n\r\n{}", FrameError::BadLength),
            ("Content-Length: 18446744073709551616\r\n\r\n{}", FrameError::BadLength),
            ("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", FrameError::BadLength),
        ] {
            assert_eq!(read(block.as_bytes(), &[]), (vec![], Some(error)), "{block}");
        }
        let endless = format!("C{}", "x: y\r\n".repeat(MAX_HEADER));
        assert_eq!(read(endless.as_bytes(), &[]), (vec![], Some(FrameError::HeaderTooLong)));
        assert_eq!(read(endless.as_bytes(), &[9000]), (vec![], Some(FrameError::HeaderTooLong)));
    }

    #[test]
    fn half_a_body_at_the_end_is_nothing() {
        assert_eq!(read(b"Content-Length: 5\r\n\r\n{}", &[]), (vec![], None));
        assert_eq!(read(b"{\"half\"", &[]), (vec![message("{\"half\"")], None));
    }

    fn framing() -> impl Strategy<Value = Framing> {
        prop_oneof![Just(Framing::Lines), Just(Framing::Headers)]
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(
            framing in framing(),
            texts in prop::collection::vec("\\PC{0,40}", 1..6),
            cuts in prop::collection::vec(0usize..20, 0..60),
        ) {
            let values: Vec<Value> = texts.iter().map(|text| json!([text])).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| framing.encode(value)).collect();
            let (whole, _) = read(&bytes, &[]);
            prop_assert_eq!(whole.len(), values.len());
            for (frame, value) in whole.iter().zip(&values) {
                let text = value.to_string();
                match frame {
                    Frame::Message(read) => prop_assert_eq!(&read[..], text.as_bytes()),
                    Frame::TooLarge { asked } => {
                        prop_assert!(text.len() > MAX);
                        prop_assert_eq!(*asked, text.len() as u64);
                    }
                }
            }
            prop_assert_eq!(read(&bytes, &cuts), (whole, None));
        }

        #[test]
        fn any_bytes_read_alike_in_any_cutting(
            headers in any::<bool>(),
            bytes in prop::collection::vec(prop_oneof![
                Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'1'), Just(b'{'), any::<u8>()
            ], 0..300),
            cuts in prop::collection::vec(0usize..20, 0..60),
        ) {
            let start: &[u8] = if headers { b"Content-Length: 7\r\n" } else { b"{" };
            let bytes = [start, &bytes].concat();
            prop_assert_eq!(read(&bytes, &cuts), read(&bytes, &[]));
        }
    }
}
