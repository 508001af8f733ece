//! The requests of a connection that wait for their answer: exactly one an id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::rpc::{Answer, RpcError};

/// Live requests by id, each with the token that cancels it.
///
/// Ids are compared as they are written: `1`, `1.0` and `"1"` are three.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    live: Arc<Mutex<HashMap<String, CancellationToken>>>,
}

/// A request that waits for its answer. Its id is free again once this is closed or dropped.
#[derive(Debug)]
pub struct Open {
    id: Value,
    pending: Pending,
}

impl Pending {
    /// Registers a request; null ids name nothing and are not told apart.
    ///
    /// # Errors
    /// The id is live already. That is answered under a null id: an answer under the id itself
    /// would be taken for the earlier request's.
    pub fn open(&self, id: Value, cancel: CancellationToken) -> Result<Open, RpcError> {
        if !id.is_null() {
            let mut live = self.lock();
            let key = id.to_string();
            if live.contains_key(&key) {
                let why = format!("id {id} is in use by a request not yet answered");
                return Err(RpcError::invalid_request(why)
                    .with("kind", "duplicate_id")
                    .with("id", id));
            }
            live.insert(key, cancel);
        }
        Ok(Open { id, pending: self.clone() })
    }

    /// Cancels the token of request `id`; one that is answered already is left alone.
    pub fn cancel(&self, id: &Value) {
        if let Some(token) = self.lock().get(&id.to_string()) {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Makes the answer, and frees the id before anyone can see it.
    pub fn close(self, outcome: Result<Value, RpcError>) -> Answer {
        Answer::new(self.id.clone(), outcome)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.id.is_null() {
            self.pending.lock().remove(&self.id.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_live_id_is_refused_and_a_closed_one_is_free() {
        let pending = Pending::default();
        let open = pending.open(json!(1), CancellationToken::new()).unwrap();
        let twice = pending.open(json!(1), CancellationToken::new()).unwrap_err();
        assert_eq!(twice.code, -32_600);
        assert!(pending.open(json!("1"), CancellationToken::new()).is_ok());
        assert_eq!(open.close(Ok(json!(2))), Answer::new(json!(1), Ok(json!(2))));
        assert!(pending.open(json!(1), CancellationToken::new()).is_ok());
    }

    #[test]
    fn cancel_reaches_only_its_request() {
        let (one, two) = (CancellationToken::new(), CancellationToken::new());
        let pending = Pending::default();
        let open = pending.open(json!(1), one.clone()).unwrap();
        let _two = pending.open(json!(2), two.clone()).unwrap();
        pending.cancel(&json!(3));
        assert!(!one.is_cancelled() && !two.is_cancelled());
        pending.cancel(&json!(1));
        assert!(one.is_cancelled() && !two.is_cancelled());
        drop(open);
        pending.cancel(&json!(1));
    }

    #[test]
    fn null_ids_do_not_collide() {
        let pending = Pending::default();
        let _one = pending.open(Value::Null, CancellationToken::new()).unwrap();
        assert!(pending.open(Value::Null, CancellationToken::new()).is_ok());
    }
}
