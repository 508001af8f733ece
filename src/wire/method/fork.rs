//! `session/fork`

use serde::Deserialize;
use serde_json::Value;

use super::open::describe;
use super::{Daemon, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    checkpoint: Option<String>,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    Ok(describe(daemon.sessions.fork(&params.session, params.checkpoint).await?))
}
