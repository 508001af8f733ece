//! `session/attach`: joins a generation that is under way, or just ended.

use serde::Deserialize;
use serde_json::Value;

use super::generate::follow;
use super::{Daemon, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    #[serde(default)]
    from_seq: usize,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let Some(started) = daemon.sessions.generation(&params.session).await? else {
        return Err(RpcError::invalid_params(format!(
            "session `{}` has generated nothing since it was opened",
            params.session
        )));
    };
    let (stream, notify) = (&started.stream, Some(&call.notify));
    call.unless_cancelled(follow(&params.session, stream, notify, params.from_seq)).await?
}
