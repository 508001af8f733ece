//! `session/inspect`: what a session holds.

use serde::Deserialize;
use serde_json::{Value, json};

use super::append::{fold, pair};
use super::{Daemon, params};
use crate::session::conversation::Conversation;
use crate::session::record::Entry;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Spans,
    Kept,
    Scores,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    what: What,
    #[serde(default)]
    layer: usize,
    #[serde(default)]
    head: usize,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let session = daemon.sessions.guard(&params.session).await?;
    match params.what {
        What::Scores => Err(RpcError::invalid_params("`scores` is not in this build")),
        What::Spans => {
            let entries = || session.conversation.entries().iter().enumerate();
            let messages: Vec<_> = entries().map(|(index, entry)| message(index, entry)).collect();
            let spans: Vec<_> =
                entries().flat_map(|(index, _)| spans(&session.conversation, index)).collect();
            Ok(json!({"session": params.session, "messages": messages, "spans": spans}))
        }
        What::Kept => {
            let shape = session.model().decoder.shape();
            let (layer, head) = (params.layer, params.head);
            if layer >= shape.n_layers || head >= shape.n_kv_heads {
                return Err(RpcError::invalid_params(format!(
                    "layer {layer}, head {head}: the model has {} layers of {} KV heads",
                    shape.n_layers, shape.n_kv_heads
                )));
            }
            let (positions, stats) = session.kept(layer, head).await?;
            Ok(json!({
                "session": params.session,
                "layer": layer,
                "head": head,
                "logical": stats.logical,
                "kept": positions,
            }))
        }
    }
}

/// A message without its text, as clients see it.
fn message(index: usize, entry: &Entry) -> Value {
    let mut described = json!({
        "message": index,
        "role": entry.message.role,
        "bytes": entry.message.content.len(),
        "given_bytes": entry.content().len(),
        "generated": entry.generated.is_some(),
    });
    if let Some(handle) = entry.handle() {
        described["folds"] = entry.folds.iter().map(fold).collect();
        described["handle"] = handle.into();
    }
    described
}

/// A message's spans, each with the positions of its tokens where they are known.
fn spans(conversation: &Conversation, index: usize) -> impl Iterator<Item = Value> {
    conversation.spans(index).iter().map(move |span| {
        let mut described = json!(span);
        described["message"] = index.into();
        described["bytes"] = pair(&span.bytes);
        if let Some(tokens) = conversation.tokens(index, span.part, &span.bytes) {
            described["tokens"] = pair(&tokens);
        }
        described
    })
}
