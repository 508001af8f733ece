//! Reads a conversation, message by message: spans, and what is folded of each.

use super::classify::{self, Classified};
use super::condense::{Condense, UnknownRule};
use super::fold::{self, RULES, Rule};
use super::history::{History, Output, Place};
use super::span::{Kind, Part, Span};
use crate::trajectory::Message;

/// Messages of fewer bytes are left alone.
const LEAST: usize = 512;

/// What became of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The content that the model is given, where it is not the message's own.
    pub given: Option<String>,
    /// Spans of all parts, over the text that is given.
    pub spans: Vec<Span>,
    pub folds: Vec<Fold>,
}

/// One rule's work on a span of a message.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Fold {
    pub rule: String,
    /// Which of the message's spans it is; the same span may be folded by several rules.
    #[serde(default)]
    pub span: usize,
    /// Bytes of text that the model need not read.
    pub saved: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points_to: Vec<Place>,
}

/// Says which places a note may point to: those that can be kept in the cache.
pub trait Room {
    /// False where the text of this place may not be there any more when the note is read.
    fn may_point_to(&self, place: &Place) -> bool;
}

/// Room for any note: the model is given the whole text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anywhere;

impl Room for Anywhere {
    fn may_point_to(&self, _: &Place) -> bool {
        true
    }
}

/// A point of the conversation to which the reader can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// Reads a conversation in its order. What it does with a message depends on the messages before
/// it, on the switches, and on the room for notes.
pub struct Reader {
    condense: Condense,
    rules: Vec<&'static dyn Rule>,
    history: History,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules: Vec<_> = self.rules.iter().map(|rule| rule.name()).collect();
        f.debug_struct("Reader")
            .field("condense", &self.condense)
            .field("rules", &rules)
            .field("n_messages", &self.history.len())
            .finish()
    }
}

impl Reader {
    /// A reader at the beginning of a conversation.
    ///
    /// # Errors
    /// Where a rule is switched off that is not there.
    pub fn new(condense: Condense) -> Result<Self, UnknownRule> {
        Self::with_rules(condense, RULES)
    }

