//! Built-in rules: they handle an event without a call to the brain.

use std::time::Duration;

use serde_json::Value;

use super::json_template::JsonTemplate;
use super::template::{StateValues, Template, TemplateError};
use super::view::EventView;

/// A built-in rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub(super) operations: Vec<JsonTemplate>,
    pub(super) reply: Option<JsonTemplate>,
    pub(super) set: Vec<StateWrite>,
    pub(super) cooldown: Option<Cooldown>,
}

/// A value that a rule stores.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StateWrite {
    pub(super) key: Template,
    /// The value; `null` deletes it.
    pub(super) value: JsonTemplate,
    pub(super) lifetime: Option<Duration>,
}

/// Time during which a handler is not called again for the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cooldown {
    pub(super) key: Template,
    /// How long it is after each event; `None` if only the responses of the webhook start it.
    pub(super) duration: Option<Duration>,
}

impl Cooldown {
    /// Its key for an event.
    pub(super) fn key(&self, view: &EventView<'_>) -> Result<String, TemplateError> {
        self.key.key(view, &StateValues::new())
    }

    /// The key and the duration of the cooldown that starts after an event, if one does.
    pub(super) fn after(&self, view: &EventView<'_>) -> Result<Option<(String, Duration)>, TemplateError> {
        self.duration.map(|duration| Ok((self.key(view)?, duration))).transpose()
    }
}

/// Output of a rule for an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleOutput {
    /// Operations in the event's guild, as `POST /v1/guilds/{id}/operations` takes them.
    pub operations: Vec<Value>,
    /// The response, if the event is an interaction: a message, or for the synchronous path also choices or a modal.
    pub reply: Option<Value>,
    /// Values to store: key, value (`null` deletes it), and lifetime.
    pub set: Vec<(String, Value, Option<Duration>)>,
    /// Key and duration of the cooldown that starts.
    pub cooldown: Option<(String, Duration)>,
}

impl Rule {
    /// Applies the rule to an event. `state` has the existing values of
    /// [`EventHandler::needed_keys`](super::EventHandler::needed_keys).
    ///
    /// # Errors
    ///
    /// When a placeholder has no value, or a key is reserved. Then there is no output at all.
    pub fn apply(&self, view: &EventView<'_>, state: &StateValues) -> Result<RuleOutput, TemplateError> {
        let operations = self.operations.iter().map(|shape| shape.value(view, state)).collect::<Result<_, _>>()?;
        let reply = match &self.reply {
            Some(reply) if view.event().interaction.is_some() => Some(reply.value(view, state)?),
            Some(_) | None => None,
        };
        let set = self.set.iter().map(|write| {
            let key = write.key.state_key(view, state)?;
            let lifetime = write.lifetime.or_else(|| default_lifetime(&key));
            Ok((key, write.value.value(view, state)?, lifetime))
        });
        let set = set.collect::<Result<_, _>>()?;
        let cooldown = match &self.cooldown {
            Some(cooldown) => cooldown.after(view)?,
            None => None,
        };
        Ok(RuleOutput { operations, reply, set, cooldown })
    }

    /// Whether it responds to interactions.
    #[must_use]
    pub const fn has_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// Whether it never has any output.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.operations.is_empty() && self.reply.is_none() && self.set.is_empty() && self.cooldown.is_none()
    }
}

/// Default lifetime of a stored value: `sess:` 15 minutes, `cache:` 5 minutes, others unlimited.
#[must_use]
pub fn default_lifetime(key: &str) -> Option<Duration> {
    if key.starts_with("sess:") {
        Some(Duration::from_secs(15 * 60))
    } else if key.starts_with("cache:") {
        Some(Duration::from_secs(5 * 60))
    } else {
        None
    }
}
