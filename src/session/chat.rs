//! Chat templates, rendered by deltas.
//!
//! A chat template is a function of the whole conversation, but a prompt here only ever grows.
//! So the template is rendered on tiny conversations in which the new messages stand behind
//! messages of a known text, and what it wrote for the new ones is cut out. Each message (each
//! run of tool messages) then has one text, however the conversation came in pieces.
//!
//! The texts are for [`Tokenizer::encode`]: special tokens in message content are broken by the
//! tokenizer's [`Guard`], those of the template are not.

use serde_json::{Map, Value, json};

use crate::model::tokenizer::{Guard, Tokenizer};
use crate::trajectory::{Message, Role, ToolCall};
use jinja::{Template, one_line};

pub use jinja::{Date, TODAY};

mod jinja;

/// Known texts of the messages around the new ones.
const USER: &str = "\u{FDD1}user\u{FDD1}";
const ASSISTANT: &str = "\u{FDD1}assistant\u{FDD1}";
const NEXT: &str = "\u{FDD1}next\u{FDD1}";

/// Why a template could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("chat template fails: {0:#}")]
    Template(#[from] minijinja::Error),
    #[error("chat template cannot be continued: {0}; use a model with another template")]
    Shape(&'static str),
    #[error("the model has no chat template; use an instruction-tuned model")]
    Missing,
}

/// What opens an assistant's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    pub text: String,
    /// True where the turn begins inside `<think>`.
    pub thinking: bool,
}

/// What stands behind a generated turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The special token that the model itself ends its turn with.
    pub end: String,
    /// What the template writes behind it.
    pub rest: String,
}

/// How a template shows calls of tools.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToolStyle {
    /// As the template does.
    Native,
    /// As the template does, each call a message of its own, apart from the content.
    Apart,
    /// The template knows no tools: calls and results are text in Hermes' form.
    Text,
}

/// A model's chat format.
pub struct Chat {
    template: Template,
    guard: Guard,
    /// Written in front of everything where the template does not do so itself.
    bos: String,
    user_open: String,
    user_close: String,
    assistant_close: String,
    /// Without and with thinking.
    openings: [Opening; 2],
    tools: ToolStyle,
}

