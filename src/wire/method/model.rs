//! `model/list`, `model/load`, `model/unload`

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, NoParams, downloaded, params};
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    model: String,
}

pub(super) fn list(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let _: NoParams = params(call)?;
    let models = daemon.sessions.models();
    let loaded: Vec<_> = models.loaded().iter().map(|model| model.name.clone()).collect();
    Ok(json!({"default": models.default_name(), "loaded": loaded, "downloaded": downloaded()?}))
}

pub(super) async fn load(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let model = daemon.sessions.models().get(&params.model).await?;
    let config = model.decoder.config();
    Ok(json!({
        "model": model.name,
        "context_length": config.context_length,
        "layers": config.n_layers,
        "kv_heads": config.n_kv_heads,
        "weight_bytes": model.decoder.weight_bytes(),
    }))
}

pub(super) async fn unload(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let was_loaded = daemon.sessions.models().unload(&params.model).await;
    Ok(json!({"model": params.model, "unloaded": was_loaded}))
}
