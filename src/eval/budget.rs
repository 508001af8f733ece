//! Budgets as users ask for them: in slots, or as a share of what is read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::session::record::BUDGET_MIN;

/// A budget before it is known how many tokens there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asked {
    Slots(usize),
    /// Percent of the tokens that are read.
    Percent(usize),
}

/// A text that is no budget.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no budget; write slots, such as 1024 (at least {BUDGET_MIN}), or a share, such as 25%"
)]
pub struct NoBudget(String);

impl Asked {
    /// Slots for a stream of `n_tokens`.
    pub fn slots(self, n_tokens: usize) -> usize {
        match self {
            Self::Slots(n_slots) => n_slots,
            Self::Percent(percent) => (n_tokens * percent / 100).max(BUDGET_MIN),
        }
    }
}

impl FromStr for Asked {
    type Err = NoBudget;

    fn from_str(text: &str) -> Result<Self, NoBudget> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.parse().map(Self::Percent),
            None => text.parse().map(Self::Slots),
        };
        match parsed {
            Ok(Self::Slots(n_slots)) if n_slots < BUDGET_MIN => Err(NoBudget(text.to_owned())),
            Ok(Self::Percent(percent)) if !(1..=100).contains(&percent) => {
                Err(NoBudget(text.to_owned()))
            }
            Ok(asked) => Ok(asked),
            Err(_) => Err(NoBudget(text.to_owned())),
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(n_slots) => write!(f, "{n_slots}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A number of slots, or a text such as `"25%"`.
impl Serialize for Asked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Slots(n_slots) => serializer.serialize_u64(*n_slots as u64),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_shares_are_read_and_written_alike() {
        for (text, json, slots) in
            [("1024", "1024", 1_024), ("25%", "\"25%\"", 2_000), ("1%", "\"1%\"", BUDGET_MIN)]
        {
            let asked: Asked = text.parse().unwrap();
            assert_eq!(asked.to_string(), text);
            assert_eq!(asked.slots(8_000), slots);
            assert_eq!(serde_json::to_string(&asked).unwrap(), json);
            assert_eq!(serde_json::from_str::<Asked>(json).unwrap(), asked);
        }
    }

    #[test]
    fn what_is_no_budget_is_refused() {
        for text in ["", "%", "0%", "101%", "-5", "255", "many"] {
            assert!(text.parse::<Asked>().is_err(), "{text}");
        }
    }
}
