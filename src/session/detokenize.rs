//! Token ids to text, as they come.

use crate::model::tokenizer::{Tokenizer, TokenizerError};

/// Turns ids into text one at a time and never gives out half a character.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// Ids whose bytes end inside a character.
    pending: Vec<u32>,
}

impl Detokenizer {
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `id` completes, special tokens included; empty inside a character.
    ///
    /// # Errors
    /// Where the tokenizer cannot decode the id.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        self.pending.push(id);
        let text = tokenizer.decode(&self.pending)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.pending.clear();
        Ok(text)
    }

    /// What is left at the end; bytes that form no character become U+FFFD.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        tokenizer.decode(&std::mem::take(&mut self.pending))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn characters_come_whole_and_nothing_is_lost() {
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
        let Some(data) = data.or_else(home) else { return };
        let path = data.join("attar/models/smollm2-135m-instruct.gguf");
        if !path.exists() {
            println!("{} is not there; nothing to check", path.display());
            return;
        }
        let tokenizer = Tokenizer::load(path).unwrap();
        let text = "fn main() {} // héllo 漢字 👩‍👩‍👧 <|im_end|>\n\u{FFFD} end";
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.len() > text.chars().count() / 2);
        let mut detokenizer = Detokenizer::new();
        let pieces: Vec<_> =
            ids.iter().map(|&id| detokenizer.push(&tokenizer, id).unwrap()).collect();
        assert_eq!(detokenizer.finish(&tokenizer).unwrap(), "");
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().all(|piece| !piece.ends_with(char::REPLACEMENT_CHARACTER)));
        // Cut inside a character, the rest is given out in the end.
        let emoji = tokenizer.encode("👧").unwrap();
        assert_eq!(detokenizer.push(&tokenizer, emoji[0]).unwrap(), "");
        assert_eq!(detokenizer.finish(&tokenizer).unwrap(), "\u{FFFD}");
    }
}
