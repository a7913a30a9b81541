//! Event handlers: which events they handle, and what they do.
//!
//! ```text
//!  Event ─▶ matching(name) ─▶ accepts(view) ─▶ needed_keys(view) ─┬─▶ Rule::apply ─▶ operations, reply, set
//!           patterns, by       conditions       stored values     └─▶ body ─▶ a webhook, which returns the same
//!           name alone                                                 └─▶ body ─▶ the broker, for its consumers
//! ```

mod body;
mod check;
mod condition;
mod json_template;
mod names;
mod pattern;
mod placeholder;
mod read;
mod rule;
mod template;
mod view;
mod webhook;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::body::{EventBodyError, body, event_id, from_body, trace};
pub use self::condition::HandlerCondition;
pub use self::names::KNOWN_EVENTS;
pub use self::pattern::EventPattern;
pub use self::read::HandlerFieldError;
use self::rule::Cooldown;
pub use self::rule::{Rule, RuleOutput, default_lifetime};
pub use self::template::{Template, TemplateError};
pub use self::view::EventView;
pub use self::webhook::{ResponsePolicy, Secret, WebhookSpec};

/// All handlers, in the order of the configuration. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventHandlers(Arc<[EventHandler]>);

/// One handler.
#[derive(Clone, Debug)]
pub struct EventHandler {
    /// `name`: unique, and stable over restarts.
    pub name: Arc<str>,
    /// `on`: patterns of event names.
    pub on: Vec<EventPattern>,
    /// `when`: conditions on matching events.
    pub when: HandlerCondition,
    /// What it does with an event.
    pub action: HandlerAction,
    /// `defer`: how interactions are deferred; `None` for the default.
    pub defer: Option<DeferMode>,
    /// `ephemeral`: whether only the user of the interaction sees the response; `None` for the default.
    pub ephemeral: Option<bool>,
    /// `needs`: keys of stored values that it receives.
    pub needs: Vec<Template>,
    /// `shadow`: only reports what it would do.
    pub shadow: bool,
    cooldown: Option<Cooldown>,
}

/// Action of a handler.
#[derive(Clone, Debug)]
pub enum HandlerAction {
    /// A built-in rule.
    Rule(Rule),
    /// A webhook call to the brain.
    Webhook(WebhookSpec),
    /// The event is published to the message broker, for any consumers.
    Broker,
}

/// Whether an interaction is deferred before the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferMode {
    /// It is deferred at once, unless its kind does not allow that.
    Auto,
    /// It is not deferred: the response must be in time.
    Never,
}

impl EventHandlers {
    /// Indexes of the handlers whose patterns match the name of an event, in order. Always the same for a name.
    #[must_use]
    pub fn matching(&self, name: &str) -> Vec<usize> {
        let matching = |handler: &EventHandler| handler.on.iter().any(|pattern| pattern.matches(name));
        self.0.iter().enumerate().filter(|(_, handler)| matching(handler)).map(|(index, _)| index).collect()
    }

    /// The handler at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&EventHandler> {
        self.0.get(index)
    }

    /// The handler with a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&EventHandler> {
        self.0.iter().find(|handler| &*handler.name == name)
    }

    /// All handlers, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, EventHandler> {
        self.0.iter()
    }

    /// Number of handlers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same handlers, all in shadow mode.
    #[must_use]
    pub fn in_shadow(&self) -> Self {
        Self(self.0.iter().map(|handler| EventHandler { shadow: true, ..handler.clone() }).collect())
    }
}

impl<'a> IntoIterator for &'a EventHandlers {
    type Item = &'a EventHandler;
    type IntoIter = std::slice::Iter<'a, EventHandler>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<EventHandler> for EventHandlers {
    fn from_iter<T: IntoIterator<Item = EventHandler>>(handlers: T) -> Self {
        Self(handlers.into_iter().collect())
    }
}

impl EventHandler {
    /// Whether its conditions accept an event that matches one of its patterns. Parses the payload only if a condition
    /// needs it.
    #[must_use]
    pub fn accepts(&self, view: &EventView<'_>) -> bool {
        self.unmet(view).is_none()
    }

    /// The condition that rejects an event, by its field of `when`; `None` if all accept it.
    #[must_use]
    pub fn unmet(&self, view: &EventView<'_>) -> Option<&'static str> {
        self.when.unmet(view)
    }

    /// Whether the store must be queried before it is called.
    #[must_use]
    pub const fn needs_state(&self) -> bool {
        !self.needs.is_empty() || self.cooldown.is_some()
    }

    /// The keys of the stored values that it needs for an event.
    ///
    /// # Errors
    ///
    /// When a placeholder has no value, or a key is reserved.
    pub fn needed_keys(&self, view: &EventView<'_>) -> Result<Vec<String>, TemplateError> {
        self.needs.iter().map(|key| key.state_key(view, &template::StateValues::new())).collect()
    }

    /// Key of its cooldown for an event: it is not called while a cooldown with this key lasts. `None` if it has none.
    ///
    /// # Errors
    ///
    /// When a placeholder has no value.
    pub fn cooldown_key(&self, view: &EventView<'_>) -> Result<Option<String>, TemplateError> {
        self.cooldown.as_ref().map(|cooldown| cooldown.key(view)).transpose()
    }

    /// Key and duration of the cooldown that starts after an event, unless its webhook starts another one.
    ///
    /// # Errors
    ///
    /// When a placeholder has no value.
    pub fn cooldown_after(&self, view: &EventView<'_>) -> Result<Option<(String, Duration)>, TemplateError> {
        self.cooldown.as_ref().map_or(Ok(None), |cooldown| cooldown.after(view))
    }

    /// Whether cooldowns have an effect on it.
    #[must_use]
    pub const fn has_cooldown(&self) -> bool {
        self.cooldown.is_some()
    }
}
