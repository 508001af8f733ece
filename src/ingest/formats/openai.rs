//! Chat messages of the OpenAI API.

use serde_json::Value;

use super::{Document, Draft, Format, Reader, Said, message, string};

pub(super) const READER: Reader = Reader { format: Format::OpenAi, is_mine, read };

fn is_mine(document: &Document) -> bool {
    document.root()["messages"].is_array()
        || document.entries.first().is_some_and(|(_, first)| first["role"].is_string())
}

fn read(document: &Document) -> Result<Draft, (usize, String)> {
    let root = document.root();
    let read = |number, entry, pointer, value: &Value| match message(value) {
        Ok(message) => Ok(Said::at(entry, pointer, &value["content"], message)),
        Err(reason) => Err((number, reason)),
    };
    let messages: Result<Vec<_>, _> = match root["messages"].as_array() {
        Some(messages) => (1..)
            .zip(messages)
            .map(|(number, value)| {
                read(number, 1, format!("/messages/{}/content", number - 1), value)
            })
            .collect(),
        None => document
            .entries
            .iter()
            .map(|(number, value)| read(*number, *number, "/content".to_owned(), value))
            .collect(),
    };
    Ok(Draft {
        id: string(&root["id"]).or(string(&root["instance_id"])),
        tools: root["tools"].as_array().cloned(),
        messages: messages?,
    })
}
