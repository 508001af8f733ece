//! `session/generate`

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{Daemon, params};
use crate::engine::sampler::Sampling;
use crate::session::Started;
use crate::session::generation::{Answer, Stream};
use crate::session::think::Part;
use crate::session::turn::{Options, finish_name};
use crate::trajectory::Message;
use crate::wire::rpc::RpcError;
use crate::wire::{Call, Notifier};

/// First progress report of a generation that has written nothing yet, and each one after.
const PROGRESS_EVERY: Duration = Duration::from_millis(900);

/// Stop strings are looked for in all that is held back, at every token.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    #[serde(default)]
    messages: Vec<Message>,
    max_tokens: usize,
    #[serde(default)]
    sampling: SamplingParams,
    #[serde(default)]
    stop: Vec<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    reasoning: ReasoningParams,
    tool_choice: Option<Value>,
    response_format: Option<Value>,
    #[serde(default)]
    on_disconnect: OnDisconnect,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplingParams {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    seed: Option<u64>,
    repetition_penalty: Option<f32>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReasoningParams {
    max_tokens: Option<usize>,
    control: Option<String>,
}

/// What becomes of a generation whose client goes away.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnDisconnect {
    #[default]
    Cancel,
    Finish,
}

impl Params {
    /// Refuses what this build lacks, and what cannot be.
    fn options(&self) -> Result<Options, RpcError> {
        if self.max_tokens == 0 {
            return Err(RpcError::invalid_params("max_tokens is 0; ask for at least one token"));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(RpcError::invalid_params("a stop string is empty"));
        }
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        if self.stop.len() > STOPS_MAX || longest > STOP_BYTES_MAX {
            return Err(RpcError::invalid_params(format!(
                "{} stop strings of up to {longest} bytes; at most {STOPS_MAX} of \
                 {STOP_BYTES_MAX} bytes are looked for",
                self.stop.len()
            )));
        }
        if let Some(control) = self.reasoning.control.as_ref().filter(|c| *c != "off") {
            return Err(RpcError::invalid_params(format!(
                "reasoning.control {control:?} is not in this build; it has \"off\""
            )));
        }
        let is_text = |format: &Value| format["type"] == "text";
        if self.response_format.as_ref().is_some_and(|format| !is_text(format)) {
            return Err(RpcError::invalid_params("response_format is not in this build"));
        }
        if self.tool_choice.as_ref().is_some_and(|choice| choice != "auto") {
            return Err(RpcError::invalid_params("this build knows only tool_choice \"auto\""));
        }
        let sampling = &self.sampling;
        Ok(Options {
            max_tokens: self.max_tokens,
            sampling: Sampling {
                temperature: sampling.temperature.unwrap_or(0.0),
                top_p: sampling.top_p.unwrap_or(1.0),
                top_k: sampling.top_k.unwrap_or(0),
                min_p: sampling.min_p.unwrap_or(0.0),
                // Below 2^53, so that clients whose numbers are doubles can say it again.
                seed: sampling.seed.unwrap_or_else(|| rand::random::<u64>() >> 11),
                repetition_penalty: sampling.repetition_penalty.unwrap_or(1.0),
            },
            stop: self.stop.clone(),
            reasoning_max_tokens: self.reasoning.max_tokens,
        })
    }
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let options = params.options()?;
    let id = params.session;
    let started = daemon.sessions.generate(&id, params.messages, options).await?;
    let follow = follow(&id, &started.stream, params.stream.then_some(&call.notify), 0);
    let leave = async {
        tokio::select! {
            () = call.cancel.cancelled() => {}
            () = call.closed.cancelled(), if params.on_disconnect == OnDisconnect::Cancel => {}
        }
        cancel(&started).await
    };
    tokio::select! {
        outcome = follow => outcome,
        never = leave => match never {},
    }
}

/// Cancels a generation; its answer then comes by itself.
async fn cancel(started: &Started) -> std::convert::Infallible {
    started.cancel.cancel();
    std::future::pending().await
}

/// Sends a generation's deltas from number `seq` on to a client, and gives its result.
pub(super) async fn follow(
    session: &str,
    stream: &Stream,
    notify: Option<&Notifier>,
    mut seq: usize,
) -> Result<Value, RpcError> {
    let mut report_at = Instant::now() + PROGRESS_EVERY;
    loop {
        let (parts, outcome) = tokio::select! {
            news = stream.after(seq) => news,
            () = sleep_until(report_at), if notify.is_some() => {
                report_at = Instant::now() + PROGRESS_EVERY;
                report(session, stream, notify).await;
                continue;
            }
        };
        for part in parts {
            if let Some(notify) = notify {
                notify.send("session/delta", delta(session, &stream.id, seq, &part)).await;
            }
            seq += 1;
        }
        if let Some(outcome) = outcome {
            return match &*outcome {
                Ok(answer) => Ok(describe(&stream.id, answer)),
                Err(error) => Err(error.into()),
            };
        }
    }
}

async fn report(session: &str, stream: &Stream, notify: Option<&Notifier>) {
    let Some(notify) = notify else { return };
    let n_tokens = stream.n_tokens();
    let (read, total) = stream.prefill();
    let (phase, done, total) = match n_tokens {
        0 => ("prefill", read, Some(total)),
        _ => ("decode", n_tokens, None),
    };
    let progress = json!({
        "session": session,
        "generation": stream.id,
        "phase": phase,
        "done": done,
        "total": total,
    });
    notify.send("$/progress", progress).await;
}

fn delta(session: &str, generation: &str, seq: usize, part: &Part) -> Value {
    let mut delta = json!({"session": session, "generation": generation, "seq": seq});
    match part {
        Part::Reasoning(text) => {
            delta["kind"] = "reasoning".into();
            delta["text"] = text.as_str().into();
        }
        Part::Content(text) => {
            delta["kind"] = "content".into();
            delta["text"] = text.as_str().into();
        }
        Part::ToolCall { index, id, name, arguments } => {
            delta["kind"] = "tool_call".into();
            delta["index"] = (*index).into();
            delta["id"] = id.as_str().into();
            delta["name"] = name.as_str().into();
            delta["arguments"] = arguments.as_str().into();
        }
    }
    delta
}

fn describe(generation: &str, answer: &Answer) -> Value {
    let timing = &answer.timing;
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let decode = timing.decode.as_secs_f64();
    // The first token comes out of the prefill.
    let n_decoded = answer.completion_tokens.saturating_sub(1) as f64;
    let rate = if decode > 0.0 { n_decoded / decode } else { 0.0 };
    json!({
        "generation": generation,
        "message": answer.message,
        "finish_reason": finish_name(answer.finish_reason),
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
            "completion_tokens": answer.completion_tokens,
            "reasoning_tokens": answer.reasoning_tokens,
        },
        "cache": {
            "policy": answer.policy,
            "budget": answer.budget,
            "kept": answer.stats.kept,
            "evicted": answer.stats.logical - answer.stats.kept,
            "compactions": answer.stats.compactions,
            "bytes": answer.stats.bytes,
        },
        "timing": {
            "queue_ms": ms(timing.queue),
            "prefill_ms": ms(timing.prefill),
            "decode_ms": ms(timing.decode),
            "compaction_ms": ms(timing.compaction),
            "tokens_per_second": (rate * 100.0).round() / 100.0,
        },
        "seed": answer.seed,
    })
}
