//! `session/configure`

use serde::Deserialize;
use serde_json::{Value, json};

use super::open::CacheParams;
use super::{Daemon, params};
use crate::ingest::condense::Condense;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    #[serde(default)]
    cache: CacheParams,
    condense: Option<Condense>,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    params.cache.check()?;
    let Params { session, cache, condense } = params;
    let in_force = daemon
        .sessions
        .configure(&session, |options| {
            let before = &mut options.cache;
            if let Some(policy) = cache.policy {
                before.policy = policy;
            }
            before.budget = cache.budget.unwrap_or(before.budget);
            before.buffer = cache.buffer.unwrap_or(before.buffer);
            if let Some(condense) = condense {
                options.condense = condense;
            }
        })
        .await?;
    Ok(json!({"session": session, "cache": in_force.cache, "condense": in_force.condense}))
}
