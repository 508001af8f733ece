//! The JSON-RPC 2.0 envelope: requests, notifications, batches, answers and errors.
//!
//! No method is known by name here. Section numbers in the comments are those of
//! <https://www.jsonrpc.org/specification>.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Codes of the specification, and the one LSP and ACP have for a cancelled request.
pub mod code {
    pub const PARSE_ERROR: i64 = -32_700;
    pub const INVALID_REQUEST: i64 = -32_600;
    pub const METHOD_NOT_FOUND: i64 = -32_601;
    pub const INVALID_PARAMS: i64 = -32_602;
    pub const INTERNAL_ERROR: i64 = -32_603;
    pub const CANCELLED: i64 = -32_800;
}

/// Attar's own errors; their codes are positive, outside the range the specification reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first request of a TCP client must be the handshake.
    NotInitialized = 1001,
    /// The token is missing or wrong.
    Unauthorized = 1002,
    /// No session of that id is live or stored.
    SessionNotFound = 1003,
    /// The session generates already.
    SessionBusy = 1004,
    /// The conversation does not fit the model.
    ContextOverflow = 1005,
    /// No cache memory is left for it.
    KvMemory = 1006,
    /// No such model is known here.
    ModelNotFound = 1007,
    /// The session was made with another model or other tools.
    ModelMismatch = 1008,
    /// The message is over the limit.
    TooLarge = 1009,
    /// The store failed.
    Store = 1010,
    /// Too much is under way.
    Overloaded = 1011,
    /// The daemon is about to end.
    ShuttingDown = 1012,
}

impl Kind {
    /// The word clients match on.
    pub fn word(self) -> &'static str {
        match self {
            Self::NotInitialized => "not_initialized",
            Self::Unauthorized => "unauthorized",
            Self::SessionNotFound => "session_not_found",
            Self::SessionBusy => "session_busy",
            Self::ContextOverflow => "context_overflow",
            Self::KvMemory => "kv_memory",
            Self::ModelNotFound => "model_not_found",
            Self::ModelMismatch => "model_mismatch",
            Self::TooLarge => "too_large",
            Self::Store => "store",
            Self::Overloaded => "overloaded",
            Self::ShuttingDown => "shutting_down",
        }
    }

    /// Whether the same request may succeed later, with nothing changed by the client.
    pub fn retryable(self) -> bool {
        matches!(self, Self::SessionBusy | Self::KvMemory | Self::Overloaded | Self::ShuttingDown)
    }
}

/// An error as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    pub code: i64,
    /// What went wrong and what to do.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// One of Attar's own errors; `data` has its word and whether a retry may help.
    pub fn of(kind: Kind, message: impl Into<String>) -> Self {
        let data = json!({"kind": kind.word(), "retryable": kind.retryable()});
        Self { code: kind as i64, message: message.into(), data: Some(data) }
    }

    /// Adds a member to `data`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let mut data = match self.data {
            Some(Value::Object(data)) => data,
            _ => Map::new(),
        };
        data.insert(name.to_owned(), value.into());
        self.data = Some(Value::Object(data));
        self
    }

    /// The text is no JSON.
    pub fn parse_error(why: impl std::fmt::Display) -> Self {
        Self::standard(code::PARSE_ERROR, format!("not a JSON text: {why}"))
    }

    /// The JSON is no request.
    pub fn invalid_request(why: impl std::fmt::Display) -> Self {
        Self::standard(code::INVALID_REQUEST, format!("not a JSON-RPC 2.0 request: {why}"))
    }

    /// Nothing answers to `method`.
    pub fn method_not_found(method: &str) -> Self {
        Self::standard(code::METHOD_NOT_FOUND, format!("no method {method:?} here"))
    }

    /// The method does not take these params.
    pub fn invalid_params(why: impl std::fmt::Display) -> Self {
        Self::standard(code::INVALID_PARAMS, format!("invalid params: {why}"))
    }

    /// A fault of ours.
    pub fn internal(why: impl std::fmt::Display) -> Self {
        Self::standard(code::INTERNAL_ERROR, format!("internal error: {why}"))
    }

    /// The client asked for no answer any more; this is the answer it gets.
    pub fn cancelled() -> Self {
        Self::standard(code::CANCELLED, "request cancelled by the client".to_owned())
    }

    /// A message of `asked` bytes where at most `limit` are read.
    pub fn too_large(limit: usize, asked: u64) -> Self {
        let message = format!(
            "message of {asked} bytes is over the limit of {limit}; send less at once or start the \
             daemon with a larger --max-message"
        );
        Self::of(Kind::TooLarge, message).with("limit", limit).with("asked", asked)
    }

    /// The daemon ends before this request could be answered.
    pub fn shutting_down() -> Self {
        Self::of(Kind::ShuttingDown, "the daemon is shutting down; send it again to the next one")
    }

    fn standard(code: i64, message: String) -> Self {
        Self { code, message, data: None }
    }
}

