//! `session/open`

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params, tokens};
use crate::ingest::condense::Condense;
use crate::session::registry::{Open, Opened};
use crate::trajectory::Message;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: Option<String>,
    model: Option<String>,
    #[serde(default)]
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    cache: CacheParams,
    condense: Option<Condense>,
    #[serde(default)]
    rebuild: bool,
}

/// Cache options as clients give them; what is left out keeps its default.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheParams {
    pub(super) policy: Option<String>,
    pub(super) budget: Option<usize>,
    pub(super) buffer: Option<usize>,
    #[serde(default)]
    endless: bool,
}

impl CacheParams {
    /// Refuses what this build lacks.
    pub(super) fn check(&self) -> Result<(), RpcError> {
        if self.endless {
            return Err(RpcError::invalid_params("`cache.endless` is not in this build"));
        }
        Ok(())
    }
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    params.cache.check()?;
    let opened = daemon
        .sessions
        .open(Open {
            session: params.session,
            model: params.model,
            tools: params.tools,
            policy: params.cache.policy,
            budget: params.cache.budget,
            buffer: params.cache.buffer,
            condense: params.condense,
            rebuild: params.rebuild,
            messages: params.messages,
        })
        .await?;
    Ok(describe(opened))
}

/// An opened session as clients see it.
pub(super) fn describe(opened: Opened) -> Value {
    let mut result = json!({
        "session": opened.session,
        "resumed": opened.resumed,
        "rebuilt": opened.rebuilt,
        "turns": opened.turns,
        "tokens": tokens(&opened.stats),
    });
    if let Some(partial) = opened.partial {
        result["partial"] = json!({
            "messages": partial.begun.messages,
            "text": partial.progress.text,
            "tokens": partial.progress.tokens.len(),
        });
    }
    result
}
