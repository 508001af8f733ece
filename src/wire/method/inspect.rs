//! `session/inspect`: what a session holds.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params};
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
            let spans: Vec<_> = session
                .conversation
                .entries()
                .iter()
                .enumerate()
                .map(|(index, entry)| {
                    json!({
                        "message": index,
                        "role": entry.message.role,
                        "bytes": entry.message.content.len(),
                        "generated": entry.generated.is_some(),
                    })
                })
                .collect();
            Ok(json!({"session": params.session, "spans": spans}))
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