/// One JSON text from a client.
#[derive(Debug, PartialEq)]
pub enum Message {
    One(Item),
    /// At least one element.
    Batch(Vec<Item>),
}

/// One element of a message.
#[derive(Debug, PartialEq)]
pub enum Item {
    /// `id` is a string, a number or null, and is echoed as it came.
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// An answer to a request we never make; to be ignored.
    Response,
    /// `id` is null unless it could be read.
    Invalid {
        id: Value,
        error: RpcError,
    },
}

impl Message {
    /// Reads one JSON text; absent or null params become an empty object.
    ///
    /// # Errors
    /// No JSON, JSON nested deeper than 128 levels, or an empty batch. A request whose strings are
    /// no Unicode (a lone surrogate) is refused under its id.
    pub fn read(text: &[u8]) -> Result<Self, RpcError> {
        let value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => {
                let error = RpcError::parse_error(error);
                return match id_alone(text) {
                    Some(id) => Ok(Self::One(Item::Invalid { id, error })),
                    None => Err(error),
                };
            }
        };
        match value {
            Value::Array(elements) if elements.is_empty() => {
                Err(RpcError::invalid_request("the batch is empty"))
            }
            Value::Array(elements) => {
                Ok(Self::Batch(elements.into_iter().map(Item::read).collect()))
            }
            value => Ok(Self::One(Item::read(value))),
        }
    }
}

impl Item {
    fn read(value: Value) -> Self {
        let Value::Object(mut members) = value else {
            return Self::Invalid {
                id: Value::Null,
                error: RpcError::invalid_request("it must be an object"),
            };
        };
        let method = members.remove("method");
        if method.is_none() && (members.contains_key("result") || members.contains_key("error")) {
            return Self::Response;
        }
        let id = members.remove("id");
        if !matches!(id, None | Some(Value::Null | Value::String(_) | Value::Number(_))) {
            let error = RpcError::invalid_request("id must be a string, a number or null");
            return Self::Invalid { id: Value::Null, error };
        }
        let why = match (method, members.remove("params").unwrap_or_default()) {
            _ if members.get("jsonrpc").is_none_or(|version| version != "2.0") => {
                "jsonrpc must be \"2.0\""
            }
            (Some(Value::String(method)), params) if is_params(&params) => {
                // Many clients send null for none; methods need not care.
                let params = if params.is_null() { json!({}) } else { params };
                return match id {
                    Some(id) => Self::Request { id, method, params },
                    None => Self::Notification { method, params },
                };
            }
            (Some(Value::String(_)), _) => "params must be an object or an array",
            _ => "method must be a string",
        };
        // What is malformed cannot claim to be a notification: section 7 answers it, with null.
        Self::Invalid { id: id.unwrap_or_default(), error: RpcError::invalid_request(why) }
    }
}

/// The id of a request whose other members cannot be read.
fn id_alone(text: &[u8]) -> Option<Value> {
    #[derive(Deserialize)]
    struct Request {
        id: Value,
    }
    // Members that are skipped need only be well-formed.
    let Request { id } = serde_json::from_slice(text).ok()?;
    matches!(id, Value::String(_) | Value::Number(_)).then_some(id)
}

