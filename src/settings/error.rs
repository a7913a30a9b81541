//! Errors in the settings, all reported at once.

use std::fmt;

use super::source::SettingOrigin;

/// An error in one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The setting, as a dotted path.
    pub key: String,
    /// Where the invalid value came from, if there is one.
    pub origin: Option<SettingOrigin>,
    /// Description of the error and of the permitted values. Never contains a secret.
    pub message: String,
}

impl fmt::Display for SettingsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.message)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// All errors in the settings, in the order of the layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The errors; never empty.
    pub problems: Vec<SettingsProblem>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "1 setting is invalid:\n  {only}"),
            problems => {
                write!(f, "{} settings are invalid:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
