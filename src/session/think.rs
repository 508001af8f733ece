//! Generated text split into thoughts, answer and tool calls, as it comes.
//!
//! Thoughts stand in `<think>…</think>`, calls in `<tool_call>{"name":…,"arguments":…}</tool_call>`
//! (Hermes' form). Small models often leave the call's tags away: an answer that is nothing but
//! such an object, fenced or not, and names a known tool, is a call too.

use serde_json::{Deserializer, Value};

use crate::trajectory::{FunctionCall, Message, Role, ToolCall};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALLED: &str = "</tool_call>";

/// A piece of what was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    /// A whole call; `arguments` is a JSON object.
    ToolCall {
        index: usize,
        id: String,
        name: String,
        arguments: String,
    },
}

/// What a [`Splitter`] has to know of the request.
#[derive(Clone, Debug, Default)]
pub struct SplitOptions {
    /// The prompt ends inside `<think>`.
    pub thinking: bool,
    /// Texts that end the answer; they are cut off. Thoughts and calls may contain them.
    pub stop: Vec<String>,
    /// Names of the tools that the model was shown.
    pub tools: Vec<String>,
    /// What each call's id begins with; its index in the answer follows.
    pub call_ids: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In front of the thoughts that the prompt has opened.
    Opened,
    Thinking,
    /// Nothing of the answer has been seen but white space.
    Leading,
    Content,
    /// Inside a call, whose tag begins at this byte of what is held back.
    Call(usize),
    /// Behind a stop text.
    Stopped,
}

/// Splits one generation. Feed it with [`Self::push`], end it with [`Self::finish`].
///
/// Text that may turn out to be part of a tag, a stop text or the white space around them is held
/// back until it is known; the parts are the same however the text was cut into pushes, joined.
#[derive(Debug)]
pub struct Splitter {
    options: SplitOptions,
    state: State,
    held: String,
    /// White space is dropped until text comes.
    after_tag: bool,
    message: Message,
}

impl Splitter {
    pub fn new(mut options: SplitOptions) -> Self {
        options.stop.retain(|stop| !stop.is_empty());
        Self {
            state: if options.thinking { State::Opened } else { State::Leading },
            after_tag: options.thinking,
            options,
            held: String::new(),
            message: Message::text(Role::Assistant, ""),
        }
    }

