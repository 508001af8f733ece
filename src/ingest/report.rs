//! Folding a whole conversation at once, and what that saves.

use std::collections::BTreeMap;

use serde::Serialize;

use super::condense::{Condense, UnknownRule};
use super::reader::{Anywhere, Fold, Reader, Reading};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::trajectory::Message;

/// What folding saves.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub messages: usize,
    /// Messages with shorter text.
    pub folded: usize,
    /// Of all that the model reads: contents, thoughts, and arguments of calls.
    pub characters: Change,
    /// The same in tokens, where a tokenizer was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Change>,
    pub rules: BTreeMap<String, Saved>,
}

/// A size before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub before: usize,
    pub after: usize,
}

/// What one rule saved. Where several shortened a message, each has its share by length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// How often it found something.
    pub folds: usize,
    pub characters: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
}

/// Why a conversation could not be condensed.
#[derive(Debug, thiserror::Error)]
pub enum CondenseError {
    #[error(transparent)]
    Rule(#[from] UnknownRule),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Reads a conversation as one whose cache forgets nothing.
///
/// # Errors
/// Where a rule is switched off that is not there, or the tokenizer gives up.
pub fn condense(
    messages: &[Message],
    condense: Condense,
    tokenizer: Option<&Tokenizer>,
) -> Result<(Vec<Reading>, Report), CondenseError> {
    let mut reader = Reader::new(condense)?;
    let mut report = Report { tokens: tokenizer.map(|_| Change::default()), ..Report::default() };
    let mut readings = Vec::with_capacity(messages.len());
    for message in messages {
        let reading = reader.read(message, &Anywhere);
        report.add(message, &reading, tokenizer)?;
        readings.push(reading);
    }
    Ok((readings, report))
}

impl Report {
    /// Counts a message.
    ///
    /// # Errors
    /// Where the tokenizer gives up.
    pub fn add(
        &mut self,
        message: &Message,
        reading: &Reading,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(), TokenizerError> {
        let arguments = message.tool_calls.iter().map(|call| &call.function.arguments);
        let others: Vec<_> = arguments.chain(&message.reasoning_content).collect();
        let n_tokens = |text: &str| match tokenizer {
            Some(tokenizer) => tokenizer.encode_plain(text).map(|tokens| tokens.len()),
            None => Ok(0),
        };
        let mut characters = Change::of(message.content.chars().count());
        let mut tokens = Change::of(n_tokens(&message.content)?);
        if let Some(given) = &reading.given {
            self.folded += 1;
            (characters.after, tokens.after) = (given.chars().count(), n_tokens(given)?);
            self.share(&reading.folds, characters.saved(), tokenizer.map(|_| tokens.saved()));
        }
        for other in others {
            characters = characters.plus(Change::of(other.chars().count()));
            tokens = tokens.plus(Change::of(n_tokens(other)?));
        }
        self.messages += 1;
        self.characters = self.characters.plus(characters);
        self.tokens = self.tokens.map(|before| before.plus(tokens));
        Ok(())
    }

    fn share(&mut self, folds: &[Fold], characters: usize, tokens: Option<usize>) {
        let whole: usize = folds.iter().map(|fold| fold.saved).sum();
        let mut left = (whole, characters, tokens.unwrap_or(0));
        for fold in folds {
            // What is left of the whole, so that no remainder is lost.
            let part = |of: usize| of * fold.saved / left.0.max(1);
            let (n_characters, n_tokens) = (part(left.1), part(left.2));
            let saved = self.rules.entry(fold.rule.clone()).or_default();
            saved.folds += 1;
            saved.characters += n_characters;
            if tokens.is_some() {
                *saved.tokens.get_or_insert(0) += n_tokens;
            }
            left = (left.0 - fold.saved, left.1 - n_characters, left.2 - n_tokens);
        }
    }
}

impl Change {
    fn of(size: usize) -> Self {
        Self { before: size, after: size }
    }

    fn plus(self, other: Self) -> Self {
        Self { before: self.before + other.before, after: self.after + other.after }
    }

    pub fn saved(self) -> usize {
        self.before.saturating_sub(self.after)
    }

    /// Share of the size that is saved, 0 to 1.
    pub fn share(self) -> f64 {
        self.saved() as f64 / self.before.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trajectory::Role;

    #[test]
    fn rules_share_what_a_message_saves() {
        let fold = |rule: &str, saved| Fold {
            rule: rule.to_owned(),
            span: 0,
            saved,
            points_to: Vec::new(),
        };
        let message = Message::text(Role::Tool, "0123456789é");
        let reading = Reading {
            given: Some("01234".to_owned()),
            spans: Vec::new(),
            folds: vec![fold("a", 3), fold("b", 1), fold("a", 2)],
        };
        let mut report = Report::default();
        report.add(&message, &reading, None).unwrap();
        assert_eq!(report.characters, Change { before: 11, after: 5 });
        let saved = |folds, characters| Saved { folds, characters, tokens: None };
        let rules = [("a".to_owned(), saved(2, 5)), ("b".to_owned(), saved(1, 1))];
        assert_eq!(report.rules, rules.into());
    }
}
