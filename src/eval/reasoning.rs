//! Chains of thought under a small budget: problems with numeric answers, solved or not.
//!
//! Each problem is asked behind the beginning of a trajectory, so that the cache is full and the
//! question itself competes for slots. All policies' and several problems' answers are generated
//! in one batch.

use std::sync::{Arc, LazyLock};

use half::f16;
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::error::EvalError;
use super::lane::{Lane, Machine, steps};
use super::race::{Contender, Race};
use super::stream::Stream;
use crate::cache::KvCache;
use crate::engine::make_room_for;
use crate::engine::sampler::Sampler;
use crate::session::SessionError;
use crate::session::models::Model;
use crate::trajectory::{Message, Role};

/// Compactions behind a question without which an answer says nothing about a policy.
pub const COMPACTIONS_MIN: u64 = 3;

/// What is added to every question.
const REQUEST: &str =
    "\n\nThink step by step. End with a line that says \"Answer:\" and the number.";

/// A problem whose answer is a number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Problem {
    pub question: String,
    #[serde(deserialize_with = "number_as_text")]
    pub answer: String,
}

/// How one problem went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub is_solved: bool,
    /// Tokens generated.
    pub tokens: usize,
    /// It ended in repeating itself.
    pub loops: bool,
    /// Compactions since the question came.
    pub compactions: u64,
}

/// How answers are generated.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    pub sampler: Sampler,
    pub max_tokens: usize,
}

/// Reads a file of problems, a JSON object a line.
///
/// # Errors
/// Names the first line that is none.
pub fn read(text: &str) -> Result<Vec<Problem>, (usize, serde_json::Error)> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| serde_json::from_str(line).map_err(|e| (number, e))).collect()
}

fn number_as_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match number(&text) {
        Some(_) => Ok(text),
        None => Err(serde::de::Error::custom(format!("`{text}` is not a number"))),
    }
}

/// A context that has been read by a full cache (which comes first) and by all contenders'.
pub struct Room {
    lanes: Vec<Lane>,
    /// The context's last token, which none has read yet.
    end: Vec<u32>,
}

impl Room {
    /// Reads the context.
    ///
    /// # Errors
    /// Where it is longer than the model's.
    pub fn new(
        context: &Stream,
        contenders: &[Contender],
        machine: &mut Machine,
    ) -> Result<Self, EvalError> {
        let mut race = Race::new(context, contenders, machine);
        let nobody = vec![false; contenders.len()];
        for step in steps(context) {
            race.read(&step, &nobody, machine, &mut |_| ())?;
        }
        let Race { full, lanes, .. } = race;
        let fork = |(lane, contender): (Option<Lane>, &Contender)| {
            let policy = Arc::clone(&contender.policy);
            lane.unwrap_or_else(|| full.fork(policy, contender.budget, machine))
        };
        let mut all: Vec<_> = lanes.into_iter().zip(contenders).map(fork).collect();
        all.insert(0, full);
        Ok(Self { lanes: all, end: context.tokens.last().copied().into_iter().collect() })
    }

    /// Has every cache answer all `problems`; gives for each problem the full cache's outcome and
    /// then each contender's.
    ///
    /// # Errors
    /// Where a question and its answer pass the model's context.
    pub fn solve(
        &self,
        problems: &[Problem],
        model: &Model,
        generation: Generation,
        machine: &mut Machine,
    ) -> Result<Vec<Vec<Outcome>>, EvalError> {
        let mut attempts = Vec::with_capacity(problems.len() * self.lanes.len());
        for problem in problems {
            let user = Message::text(Role::User, problem.question.clone() + REQUEST);
            let text = model.chat.closing().rest
                + &model.chat.group(&[user]).map_err(SessionError::from)?
                + &model.chat.generation_prompt(true).text;
            let mut prompt = self.end.clone();
            prompt.extend(model.tokenizer.encode(&text)?);
            for lane in &self.lanes {
                let before = lane.cache.n_compactions();
                let mut lane = lane.clone();
                lane.prompt(&prompt, machine)?;
                let mut attempt = Attempt { cache: lane.cache, tokens: Vec::new(), before };
                attempt.choose(&mut lane.logits, generation);
                attempts.push(attempt);
            }
        }
        generate(&mut attempts, model, generation, machine)?;
        let outcome = |(i, attempt): (usize, &Attempt)| {
            attempt.outcome(model, &problems[i / self.lanes.len()])
        };
        let outcomes: Vec<_> =
            attempts.iter().enumerate().map(outcome).collect::<Result<_, _>>()?;
        Ok(outcomes.chunks(self.lanes.len()).map(<[_]>::to_vec).collect())
    }
}

/// An answer that is being generated.
struct Attempt {
    cache: KvCache<f16>,
    /// Chosen so far; the last is not in the cache.
    tokens: Vec<u32>,
    /// Compactions before the question.
    before: u64,
}

