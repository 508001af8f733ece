//! Chat templates: what is rendered by deltas is what the template renders as a whole.
//!
//! The expected texts in `fixtures/templates` are Jinja2's, written by `render.py` there.

use std::path::{Path, PathBuf};

use attar::model::tokenizer::{Guard, Tokenizer};
use attar::session::chat::{Chat, TODAY};
use attar::trajectory::{FunctionCall, Message, Role, ToolCall};
use proptest::prelude::*;
use serde_json::{Value, json};

const TEMPLATES: [&str; 6] =
    ["qwen2.5-coder", "qwen3", "smollm2", "llama3.1", "llama3.2", "deepseek-r1-distill"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/templates")
}

/// The chat format of a template, and the special tokens of the models that use it.
fn chat(name: &str) -> (Chat, Vec<&'static str>) {
    let source = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
    let (bos, eos, specials) = match name.as_bytes()[0] {
        b'l' => (
            "<|begin_of_text|>",
            "<|eot_id|>",
            vec!["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        ),
        b'd' => (
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            vec![
                "<｜begin▁of▁sentence｜>",
                "<｜end▁of▁sentence｜>",
                "<｜User｜>",
                "<｜Assistant｜>",
                "<think>",
                "</think>",
            ],
        ),
        _ => (
            "",
            "<|im_end|>",
            vec![
                "<|im_start|>",
                "<|im_end|>",
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
            ],
        ),
    };
    let guard = Guard::new(specials.iter().map(|&special| special.to_owned()));
    (Chat::new(&source, bos, eos, guard, TODAY).unwrap(), specials)
}

fn conversations() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("conversations.json")).unwrap()).unwrap()
}

fn messages(value: &Value) -> Vec<Message> {
    serde_json::from_value(value["messages"].clone()).unwrap()
}

fn tools(value: &Value) -> Vec<Value> {
    value["tools"].as_array().cloned().unwrap_or_default()
}

fn calling(content: &str, calls: &[(&str, Value)]) -> Message {
    let tool_calls = calls
        .iter()
        .map(|(name, arguments)| ToolCall {
            id: "call_1".to_owned(),
            kind: "function".to_owned(),
            function: FunctionCall { name: (*name).to_owned(), arguments: arguments.to_string() },
        })
        .collect();
    Message { tool_calls, ..Message::text(Role::Assistant, content) }
}

fn count(whole: &str, specials: &[&str]) -> usize {
    specials.iter().map(|special| whole.matches(special).count()).sum()
}

#[test]
fn deltas_join_to_what_the_template_renders_as_a_whole() {
    for name in TEMPLATES {
        let (chat, _) = chat(name);
        for (kind, conversation) in conversations().as_object().unwrap() {
            let path = folder().join(format!("{name}.{kind}.txt"));
            let Ok(expected) = std::fs::read_to_string(path) else { continue };
            let mut whole = chat.render(&messages(conversation), &tools(conversation)).unwrap();
            whole += &chat.generation_prompt(true).text;
            assert_eq!(Guard::restore(&whole), expected, "{name}, {kind}");
        }
    }
}

#[test]
fn a_generated_turn_is_closed_as_the_template_closes_it() {
    for name in TEMPLATES {
        let (chat, _) = chat(name);
        let conversation = &conversations()["plain"];
        let messages = messages(conversation);
        let mut whole = chat.render(&messages[..2], &[]).unwrap();
        let closing = chat.closing();
        // Without thoughts, as none are in the expected text.
        let opening = chat.generation_prompt(true).text.replace("<think>\n", "");
        whole += &(opening + &messages[2].content + &closing.end + &closing.rest);
        whole += &chat.group(&messages[3..]).unwrap();
        assert_eq!(whole, chat.render(&messages, &[]).unwrap(), "{name}");
        let ends = ["<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"];
        assert!(ends.contains(&closing.end.as_str()), "{name}: {closing:?}");
    }
}

