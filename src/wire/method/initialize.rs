//! `initialize`: the handshake.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, METHODS, downloaded, params};
use crate::ingest::fold::RULES;
use crate::wire::Call;
use crate::wire::rpc::{Kind, RpcError};

/// Version of the protocol that this build speaks.
const PROTOCOL: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    #[serde(default, rename = "client")]
    _client: Option<Value>,
    #[serde(default)]
    token: Option<String>,
}

pub(super) fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    if !call.connection.is_authorized() {
        let given = params.token.as_deref().unwrap_or_default();
        if !daemon.token.as_ref().is_some_and(|token| token.matches(given)) {
            let text = "the token is missing or wrong; it stands in the daemon's data folder";
            return Err(RpcError::of(Kind::Unauthorized, text));
        }
        call.connection.authorize();
    }
    let rules: Vec<_> = RULES.iter().map(|rule| rule.name()).collect();
    Ok(json!({
        "server": {"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")},
        "protocol": PROTOCOL,
        "models": downloaded()?,
        "capabilities": {
            "methods": METHODS,
            "policies": crate::cache::policy::NAMES,
            "condense": rules,
            "reasoning_control": ["off"],
            "inspect": ["spans", "kept"],
            "response_format": ["text"],
            "tool_choice": ["auto"],
        },
    }))
}
