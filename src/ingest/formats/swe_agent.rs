//! SWE-agent's `.traj`: the history that the model saw, else the steps.

use serde_json::Value;

use super::{Document, Draft, Format, Reader, message, string, text};
use crate::trajectory::{Message, Role};

pub(super) const READER: Reader = Reader { format: Format::SweAgent, is_mine, read };

fn is_mine(document: &Document) -> bool {
    let root = document.root();
    let has_actions = root["trajectory"][0]["action"].is_string();
    has_actions || root["history"].is_array() && root["trajectory"].is_array()
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let root = document.root();
    let messages = match root["history"].as_array().filter(|history| !history.is_empty()) {
        Some(history) => from_history(history)?,
        // Each step repeats what came before it (`query`); the first one's is the beginning.
        None => {
            let steps = root["trajectory"].as_array().map_or(&[][..], Vec::as_slice);
            let before = steps.first().and_then(|first| {
                first["query"].as_array().or_else(|| first["messages"].as_array())
            });
            let mut messages = from_history(before.map_or(&[], Vec::as_slice))?;
            messages.truncate(messages.iter().take_while(|m| m.role != Role::Assistant).count());
            for step in steps {
                messages.push(Message::text(Role::Assistant, text(&step["response"])));
                messages.push(Message::text(Role::User, text(&step["observation"])));
            }
            // Nothing is seen after the run was submitted.
            messages.pop_if(|last| last.content.is_empty());
            messages
        }
    };
    let config: Value = match &root["replay_config"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        config => config.clone(),
    };
    let id = string(&root["instance_id"]).or_else(|| string(&config["agent"]["name"]));
    Ok(Draft { id, tools: None, messages })
}

fn from_history(history: &[Value]) -> Result<Vec<Message>, (usize, String)> {
    (1..)
        .zip(history)
        .map(|(number, value)| {
            let mut message = message(value).map_err(|reason| (number, reason))?;
            if message.tool_call_id.is_none() {
                message.tool_call_id = string(&value["tool_call_ids"][0]);
            }
            Ok(message)
        })
        .collect()
}