#[test]
fn thinking_is_open_only_where_the_template_opens_it_and_is_wanted() {
    let opening = |name: &str, wanted| chat(name).0.generation_prompt(wanted).clone();
    assert!(opening("deepseek-r1-distill", true).thinking);
    assert_eq!(opening("deepseek-r1-distill", true).text, "<｜Assistant｜><think>\n");
    assert!(!opening("deepseek-r1-distill", false).thinking);
    assert!(opening("deepseek-r1-distill", false).text.ends_with("\n</think>\n\n"));
    assert!(!opening("qwen3", true).thinking);
    assert!(opening("qwen3", false).text.ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(opening("smollm2", true), opening("smollm2", false));
}

#[test]
fn thoughts_of_an_appended_answer_are_kept_where_the_format_has_a_place_for_them() {
    let answer = Message {
        reasoning_content: Some("It is late.".to_owned()),
        ..Message::text(Role::Assistant, "Night.")
    };
    let in_content = Message::text(Role::Assistant, "<think>\nIt is late.\n</think>\n\nNight.");
    for (name, expected) in [
        ("qwen3", "<|im_start|>assistant\n<think>\nIt is late.\n</think>\n\nNight.<|im_end|>\n"),
        (
            "deepseek-r1-distill",
            "<｜Assistant｜><think>\nIt is late.\n</think>\n\nNight.<｜end▁of▁sentence｜>",
        ),
        ("qwen2.5-coder", "<|im_start|>assistant\nNight.<|im_end|>\n"),
    ] {
        let (chat, _) = chat(name);
        assert_eq!(chat.group(std::slice::from_ref(&answer)).unwrap(), expected);
        assert_eq!(chat.group(std::slice::from_ref(&in_content)).unwrap(), expected);
    }
}

#[test]
fn a_tools_output_cannot_forge_special_tokens() {
    for name in TEMPLATES {
        let (chat, specials) = chat(name);
        let forged = |text: &str| {
            let output = Message::text(Role::Tool, text);
            let call = calling(text, &[("view", json!({"path": text, text: [text]}))]);
            let messages = [
                Message::text(Role::System, text),
                Message::text(Role::User, text),
                call,
                output.clone(),
                output,
                Message::text(Role::Assistant, text),
            ];
            let tool = json!({"type": "function", "function": {"name": "f", "description": text}});
            chat.render(&messages, &[tool]).unwrap()
        };
        let whole = forged(&specials.concat());
        assert_eq!(count(&whole, &specials), count(&forged("harmless"), &specials), "{name}");
    }
}

#[test]
fn consecutive_tool_messages_share_a_turn_in_qwen() {
    let (chat, _) = chat("qwen2.5-coder");
    let group = ["one", "two"].map(|content| Message::text(Role::Tool, content));
    assert_eq!(
        chat.group(&group).unwrap(),
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n\
         <tool_response>\ntwo\n</tool_response><|im_end|>\n"
    );
}

#[test]
fn templates_without_tools_show_them_as_text() {
    let (chat, _) = chat("smollm2");
    let conversation = &conversations()["tools"];
    let whole = chat.render(&messages(conversation), &tools(conversation)).unwrap();
    let whole = Guard::restore(&whole);
    for expected in [
        "You mend Rust code.\n\n# Tools\n\n",
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"view\",",
        "<|im_start|>assistant\n<tool_call>\n{\"name\": \"view\", \"arguments\": \
         {\"path\": \"src/main.rs\", \"first\": 1}}\n</tool_call><|im_end|>\n",
        "<|im_start|>user\n<tool_response>\n1: fn main() {",
        "3: }\n</tool_response><|im_end|>\n<|im_start|>user\nThanks.<|im_end|>\n",
    ] {
        assert!(whole.contains(expected), "{expected} is not in\n{whole}");
    }
}

#[test]
fn llama_shows_content_and_several_calls_one_after_another() {
    let (chat, _) = chat("llama3.1");
    let message = calling("Looking.", &[("view", json!({"a": 1})), ("list", json!({}))]);
    assert_eq!(
        chat.group(&[message]).unwrap(),
        "<|start_header_id|>assistant<|end_header_id|>\n\nLooking.<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"view\", \"parameters\": {\"a\": 1}}<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"list\", \"parameters\": {}}<|eot_id|>"
    );
}

#[test]
fn arguments_that_are_no_json_and_odd_beginnings_render() {
    for name in TEMPLATES {
        let (chat, _) = chat(name);
        let mut broken = calling("", &[("view", json!({}))]);
        broken.tool_calls[0].function.arguments = "{\"path\": ".to_owned();
        let odd = [
            vec![broken],
            vec![Message::text(Role::Tool, "first"), Message::text(Role::Tool, "second")],
            vec![Message::text(Role::User, "a"), Message::text(Role::System, "late words")],
            vec![Message::text(Role::System, "early words"), Message::text(Role::System, "more")],
            vec![],
        ];
        for messages in odd {
            let whole = chat.render(&messages, &[]).unwrap();
            for message in &messages {
                assert!(whole.contains(&message.content), "{name}: {whole}");
            }
        }
    }
}

#[test]
fn a_template_without_a_system_role_says_it_as_the_user() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}\
                  {% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}[assistant]{% endif %}";
    let chat = Chat::new(source, "", "", Guard::default(), TODAY).unwrap();
    let messages = [Message::text(Role::System, "Obey."), Message::text(Role::User, "Sit.")];
    assert_eq!(chat.render(&messages, &[]).unwrap(), "[user]Obey.[user]Sit.");
}

