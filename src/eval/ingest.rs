//! What reading the text costs beside reading its tokens.

use std::time::Instant;

use super::speed::{Measurement, SpeedError};
use crate::ingest::condense::Condense;
use crate::ingest::reader::{Anywhere, Reader};
use crate::model::tokenizer::Tokenizer;
use crate::trajectory::Message;

/// Readings that are timed.
const ROUNDS: u32 = 5;

/// Times the reading of a conversation's text, as its messages come in.
///
/// # Errors
/// Where the tokenizer gives up.
pub fn ingest(
    messages: &[Message],
    tokenizer: &Tokenizer,
    prefill_tok_s: f64,
) -> Result<Measurement, SpeedError> {
    let (mut bytes, mut tokens) = (0, 0);
    let started = Instant::now();
    for _ in 0..ROUNDS {
        let mut reader = Reader::new(Condense::default())?;
        for message in messages {
            reader.read(message, &Anywhere);
        }
    }
    let seconds = started.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let mut reader = Reader::new(Condense::default())?;
    for message in messages {
        let reading = reader.read(message, &Anywhere);
        bytes += message.content.len();
        tokens += tokenizer.encode_plain(reading.given.as_ref().unwrap_or(&message.content))?.len();
    }
    let prefill = tokens as f64 / prefill_tok_s;
    Ok(Measurement::Ingest {
        bytes,
        tokens,
        ms: seconds * 1e3,
        mb_s: bytes as f64 / seconds / 1e6,
        share: seconds / (seconds + prefill),
    })
}
