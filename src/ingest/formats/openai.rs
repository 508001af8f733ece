//! Chat messages of the OpenAI API.

use super::{Document, Draft, Format, Reader, message, string};

pub(super) const READER: Reader = Reader { format: Format::OpenAi, is_mine, read };

fn is_mine(document: &Document) -> bool {
    document.root()["messages"].is_array()
        || document.entries.first().is_some_and(|(_, first)| first["role"].is_string())
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let root = document.root();
    let messages: Result<Vec<_>, _> = match root["messages"].as_array() {
        Some(messages) => (1..)
            .zip(messages)
            .map(|(number, value)| message(value).map_err(|reason| (number, reason)))
            .collect(),
        None => document
            .entries
            .iter()
            .map(|(line, value)| message(value).map_err(|reason| (*line, reason)))
            .collect(),
    };
    Ok(Draft {
        id: string(&root["id"]).or(string(&root["instance_id"])),
        tools: root["tools"].as_array().cloned(),
        messages: messages?,
    })
}
