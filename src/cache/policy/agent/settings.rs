//! The weight of each of `agent`'s signals, in one table.

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $default:expr,)*) => {
        /// Weights and parts. A signal of weight 0 is off and costs nothing.
        ///
        /// Weights but `window` are in the spread that log importance has over the unprotected
        /// slots of a head; parts are of the budget.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Settings {
            $($(#[$doc])* pub $name: f32,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Settings {
            /// The names of all settings.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            fn setting(&mut self, name: &str) -> Option<&mut f32> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

settings! {
    /// Log of the mean weight that the window's queries give, beside log of what the bank's do.
    window: 0.2,
    /// Keys that lie where most others lie lose.
    redundancy: 0.3,
    /// Priors of tokens from the structure of code.
    structure: 0.0,
    /// What a later edit or view has outdated loses.
    staleness: 0.0,
    /// What later tokens say again loses.
    repetition: 0.0,
    /// Edits, failing assertions, and what these name gain.
    evidence: 0.0,
    /// What of the newest tool call stays.
    call_part: 0.125,
    /// What of the task and the instructions stays.
    task_part: 0.125,
    /// What of evidence stays.
    evidence_part: 0.0,
}

/// A change of settings that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("`{0}` is no setting of agent; known are {known}", known = Settings::NAMES.join(", "))]
    Unknown(String),
    #[error("`{value}` is no value for {name}")]
    Value { name: String, value: String },
}

impl Settings {
    /// The defaults with changes, such as `window=0;redundancy=0.5`: for measurements.
    ///
    /// # Errors
    /// Names what is no setting, or no number.
    pub fn parse(changes: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        for change in changes.split(';') {
            let (name, value) = change.split_once('=').unwrap_or((change, ""));
            let setting = settings.setting(name);
            let setting = setting.ok_or_else(|| SettingError::Unknown(name.to_owned()))?;
            *setting = match value.parse() {
                Ok(value) if f32::is_finite(value) => value,
                _ => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    return Err(SettingError::Value { name, value });
                }
            };
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_made_to_the_defaults_and_nonsense_is_named() {
        let changed = Settings::parse("window=0;call_part=0.5").unwrap();
        assert_eq!(changed, Settings { window: 0.0, call_part: 0.5, ..Settings::default() });
        let error = |changes| Settings::parse(changes).unwrap_err().to_string();
        assert!(
            error("windows=1").starts_with("`windows` is no setting of agent; known are window, ")
        );
        assert_eq!(error("window"), "`` is no value for window");
        assert_eq!(error("window=inf"), "`inf` is no value for window");
    }
}
