//! One generation, from the messages that came with it to the stored answer.

use std::convert::Infallible;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::conversation::Mark;
use super::detokenize::Detokenizer;
use super::error::SessionError;
use super::generation::{Answer, ReasoningLimit, Stream, Writer};
use super::live::{Session, blocking};
use super::record::{self, Partial};
use super::slots::Guard;
use super::think::{SplitOptions, Splitter};
use crate::engine::sampler::{Sampler, Sampling};
use crate::engine::{EngineError, FinishReason, Finished, Generate};
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
            session.leave_engine().await;
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
        session.leave_engine().await;
        return Err(error);
    }
    Ok(answer)
}

/// What came of appended messages.
pub struct Taken {
    /// Tokens of each message's text.
    pub n_tokens: Vec<usize>,
    /// Tokens of the open group, which nobody reads yet.
    pub n_open: usize,
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
        let mut n_tokens = Vec::with_capacity(messages.len());
        self.is_stale = true;
        let take_in = || {
            for message in messages {
                n_tokens.push(self.model().tokenizer.encode_plain(&message.content)?.len());
                self.conversation.push(message)?;
            }
            let n_open = self.conversation.n_open_tokens()?;
            self.check_context(n_open)?;
            Ok(n_open)
        };
        match take_in() {
            Ok(n_open) => Ok((mark, Taken { n_tokens, n_open })),
            Err(error) => {
                self.conversation.rewind(mark);
                self.is_stale = false;
                Err(error)
            }
        }
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
            self.leave_engine().await;
            for message in messages {
                self.conversation.push(message)?;
            }
            return self.commit(None, mark).await;
        }
        self.close_turn(finished.tokens, answer.message.clone())?;
        let frozen = (finished.frozen, finished.stats.logical);
        self.commit(Some(frozen), mark).await
    }

    fn check_context(&self, n_open: usize) -> Result<(), SessionError> {
        let limit = self.model().decoder.config().context_length;
        let asked = self.conversation.n_tokens() + n_open;
        if asked < limit { Ok(()) } else { Err(SessionError::ContextOverflow { limit, asked }) }
    }

    /// Lets the engine generate. Once more where it had parked the session meanwhile.
    async fn run(
        &mut self,
        options: &Options,
        sampler: &Sampler,
        stream: &Arc<Stream>,
        cancel: &CancellationToken,
    ) -> Result<(Box<Finished>, usize), SessionError> {
        let engine = self.engine();
        for _ in 0..2 {
            let cached = self.stats_before_feed().await?;
            let feed = self.feed().await?;
            let cached = feed.cache.as_ref().map_or(cached, |cache| cache.logical());
            let generate = Generate {
                sampler: *sampler,
                max_tokens: options.max_tokens,
                cancel: cancel.clone(),
                listener: Box::new(self.writer(options, stream)?),
            };
            match engine.generate(feed, generate).await {
                Err(EngineError::NotResident) => self.is_gone_from_engine(),
                Err(error) => return Err(error.into()),
                Ok(finished) => return Ok((finished, cached)),
            }
        }
        Err(EngineError::NotResident.into())
    }

    async fn stats_before_feed(&mut self) -> Result<usize, SessionError> {
        let stats = self.stats().await;
        if stats.logical == 0 {
            // Parked, or never handed over: the stored cache says how far it reaches.
            self.is_gone_from_engine();
        }
        Ok(stats.logical)
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
            let bytes = store.partial(&id)?;
            bytes.map(|bytes| record::from_bytes::<Partial>(&bytes)).transpose()
        });
        match partial.await {
            Ok(partial) => partial.filter(|partial| partial.n_entries == self.header.n_entries),
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
        let n_entries = mark.n_entries() as u64;
        async move {
            let mut logged = 0;
            loop {
                tokio::time::sleep(LOG_POLL).await;
                let n_full = stream.n_tokens() / LOG_EVERY;
                if n_full == logged {
                    continue;
                }
                logged = n_full;
                let partial = Partial {
                    n_entries,
                    messages: messages.clone(),
                    tokens: stream.tokens(),
                    text: stream.text(),
                };
                let (store, id) = (store.clone(), id.clone());
                let write = move || Ok(store.set_partial(&id, &record::to_bytes(&partial)?)?);
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
