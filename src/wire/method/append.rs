//! `session/append`

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params, tokens};
use crate::trajectory::Message;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    messages: Vec<Message>,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let (n_tokens, stats) = daemon.sessions.append(&params.session, params.messages).await?;
    let items: Vec<_> = n_tokens
        .iter()
        .enumerate()
        .map(|(index, n)| json!({"index": index, "tokens": n, "given_tokens": n}))
        .collect();
    Ok(json!({"items": items, "tokens": tokens(&stats)}))
}
