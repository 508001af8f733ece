//! One generation, from the messages that came with it to the stored answer.

use std::convert::Infallible;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::conversation::Mark;
use super::detokenize::Detokenizer;
use super::error::SessionError;
use super::generation::{Answer, ReasoningLimit, Stream, Writer};
use super::live::{Session, blocking};
use super::record::{self, Begun, Partial, Progress};
use super::slots::Guard;
use super::think::{SplitOptions, Splitter};
use crate::engine::sampler::{Sampler, Sampling};
use crate::engine::{FinishReason, Finished, Generate, Need, Timing};
use crate::ingest::reader::Fold;
use crate::trajectory::{Message, Role};

/// Tokens after which a running generation is logged again.
const LOG_EVERY: usize = 64;
/// How often it is looked whether there are as many.
const LOG_POLL: Duration = Duration::from_millis(50);

/// What a client asks of a generation.
#[derive(Clone, Debug)]
pub struct Options {
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub stop: Vec<String>,
    /// Most tokens of thought; none for no limit.
    pub reasoning_max_tokens: Option<usize>,
}

/// Generates after `messages`. All or nothing: the messages become part of the session together
/// with their answer, or, where the generation fails, not at all.
pub async fn generate(
    mut session: Guard,
    messages: Vec<Message>,
    options: &Options,
    stream: &Arc<Stream>,
    cancel: &CancellationToken,
) -> Result<Answer, SessionError> {
    let sampler = Sampler::new(options.sampling)?;
    let given = messages.clone();
    let (mut session, mark) = blocking(move || {
        let mark = session.open_turn(given)?;
        Ok((session, mark))
    })
    .await?;
    let prompt_tokens = session.conversation.n_tokens();
    let log = session.log_partial(messages.clone(), mark, stream);
    let generated = {
        let run = session.run(options, &sampler, stream, cancel);
        tokio::select! {
            generated = run => generated,
            never = log => match never {},
        }
    };
    let (finished, cached_tokens) = match generated {
        Ok(generated) => generated,
        Err(error) => {
            session.conversation.rewind(mark);
            session.is_stale = false;
            session.leave_memory();
            session.forget_partial().await;
            return Err(error);
        }
    };
    let answer = Answer {
        message: stream.message(),
        finish_reason: finished.reason,
        prompt_tokens,
        cached_tokens,
        completion_tokens: finished.tokens.len(),
        reasoning_tokens: stream.n_reasoning(),
        policy: session.header.cache.policy.clone(),
        budget: session.header.cache.budget,
        stats: finished.stats,
        timing: finished.timing,
        seed: options.sampling.seed,
    };
    if let Err(error) = session.keep(messages, *finished, &answer, mark).await {
        session.conversation.rewind(mark);
        session.leave_memory();
        return Err(error);
    }
    Ok(answer)
}

/// What came of appended messages.
pub struct Taken {
    /// Of each message.
    pub items: Vec<Item>,
    /// Tokens of the open group, which nobody reads yet.
    pub n_open: usize,
}

/// What became of one appended message.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Tokens of the content as it came.
    pub n_tokens: usize,
    /// Tokens of the content as the model is given it.
    pub n_given: usize,
    pub folds: Vec<Fold>,
    /// By which name the content can be had back as it came, where another is given.
    pub handle: Option<String>,
}

/// Appends messages without an answer. All are stored, or none is.
pub async fn append<S>(mut session: S, messages: Vec<Message>) -> Result<(S, Taken), SessionError>
where
    S: DerefMut<Target = Session> + Send + 'static,
{
    let (mut session, mark, taken) = blocking(move || {
        let (mark, taken) = session.take_in(messages)?;
        Ok((session, mark, taken))
    })
    .await?;
    session.commit(None, mark).await?;
    Ok((session, taken))
}

impl Session {
    /// Puts messages into tokens, and the opening of an answer behind them.
    fn open_turn(&mut self, messages: Vec<Message>) -> Result<Mark, SessionError> {
        let mark = self.conversation.mark();
        self.is_stale = true;
        let open = || {
            messages.into_iter().try_for_each(|message| self.conversation.push(message))?;
            self.conversation.open_turn()?;
            self.check_context(0)
        };
        let opened = open();
        if opened.is_err() {
            self.conversation.rewind(mark);
            self.is_stale = false;
        }
        opened.map(|()| mark)
    }

