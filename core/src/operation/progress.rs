//! Progress of an operation of several calls.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of steps that the text lists. The rest are counted.
const MAX_LISTED_STEPS: usize = 5;

/// One confirmed call with an effect, of an operation that makes several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ProgressStep {
    /// A message was sent.
    MessageSent {
        /// Its channel.
        #[serde(with = "as_text")]
        channel_id: u64,
        /// The message.
        #[serde(with = "as_text")]
        message_id: u64,
        /// The key of the message from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// A message was changed.
    MessageEdited {
        /// Its channel.
        #[serde(with = "as_text")]
        channel_id: u64,
        /// The message.
        #[serde(with = "as_text")]
        message_id: u64,
    },
    /// The permission overwrite of a role was set in a channel.
    RoleOverwriteSet {
        /// The channel.
        #[serde(with = "as_text")]
        channel_id: u64,
        /// The role.
        #[serde(with = "as_text")]
        role_id: u64,
    },
    /// The permission overwrite of a member was set in a channel.
    MemberOverwriteSet {
        /// The channel.
        #[serde(with = "as_text")]
        channel_id: u64,
        /// The member.
        #[serde(with = "as_text")]
        user_id: u64,
    },
}

impl ProgressStep {
    /// Names of all steps in the API and the store.
    pub const NAMES: [&'static str; 4] =
        ["message_sent", "message_edited", "role_overwrite_set", "member_overwrite_set"];

    /// Whether repeating it would create a second object: it must be stored before the next call is sent.
    #[must_use]
    pub const fn creates(&self) -> bool {
        match self {
            Self::MessageSent { .. } => true,
            Self::MessageEdited { .. } | Self::RoleOverwriteSet { .. } | Self::MemberOverwriteSet { .. } => false,
        }
    }
}

impl fmt::Display for ProgressStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageSent { channel_id, message_id, .. } => {
                write!(f, "sent message {message_id} in channel {channel_id}")
            }
            Self::MessageEdited { channel_id, message_id } => {
                write!(f, "edited message {message_id} in channel {channel_id}")
            }
            Self::RoleOverwriteSet { channel_id, role_id } => {
                write!(f, "set the overwrite of role {role_id} in channel {channel_id}")
            }
            Self::MemberOverwriteSet { channel_id, user_id } => {
                write!(f, "set the overwrite of member {user_id} in channel {channel_id}")
            }
        }
    }
}

/// Completed steps of an operation of several calls, in order. Empty for an operation of a single call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Progress(Vec<ProgressStep>);

impl Progress {
    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> &[ProgressStep] {
        &self.0
    }

    /// Whether no step was completed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a step. A step that is already present stays where it is.
    pub fn add(&mut self, step: ProgressStep) {
        if !self.0.contains(&step) {
            self.0.push(step);
        }
    }

    /// JSON for the store; `None` if no step was completed.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        let json = || serde_json::to_string(self).expect("invariant: steps serialize to JSON");
        (!self.is_empty()).then(json)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().take(MAX_LISTED_STEPS).enumerate() {
            write!(f, "{}{step}", if index == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(MAX_LISTED_STEPS) {
            0 => Ok(()),
            more => write!(f, " and {more} more steps"),
        }
    }
}

/// Snowflakes are strings in JSON.
mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_survives_the_store_and_names_its_steps() {
        let mut progress = Progress::default();
        assert_eq!((progress.to_json(), progress.to_string()), (None, String::new()));
        let sent = ProgressStep::MessageSent { channel_id: 9, message_id: u64::MAX, key: Some("rules".to_owned()) };
        progress.add(sent.clone());
        progress.add(sent);
        for role_id in 1..7 {
            progress.add(ProgressStep::RoleOverwriteSet { channel_id: 9, role_id });
        }
        let json = progress.to_json().unwrap();
        assert!(json.starts_with(r#"[{"step":"message_sent","channel_id":"9","message_id":"18446744073709551615","#));
        assert_eq!(serde_json::from_str::<Progress>(&json).unwrap(), progress);
        assert_eq!(progress.steps().len(), 7, "a step occurs once");
        assert!(progress.to_string().ends_with(" and 2 more steps"), "{progress}");
    }

    #[test]
    fn every_step_is_named() {
        let steps = [
            ProgressStep::MessageSent { channel_id: 1, message_id: 2, key: None },
            ProgressStep::MessageEdited { channel_id: 1, message_id: 2 },
            ProgressStep::RoleOverwriteSet { channel_id: 1, role_id: 2 },
            ProgressStep::MemberOverwriteSet { channel_id: 1, user_id: 2 },
        ];
        let named = steps.map(|step| serde_json::to_value(step).unwrap()["step"].as_str().unwrap().to_owned());
        assert_eq!(named, ProgressStep::NAMES);
    }
}
