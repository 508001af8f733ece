//! The methods: one file each, and the table that names them.

mod append;
mod attach;
mod cancel;
mod checkpoint;
mod condense;
mod configure;
mod daemon;
mod fork;
mod generate;
mod initialize;
mod inspect;
mod manage;
mod model;
mod open;
mod recall;

use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::auth::Token;
use super::rpc::{Kind, RpcError};
use super::{Call, Service};
use crate::engine::CacheStats;
use crate::model::registry;
use crate::session::{SessionError, Sessions};

/// Everything that methods need. Clones share it.
#[derive(Clone)]
pub struct Daemon {
    pub sessions: Arc<Sessions>,
    /// What TCP clients must show.
    pub token: Option<Token>,
    pub started: Instant,
    /// Ends the daemon.
    pub shutdown: CancellationToken,
}

/// Names of all methods, for `initialize` and for errors.
pub const METHODS: &[&str] = &[
    "initialize",
    "session/open",
    "session/configure",
    "session/append",
    "session/generate",
    "session/attach",
    "session/cancel",
    "session/checkpoint",
    "session/rollback",
    "session/fork",
    "session/recall",
    "session/inspect",
    "session/list",
    "session/show",
    "session/close",
    "session/delete",
    "context/condense",
    "model/list",
    "model/load",
    "model/unload",
    "daemon/status",
    "daemon/shutdown",
];

impl Service for Daemon {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        let method = call.method.clone();
        if method != "initialize" && !call.connection.is_authorized() {
            let text = "send `initialize` with the daemon's token first";
            return Err(RpcError::of(Kind::NotInitialized, text));
        }
        if method == "session/generate" {
            // What it has generated so far is its answer when it is cancelled.
            return generate::call(self, &call).await;
        }
        // Work that has begun is never left half-done: a client that cancels is told so at once,
        // and the task runs to its end.
        let (daemon, cancel) = (self.clone(), call.cancel.clone());
        let task = tokio::spawn(async move { daemon.dispatch(&call).await });
        match cancel.run_until_cancelled(task).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(fault)) => Err(RpcError::internal(fault)),
            None => Err(Call::cancelled_error()),
        }
    }
}

impl Daemon {
    async fn dispatch(&self, call: &Call) -> Result<Value, RpcError> {
        match call.method.as_str() {
            "initialize" => initialize::call(self, call),
            "session/open" => open::call(self, call).await,
            "session/configure" => configure::call(self, call).await,
            "session/append" => append::call(self, call).await,
            "session/attach" => attach::call(self, call).await,
            "session/cancel" => cancel::call(self, call).await,
            "session/checkpoint" => checkpoint::checkpoint(self, call).await,
            "session/rollback" => checkpoint::rollback(self, call).await,
            "session/fork" => fork::call(self, call).await,
            "session/recall" => recall::call(self, call).await,
            "session/inspect" => inspect::call(self, call).await,
            "session/list" => manage::list(self, call).await,
            "session/show" => manage::show(self, call).await,
            "session/close" => manage::close(self, call).await,
            "session/delete" => manage::delete(self, call).await,
            "context/condense" => condense::call(self, call).await,
            "model/list" => model::list(self, call),
            "model/load" => model::load(self, call).await,
            "model/unload" => model::unload(self, call).await,
            "daemon/status" => daemon::status(self, call).await,
            "daemon/shutdown" => daemon::shutdown(self, call),
            _ => Err(RpcError::method_not_found(&call.method)),
        }
    }
}

/// Reads a method's params. Unknown ones are refused: none is ignored in silence.
fn params<T: DeserializeOwned>(call: &Call) -> Result<T, RpcError> {
    if call.params.is_array() {
        return Err(RpcError::invalid_params("give params by name, as an object"));
    }
    serde_json::from_value(call.params.clone()).map_err(RpcError::invalid_params)
}

/// Params of methods that take none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {}

/// Params of methods that only name a session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionParams {
    session: String,
}

/// Names of the models in the models folder.
fn downloaded() -> Result<Vec<String>, RpcError> {
    let folder = registry::models_dir().map_err(SessionError::from)?;
    let names = registry::downloaded(&folder).map_err(registry::RegistryError::from);
    Ok(names.map_err(SessionError::from)?)
}

/// `tokens` as several results have it.
fn tokens(stats: &CacheStats) -> Value {
    json!({"logical": stats.logical, "kept": stats.kept, "pending": stats.pending})
}
