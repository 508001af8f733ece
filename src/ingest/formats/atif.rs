//! The Agent Trajectory Interchange Format, read leniently: real files put observations on system
//! steps, objects where text belongs, and come as JSON lines with a header.

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, call, result, string, text};
use crate::trajectory::{Message, Role};

pub(super) const READER: Reader = Reader { format: Format::Atif, is_mine, read };

fn is_mine(document: &Document) -> bool {
    let Some((_, first)) = document.entries.first() else { return false };
    let named = first["schema_version"].as_str().is_some_and(|name| name.starts_with("ATIF"));
    named || first["__header__"] == true || is_step(&first["steps"][0]) || is_step(first)
}

fn is_step(value: &Value) -> bool {
    value["step_id"].is_number() && value["source"].is_string()
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let first = document.entries.first().map_or(&Value::Null, |(_, first)| first);
    let mut messages = Vec::new();
    match first["steps"].as_array() {
        Some(steps) => {
            for (number, step) in (1..).zip(steps) {
                let at = format!("/steps/{}", number - 1);
                add(&mut messages, 1, &at, step).map_err(|reason| (number, reason))?;
            }
        }
        None => {
            let steps = document.entries.iter().filter(|(_, entry)| entry["source"].is_string());
            for (line, step) in steps {
                add(&mut messages, *line, "", step).map_err(|reason| (*line, reason))?;
            }
        }
    }
    Ok(Draft {
        id: string(&first["session_id"]),
        tools: first["agent"]["tool_definitions"].as_array().cloned(),
        messages,
    })
}

/// Adds what the step that stands at `pointer` of an entry says and sees.
fn add(messages: &mut Vec<Said>, entry: usize, pointer: &str, step: &Value) -> Result<(), String> {
    let role = match step["source"].as_str() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("agent" | "assistant") => Role::Assistant,
        other => {
            let other = other.unwrap_or("missing");
            return Err(format!("source is {other}; it must be system, user or agent"));
        }
    };
    let mut message = Message::text(role, text(&step["message"]));
    message.reasoning_content = string(&step["reasoning_content"]);
    message.tool_calls = step["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|made| call(&made["tool_call_id"], &made["function_name"], &made["arguments"]))
        .collect();
    let says_nothing = message.content.is_empty()
        && message.reasoning_content.is_none()
        && message.tool_calls.is_empty();
    if !says_nothing {
        let pointer = format!("{pointer}/message");
        messages.push(Said::at(entry, pointer, &step["message"], message));
    }
    let results = step["observation"]["results"].as_array();
    messages.extend(results.into_iter().flatten().enumerate().map(|(index, seen)| {
        let pointer = format!("{pointer}/observation/results/{index}/content");
        let content = &seen["content"];
        Said::at(entry, pointer, content, result(&seen["source_call_id"], content))
    }));
    Ok(())
}