    /// Puts messages into tokens.
    fn take_in(&mut self, messages: Vec<Message>) -> Result<(Mark, Taken), SessionError> {
        let mark = self.conversation.mark();
        let mut items = Vec::with_capacity(messages.len());
        self.is_stale = true;
        let take_in = || {
            for message in messages {
                let n_tokens = self.model().tokenizer.encode_plain(&message.content)?.len();
                self.conversation.push(message)?;
                items.push(self.item(n_tokens)?);
            }
            let n_open = self.conversation.n_open_tokens()?;
            self.check_context(n_open)?;
            Ok(n_open)
        };
        match take_in() {
            Ok(n_open) => Ok((mark, Taken { items, n_open })),
            Err(error) => {
                self.conversation.rewind(mark);
                self.is_stale = false;
                Err(error)
            }
        }
    }

    /// What became of the last message, whose own content has `n_tokens`.
    fn item(&self, n_tokens: usize) -> Result<Item, SessionError> {
        let Some(entry) = self.conversation.entries().last() else {
            return Err(SessionError::Internal("a message that was appended is gone".to_owned()));
        };
        let n_given = match &entry.given {
            Some(given) => self.model().tokenizer.encode_plain(given)?.len(),
            None => n_tokens,
        };
        Ok(Item { n_tokens, n_given, folds: entry.folds.clone(), handle: entry.handle() })
    }

    /// Writes a generation down; after this it is there for good.
    async fn keep(
        &mut self,
        messages: Vec<Message>,
        finished: Finished,
        answer: &Answer,
        mark: Mark,
    ) -> Result<(), SessionError> {
        if finished.tokens.is_empty() {
            // Cancelled before the first token: only the messages are new, as if appended.
            self.conversation.rewind(mark);
            self.leave_memory();
            for message in messages {
                self.conversation.push(message)?;
            }
            return self.commit(None, mark).await;
        }
        self.close_turn(finished.tokens, answer.message.clone())?;
        self.commit(finished.resident, mark).await
    }

    fn check_context(&self, n_open: usize) -> Result<(), SessionError> {
        let limit = self.model().decoder.config().context_length;
        let asked = self.conversation.n_tokens() + n_open;
        if asked < limit { Ok(()) } else { Err(SessionError::ContextOverflow { limit, asked }) }
    }

    /// Lets the engine generate, once there is memory. Also gives the tokens that need not be
    /// read for it.
    async fn run(
        &mut self,
        options: &Options,
        sampler: &Sampler,
        stream: &Arc<Stream>,
        cancel: &CancellationToken,
    ) -> Result<(Box<Finished>, usize), SessionError> {
        let asked_at = Instant::now();
        let (max_tokens, need) = self.fit(options.max_tokens)?;
        let admitted = cancel.run_until_cancelled(self.admit(need)).await;
        let Some((resident, _)) = admitted.transpose()? else {
            let timing = Timing { queue: asked_at.elapsed(), ..Timing::default() };
            let (tokens, reason, stats) = (Vec::new(), FinishReason::Cancelled, self.stats());
            let finished = Finished { tokens, reason, resident: None, stats, timing };
            return Ok((Box::new(finished), 0));
        };
        let cached = resident.cache.logical();
        let generate = Generate {
            asked_at,
            sampler: *sampler,
            max_tokens,
            cancel: cancel.clone(),
            listener: Box::new(self.writer(options, stream)?),
        };
        let finished = self.engine().generate(self.feed(resident), generate).await?;
        Ok((finished, cached))
    }

