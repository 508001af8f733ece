//! `session/append`

use std::ops::Range;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Daemon, params, tokens};
use crate::ingest::history::Place;
use crate::ingest::reader::Fold;
use crate::session::turn::Item;
use crate::trajectory::Message;
use crate::wire::Call;
use crate::wire::rpc::RpcError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    session: String,
    messages: Vec<Message>,
}

pub(super) async fn call(daemon: &Daemon, call: &Call) -> Result<Value, RpcError> {
    let params: Params = params(call)?;
    let (items, stats) = daemon.sessions.append(&params.session, params.messages).await?;
    let items: Vec<_> =
        items.iter().enumerate().map(|(index, item)| describe(index, item)).collect();
    Ok(json!({"items": items, "tokens": tokens(&stats)}))
}

fn describe(index: usize, item: &Item) -> Value {
    let mut described =
        json!({"index": index, "tokens": item.n_tokens, "given_tokens": item.n_given});
    if !item.folds.is_empty() {
        described["folds"] = item.folds.iter().map(fold).collect();
    }
    if let Some(handle) = &item.handle {
        described["handle"] = handle.as_str().into();
    }
    described
}

/// A fold as clients see it.
pub(super) fn fold(fold: &Fold) -> Value {
    let mut described = json!({"rule": fold.rule, "saved": fold.saved});
    if !fold.points_to.is_empty() {
        let place = |place: &Place| json!({"message": place.message, "bytes": pair(&place.bytes)});
        described["points_to"] = fold.points_to.iter().map(place).collect();
    }
    described
}

/// A range as clients see it: its first, and one behind its last.
pub(super) fn pair<T: Copy + Into<Value>>(range: &Range<T>) -> Value {
    Value::Array(vec![range.start.into(), range.end.into()])
}
