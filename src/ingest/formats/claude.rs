//! Claude Code's session log.
//!
//! Lines form a tree (`uuid`, `parentUuid`): going back and trying again makes a branch. The main
//! chain is the one that ends at the last line. An answer is written a block a line, all with the
//! answer's id; results of parallel calls hang beside the chain and belong to it all the same.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, call, result, string, text};
use crate::trajectory::{Message, Role};

pub(super) const READER: Reader = Reader { format: Format::ClaudeCode, is_mine, read };

fn is_mine(document: &Document) -> bool {
    document.entries.iter().any(|(_, line)| is_said(line))
}

/// True for a line that the user, a tool or the model said.
fn is_said(line: &Value) -> bool {
    matches!(line["type"].as_str(), Some("user" | "assistant"))
        && line["message"]["role"].is_string()
        && line["isMeta"] != true
        && line["isSidechain"] != true
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let lines = || document.entries.iter().map(|(_, line)| line);
    let chain = main_chain(document);
    let in_chain = |line: &Value| line["uuid"].as_str().is_none_or(|uuid| chain.contains(uuid));
    let said: Vec<_> = document.entries.iter().filter(|(_, line)| is_said(line)).collect();
    // What belongs to the chain by the answer's id or by the call that it answers.
    let main = || said.iter().map(|(_, line)| line).filter(|line| in_chain(line));
    let answers: HashSet<_> = main().filter_map(|line| line["message"]["id"].as_str()).collect();
    let is_of_chain = |line: &Value| {
        in_chain(line) || line["message"]["id"].as_str().is_some_and(|id| answers.contains(id))
    };
    let calls: HashSet<_> = said
        .iter()
        .map(|(_, line)| line)
        .filter(|line| is_of_chain(line))
        .flat_map(blocks)
        .filter_map(|block| block["id"].as_str())
        .collect();
    let answers_call = |line: &Value| {
        blocks(line).any(|block| block["tool_use_id"].as_str().is_some_and(|id| calls.contains(id)))
    };

    let mut messages: Vec<Said> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let main = said.iter().filter(|(_, line)| is_of_chain(line) || answers_call(line));
    for (number, line) in main {
        let content = &line["message"]["content"];
        if line["type"] == "user" {
            add_user(&mut messages, *number, content);
            continue;
        }
        let at = match line["message"]["id"].as_str() {
            Some(id) => *places.entry(id).or_insert(messages.len()),
            None => messages.len(),
        };
        if at == messages.len() {
            messages.push(Message::text(Role::Assistant, "").into());
        }
        add_answer(&mut messages[at].message, content);
    }
    let id = |name: &str| lines().find_map(|line| string(&line[name]));
    let id =
        id("sessionId").or_else(|| lines().find_map(|line| string(&line["message"]["session_id"])));
    Ok(Draft { id, tools: None, messages })
}

/// The lines that lead to the last one that was said, by their ids.
fn main_chain(document: &Document) -> HashSet<&str> {
    let lines = || document.entries.iter().map(|(_, line)| line);
    let by_id: HashMap<_, _> =
        lines().filter_map(|line| Some((line["uuid"].as_str()?, line))).collect();
    let mut chain = HashSet::new();
    let mut next =
        lines().filter(|line| is_said(line)).filter_map(|line| line["uuid"].as_str()).next_back();
    while let Some(uuid) = next.filter(|uuid| chain.insert(*uuid)) {
        next = by_id.get(uuid).and_then(|line| {
            // A compaction cuts the chain but names what it was made of.
            line["parentUuid"].as_str().or_else(|| line["logicalParentUuid"].as_str())
        });
    }
    chain
}

fn blocks(line: &Value) -> impl Iterator<Item = &Value> {
    line["message"]["content"].as_array().into_iter().flatten()
}

fn add_user(messages: &mut Vec<Said>, number: usize, content: &Value) {
    let at = "/message/content";
    let Some(blocks) = content.as_array() else {
        let message = Message::text(Role::User, text(content));
        return messages.push(Said::at(number, at.to_owned(), content, message));
    };
    for (index, block) in blocks.iter().enumerate() {
        messages.push(match block["type"].as_str() {
            Some("tool_result") => {
                let content = &block["content"];
                let pointer = format!("{at}/{index}/content");
                Said::at(number, pointer, content, result(&block["tool_use_id"], content))
            }
            _ => {
                let message = Message::text(Role::User, text(block));
                Said::at(number, format!("{at}/{index}/text"), &block["text"], message)
            }
        });
    }
}

fn add_answer(message: &mut Message, content: &Value) {
    let Some(blocks) = content.as_array() else {
        return append(&mut message.content, &text(content));
    };
    for block in blocks {
        match block["type"].as_str() {
            Some("tool_use") => {
                message.tool_calls.push(call(&block["id"], &block["name"], &block["input"]));
            }
            Some("thinking") => {
                let thoughts = text(&block["thinking"]);
                if !thoughts.is_empty() {
                    append(message.reasoning_content.get_or_insert_default(), &thoughts);
                }
            }
            Some("redacted_thinking") => {}
            _ => append(&mut message.content, &text(block)),
        }
    }
}

fn append(whole: &mut String, text: &str) {
    if !whole.is_empty() && !text.is_empty() {
        whole.push('\n');
    }
    whole.push_str(text);
}