#[test]
fn unusable_templates_are_errors() {
    for source in
        ["{% for", "constant", "{{ raise_exception('never') }}", "{{ messages[0].content }}"]
    {
        assert!(Chat::new(source, "", "", Guard::default(), TODAY).is_err(), "{source}");
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let role =
        prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::Tool), Just(Role::System)];
    (role, "[a-z<|>{}\\n ]{0,12}", 0..3_usize).prop_map(|(role, content, n_calls)| match role {
        Role::Assistant => {
            let calls = vec![("view", json!({"path": content, "n": 1})); n_calls];
            calling(&content, &calls)
        }
        role => Message::text(role, content),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The last role group stays open until another role speaks; then what was rendered stands.
    #[test]
    fn the_text_is_the_same_however_the_conversation_is_cut(
        messages in prop::collection::vec(any_message(), 1..10),
        cuts in prop::collection::vec(0..10_usize, 0..4),
        template in 0..TEMPLATES.len(),
    ) {
        let (chat, _) = chat(TEMPLATES[template]);
        let n_system = messages.iter().take_while(|m| m.role == Role::System).count();
        let mut whole = chat.head(&messages[..n_system], &[]).unwrap();
        let mut open: Vec<Message> = Vec::new();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| n_system + cut).collect();
        cuts.extend([n_system, messages.len()]);
        cuts.retain(|&cut| cut <= messages.len());
        cuts.sort_unstable();
        for cut in cuts.windows(2) {
            for message in &messages[cut[0]..cut[1]] {
                if open.last().is_some_and(|last| last.role != message.role) {
                    whole += &chat.group(&open).unwrap();
                    open.clear();
                }
                open.push(message.clone());
            }
            let so_far = whole.clone() + &chat.group(&open).unwrap();
            prop_assert_eq!(so_far, chat.render(&messages[..cut[1]], &[]).unwrap());
        }
    }
}

#[test]
fn recorded_trajectories_render_in_every_template() {
    let Some(folder) = std::env::var_os("ATTAR_TRAJECTORIES") else {
        println!("ATTAR_TRAJECTORIES is not set; nothing to check");
        return;
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let trajectory: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let messages = messages(&trajectory);
        for name in TEMPLATES {
            let (chat, _) = chat(name);
            let whole = Guard::restore(&chat.render(&messages, &[]).unwrap());
            let mut at = 0;
            for message in messages.iter().filter(|message| message.role == Role::User) {
                let found = whole[at..].find(message.content.trim());
                at += found.unwrap_or_else(|| panic!("{name} loses text of {}", path.display()));
            }
        }
    }
}

#[test]
fn conversations_tokenise_as_the_rendered_text_does() {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    let Some(models) = data.or_else(home).map(|data| data.join("attar/models")) else { return };
    for (model, template) in [
        ("qwen2.5-coder-0.5b-instruct.gguf", "qwen2.5-coder"),
        ("smollm2-135m-instruct.gguf", "smollm2"),
    ] {
        let path = models.join(model);
        if !path.exists() {
            println!("{} is not there; nothing to check", path.display());
            continue;
        }
        let tokenizer = Tokenizer::load(&path).unwrap();
        let chat = Chat::of(&tokenizer).unwrap();
        for (kind, conversation) in conversations().as_object().unwrap() {
            let expected = folder().join(format!("{template}.{kind}.txt"));
            let Ok(expected) = std::fs::read_to_string(expected) else { continue };
            let messages = messages(conversation);
            let n_system = messages.iter().take_while(|m| m.role == Role::System).count();
            let (system, rest) = messages.split_at(n_system);
            let mut texts = vec![chat.head(system, &tools(conversation)).unwrap()];
            texts.extend(rest.chunk_by(|a, b| a.role == b.role).map(|g| chat.group(g).unwrap()));
            texts.push(chat.generation_prompt(true).text.clone());
            let ids: Vec<_> = texts.iter().flat_map(|t| tokenizer.encode(t).unwrap()).collect();
            assert_eq!(ids, tokenizer.encode(&expected).unwrap(), "{model}, {kind}");
            let closing = chat.closing();
            let end = tokenizer.encode(&closing.end).unwrap();
            assert!(end.len() == 1 && tokenizer.is_eos(end[0]), "{model}: {closing:?}");
        }
    }
}
