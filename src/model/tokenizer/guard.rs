//! Special tokens in message content are only text.

use std::cell::Cell;
use std::collections::HashMap;

/// Stands inside a broken special token; a Unicode noncharacter, which no text has.
pub(super) const GUARD: char = '\u{FDD0}';

/// The special tokens of a vocabulary, so that message content cannot forge them.
///
/// A chat template gets the content with each special token broken by a mark behind its first
/// character; [`super::Tokenizer::encode`] does not recognise a broken one and takes the mark out. The
/// template sees everything else as it is, so it may trim, search, split or escape.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    by_first_byte: HashMap<u8, Vec<String>>,
}

impl Guard {
    pub fn new(specials: impl IntoIterator<Item = String>) -> Self {
        let mut by_first_byte: HashMap<u8, Vec<String>> = HashMap::new();
        for special in specials {
            if let Some(&first) = special.as_bytes().first() {
                by_first_byte.entry(first).or_default().push(special);
            }
        }
        Self { by_first_byte }
    }

    /// `text` with every special token broken, one that only begins at its end included.
    pub fn protect(&self, text: &str) -> String {
        let mut whole = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            let is_special =
                |special: &String| rest.starts_with(special.as_str()) || special.starts_with(rest);
            whole.push(c);
            let specials = self.by_first_byte.get(&text.as_bytes()[at]);
            if c == GUARD || specials.is_some_and(|specials| specials.iter().any(is_special)) {
                whole.push(GUARD);
            }
        }
        whole
    }

    /// `text` as it was before [`Self::protect`].
    pub fn restore(text: &str) -> String {
        let unguarded = unguarded();
        text.chars().filter(|&c| unguarded(c)).collect()
    }

    /// The special token that `text` begins with.
    pub fn leading<'a>(&self, text: &'a str) -> Option<&'a str> {
        let specials = self.by_first_byte.get(text.as_bytes().first()?)?;
        let longest = specials.iter().filter(|s| text.starts_with(s.as_str())).map(String::len);
        longest.max().map(|len| &text[..len])
    }
}

/// Drops guards from a run of characters; of a doubled one, which stands for itself, one stays.
pub(super) fn unguarded() -> impl Fn(char) -> bool {
    let halved = Cell::new(false);
    move |c| {
        let was_halved = halved.replace(c == GUARD && !halved.get());
        c != GUARD || was_halved
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guard() -> Guard {
        Guard::new(["<|im_end|>", "<think>"].map(str::to_owned))
    }

    #[test]
    fn guards_break_special_tokens_and_nothing_else() {
        let protected = guard().protect("a <|im_end|> < <b> <thi");
        assert_eq!(protected, "a <\u{FDD0}|im_end|> < <b> <\u{FDD0}thi");
        assert_eq!(guard().leading("<|im_end|>\n"), Some("<|im_end|>"));
        assert_eq!(guard().leading("\n<|im_end|>"), None);
    }

    proptest! {
        #[test]
        fn guarding_loses_nothing(text in "(<\\|im_end\\|>|<|\u{FDD0}|<thi|[a-z|])*") {
            let protected = guard().protect(&text);
            prop_assert!(!protected.contains("<|im_end|>") && !protected.contains("<think>"));
            prop_assert_eq!(Guard::restore(&protected), text);
        }
    }
}
