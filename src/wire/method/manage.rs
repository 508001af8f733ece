//! `session/list`, `session/show`, `session/close`, `session/delete`

use serde_json::{Value, json};

use super::{Daemon, NoParams, SessionParams, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

pub(super) async fn list(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let _: NoParams = params(call)?;
    Ok(json!({"sessions": daemon.sessions.list().await?}))
}

pub(super) async fn show(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: SessionParams = params(call)?;
    Ok(json!(daemon.sessions.show(&params.session).await?))
}

pub(super) async fn close(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: SessionParams = params(call)?;
    daemon.sessions.close(&params.session).await?;
    Ok(json!({"session": params.session}))
}

pub(super) async fn delete(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: SessionParams = params(call)?;
    daemon.sessions.delete(&params.session).await?;
    Ok(json!({"session": params.session}))
}
