//! What is still known at a trajectory's end of facts that were read long before.
//!
//! Each probe is asked behind the whole trajectory, in a fork that is thrown away. Answers are
//! forced, not sampled: one is right where each of its tokens is the likeliest, and nothing that
//! would make it another answer follows.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::EvalError;
use super::lane::{Lane, Machine, steps};
use super::metrics::{argmax, log_sum_exp};
use super::probes::{Fact, Probe};
use super::race::{Contender, Race};
use super::stream::Stream;
use crate::session::models::Model;
use crate::trajectory::{Message, Role};

/// How one probe was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Word for word.
    pub is_right: bool,
    /// The right answer was likelier, a token, than every distractor.
    pub is_likelier: bool,
}

/// A probe under one policy, beside what the full cache answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub fact: Fact,
    pub full: Answer,
    pub own: Answer,
}

/// Reads a stream into a full cache, and the same stream or its `folded` messages into all
/// contenders', and asks each all the probes. A contender that has evicted nothing of an unfolded
/// stream is asked nothing.
///
/// # Errors
/// Where the stream and a question are longer than the model's context.
pub fn measure(
    model: &Arc<Model>,
    stream: &Stream,
    folded: Option<&Stream>,
    probes: &[Probe],
    contenders: &[Contender],
    machine: &mut Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<Asked>>, EvalError> {
    let mut race = Race::new(folded.unwrap_or(stream), contenders, machine);
    let nobody = vec![false; contenders.len()];
    for step in steps(folded.unwrap_or(stream)) {
        race.read(&step, &nobody, machine, progress)?;
    }
    let mut whole = Race::new(stream, &[], machine);
    for step in folded.map_or_else(Vec::new, |_| steps(stream)) {
        whole.read_full(&step, false, machine, progress)?;
    }
    let full = if folded.is_some() { &whole.full } else { &race.full };
    let mut asked: Vec<_> = contenders.iter().map(|_| Vec::new()).collect();
    let Some(&end) = stream.tokens.last() else { return Ok(asked) };
    for probe in probes {
        let question = Question::new(model, end, probe)?;
        let full = question.ask(full, model, machine)?;
        progress(question.n_tokens());
        for (asked, lane) in asked.iter_mut().zip(&race.lanes) {
            let lane = lane.as_ref().unwrap_or(&race.full);
            if folded.is_none() && lane.cache.kept() == lane.cache.logical() {
                continue;
            }
            // Only what a full cache knows can be forgotten.
            if full.is_right || full.is_likelier {
                let own = question.ask(lane, model, machine)?;
                asked.push(Asked { fact: probe.fact, full, own });
            }
            progress(question.n_tokens());
        }
    }
    Ok(asked)
}

/// A probe as tokens.
struct Question {
    prompt: Vec<u32>,
    /// The right answer, then the distractors.
    answers: Vec<Vec<u32>>,
}

impl Question {
    /// `end` is the stream's last token, which no cache has read yet.
    fn new(model: &Model, end: u32, probe: &Probe) -> Result<Self, EvalError> {
        let guard = model.tokenizer.guard();
        let user = Message::text(Role::User, &probe.question);
        let before = model.chat.closing().rest
            + &model.chat.group(&[user]).map_err(crate::session::SessionError::from)?
            + &model.chat.generation_prompt(false).text
            + &guard.protect(&probe.given);
        let is_open = probe.given.is_empty() || probe.given.ends_with(['(', '"']);
        let space = if is_open { "" } else { " " };
        let mut prompt = model.tokenizer.encode(&before)?;
        let mut answers = Vec::with_capacity(1 + probe.distractors.len());
        for answer in std::iter::once(&probe.answer).chain(&probe.distractors) {
            let whole = format!("{before}{space}{}", guard.protect(answer));
            answers.push(model.tokenizer.encode(&whole)?);
        }
        // Where text meets text, a token may reach over the border.
        for answer in &answers {
            let n_common = prompt.iter().zip(answer).take_while(|(a, b)| a == b).count();
            prompt.truncate(n_common);
        }
        answers.iter_mut().for_each(|answer| drop(answer.drain(..prompt.len())));
        prompt.insert(0, end);
        Ok(Self { prompt, answers })
    }

    /// Tokens that asking takes.
    fn n_tokens(&self) -> usize {
        self.prompt.len() + self.answers.iter().map(Vec::len).sum::<usize>()
    }

    fn ask(&self, lane: &Lane, model: &Model, machine: &mut Machine) -> Result<Answer, EvalError> {
        let n_vocab = machine.decoder.config().vocab;
        let mut asked = lane.clone();
        asked.prompt(&self.prompt, machine)?;
        let first = asked.logits.clone();
        let mut likelihoods = Vec::with_capacity(self.answers.len());
        let mut is_right = false;
        for (i, answer) in self.answers.iter().enumerate() {
            let mut answered = asked.clone();
            answered.write(answer, true, machine)?;
            let rows = || std::iter::once(&*first).chain(answered.logits.chunks_exact(n_vocab));
            let total: f64 = rows()
                .zip(answer)
                .map(|(row, &token)| f64::from(row[token as usize]) - log_sum_exp(row))
                .sum();
            likelihoods.push(total / answer.len().max(1) as f64);
            if i == 0 {
                let chosen: Vec<_> = rows().map(|row| argmax(row) as u32).collect();
                let next = model.tokenizer.decode(&chosen[answer.len()..])?;
                let goes_on = next.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                is_right = !answer.is_empty() && chosen.starts_with(answer) && !goes_on;
            }
        }
        let (right, wrong) = likelihoods.split_at(1);
        let is_likelier = wrong.iter().all(|wrong| right.iter().all(|right| right > wrong));
        Ok(Answer { is_right, is_likelier })
    }
}
