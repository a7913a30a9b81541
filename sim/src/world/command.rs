//! Application commands, global and of one guild.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::id::Snowflake;

/// A registered command; its JSON is Discord's application command object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) id: Snowflake,
    pub(crate) application_id: Snowflake,
    /// Changes whenever the command does.
    pub(crate) version: Snowflake,
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    pub(crate) name: String,
    pub(crate) description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guild_id: Option<Snowflake>,
    /// Permissions, localizations, options, contexts: stored as given.
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

impl Command {
    /// Whether it has this application, kind and name.
    pub(crate) fn is_same(&self, application: Snowflake, kind: u8, name: &str) -> bool {
        self.application_id == application && self.kind == kind && self.name == name
    }
}