    /// Takes in generated text and gives back what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        self.run(false)
    }

    /// Gives back what was held; the generation is over.
    pub fn finish(&mut self) -> Vec<Part> {
        self.run(true)
    }

    /// The parts so far as one assistant message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// True while the model thinks.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// True once a stop text was generated: what follows is not used.
    pub fn is_stopped(&self) -> bool {
        self.state == State::Stopped
    }

    fn run(&mut self, at_end: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while self.step(at_end, &mut parts) {}
        parts
    }

    /// Goes on to the next state, or says that more text is needed.
    fn step(&mut self, at_end: bool, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Opened => self.opened(at_end),
            State::Thinking => self.thinking(at_end, parts),
            State::Leading => self.leading(at_end, parts),
            State::Content => self.content(at_end, parts),
            State::Call(open) => self.call(open, at_end, parts),
            State::Stopped => {
                self.held.clear();
                false
            }
        }
    }

    /// Models that were put into their thoughts sometimes open them once more.
    fn opened(&mut self, at_end: bool) -> bool {
        let text = self.held.trim_start();
        if !at_end && THINK.starts_with(text) && text != THINK {
            return false;
        }
        self.held = text.strip_prefix(THINK).unwrap_or(&self.held).to_owned();
        self.state = State::Thinking;
        true
    }

    fn thinking(&mut self, at_end: bool, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(THOUGHT) {
            let thoughts = self.held[..at].trim_end().to_owned();
            self.say(Part::Reasoning(thoughts), parts);
            self.held.drain(..at + THOUGHT.len());
            self.state = State::Leading;
            self.after_tag = true;
            return true;
        }
        let certain = take_certain(&mut self.held, at_end, [THOUGHT].into_iter());
        self.say(Part::Reasoning(certain), parts);
        false
    }

    fn leading(&mut self, at_end: bool, parts: &mut Vec<Part>) -> bool {
        if self.after_tag {
            // Behind a thought it is no part of the answer.
            self.held = self.held.trim_start().to_owned();
        }
        let text = self.held.trim_start();
        let white_space = &self.held[..self.held.len() - text.len()];
        if self.options.stop.iter().any(|stop| white_space.contains(stop)) {
            self.state = State::Content;
            return true;
        }
        if let Some(thoughts) = text.strip_prefix(THINK) {
            self.held = thoughts.to_owned();
            self.state = State::Thinking;
            self.after_tag = true;
            return true;
        }
        let bare = may_be_call(text, &self.options.tools);
        if !at_end && (bare || THINK.starts_with(text)) {
            return false;
        }
        match bare.then(|| read_calls(unfenced(text), false)).flatten() {
            Some(calls) if calls.iter().all(|(name, _)| self.options.tools.contains(name)) => {
                self.held.clear();
                self.say_calls(calls, parts);
                false
            }
            _ => {
                self.state = State::Content;
                true
            }
        }
    }

    fn content(&mut self, at_end: bool, parts: &mut Vec<Part>) -> bool {
        // The mark that is complete first counts, as if the text had come letter by letter.
        let marks = || std::iter::once(CALL).chain(self.options.stop.iter().map(String::as_str));
        let found =
            marks().filter_map(|mark| self.held.find(mark).map(|at| (at + mark.len(), at, mark)));
        if let Some((_, at, mark)) = found.min_by_key(|&(end, at, _)| (end, at)) {
            let is_call = mark == CALL;
            let end = if is_call { self.held[..at].trim_end().len() } else { at };
            let text = self.held.drain(..end).collect();
            self.state = if is_call { State::Call(at - end) } else { State::Stopped };
            self.say(Part::Content(text), parts);
            return true;
        }
        let certain = take_certain(&mut self.held, at_end, marks());
        self.say(Part::Content(certain), parts);
        false
    }

    fn call(&mut self, open: usize, at_end: bool, parts: &mut Vec<Part>) -> bool {
        let body = &self.held[open + CALL.len()..];
        let mut closings = body.match_indices(CALLED).map(|(at, _)| at);
        // A call may write a file that has the tag in it.
        let closing = closings.clone().find(|&at| !ends_in_string(&body[..at]));
        let closing = closing.or_else(|| closings.next().filter(|_| at_end));
        if closing.is_none() && !at_end {
            return false;
        }
        let end = closing.unwrap_or(body.len());
        // Only what the model itself has closed is mended: a call that was cut off is no call.
        let calls = read_calls(&body[..end], closing.is_some());
        let len = open + CALL.len() + end + closing.map_or(0, |_| CALLED.len());
        let text = self.held.drain(..len).collect();
        self.state = State::Content;
        match calls {
            Some(calls) => {
                self.say_calls(calls, parts);
                self.after_tag = true;
            }
            None => self.say(Part::Content(text), parts),
        }
        true
    }

    fn say_calls(&mut self, calls: Vec<(String, String)>, parts: &mut Vec<Part>) {
        for (name, arguments) in calls {
            let index = self.message.tool_calls.len();
            let id = format!("{}{index}", self.options.call_ids);
            self.say(Part::ToolCall { index, id, name, arguments }, parts);
        }
    }

    /// Hands on a part, without the white space behind a tag.
    fn say(&mut self, mut part: Part, parts: &mut Vec<Part>) {
        match &mut part {
            Part::Reasoning(text) | Part::Content(text) => {
                if self.after_tag {
                    *text = text.trim_start().to_owned();
                }
                if text.is_empty() {
                    return;
                }
                self.after_tag = false;
            }
            Part::ToolCall { .. } => {}
        }
        match part.clone() {
            Part::Reasoning(text) => {
                self.message.reasoning_content.get_or_insert_default().push_str(&text);
            }
            Part::Content(text) => self.message.content.push_str(&text),
            Part::ToolCall { id, name, arguments, .. } => self.message.tool_calls.push(ToolCall {
                id,
                kind: "function".to_owned(),
                function: FunctionCall { name, arguments },
            }),
        }
        parts.push(part);
    }
}