    fn with_rules(
        condense: Condense,
        rules: &'static [&'static dyn Rule],
    ) -> Result<Self, UnknownRule> {
        let rules = in_force(&condense, rules)?;
        Ok(Self { condense, rules, history: History::default() })
    }

    /// Reads later messages with other switches.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn configure(&mut self, condense: Condense) -> Result<(), UnknownRule> {
        self.rules = in_force(&condense, RULES)?;
        self.condense = condense;
        Ok(())
    }

    /// The switches that it was made with.
    pub fn condense(&self) -> &Condense {
        &self.condense
    }

    /// What the model has been given so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Reads the next message and says what the model is given of it.
    pub fn read(&mut self, message: &Message, room: &dyn Room) -> Reading {
        let classified = classify::message(message, &self.history);
        let (given, folds) = self.fold(&message.content, &classified, room);
        let spans = self.admit(&message.content, classified, given.as_deref(), &folds);
        Reading { given, spans, folds }
    }

    /// Takes in a message that was read before, with what became of it then, and gives its spans.
    pub fn remember(
        &mut self,
        message: &Message,
        given: Option<&str>,
        folds: &[Fold],
    ) -> Vec<Span> {
        let classified = classify::message(message, &self.history);
        self.admit(&message.content, classified, given, folds)
    }

    /// The point after the last message.
    pub fn mark(&self) -> Mark {
        Mark(self.history.len())
    }

    /// Goes back to a point, as if what came later had never been read.
    pub fn rewind(&mut self, mark: Mark) {
        self.history.truncate(mark.0);
    }

    /// The content with all spans folded that can be, where any can.
    fn fold(
        &self,
        content: &str,
        classified: &Classified,
        room: &dyn Room,
    ) -> (Option<String>, Vec<Fold>) {
        let mut folds = Vec::new();
        if content.len() < LEAST || self.rules.is_empty() {
            return (None, folds);
        }
        let mut given = String::new();
        let mut copied = 0;
        for at in &classified.bodies {
            let span = &classified.spans[*at];
            let text = &content[span.bytes.clone()];
            given.push_str(&content[copied..span.bytes.start]);
            given.push_str(&self.fold_span(*at, span, text, room, &mut folds));
            copied = span.bytes.end;
        }
        given.push_str(&content[copied..]);
        ((!folds.is_empty()).then_some(given), folds)
    }

    fn fold_span(
        &self,
        at: usize,
        span: &Span,
        text: &str,
        room: &dyn Room,
        folds: &mut Vec<Fold>,
    ) -> String {
        let mut text = text.to_owned();
        if fold::is_folded(&text) {
            return text;
        }
        for rule in &self.rules {
            let Some(folded) = rule.fold(span, &text, &self.history) else { continue };
            let is_shorter = folded.text.len() < text.len();
            if is_shorter && folded.points_to.iter().all(|place| room.may_point_to(place)) {
                let rule = rule.name().to_owned();
                let saved = text.len() - folded.text.len();
                folds.push(Fold { rule, span: at, saved, points_to: folded.points_to });
                text = folded.text;
            }
        }
        text
    }

    /// Adds a message to the history and gives its spans over the text that is given.
    fn admit(
        &mut self,
        content: &str,
        classified: Classified,
        given: Option<&str>,
        folds: &[Fold],
    ) -> Vec<Span> {
        let Classified { spans, bodies, mut record } = classified;
        let given = given.unwrap_or(content);
        let Some(moved) = moved(&spans, content, given, folds) else {
            // A record of a version whose spans lay otherwise: nothing may point to it.
            self.history.add(record);
            let mut spans: Vec<_> = spans.into_iter().filter(|s| s.part != Part::Content).collect();
            let at = spans.iter().take_while(|span| span.part == Part::Reasoning).count();
            spans.insert(at, Span::new(Part::Content, 0..given.len(), Kind::Other));
            return spans;
        };
        for at in bodies {
            let of_span = folds.iter().filter(|fold| fold.span == at);
            let points_to = of_span.flat_map(|fold| fold.points_to.iter().cloned()).collect();
            let (text, span) = (&content[spans[at].bytes.clone()], &moved[at]);
            record.outputs.push(Output::new(span, text, &given[span.bytes.clone()], points_to));
        }
        self.history.add(record);
        moved
    }
}

/// The rules that the switches leave on.
fn in_force(
    condense: &Condense,
    rules: &'static [&'static dyn Rule],
) -> Result<Vec<&'static dyn Rule>, UnknownRule> {
    condense.check(rules)?;
    let is_on = |rule: &&'static dyn Rule| condense.enabled && !condense.off.contains(rule.name());
    Ok(rules.iter().copied().filter(is_on).collect())
}

/// The spans over the text that is given of a content: each fold took its bytes from one of them.
fn moved(spans: &[Span], content: &str, given: &str, folds: &[Fold]) -> Option<Vec<Span>> {
    let mut moved = spans.to_vec();
    let mut end = 0;
    for (at, span) in moved.iter_mut().enumerate().filter(|(_, span)| span.part == Part::Content) {
        let of_span = folds.iter().filter(|fold| fold.span == at);
        let saved = of_span.map(|fold| fold.saved).fold(0, usize::saturating_add);
        let bytes = end..end + span.bytes.len().checked_sub(saved)?;
        let old = std::mem::replace(&mut span.bytes, bytes);
        end = span.bytes.end;
        let new = given.get(span.bytes.clone())?;
        if saved == 0 && new != &content[old] {
            return None;
        }
    }
    (end == given.len()).then_some(moved)
}

/// The handle by which the original of a folded content is had back.
pub fn handle(content: &str) -> String {
    blake3::hash(content.as_bytes()).to_hex()[..12].to_owned()
}

#[cfg(test)]
mod tests;
