//! `session/configure`

use serde::Deserialize;
use serde_json::{Value, json};

use super::open::{CacheParams, Condense};
use super::{Daemon, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    #[serde(default)]
    cache: CacheParams,
    #[serde(default)]
    condense: Condense,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    params.cache.check()?;
    params.condense.check()?;
    let cache = params.cache;
    let in_force = daemon
        .sessions
        .configure(&params.session, |options| {
            if let Some(policy) = cache.policy {
                options.policy = policy;
            }
            options.budget = cache.budget.unwrap_or(options.budget);
            options.buffer = cache.buffer.unwrap_or(options.buffer);
        })
        .await?;
    Ok(json!({"session": params.session, "cache": in_force, "condense": "off"}))
}
