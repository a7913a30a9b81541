//! Handlers: what is done with which events.
//!
//! ```text
//!  Event ─▶ matching(name) ─▶ wants(view) ─▶ needed(view): stored values ─┬─▶ Rule::apply ─▶ operations, reply, set
//!           patterns, by       conditions                                └─▶ body ─▶ a webhook, which answers the same
//!           name alone
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
pub use self::pattern::EventPattern;
pub use self::read::HandlerFieldError;
use self::rule::Cooldown;
pub use self::rule::{Rule, RuleOutput, lasts};
pub use self::template::{Template, TemplateError};
pub use self::view::EventView;
pub use self::webhook::{ResponsePolicy, Secret, WebhookSpec};

/// All handlers, in the order in which they were written. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventHandlers(Arc<[EventHandler]>);

/// One handler.
#[derive(Clone, Debug)]
pub struct EventHandler {
    /// `name`: no two have the same, and it stays the same over restarts.
    pub name: Arc<str>,
    /// `on`: which events it listens to.
    pub on: Vec<EventPattern>,
    /// `when`: which of them it wants.
    pub when: HandlerCondition,
    /// What it does with them.
    pub does: HandlerAction,
    /// `defer`: what becomes of interactions, if not what becomes of others.
    pub defer: Option<DeferMode>,
    /// `ephemeral`: whether only who asked sees the answer, if not as with others.
    pub ephemeral: Option<bool>,
    /// `needs`: keys of stored values that it is given.
    pub needs: Vec<Template>,
    /// `shadow`: it is only told what it would do.
    pub shadow: bool,
    cooldown: Option<Cooldown>,
}

/// What a handler does.
#[derive(Clone, Debug)]
pub enum HandlerAction {
    /// What is written there.
    Rule(Rule),
    /// What a brain says.
    Webhook(WebhookSpec),
}

/// What becomes of an interaction before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferMode {
    /// It is deferred at once, unless it is of a kind that cannot be.
    Auto,
    /// It is answered in time, or not at all.
    Never,
}

impl EventHandlers {
    /// Those whose patterns match the name of an event, by their places, in order. It is the same for a name each time.
    #[must_use]
    pub fn matching(&self, name: &str) -> Vec<usize> {
        let matching = |handler: &EventHandler| handler.on.iter().any(|pattern| pattern.matches(name));
        self.0.iter().enumerate().filter(|(_, handler)| matching(handler)).map(|(place, _)| place).collect()
    }

    /// The one at a place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&EventHandler> {
        self.0.get(place)
    }

    /// The one of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&EventHandler> {
        self.0.iter().find(|handler| &*handler.name == name)
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, EventHandler> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, all of them in shadow.
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
    /// Whether it wants an event that matches one of its patterns. It looks at the payload only if a condition is about
    /// that.
    #[must_use]
    pub fn wants(&self, view: &EventView<'_>) -> bool {
        self.unmet(view).is_none()
    }

    /// The condition that keeps it from wanting an event, by its field of `when`; `None` if it wants it.
    #[must_use]
    pub fn unmet(&self, view: &EventView<'_>) -> Option<&'static str> {
        self.when.unmet(view)
    }

    /// Whether it has to be asked of the store before it can be called.
    #[must_use]
    pub const fn needs_state(&self) -> bool {
        !self.needs.is_empty() || self.cooldown.is_some()
    }

    /// The keys of the stored values that it needs for an event.
    ///
    /// # Errors
    ///
    /// When a placeholder stands for nothing, or a key is reserved.
    pub fn needed(&self, view: &EventView<'_>) -> Result<Vec<String>, TemplateError> {
        self.needs.iter().map(|key| key.state_key(view, &template::StateValues::new())).collect()
    }

    /// What keeps it from being called for an event, if it was called for the same key that recently; and for how long it
    /// then is kept from it.
    ///
    /// # Errors
    ///
    /// When a placeholder stands for nothing.
    pub fn cooldown(&self, view: &EventView<'_>) -> Result<Option<(String, Duration)>, TemplateError> {
        self.cooldown.as_ref().map(|cooldown| cooldown.given(view)).transpose()
    }
}
