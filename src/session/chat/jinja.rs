//! A chat template as Hugging Face's `apply_chat_template` runs it.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

const NAME: &str = "chat_template";

/// A calendar day: year, month, day.
pub type Date = (u16, u8, u8);

/// The day that templates see unless told otherwise. It never passes, so that a prompt, and the
/// cache made of it, stay the same from one day to the next. Llama 3.1 has this one as default.
pub const TODAY: Date = (2024, 7, 26);

/// A compiled template.
pub struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl Template {
    /// Compiles `source` with the settings and functions that published templates expect.
    ///
    /// # Errors
    /// Where the source is no valid Jinja.
    pub fn new(source: &str, bos: &str, eos: &str, today: Date) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment
            .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| strftime(&format, today));
        // In Python text is iterable; Llama's template relies on it.
        environment.add_test("iterable", |value: &Value| {
            value.kind() == ValueKind::String || value.try_iter().is_ok()
        });
        environment.add_template_owned(NAME, source.to_owned())?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Renders a conversation; with `thinking` given, an assistant's turn is opened behind it.
    ///
    /// # Errors
    /// What the template raises, for example for roles that it does not know.
    pub fn render(
        &self,
        messages: &[Json],
        tools: &[Json],
        thinking: Option<bool>,
    ) -> Result<String, Error> {
        let undefined = || Value::UNDEFINED;
        self.environment.get_template(NAME)?.render(context! {
            messages => Value::from(Serde(messages)),
            tools => if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) },
            // Llama's choice; in the system message they stay apart from what the user says.
            tools_in_user_message => false,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            add_generation_prompt => thinking.is_some(),
            enable_thinking => thinking.map_or_else(undefined, Value::from),
        })
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: what models saw in training. Other
/// options change nothing for what templates dump.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let indent = indent.map(|width| " ".repeat(width));
    let json = match &indent {
        Some(indent) => dump(value, PrettyFormatter::with_indent(indent.as_bytes())),
        None => dump(value, Spaced),
    };
    json.map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// One line of JSON with a space behind each comma and colon, as Python writes it.
pub fn one_line(value: &impl Serialize) -> String {
    dump(value, Spaced).unwrap_or_default()
}

fn dump(value: &impl Serialize, formatter: impl Formatter) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

/// The part of `strftime` that chat templates use; the day has no hour.
fn strftime(format: &str, (year, month, day): Date) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let name = MONTHS[usize::from(month.clamp(1, 12)) - 1];
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => text += &format!("{day:02}"),
            Some('m') => text += &format!("{month:02}"),
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('b') => text += &name[..3],
            Some('B') => text += name,
            Some('H' | 'M' | 'S') => text += "00",
            Some('%') => text.push('%'),
            other => {
                let message = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, message: Json) -> String {
        Template::new(source, "<s>", "</s>", TODAY).unwrap().render(&[message], &[], None).unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let message = serde_json::json!({"b": [1, "<é'&>", {}], "a": null, "c": 1.0});
        assert_eq!(
            render("{{ messages[0] | tojson }}", message.clone()),
            r#"{"b": [1, "<é'&>", {}], "a": null, "c": 1.0}"#
        );
        assert_eq!(
            render("{{ messages[0] | tojson(indent=2) }}", message),
            "{\n  \"b\": [\n    1,\n    \"<é'&>\",\n    {}\n  ],\n  \"a\": null,\n  \"c\": 1.0\n}"
        );
    }

    #[test]
    fn the_day_is_the_one_given() {
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", Json::Null), "26 Jul 2024");
        assert_eq!(
            strftime("%Y-%m-%d %B %y %H:%M %%", (2025, 1, 2)).unwrap(),
            "2025-01-02 January 25 00:00 %"
        );
        assert!(strftime("%q", TODAY).is_err());
    }

    #[test]
    fn what_a_template_raises_is_the_error() {
        let template =
            Template::new("{{ raise_exception('no such role') }}", "", "", TODAY).unwrap();
        let error = template.render(&[], &[], None).unwrap_err().to_string();
        assert!(error.contains("no such role"), "{error}");
    }
}
