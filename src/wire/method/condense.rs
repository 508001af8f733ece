//! `context/condense`: folding alone, without a session or a model.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params};
use crate::ingest::condense::Condense;
use crate::ingest::report::{CondenseError, condense};
use crate::model::registry;
use crate::model::tokenizer::Tokenizer;
use crate::session::SessionError;
use crate::trajectory::Message;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    messages: Vec<Value>,
    /// A model by name or path, whose tokens are counted.
    tokenizer: Option<String>,
    #[serde(default)]
    condense: Condense,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let loaded = match &params.tokenizer {
        Some(name) => daemon.sessions.models().loaded().into_iter().find(|m| m.name == *name),
        None => None,
    };
    let work = move || {
        let tokenizer = match (&params.tokenizer, loaded) {
            (None, _) => None,
            (_, Some(model)) => Some(Arc::clone(&model.tokenizer)),
            (Some(name), None) => {
                let path = registry::resolve(name).map_err(SessionError::from)?;
                Some(Arc::new(Tokenizer::load(path).map_err(SessionError::from)?))
            }
        };
        let mut messages = params.messages;
        let read: Vec<Message> = messages
            .iter()
            .map(|message| serde_json::from_value(message.clone()))
            .collect::<Result<_, _>>()
            .map_err(RpcError::invalid_params)?;
        let condensed = condense(&read, params.condense, tokenizer.as_deref());
        let (readings, report) = condensed.map_err(|error| match error {
            CondenseError::Rule(rule) => SessionError::from(rule),
            CondenseError::Tokenizer(error) => error.into(),
        })?;
        for (message, reading) in messages.iter_mut().zip(readings) {
            if let Some(given) = reading.given {
                set_content(message, given);
            }
        }
        Ok(json!({"messages": messages, "report": report}))
    };
    tokio::task::spawn_blocking(work).await.map_err(RpcError::internal)?
}

/// Replaces a message's text; an only text part keeps its other fields.
fn set_content(message: &mut Value, text: String) {
    let content = &mut message["content"];
    match content.as_array_mut().map(Vec::as_mut_slice) {
        Some([part]) if part.is_object() => part["text"] = text.into(),
        _ => *content = text.into(),
    }
}