/// Takes out of what is held all that can belong to no mark that is still to come.
fn take_certain<'a>(
    held: &mut String,
    at_end: bool,
    marks: impl Iterator<Item = &'a str>,
) -> String {
    let begun = marks.map(|mark| begun(held, mark)).max().unwrap_or(0);
    let certain = held[..held.len() - begun].trim_end().len();
    held.drain(..if at_end { held.len() } else { certain }).collect()
}

/// Bytes at the end of `text` that `mark` may begin with, the whole mark excepted.
fn begun(text: &str, mark: &str) -> usize {
    let lens = (1..mark.len()).rev().filter(|&len| mark.is_char_boundary(len));
    lens.into_iter().find(|&len| text.ends_with(&mark[..len])).unwrap_or(0)
}

/// True where JSON ends inside a string.
fn ends_in_string(json: &str) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for c in json.chars() {
        inside ^= c == '"' && !escaped;
        escaped = inside && c == '\\' && !escaped;
    }
    inside
}

/// True while `text`, which may go on, can be nothing but a call of one of `tools`.
fn may_be_call(text: &str, tools: &[String]) -> bool {
    let matches = |fence: &str, tool: &str| {
        let mut rest = text;
        for expected in [fence, "{", "\"name\"", ":", &format!("\"{tool}\"")] {
            match rest.strip_prefix(expected) {
                Some(behind) => rest = behind.trim_start(),
                None => return expected.starts_with(rest),
            }
        }
        true
    };
    ["", "```json", "```"].iter().any(|fence| tools.iter().any(|tool| matches(fence, tool)))
}

fn unfenced(text: &str) -> &str {
    let inner = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    inner.map_or(text, |inner| inner.trim_end().trim_end_matches("```"))
}

/// Names and arguments of the calls that `text` consists of; `mend` adds closing braces.
fn read_calls(text: &str, mend: bool) -> Option<Vec<(String, String)>> {
    let read = |text: &str| {
        let values = Deserializer::from_str(text).into_iter::<Value>();
        let calls = values.map(|value| read_call(&value.ok()?)).collect::<Option<Vec<_>>>()?;
        (!calls.is_empty()).then_some(calls)
    };
    let text = text.trim();
    read(text).or_else(|| {
        let closed = ["}", "}}"].into_iter().find_map(|braces| read(&(text.to_owned() + braces)));
        let opened = text.strip_suffix('}').and_then(read);
        if mend { closed.or(opened) } else { None }
    })
}

