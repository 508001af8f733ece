//! Which rules of folding are in force.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::fold::{RULES, Rule};

/// Whether tool output is folded, and by which rules. In JSON `"on"`, `"off"` or
/// `{"off": ["repeats"]}`, on the command line `on`, `off` or `off:repeats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct Condense {
    pub enabled: bool,
    /// Names of rules that are switched off.
    pub off: BTreeSet<String>,
}

/// A switch for a rule that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no rule is named `{name}`; the rules are {known}")]
pub struct UnknownRule {
    pub name: String,
    /// The names of all rules.
    pub known: String,
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "`condense` must be \"on\", \"off\" or {\"off\": [names of rules]}"
)]
enum Form {
    Word(Word),
    Rules { off: BTreeSet<String> },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    On,
    Off,
}

impl Default for Condense {
    fn default() -> Self {
        Self { enabled: true, off: BTreeSet::new() }
    }
}

impl Condense {
    /// No folding.
    pub fn off() -> Self {
        Self { enabled: false, off: BTreeSet::new() }
    }

    /// # Errors
    /// Where a rule is switched off that is none of `rules`.
    pub fn check(&self, rules: &[&dyn Rule]) -> Result<(), UnknownRule> {
        let is_rule = |name: &str| rules.iter().any(|rule| rule.name() == name);
        let unknown = self.off.iter().find(|name| !is_rule(name));
        unknown.map_or(Ok(()), |name| Err(UnknownRule { name: name.clone(), known: names(rules) }))
    }

    /// The same without switches of rules that are not there, as of another version.
    pub fn known(mut self) -> Self {
        self.off.retain(|name| RULES.iter().any(|rule| rule.name() == name));
        self
    }
}

/// Names of rules, as errors list them.
fn names(rules: &[&dyn Rule]) -> String {
    rules.iter().map(|rule| rule.name()).collect::<Vec<_>>().join(", ")
}

impl From<Form> for Condense {
    fn from(form: Form) -> Self {
        match form {
            Form::Word(Word::On) => Self::default(),
            Form::Word(Word::Off) => Self::off(),
            Form::Rules { off } => Self { enabled: true, off },
        }
    }
}

impl From<Condense> for Form {
    fn from(condense: Condense) -> Self {
        match (condense.enabled, condense.off.is_empty()) {
            (false, _) => Self::Word(Word::Off),
            (true, true) => Self::Word(Word::On),
            (true, false) => Self::Rules { off: condense.off },
        }
    }
}

impl fmt::Display for Condense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.enabled, self.off.is_empty()) {
            (false, _) => f.write_str("off"),
            (true, true) => f.write_str("on"),
            (true, false) => {
                let off: Vec<_> = self.off.iter().map(String::as_str).collect();
                write!(f, "off:{}", off.join(","))
            }
        }
    }
}

impl FromStr for Condense {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let condense = match text.split_once(':') {
            None if text == "on" => Self::default(),
            None if text == "off" => Self::off(),
            Some(("off", rules)) => {
                Self { enabled: true, off: rules.split(',').map(str::to_owned).collect() }
            }
            _ => {
                return Err(format!(
                    "`{text}` is not `on`, `off` or `off:` and names of rules ({})",
                    names(RULES)
                ));
            }
        };
        condense.check(RULES).map_err(|error| error.to_string())?;
        Ok(condense)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        let rule = RULES[0].name();
        for (value, text) in [
            (json!("on"), "on".to_owned()),
            (json!("off"), "off".to_owned()),
            (json!({"off": [rule]}), format!("off:{rule}")),
        ] {
            let condense: Condense = from_value(value.clone()).unwrap();
            assert_eq!(json!(condense), value);
            assert_eq!(condense.to_string(), text);
            assert_eq!(text.parse(), Ok(condense));
        }
        assert_eq!(from_value::<Condense>(json!({"off": []})).unwrap(), Condense::default());
    }

    #[test]
    fn what_it_cannot_be_is_said() {
        for value in [json!("maybe"), json!(true), json!({"of": []}), json!({"off": 1})] {
            let error = from_value::<Condense>(value).unwrap_err().to_string();
            assert!(error.contains("\"off\""), "{error}");
        }
        for text in ["", "no", "off:", "off:nothing", "on:x"] {
            let error = text.parse::<Condense>().unwrap_err();
            assert!(error.contains(RULES[0].name()), "{error}");
        }
        let unknown: Condense = from_value(json!({"off": ["nothing"]})).unwrap();
        assert!(unknown.check(RULES).is_err());
        assert_eq!(unknown.known(), Condense::default());
    }
}