impl Chat {
    /// The chat format of a model's own template.
    ///
    /// # Errors
    /// Where the model has no template, or one that cannot be continued.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let source = tokenizer.chat_template().ok_or(ChatError::Missing)?;
        let guard = tokenizer.guard().clone();
        let mut chat = Self::new(source, tokenizer.bos(), tokenizer.eos(), guard, TODAY)?;
        if tokenizer.adds_bos() {
            chat.bos = tokenizer.bos().to_owned();
        }
        Ok(chat)
    }

    /// Compiles a template and finds out how it opens and closes turns and shows tools.
    /// `guard` knows the vocabulary's special tokens, `today` is the day the template sees.
    ///
    /// # Errors
    /// Where the template is invalid, fails on a plain conversation, or leaves out messages.
    pub fn new(
        source: &str,
        bos: &str,
        eos: &str,
        guard: Guard,
        today: Date,
    ) -> Result<Self, ChatError> {
        let template = Template::new(source, bos, eos, today)?;
        let turns = [text("user", USER), text("assistant", ASSISTANT), text("user", NEXT)];
        let shape = |part: Option<&str>| {
            part.map(str::to_owned).ok_or(ChatError::Shape("it drops or changes plain messages"))
        };
        let one = template.render(&turns[..1], &[], None)?;
        let two = template.render(&turns[..2], &[], None)?;
        let three = template.render(&turns, &[], None)?;
        let user_close = shape(after(&one, USER))?;
        let assistant_close = shape(after(&two, ASSISTANT))?;
        let between = after(&three, ASSISTANT).and_then(|rest| before(rest, NEXT));
        let user_open =
            shape(between.and_then(|between| between.strip_prefix(assistant_close.as_str())))?;

        let opening = |wanted: bool| {
            let opened = template.render(&turns[..1], &[], Some(wanted))?;
            let mut text = shape(
                after(&opened, USER).and_then(|rest| rest.strip_prefix(user_close.as_str())),
            )?;
            let mut thinking = text.trim_end().ends_with("<think>");
            if thinking && !wanted {
                text += "\n</think>\n\n";
                thinking = false;
            }
            Ok::<_, ChatError>(Opening { text, thinking })
        };
        let openings = [opening(false)?, opening(true)?];
        let tools = tool_style(&template);
        let bos = String::new();
        Ok(Self { template, guard, bos, user_open, user_close, assistant_close, openings, tools })
    }

    /// The whole conversation, as [`Self::head`] and [`Self::group`] give it.
    ///
    /// # Errors
    /// What the template raises.
    pub fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, ChatError> {
        let n_system = messages.iter().take_while(|message| message.role == Role::System).count();
        let (system, rest) = messages.split_at(n_system);
        let mut whole = self.head(system, tools)?;
        for group in rest.chunk_by(|a, b| a.role == b.role) {
            whole += &self.group(group)?;
        }
        Ok(whole)
    }

    /// What stands in front of the first message that is not the system's.
    ///
    /// # Errors
    /// What the template raises.
    pub fn head(&self, system: &[Message], tools: &[Value]) -> Result<String, ChatError> {
        let mut parts: Vec<_> = system.iter().map(|m| self.guard.protect(&m.content)).collect();
        let tools: Vec<_> = tools.iter().map(|tool| self.protect(tool)).collect();
        if self.tools == ToolStyle::Text && !tools.is_empty() {
            parts.push(describe(&tools));
        }
        let system = (!parts.is_empty()).then(|| parts.join("\n\n"));
        let render = |system: Option<&str>| {
            let mut messages: Vec<_> = system.map(|s| text("system", s)).into_iter().collect();
            messages.push(text("user", USER));
            let whole = self.template.render(&messages, &tools, None)?;
            let cut = whole.rfind(USER).and_then(|at| whole[..at].strip_suffix(&*self.user_open));
            let head = cut.ok_or(ChatError::Shape("the first user message is not like others"))?;
            let is_whole = system.is_none_or(|system| head.contains(system.trim()));
            Ok::<_, ChatError>(is_whole.then(|| head.to_owned()))
        };
        let mut head = match render(system.as_deref()) {
            Ok(Some(head)) => head,
            // A template without a system role: what it would say, the first user message says.
            refused => match &system {
                Some(system) => {
                    render(None)?.unwrap_or_default() + &self.last(text("user", system))?
                }
                None => return refused.map(Option::unwrap_or_default),
            },
        };
        if !head.starts_with(&self.bos) {
            head.insert_str(0, &self.bos);
        }
        Ok(head)
    }

    /// Messages of one role that follow one another, opened and closed.
    ///
    /// Reasoning is kept where the model's format has a place for it, else left out.
    ///
    /// # Errors
    /// What the template raises.
    pub fn group(&self, group: &[Message]) -> Result<String, ChatError> {
        let Some(first) = group.first() else { return Ok(String::new()) };
        let each = |render: &dyn Fn(&Message) -> Result<String, ChatError>| {
            group.iter().map(render).collect::<Result<String, _>>()
        };
        match first.role {
            Role::User => each(&|message| self.last(self.present(message))),
            Role::System => each(&|message| {
                let content = self.guard.protect(&message.content);
                match self.last(text("system", &content)) {
                    Ok(delta) if delta.contains(content.trim()) => Ok(delta),
                    _ => self.last(text("user", &content)),
                }
            }),
            Role::Assistant => each(&|message| self.assistant(message)),
            Role::Tool => self.results(group),
        }
    }

    /// What opens the assistant's turn for a generation, with or without thinking.
    pub fn generation_prompt(&self, thinking: bool) -> &Opening {
        &self.openings[usize::from(thinking)]
    }

    /// What closes a turn that was generated.
    pub fn closing(&self) -> Closing {
        let end = self.guard.leading(&self.assistant_close).unwrap_or_default();
        Closing { end: end.to_owned(), rest: self.assistant_close[end.len()..].to_owned() }
    }

    /// The text of messages behind an assistant's.
    fn behind(&self, messages: impl IntoIterator<Item = Value>) -> Result<String, ChatError> {
        let mut turns = vec![text("user", USER), text("assistant", ASSISTANT)];
        turns.extend(messages);
        let whole = self.template.render(&turns, &[], None)?;
        let delta =
            after(&whole, ASSISTANT).and_then(|rest| rest.strip_prefix(&*self.assistant_close));
        delta.map(str::to_owned).ok_or(ChatError::Shape("a message changes the one before it"))
    }

    fn last(&self, message: Value) -> Result<String, ChatError> {
        self.behind([message])
    }

    fn results(&self, group: &[Message]) -> Result<String, ChatError> {
        if self.tools != ToolStyle::Text {
            return self.behind(group.iter().map(|message| self.present(message)));
        }
        let results: Vec<_> = group
            .iter()
            .map(|m| {
                format!("<tool_response>\n{}\n</tool_response>", self.guard.protect(&m.content))
            })
            .collect();
        self.last(text("user", &results.join("\n")))
    }

    fn assistant(&self, message: &Message) -> Result<String, ChatError> {
        let mut message = message.clone();
        split_thoughts(&mut message);
        let mut whole = String::new();
        if self.tools == ToolStyle::Apart && !message.tool_calls.is_empty() {
            let calls = std::mem::take(&mut message.tool_calls);
            if !message.content.is_empty() || message.reasoning_content.is_some() {
                whole += &self.answer(&message)?;
            }
            for call in calls {
                let tool_calls = vec![call];
                whole +=
                    &self.answer(&Message { tool_calls, ..Message::text(Role::Assistant, "") })?;
            }
            return Ok(whole);
        }
        self.answer(&message)
    }

    /// One assistant message behind a user's.
    fn answer(&self, message: &Message) -> Result<String, ChatError> {
        let presented = self.present(message);
        let reasoning = presented["reasoning_content"].as_str().unwrap_or_default().trim();
        let mut turns = vec![text("user", USER), presented.clone()];
        if reasoning.is_empty() {
            // Qwen3 writes empty thoughts into the last answer only.
            turns.push(text("user", NEXT));
        }
        let whole = self.template.render(&turns, &[], None)?;
        let delta = after(&whole, USER).and_then(|rest| rest.strip_prefix(&*self.user_close));
        let delta = match reasoning {
            "" => delta
                .and_then(|d| d.rfind(NEXT).and_then(|at| d[..at].strip_suffix(&*self.user_open))),
            _ => delta,
        };
        let delta = delta.ok_or(ChatError::Shape("an answer changes the message before it"))?;
        let opening = self.generation_prompt(true);
        if opening.thinking && !delta.contains(reasoning) {
            // R1 drops old thoughts; one that stands in the prompt stands as it was generated.
            let content = presented["content"].as_str().unwrap_or_default();
            let (open, close) = (&opening.text, &self.assistant_close);
            return Ok(format!("{open}{reasoning}\n</think>\n\n{content}{close}"));
        }
        Ok(delta.to_owned())
    }

    /// A message as templates expect it, its content guarded.
    fn present(&self, message: &Message) -> Value {
        let mut content = self.guard.protect(&message.content);
        let mut fields = Map::new();
        fields.insert("role".into(), message.role.as_str().into());
        let calls: Vec<_> = message.tool_calls.iter().map(|call| self.present_call(call)).collect();
        if self.tools == ToolStyle::Text {
            for call in &calls {
                let separator = if content.is_empty() { "" } else { "\n" };
                content += &format!(
                    "{separator}<tool_call>\n{}\n</tool_call>",
                    one_line(&call["function"])
                );
            }
        } else if !calls.is_empty() {
            fields.insert("tool_calls".into(), calls.into());
        }
        fields.insert("content".into(), content.into());
        let optional = [
            ("reasoning_content", &message.reasoning_content),
            ("tool_call_id", &message.tool_call_id),
            ("name", &message.name),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                fields.insert(name.into(), self.guard.protect(value).into());
            }
        }
        fields.into()
    }

    fn present_call(&self, call: &ToolCall) -> Value {
        let arguments = match serde_json::from_str(&call.function.arguments) {
            Ok(arguments @ Value::Object(_)) => arguments,
            _ if call.function.arguments.trim().is_empty() => json!({}),
            _ => call.function.arguments.as_str().into(),
        };
        self.protect(&json!({
            "id": call.id,
            "type": call.kind,
            "function": {"name": call.function.name, "arguments": arguments},
        }))
    }

    /// JSON with every text in it guarded.
    fn protect(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.guard.protect(text).into(),
            Value::Array(values) => values.iter().map(|value| self.protect(value)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (self.guard.protect(name), self.protect(value)))
                .collect(),
            other => other.clone(),
        }
    }
}

