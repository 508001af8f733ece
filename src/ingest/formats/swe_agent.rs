//! SWE-agent's `.traj`: the history that the model saw, else the steps.

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, message, string, text};
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
        Some(history) => from_history(history, Some("/history"))?,
        // Each step repeats what came before it (`query`); the first one's is the beginning.
        None => {
            let steps = root["trajectory"].as_array().map_or(&[][..], Vec::as_slice);
            let before = steps.first().and_then(|first| {
                first["query"].as_array().or_else(|| first["messages"].as_array())
            });
            let mut messages = from_history(before.map_or(&[], Vec::as_slice), None)?;
            let is_answer = |said: &Said| said.message.role == Role::Assistant;
            messages.truncate(messages.iter().take_while(|said| !is_answer(said)).count());
            for (index, step) in steps.iter().enumerate() {
                messages.push(Message::text(Role::Assistant, text(&step["response"])).into());
                let seen = &step["observation"];
                let pointer = format!("/trajectory/{index}/observation");
                messages.push(Said::at(1, pointer, seen, Message::text(Role::User, text(seen))));
            }
            // Nothing is seen after the run was submitted.
            messages.pop_if(|last| last.message.content.is_empty());
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

/// Messages in the file's own form, and where they stand if the file is to be written anew.
fn from_history(history: &[Value], pointer: Option<&str>) -> Result<Vec<Said>, (usize, String)> {
    (1..)
        .zip(history)
        .map(|(number, value)| {
            let mut message = message(value).map_err(|reason| (number, reason))?;
            if message.tool_call_id.is_none() {
                message.tool_call_id = string(&value["tool_call_ids"][0]);
            }
            Ok(match pointer {
                Some(list) => {
                    let pointer = format!("{list}/{}/content", number - 1);
                    Said::at(1, pointer, &value["content"], message)
                }
                None => message.into(),
            })
        })
        .collect()
}