impl Attempt {
    fn choose(&mut self, logits: &mut [f32], generation: Generation) {
        let position = self.cache.logical() as u64;
        self.tokens.push(generation.sampler.sample(logits, &self.tokens, position));
    }

    fn is_over(&self, model: &Model, generation: Generation) -> bool {
        self.tokens.len() >= generation.max_tokens
            || self.tokens.last().is_some_and(|last| model.tokenizer.is_eos(*last))
    }

    fn outcome(&self, model: &Model, problem: &Problem) -> Result<Outcome, EvalError> {
        let text = model.tokenizer.decode(&self.tokens)?;
        Ok(Outcome {
            is_solved: is_right(&text, &problem.answer),
            tokens: self.tokens.len(),
            loops: loops(&self.tokens),
            compactions: self.cache.n_compactions() - self.before,
        })
    }
}

fn generate(
    attempts: &mut [Attempt],
    model: &Model,
    generation: Generation,
    machine: &mut Machine,
) -> Result<(), EvalError> {
    let Machine { decoder, tool_call_token, work } = machine;
    let n_vocab = decoder.config().vocab;
    let mut logits = Vec::new();
    loop {
        let mut active: Vec<_> =
            attempts.iter_mut().filter(|a| !a.is_over(model, generation)).collect();
        if active.is_empty() {
            return Ok(());
        }
        let mut tokens = Vec::with_capacity(active.len());
        for attempt in &mut active {
            // Each has chosen its first token already.
            let Some(&token) = attempt.tokens.last() else { continue };
            make_room_for(token, *tool_call_token, &mut attempt.cache, decoder, work);
            tokens.push(token);
        }
        let mut caches: Vec<_> = active.iter_mut().map(|attempt| &mut attempt.cache).collect();
        decoder.decode(&tokens, &mut caches, work, Some(&mut logits))?;
        for (attempt, row) in active.into_iter().zip(logits.chunks_exact_mut(n_vocab)) {
            attempt.choose(row, generation);
        }
    }
}

/// Whether the number behind the last "Answer:", or else the last number, is the right one.
fn is_right(text: &str, answer: &str) -> bool {
    let behind = text.rsplit_once("Answer:").and_then(|(_, behind)| numbers(behind).next());
    let given = behind.or_else(|| numbers(text).last());
    match (given, number(answer)) {
        (Some(given), Some(right)) => (given - right).abs() < 1e-6 * right.abs().max(1.0),
        _ => false,
    }
}

fn numbers(text: &str) -> impl Iterator<Item = f64> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"-?\d[\d,]*(?:\.\d+)?").unwrap_or_else(|error| unreachable!("{error}"))
    });
    NUMBER.find_iter(text).filter_map(|found| number(found.as_str()))
}

/// A number with or without commas between its digits.
fn number(text: &str) -> Option<f64> {
    text.trim().replace(',', "").parse().ok().filter(|number: &f64| number.is_finite())
}

/// Whether a text ends in at least three copies of the same run of tokens, 48 tokens or more.
fn loops(tokens: &[u32]) -> bool {
    const LONGEST: usize = 64;
    (1..=LONGEST).any(|period| {
        let n_tail = (3 * period).max(48);
        let Some(start) = tokens.len().checked_sub(n_tail) else { return false };
        tokens[start + period..] == tokens[start..tokens.len() - period]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_behind_the_last_answer_counts() {
        for (text, answer, expected) in [
            ("3 + 4 = 7\nAnswer: 7", "7", true),
            ("Answer: 5? No.\nAnswer: $1,234.", "1234", true),
            ("so it is 12 in all", "12", true),
            ("so it is 12 of 13", "12", false),
            ("Answer: -2.50", "-2.5", true),
            ("Answer: none", "0", false),
            ("I do not know", "0", false),
        ] {
            assert_eq!(is_right(text, answer), expected, "{text:?}");
        }
    }

    #[test]
    fn problems_are_read_with_their_line_numbers() {
        let problems = read(
            "{\"question\":\"a\",\"answer\":\"1,000\"}\n\n{\"question\":\"b\",\"answer\":2}\n",
        );
        let answers: Vec<_> = problems.unwrap().into_iter().map(|p| p.answer).collect();
        assert_eq!(answers, ["1,000", "2"]);
        let (line, error) =
            read("{\"question\":\"a\",\"answer\":1}\n{\"question\":\"b\",\"answer\":\"x\"}")
                .unwrap_err();
        assert_eq!(line, 2);
        assert!(error.to_string().contains("`x` is not a number"));
    }

    #[test]
    fn only_a_text_that_ends_in_copies_loops() {
        let text: Vec<u32> = (0..100).collect();
        assert!(!loops(&text));
        let looping: Vec<u32> = text.iter().copied().chain((0..60).map(|i| i % 20)).collect();
        assert!(loops(&looping));
        let ended: Vec<u32> = looping.iter().copied().chain([500]).collect();
        assert!(!loops(&ended));
        assert!(!loops(&[7; 47]) && loops(&[7; 48]));
    }
}
