//! A trajectory as the tokens that a model reads and writes.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::cache::notes::Notes;
use crate::engine::RunKind;
use crate::ingest::condense::Condense;
use crate::ingest::formats::Trajectory;
use crate::model::tokenizer::Tokenizer;
use crate::session::SessionError;
use crate::session::conversation::{Conversation, Intake};
use crate::session::detokenize::Detokenizer;
use crate::session::models::Model;
use crate::trajectory::{Message, Role};

/// What a token that the assistant wrote is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What it thought, or said before it acted.
    Thought,
    /// A tool call, or the fenced block that a shell agent's command stands in.
    Command,
    /// An answer that comes with no command, and the token that ends a turn.
    Other,
}

/// One message of the assistant.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Its tokens in the stream: all that stand behind the turn's opening, the end included.
    pub tokens: Range<usize>,
    /// One for each of them.
    pub kinds: Vec<Kind>,
}

/// The token stream that the product makes of a trajectory whose assistant messages it has
/// generated, up to the assistant's last token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    pub(super) tools: Vec<Value>,
    /// The messages that it was made of.
    pub messages: Vec<Message>,
    pub tokens: Vec<u32>,
    /// What a cache is told of the tokens.
    pub notes: Notes,
    pub turns: Vec<Turn>,
}

impl Stream {
    /// Renders as many whole messages as fit into `max_tokens`, nothing of them folded.
    ///
    /// Where a message passes the limit while less than half of it is filled, the stream begins
    /// anew behind that message: one long output at the start does not use up a trajectory.
    ///
    /// # Errors
    /// Where the model's template or tokenizer fails.
    pub fn new(
        model: &Arc<Model>,
        trajectory: &Trajectory,
        max_tokens: usize,
    ) -> Result<Self, SessionError> {
        let tools = trajectory.tools.clone().unwrap_or_default();
        let intake = || Intake { condense: Condense::off(), budget: None };
        let begin = || Conversation::new(Arc::clone(model), tools.clone(), intake());
        let (mut whole, mut n_tokens) = (begin()?, 0);
        for message in &trajectory.messages {
            let mark = whole.mark();
            push(&mut whole, message)?;
            let n_now = whole.n_tokens() + whole.n_open_tokens()?;
            if n_now <= max_tokens {
                n_tokens = n_now;
            } else if n_tokens >= max_tokens / 2 {
                whole.rewind(mark);
                break;
            } else {
                (whole, n_tokens) = (begin()?, 0);
            }
        }
        Self::of(&whole)
    }

    /// The same messages as a session with `budget` slots reads them that folds tool output. Turns
    /// have the same tokens.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn folded(&self, model: &Arc<Model>, budget: usize) -> Result<Self, SessionError> {
        let intake = Intake { condense: Condense::default(), budget: Some(budget) };
        let mut whole = Conversation::new(Arc::clone(model), self.tools.clone(), intake)?;
        self.messages.iter().try_for_each(|message| push(&mut whole, message))?;
        Self::of(&whole)
    }

    fn of(whole: &Conversation) -> Result<Self, SessionError> {
        let tokenizer = &whole.model().tokenizer;
        let runs = whole.runs_after(0);
        let mut tokens: Vec<u32> = runs.iter().flat_map(|run| &run.tokens).copied().collect();
        let (mut turns, mut at) = (Vec::new(), 0);
        for run in &runs {
            // The token that ends the turn begins the next run.
            let turn = at..tokens.len().min(at + run.tokens.len() + 1);
            if run.kind == RunKind::Generated && !turn.is_empty() {
                turns.push(turn);
            }
            at += run.tokens.len();
        }
        tokens.truncate(turns.last().map_or(0, |turn| turn.end));
        let turns = turns
            .into_iter()
            .map(|turn| Ok(Turn { kinds: kinds(tokenizer, &tokens[turn.clone()])?, tokens: turn }))
            .collect::<Result<Vec<_>, SessionError>>()?;
        let mut messages: Vec<_> = whole.messages().cloned().collect();
        let last = messages.iter().rposition(|message| message.role == Role::Assistant);
        messages.truncate(last.map_or(0, |last| last + 1));
        let notes = whole.notes();
        Ok(Self { tools: whole.tools().to_vec(), messages, tokens, notes, turns })
    }

    /// Of the tokens of thoughts, how many there are, and how many lie in a run of 8 that was
    /// thought before.
    pub fn repetition(&self) -> (usize, usize) {
        const RUN: usize = 8;
        let thoughts: Vec<u32> = self
            .turns
            .iter()
            .flat_map(|turn| turn.tokens.clone().zip(&turn.kinds))
            .filter(|(_, kind)| **kind == Kind::Thought)
            .map(|(idx, _)| self.tokens[idx])
            .collect();
        let mut seen = std::collections::HashSet::new();
        let mut repeats = vec![false; thoughts.len()];
        for (start, run) in thoughts.windows(RUN).enumerate() {
            if !seen.insert(run) {
                repeats[start..start + RUN].fill(true);
            }
        }
        (thoughts.len(), repeats.iter().filter(|is_repeat| **is_repeat).count())
    }
}

