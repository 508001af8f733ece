//! What an agent's conversation is made of: pure data that every layer may name.

mod message;

pub use message::{FunctionCall, Message, Meta, Role, ToolCall};
