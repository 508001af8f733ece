//! `session/checkpoint` and `session/rollback`

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    checkpoint: Option<String>,
}

pub(super) async fn checkpoint(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let name = daemon.sessions.checkpoint(&params.session, params.checkpoint).await?;
    Ok(json!({"session": params.session, "checkpoint": name}))
}

pub(super) async fn rollback(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let name = daemon.sessions.rollback(&params.session, params.checkpoint).await?;
    Ok(json!({"session": params.session, "checkpoint": name}))
}