    /// As many of `max_tokens` as all of the KV memory has room for, at least one, and what they
    /// need. A generation that ends for it says that its length was reached.
    fn fit(&self, max_tokens: usize) -> Result<(usize, Need), SessionError> {
        let limit = self.engine().memory().limit();
        let n_prompt = self.conversation.n_tokens();
        let context = self.model().decoder.config().context_length;
        let most = max_tokens.min(context.saturating_sub(n_prompt) + 1);
        // The last token is chosen, but not read.
        let need = |n_tokens: usize| self.need(n_prompt + n_tokens - 1);
        let (mut fits, mut beyond) = (1, most + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if need(middle)?.bytes() <= limit {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        Ok((fits, need(fits)?))
    }

    fn writer(&self, options: &Options, stream: &Arc<Stream>) -> Result<Writer, SessionError> {
        let model = self.model();
        let thinking_open = model.chat.generation_prompt(true).thinking;
        let tool_names = self.conversation.tools().iter().filter_map(|tool| {
            tool["function"]["name"].as_str().or_else(|| tool["name"].as_str()).map(str::to_owned)
        });
        let splitter = Splitter::new(SplitOptions {
            thinking: thinking_open,
            stop: options.stop.clone(),
            tools: tool_names.collect(),
            call_ids: format!("{}-", stream.id),
        });
        let reasoning_limit = match options.reasoning_max_tokens {
            Some(max_tokens) => {
                let closing = model.tokenizer.encode("\n</think>\n\n")?;
                Some(ReasoningLimit { max_tokens, closing })
            }
            None => None,
        };
        Ok(Writer {
            stream: Arc::clone(stream),
            tokenizer: Arc::clone(&model.tokenizer),
            detokenizer: Detokenizer::new(),
            splitter,
            reasoning_limit,
        })
    }

    /// A turn that a crash cut off, if there is one. One that cannot be read is none: the turns
    /// that were answered are not refused for its sake.
    pub async fn partial(&self) -> Option<Partial> {
        let (store, id) = (self.store.clone(), self.id.clone());
        let partial = blocking(move || {
            let both = store.partial_head(&id)?.zip(store.partial(&id)?);
            let Some((begun, progress)) = both else { return Ok(None) };
            let (begun, progress) = (record::from_bytes(&begun)?, record::from_bytes(&progress)?);
            Ok(Some(Partial { begun, progress }))
        });
        match partial.await {
            Ok(partial) => {
                partial.filter(|partial| partial.begun.n_entries == self.header.n_entries)
            }
            Err(error) => {
                tracing::warn!(session = self.id, %error, "an unfinished turn cannot be read");
                None
            }
        }
    }

    /// A generation that failed was not cut off by a crash: its log goes.
    async fn forget_partial(&self) {
        let (store, id) = (self.store.clone(), self.id.clone());
        if let Err(error) = blocking(move || Ok(store.clear_partial(&id)?)).await {
            tracing::warn!(session = self.id, %error, "the log of a failed generation stays");
        }
    }

    /// Logs a running generation every [`LOG_EVERY`] tokens; never ends by itself.
    fn log_partial(
        &self,
        messages: Vec<Message>,
        mark: Mark,
        stream: &Arc<Stream>,
    ) -> impl Future<Output = Infallible> + use<> {
        let (store, id, stream) = (self.store.clone(), self.id.clone(), Arc::clone(stream));
        let begun = Begun { n_entries: mark.n_entries() as u64, messages };
        async move {
            let mut begun = Some(begun);
            let mut logged = 0;
            loop {
                tokio::time::sleep(LOG_POLL).await;
                let n_full = stream.n_tokens() / LOG_EVERY;
                if n_full == logged {
                    continue;
                }
                logged = n_full;
                let progress = Progress { tokens: stream.tokens(), text: stream.text() };
                let (store, id, first) = (store.clone(), id.clone(), begun.take());
                let write = move || {
                    if let Some(begun) = first {
                        store.begin_partial(&id, &record::to_bytes(&begun)?)?;
                    }
                    Ok(store.set_partial(&id, &record::to_bytes(&progress)?)?)
                };
                if let Err(error) = blocking(write).await {
                    tracing::warn!(%error, "a running generation could not be logged");
                }
            }
        }
    }
}

/// Whether a message may be appended by a client.
pub fn check_messages(messages: &[Message]) -> Result<(), SessionError> {
    for (index, message) in messages.iter().enumerate() {
        let is_empty = message.content.is_empty()
            && message.tool_calls.is_empty()
            && message.reasoning_content.is_none();
        if is_empty && message.role == Role::Assistant {
            return Err(SessionError::Invalid(format!(
                "messages[{index}] is an assistant message without content, reasoning or tool calls"
            )));
        }
    }
    Ok(())
}

/// How a finish is called on the wire.
pub fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Cancelled => "cancelled",
    }
}
