//! What is wrong with the settings: all of it at once.

use std::fmt;

use super::source::SettingOrigin;

/// One thing wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The setting, as a dotted path.
    pub key: String,
    /// Where the wrong value came from, when there is one.
    pub origin: Option<SettingOrigin>,
    /// What is wrong and what is allowed. Never holds a secret.
    pub says: String,
}

impl fmt::Display for SettingsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.says)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// Everything wrong with the settings, in the order of the layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// Each thing wrong; never empty.
    pub problems: Vec<SettingsProblem>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "a setting is wrong:\n  {only}"),
            problems => {
                write!(f, "{} settings are wrong:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
