//! Conditions: which of the events that match a handler's patterns it wants.

use serde_json::Value;

use super::view::{Path, View};

/// What has to be so. All of it; what is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct When {
    /// `guild`: one of these.
    pub(super) guilds: Option<Vec<u64>>,
    /// `channel`: one of these.
    pub(super) channels: Option<Vec<u64>>,
    /// `user`: one of these.
    pub(super) users: Option<Vec<u64>>,
    /// `bot`: whether who did it is a bot.
    pub(super) bot: Option<bool>,
    /// `fields`: what stands where in the payload.
    pub(super) fields: Vec<(Path, Value)>,
}

impl When {
    /// Whether all of it is so. The payload is looked at last, and only if it matters.
    pub(super) fn holds(&self, view: &View<'_>) -> bool {
        let event = view.event();
        let one_of = |wanted: &Option<Vec<u64>>, is: Option<u64>| {
            wanted.as_ref().is_none_or(|wanted| is.is_some_and(|is| wanted.contains(&is)))
        };
        one_of(&self.guilds, event.guild)
            && one_of(&self.channels, event.channel)
            && one_of(&self.users, event.user)
            && self.bot.is_none_or(|bot| view.by_bot().unwrap_or(false) == bot)
            && self.fields.iter().all(|(path, value)| {
                view.data().and_then(|data| path.find(data)).is_some_and(|found| same(found, value))
            })
    }
}

/// Whether two values are the same, however a number is written.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (one, other) => one == other,
    }
}