fn is_params(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Object(_) | Value::Array(_))
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    jsonrpc: &'static str,
    id: Value,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Result(Value),
    Error(RpcError),
}

impl Answer {
    /// The answer to the request `id`.
    pub fn new(id: Value, outcome: Result<Value, RpcError>) -> Self {
        let outcome = match outcome {
            Ok(result) => Outcome::Result(result),
            Err(error) => Outcome::Error(error),
        };
        Self { jsonrpc: "2.0", id, outcome }
    }

    /// The answer to what has no id that could be read.
    pub fn refusal(error: RpcError) -> Self {
        Self::new(Value::Null, Err(error))
    }
}

/// A call without an `id` is a notification, in either direction.
#[derive(Debug, Serialize)]
pub(super) struct Outgoing<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

impl<'a, P: Serialize> Outgoing<'a, P> {
    pub(super) fn notification(method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", id: None, method, params }
    }

    pub(super) fn request(id: u64, method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", id: Some(id), method, params }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invalid_id(text: &str) -> Value {
        match Message::read(text.as_bytes()) {
            Ok(Message::One(Item::Invalid { id, error })) => {
                assert_eq!(error.code, code::INVALID_REQUEST);
                id
            }
            other => panic!("{text} read as {other:?}"),
        }
    }

    #[test]
    fn ids_are_echoed_as_they_came() {
        for id in ["1", "1.5", "-7", "0", "\"1\"", "\"\"", "null", "18446744073709551615"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let Ok(Message::One(Item::Request { id: read, params, .. })) =
                Message::read(text.as_bytes())
            else {
                panic!("{text} is a request");
            };
            assert_eq!(params, json!({}));
            let answer = serde_json::to_string(&Answer::new(read, Ok(json!(1)))).unwrap();
            assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
        }
    }

    #[test]
    fn malformed_requests_say_so_under_their_id_where_it_can_be_read() {
        assert_eq!(invalid_id(r#"{"jsonrpc":"1.0","id":5,"method":"m"}"#), 5);
        assert_eq!(invalid_id(r#"{"id":5,"method":"m"}"#), 5);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","id":5}"#), 5);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","id":5,"method":1}"#), 5);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","id":5,"method":"m","params":"p"}"#), 5);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","method":"m","params":1}"#), Value::Null);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","id":[],"method":"m"}"#), Value::Null);
        assert_eq!(invalid_id(r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#), Value::Null);
        assert_eq!(invalid_id("17"), Value::Null);
    }

    #[test]
    fn strings_that_are_no_unicode_are_refused_under_the_id() {
        let text = r#"{"jsonrpc":"2.0","id":5,"method":"m","params":{"text":"a\ud800b"}}"#;
        let Ok(Message::One(Item::Invalid { id, error })) = Message::read(text.as_bytes()) else {
            panic!("it is answered");
        };
        assert_eq!((id, error.code), (json!(5), code::PARSE_ERROR));
        for text in [r#"{"id":[],"method":"\ud800"}"#, r#"{"id":5,"method":"#, r#"["\ud800"]"#] {
            assert_eq!(Message::read(text.as_bytes()).unwrap_err().code, code::PARSE_ERROR);
        }
    }

    #[test]
    fn answers_from_the_client_are_ignored() {
        for text in [r#"{"jsonrpc":"2.0","id":1,"result":2}"#, r#"{"id":1,"error":{"code":1}}"#] {
            assert_eq!(Message::read(text.as_bytes()), Ok(Message::One(Item::Response)));
        }
    }

    #[test]
    fn own_errors_carry_their_word_and_numbers() {
        let error = RpcError::too_large(10, 20);
        assert_eq!(
            serde_json::to_value(&error).unwrap()["data"],
            json!({"kind": "too_large", "retryable": false, "limit": 10, "asked": 20})
        );
        assert_eq!(error.code, 1009);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&bytes);
        }
    }
}
