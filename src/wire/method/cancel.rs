//! `session/cancel`

use serde_json::{Value, json};

use super::{Daemon, SessionParams, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: SessionParams = params(call)?;
    let was_running = daemon.sessions.cancel(&params.session).await?;
    Ok(json!({"session": params.session, "cancelled": was_running}))
}
