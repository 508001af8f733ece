//! OpenHands' events: an action and its observation are two of them, joined by the tool call.

use std::collections::HashSet;

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, call, message, result, string, text};
use crate::trajectory::{Message, Role};

pub(super) const READER: Reader = Reader { format: Format::OpenHands, is_mine, read };

fn is_mine(document: &Document) -> bool {
    document.entries.iter().any(|(_, event)| {
        event["source"].is_string()
            && (event["action"].is_string() || event["observation"].is_string())
    })
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let mut draft = Draft::default();
    let mut answers = HashSet::new();
    for (line, event) in &document.entries {
        let messages = &mut draft.messages;
        let call_id = &event["tool_call_metadata"]["tool_call_id"];
        let args = &event["args"];
        match (event["action"].as_str(), event["observation"].as_str()) {
            (Some("system"), _) => {
                messages.push(Message::text(Role::System, text(&args["content"])).into());
                draft.tools = args["tools"].as_array().cloned();
            }
            (Some("message"), _) => {
                let role = if event["source"] == "user" { Role::User } else { Role::Assistant };
                let message = Message::text(role, text(&args["content"]));
                let pointer = "/args/content".to_owned();
                messages.push(Said::at(*line, pointer, &args["content"], message));
            }
            (Some("recall" | "change_agent_state" | "null"), _) => {}
            (Some(_), _) if call_id.is_string() => {
                // Parallel calls are events of their own with the same answer of the model.
                let response = &event["tool_call_metadata"]["model_response"];
                let id = response["id"].as_str().unwrap_or_default();
                if id.is_empty() || answers.insert(id) {
                    let answer = message(&response["choices"][0]["message"]);
                    messages.push(answer.map_err(|reason| (*line, reason))?.into());
                }
            }
            (Some(action), _) if event["source"] == "agent" => {
                let mut message = Message::text(Role::Assistant, text(&args["thought"]));
                let mut args = args.clone();
                if let Some(args) = args.as_object_mut() {
                    args.remove("thought");
                }
                message.tool_calls.push(call(&Value::Null, &action.into(), &args));
                messages.push(message.into());
            }
            (None, Some(kind)) if kind != "agent_state_changed" && kind != "null" => {
                let seen = &event["content"];
                let pointer = "/content".to_owned();
                messages.push(Said::at(*line, pointer, seen, result(call_id, seen)));
            }
            _ => {}
        }
    }
    draft.id = document.entries.iter().find_map(|(_, event)| string(&event["session_id"]));
    Ok(draft)
}
