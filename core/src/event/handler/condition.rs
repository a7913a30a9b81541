//! Conditions: which of the events that match a handler's patterns it handles.

use serde_json::Value;

use super::view::{DataPath, EventView};

/// Conditions of a handler. All that are set must be met.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HandlerCondition {
    /// `guild`: one of these.
    pub(super) guilds: Option<Vec<u64>>,
    /// `channel`: one of these.
    pub(super) channels: Option<Vec<u64>>,
    /// `user`: one of these.
    pub(super) users: Option<Vec<u64>>,
    /// `bot`: whether the event was caused by a bot.
    pub(super) bot: Option<bool>,
    /// `fields`: values at paths of the payload.
    pub(super) fields: Vec<(DataPath, Value)>,
}

impl HandlerCondition {
    /// The field of the first condition that is not met; `None` if all are. The payload is checked last, and only if a
    /// condition needs it.
    pub(super) fn unmet(&self, view: &EventView<'_>) -> Option<&'static str> {
        let event = view.event();
        let one_of = |allowed: &Option<Vec<u64>>, is: Option<u64>| {
            allowed.as_ref().is_none_or(|allowed| is.is_some_and(|is| allowed.contains(&is)))
        };
        if !one_of(&self.guilds, event.guild) {
            Some("guild")
        } else if !one_of(&self.channels, event.channel) {
            Some("channel")
        } else if !one_of(&self.users, event.user) {
            Some("user")
        } else if self.bot.is_some_and(|bot| view.is_from_bot().unwrap_or(false) != bot) {
            Some("bot")
        } else if !self.fields.iter().all(|(path, value)| {
            view.data().and_then(|data| path.find(data)).is_some_and(|found| values_equal(found, value))
        }) {
            Some("fields")
        } else {
            None
        }
    }
}

/// Whether two values are equal; numbers are compared by value.
fn values_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (one, other) => one == other,
    }
}