/// A call's name and its arguments, which Llama calls parameters, as JSON.
fn read_call(call: &Value) -> Option<(String, String)> {
    let name = call["name"].as_str()?.to_owned();
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(arguments) => arguments.clone(),
        None => Value::Object(serde_json::Map::new()),
    };
    arguments.is_object().then(|| (name, arguments.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options() -> SplitOptions {
        SplitOptions {
            tools: vec!["view".to_owned(), "bash".to_owned()],
            call_ids: "call_".to_owned(),
            ..SplitOptions::default()
        }
    }

    /// Splits text that comes in pieces of `n` characters; gives the message and the parts joined.
    fn split(options: SplitOptions, text: &str, n: usize) -> (Message, Vec<Part>) {
        let mut splitter = Splitter::new(options);
        let chars: Vec<char> = text.chars().collect();
        let mut parts: Vec<Part> = Vec::new();
        for piece in chars.chunks(n) {
            parts.extend(splitter.push(&piece.iter().collect::<String>()));
        }
        parts.extend(splitter.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            match (joined.last_mut(), part) {
                (Some(Part::Content(whole)), Part::Content(text))
                | (Some(Part::Reasoning(whole)), Part::Reasoning(text)) => whole.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        (splitter.message().clone(), joined)
    }

    fn reasoning(text: &str) -> Part {
        Part::Reasoning(text.to_owned())
    }

    fn content(text: &str) -> Part {
        Part::Content(text.to_owned())
    }

    fn call(index: usize, name: &str, arguments: &str) -> Part {
        let (name, arguments) = (name.to_owned(), arguments.to_owned());
        Part::ToolCall { index, id: format!("call_{index}"), name, arguments }
    }

    fn check(options: &SplitOptions, text: &str, expected: &[Part]) {
        for n in [1, 2, 3, 7, 1000] {
            let (_, parts) = split(options.clone(), text, n);
            assert_eq!(parts, expected, "{text:?} in pieces of {n}");
        }
    }

    #[test]
    fn an_answer_of_white_space_can_be_stopped() {
        let stop = SplitOptions { stop: vec!["\n\n".to_owned()], ..options() };
        check(&stop, " \n\nYes.", &[content(" ")]);
        for text in ["\n\n", "\n\n<think>Hm.</think>"] {
            let mut splitter = Splitter::new(stop.clone());
            splitter.push(text);
            assert!(splitter.is_stopped(), "{text:?}");
        }
        check(&stop, "<think>Hm.</think>\n\nYes.\n\nNo.", &[reasoning("Hm."), content("Yes.")]);
        let thinking = SplitOptions { thinking: true, ..stop };
        check(
            &thinking,
            "Hm.\n\nSo.</think>\n\nYes.\n\n",
            &[reasoning("Hm.\n\nSo."), content("Yes.")],
        );
    }

    #[test]
    fn thoughts_come_before_the_answer() {
        let thinking = SplitOptions { thinking: true, ..options() };
        check(
            &options(),
            "<think>\nHm. \n</think>\n\nYes.\n",
            &[reasoning("Hm."), content("Yes.\n")],
        );
        check(
            &thinking,
            "Hm.\n\nSo.\n</think>\n\nYes.",
            &[reasoning("Hm.\n\nSo."), content("Yes.")],
        );
        check(&thinking, "<think>\nHm.</think>Yes.", &[reasoning("Hm."), content("Yes.")]);
        check(&thinking, "cut off <b", &[reasoning("cut off <b")]);
        check(&options(), "<think>\n\n</think>\n\nYes.", &[content("Yes.")]);
        check(
            &options(),
            "Tags later <think> are text.",
            &[content("Tags later <think> are text.")],
        );
    }

    #[test]
    fn calls_are_read_in_order() {
        check(
            &options(),
            "<think>a</think>Look:\n<tool_call>\n{\"name\": \"view\", \"arguments\": {\"n\": 1, \"a\": [2]}}\n\
             </tool_call>\n<tool_call>{\"name\": \"other\"}</tool_call>\n",
            &[
                reasoning("a"),
                content("Look:"),
                call(0, "view", "{\"n\":1,\"a\":[2]}"),
                call(1, "other", "{}"),
            ],
        );
    }

    #[test]
    fn a_closed_call_is_mended_and_a_cut_one_is_given_back() {
        let view = call(0, "view", "{\"a\":{}}");
        let json = "{\"name\": \"view\", \"arguments\": {\"a\": {}}}";
        check(&options(), &format!("<tool_call>{json}"), std::slice::from_ref(&view));
        for body in [&json[..json.len() - 1], &json[..json.len() - 2], &format!("{json}}}")] {
            check(
                &options(),
                &format!("<tool_call>{body}</tool_call>"),
                std::slice::from_ref(&view),
            );
        }
        for text in [
            "So:\n<tool_call>\n{\"name\": \"view\", \"argu",
            "<tool_call>{\"name\": \"view\", \"arguments\": {\"a\": \"b\"",
            "<tool_call>view it</tool_call> then",
            "<tool_call>{\"name\": \"view\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"</tool_call>",
        ] {
            check(&options(), text, &[content(text)]);
        }
    }

    #[test]
    fn a_call_may_write_its_own_tags() {
        let text = "<tool_call>{\"name\": \"bash\", \"arguments\": {\"c\": \"echo '\\\"</tool_call>'\"}}</tool_call>";
        check(&options(), text, &[call(0, "bash", "{\"c\":\"echo '\\\"</tool_call>'\"}")]);
    }

    #[test]
    fn a_bare_object_that_names_a_known_tool_is_a_call() {
        let json = "{\"name\": \"view\", \"arguments\": {\"n\": 1}}";
        let view = [call(0, "view", "{\"n\":1}")];
        check(&options(), json, &view);
        check(&options(), &format!("```json\n{json}\n```\n"), &view);
        check(&options(), &format!("```\n{json}\n```"), &view);
        check(&options(), "{\"name\": \"view\", \"parameters\": {\"n\": 1}}", &view);
        check(
            &options(),
            &format!("{json}\n{json}"),
            &[view[0].clone(), call(1, "view", "{\"n\":1}")],
        );
        let unknown = json.replace("view", "eval");
        check(&options(), &unknown, &[content(&unknown)]);
        for text in [&format!("{json} is a call"), &json[..20], "```json\n{}\n```", "{", "```"] {
            check(&options(), text, &[content(text)]);
        }
        check(&SplitOptions::default(), json, &[content(json)]);
    }

    #[test]
    fn stop_texts_end_the_answer_but_not_the_thoughts() {
        let stop = vec!["END".to_owned(), "\n\n#".to_owned(), String::new()];
        let options = SplitOptions { stop, thinking: true, ..options() };
        check(
            &options,
            "END\n\n# of thoughts</think>Answer E EN\n\n# END <tool_call>",
            &[reasoning("END\n\n# of thoughts"), content("Answer E EN")],
        );
        let mut splitter = Splitter::new(SplitOptions { thinking: false, ..options });
        assert_eq!(splitter.push("It is the E"), [content("It is the")]);
        assert!(!splitter.is_stopped());
        assert_eq!(splitter.push("ND."), [content(" ")]);
        assert!(splitter.is_stopped());
        assert_eq!(splitter.push("more"), []);
    }

    #[test]
    fn the_message_holds_all_parts() {
        let text = "<think>Hm</think>Yes <tool_call>{\"name\":\"view\"}</tool_call>";
        let (message, _) = split(options(), text, 4);
        assert_eq!(message.reasoning_content.as_deref(), Some("Hm"));
        assert_eq!(message.content, "Yes");
        assert_eq!(message.tool_calls[0].id, "call_0");
        assert_eq!(message.tool_calls[0].function.name, "view");
    }

    proptest! {
        #[test]
        fn text_without_tags_comes_back_as_it_is(text in "[a-z<>{}/\"`\\n é]*", n in 1..9_usize) {
            let (message, parts) = split(options(), &text, n);
            prop_assert_eq!(&message.content, &text);
            prop_assert_eq!(parts.len(), usize::from(!text.is_empty()));
        }

        #[test]
        fn parts_do_not_depend_on_how_the_text_was_cut(
            text in "(<think>|</think>|<tool_call>|</tool_call>|\\{\"name\": \"view\"\\}|\\}|\"|STOP|S|[a-z \n<])*",
            thinking in any::<bool>(),
            n in 1..9_usize,
        ) {
            let stop = vec!["STOP".to_owned(), "TO".to_owned()];
            let options = SplitOptions { thinking, stop, ..options() };
            prop_assert_eq!(split(options.clone(), &text, n), split(options, &text, usize::MAX));
        }
    }
}