/// Adds a message; one of the assistant as if the model had written it.
fn push(whole: &mut Conversation, message: &Message) -> Result<(), SessionError> {
    if message.role != Role::Assistant {
        return whole.push(message.clone());
    }
    let Model { chat, tokenizer, .. } = &**whole.model();
    let text = chat.group(std::slice::from_ref(message))?;
    let (opening, closing) = (&chat.generation_prompt(true).text, chat.closing());
    let text = text.strip_suffix(&(closing.end.clone() + &closing.rest)).unwrap_or(&text);
    let tokens = match (text.strip_prefix(opening.as_str()), opening.split_once("<think>")) {
        (Some(written), _) => tokenizer.encode(written),
        // The model is made to think, but the assistant said nothing of it.
        (None, Some((before, _))) => {
            let answer = text.strip_prefix(before).unwrap_or(text);
            tokenizer.encode(&format!("\n</think>\n\n{answer}"))
        }
        (None, None) => tokenizer.encode(text),
    };
    let mut tokens = tokens?;
    tokens.extend(tokenizer.encode(&closing.end)?);
    whole.open_turn()?;
    whole.close_turn(tokens, message.clone())
}

/// What each token of a turn is part of.
fn kinds(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<Vec<Kind>, SessionError> {
    let (mut text, mut starts) = (String::new(), Vec::with_capacity(tokens.len()));
    let mut detokenizer = Detokenizer::new();
    for &token in tokens {
        starts.push(text.len());
        text += &detokenizer.push(tokenizer, token)?;
    }
    let parts = parts(&text);
    let mut kinds: Vec<_> = starts
        .iter()
        .map(|start| {
            let part = parts.iter().find(|(range, _)| range.contains(start));
            part.map_or(Kind::Other, |(_, kind)| *kind)
        })
        .collect();
    if let (Some(last), Some(token)) = (kinds.last_mut(), tokens.last())
        && tokenizer.is_eos(*token)
    {
        *last = Kind::Other;
    }
    Ok(kinds)
}

/// Thoughts and commands of an assistant message; where there is a command, what stands around it
/// is thought.
fn parts(text: &str) -> Vec<(Range<usize>, Kind)> {
    let mut parts = enclosed(text, "<think>", "</think>", Kind::Thought);
    let is_thought = |at: usize| parts.iter().any(|(range, _)| range.contains(&at));
    let mut commands: Vec<_> = enclosed(text, "<tool_call>", "</tool_call>", Kind::Command);
    if commands.is_empty() && text.trim_start().starts_with("{\"name\"") {
        commands.push((0..text.len(), Kind::Command));
    }
    if commands.is_empty() {
        commands = enclosed(text, "```", "```", Kind::Command);
    }
    commands.retain(|(range, _)| !is_thought(range.start));
    if !commands.is_empty() {
        parts.extend(commands);
        parts.push((0..text.len(), Kind::Thought));
    }
    parts
}

/// The ranges from each `open` to the next `close` behind it, or to the end.
fn enclosed(text: &str, open: &str, close: &str, kind: Kind) -> Vec<(Range<usize>, Kind)> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(at) = text[from..].find(open) {
        let start = from + at;
        let inner = start + open.len();
        from = text[inner..].find(close).map_or(text.len(), |n| inner + n + close.len());
        found.push((start..from, kind));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(text: &str, part: &str) -> Kind {
        let at = text.find(part).unwrap();
        let parts = parts(text);
        parts.iter().find(|(range, _)| range.contains(&at)).map_or(Kind::Other, |(_, kind)| *kind)
    }

    #[test]
    fn what_stands_around_a_command_is_thought() {
        let call = "Let us look.\n<tool_call>\n{\"name\": \"bash\"}\n</tool_call><|im_end|>";
        assert_eq!(kind_of(call, "Let"), Kind::Thought);
        assert_eq!(kind_of(call, "bash"), Kind::Command);
        let shell = "THOUGHT: a look\n\n```bash\nls\n```\nand then";
        assert_eq!(kind_of(shell, "THOUGHT"), Kind::Thought);
        assert_eq!(kind_of(shell, "ls"), Kind::Command);
        assert_eq!(kind_of(shell, "and then"), Kind::Thought);
    }

    #[test]
    fn an_answer_without_a_command_is_neither() {
        assert_eq!(kind_of("It is done.", "done"), Kind::Other);
        let thinking = "<think>\nHm, ```x```\n</think>\n\nDone.";
        assert_eq!(kind_of(thinking, "Hm"), Kind::Thought);
        assert_eq!(kind_of(thinking, "x"), Kind::Thought);
        assert_eq!(kind_of(thinking, "Done"), Kind::Other);
    }

    #[test]
    fn repeated_thoughts_are_counted_in_tokens() {
        let turn = |tokens: Range<usize>, kind| Turn { kinds: vec![kind; tokens.len()], tokens };
        let mut tokens: Vec<u32> = (0..10).collect();
        tokens.extend([90, 91]);
        tokens.extend(1..9);
        let turns = vec![turn(0..10, Kind::Thought), turn(10..12, Kind::Command)];
        let mut stream = Stream { tokens, turns, ..Stream::default() };
        assert_eq!(stream.repetition(), (10, 0));
        stream.turns.push(turn(12..20, Kind::Thought));
        assert_eq!(stream.repetition(), (18, 8));
    }
}