/// Moves thoughts that a client left in the content to where they belong.
fn split_thoughts(message: &mut Message) {
    if message.reasoning_content.is_some() {
        return;
    }
    let inner = message.content.trim_start().strip_prefix("<think>");
    if let Some((thoughts, answer)) = inner.and_then(|inner| inner.split_once("</think>")) {
        let (thoughts, answer) = (thoughts.trim().to_owned(), answer.trim_start().to_owned());
        message.reasoning_content = Some(thoughts);
        message.content = answer;
    }
}

/// Finds out how a template shows tools by showing it some.
fn tool_style(template: &Template) -> ToolStyle {
    let shows = |messages: &[Value], tools: &[Value], texts: &[&str]| {
        let whole = template.render(messages, tools, None).unwrap_or_default();
        texts.iter().all(|text| whole.contains(text))
    };
    let call = |name: &str| json!({"id": "call00000", "type": "function", "function": {"name": name, "arguments": {}}});
    let user = || text("user", USER);
    let calls = |content: &str, names: &[&str]| {
        let calls: Vec<_> = names.iter().map(|name| call(name)).collect();
        json!({"role": "assistant", "content": content, "tool_calls": calls})
    };
    let (one, other) = ("first\u{FDD1}", "second\u{FDD1}");
    let function =
        json!({"name": one, "description": "", "parameters": {"type": "object", "properties": {}}});
    let tool = json!({"type": "function", "function": function});
    let result = json!({"role": "tool", "content": NEXT, "tool_call_id": "call00000", "name": one});
    if !shows(&[user()], &[tool], &[one])
        || !shows(&[user(), calls("", &[one]), result], &[], &[one, NEXT])
    {
        return ToolStyle::Text;
    }
    match shows(&[user(), calls(ASSISTANT, &[one, other])], &[], &[ASSISTANT, one, other]) {
        true => ToolStyle::Native,
        false => ToolStyle::Apart,
    }
}

/// Tools in the form that Hermes and Qwen models were trained on.
fn describe(tools: &[Value]) -> String {
    let lines: String = tools.iter().map(|tool| one_line(tool) + "\n").collect();
    format!(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
         You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n\
         {lines}</tools>\n\nFor each function call, return a json object with function name and \
         arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n\
         {{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>"
    )
}

fn text(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn after<'a>(whole: &'a str, mark: &str) -> Option<&'a str> {
    whole.split_once(mark).map(|(_, rest)| rest)
}

fn before<'a>(whole: &'a str, mark: &str) -> Option<&'a str> {
    whole.split_once(mark).map(|(rest, _)| rest)
}
