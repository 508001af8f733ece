//! `daemon/status` and `daemon/shutdown`

use serde_json::{Value, json};

use super::{Daemon, NoParams, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

pub(super) async fn status(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let _: NoParams = params(call)?;
    let sessions = &daemon.sessions;
    let models = sessions.models();
    let loaded: Vec<_> = models
        .loaded()
        .iter()
        .map(|model| json!({"model": model.name, "weight_bytes": model.decoder.weight_bytes()}))
        .collect();
    let memory = models.memory();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": daemon.started.elapsed().as_millis() as u64,
        "model": models.default_name(),
        "models": loaded,
        "sessions": {"open": sessions.open_ids().len(), "generating": sessions.n_generating()},
        "kv_memory": {"limit": memory.limit(), "used": memory.used(), "peak": memory.peak()},
        "store": {"bytes": sessions.store_bytes().await?},
    }))
}

pub(super) fn shutdown(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let _: NoParams = params(call)?;
    daemon.shutdown.cancel();
    Ok(json!({"shutting_down": true}))
}
