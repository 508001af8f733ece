//! `session/recall`

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    handle: String,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let (message, text) = daemon.sessions.recall(&params.session, &params.handle).await?;
    Ok(json!({"session": params.session, "message": message, "text": text}))
}
