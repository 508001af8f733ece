//! mini-swe-agent's `.traj.json`: chat messages with the API's answer in `extra`.

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, message, string, text};

pub(super) const READER: Reader = Reader { format: Format::MiniSweAgent, is_mine, read };

fn is_mine(document: &Document) -> bool {
    let root = document.root();
    let named = root["trajectory_format"].as_str().is_some_and(|name| name.starts_with("mini-swe"));
    root["messages"].is_array() && (named || root["info"]["mini_version"].is_string())
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let root = document.root();
    let mut messages = Vec::new();
    for (number, value) in (1..).zip(root["messages"].as_array().into_iter().flatten()) {
        // Version 2 notes the run's end as a message of a role of its own.
        if value["role"] == "exit" {
            continue;
        }
        let mut message = message(value).map_err(|reason| (number, reason))?;
        if message.reasoning_content.is_none() {
            message.reasoning_content = thoughts(&value["extra"]["response"]);
        }
        let pointer = format!("/messages/{}/content", number - 1);
        messages.push(Said::at(1, pointer, &value["content"], message));
    }
    Ok(Draft { id: string(&root["instance_id"]), tools: None, messages })
}

fn thoughts(response: &Value) -> Option<String> {
    let answer = &response["choices"][0]["message"];
    [&answer["reasoning_content"], &answer["reasoning"]]
        .into_iter()
        .map(text)
        .find(|thoughts| !thoughts.is_empty())
}
