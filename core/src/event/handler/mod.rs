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
mod names;
mod pattern;
mod placeholder;
mod read;
mod rule;
mod shape;
mod template;
mod view;
mod webhook;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::body::{NotAnEvent, body, event_id, from_body, trace};
pub use self::condition::When;
pub use self::pattern::Pattern;
pub use self::read::Wrong;
use self::rule::Cooldown;
pub use self::rule::{Given, Rule, lasts};
pub use self::template::{Template, TemplateProblem};
pub use self::view::View;
pub use self::webhook::{AnswerPolicy, Secret, WebhookSpec};

/// All handlers, in the order in which they were written. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Handlers(Arc<[Handler]>);

/// One handler.
#[derive(Clone, Debug)]
pub struct Handler {
    /// `name`: no two have the same, and it stays the same over restarts.
    pub name: Arc<str>,
    /// `on`: which events it listens to.
    pub on: Vec<Pattern>,
    /// `when`: which of them it wants.
    pub when: When,
    /// What it does with them.
    pub does: Does,
    /// `defer`: what becomes of interactions, if not what becomes of others.
    pub defer: Option<Defer>,
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
pub enum Does {
    /// What is written there.
    Rule(Rule),
    /// What a brain says.
    Webhook(WebhookSpec),
}

/// What becomes of an interaction before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defer {
    /// It is deferred at once, unless it is of a kind that cannot be.
    Auto,
    /// It is answered in time, or not at all.
    Never,
}

impl Handlers {
    /// Those whose patterns match the name of an event, by their places, in order. It is the same for a name each time.
    #[must_use]
    pub fn matching(&self, name: &str) -> Vec<usize> {
        let matching = |handler: &Handler| handler.on.iter().any(|pattern| pattern.matches(name));
        self.0.iter().enumerate().filter(|(_, handler)| matching(handler)).map(|(place, _)| place).collect()
    }

    /// The one at a place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Handler> {
        self.0.get(place)
    }

    /// The one of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Handler> {
        self.0.iter().find(|handler| &*handler.name == name)
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Handler> {
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
        Self(self.0.iter().map(|handler| Handler { shadow: true, ..handler.clone() }).collect())
    }
}

impl<'a> IntoIterator for &'a Handlers {
    type Item = &'a Handler;
    type IntoIter = std::slice::Iter<'a, Handler>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Handler> for Handlers {
    fn from_iter<T: IntoIterator<Item = Handler>>(handlers: T) -> Self {
        Self(handlers.into_iter().collect())
    }
}

impl Handler {
    /// Whether it wants an event that matches one of its patterns. It looks at the payload only if a condition is about
    /// that.
    #[must_use]
    pub fn wants(&self, view: &View<'_>) -> bool {
        self.unmet(view).is_none()
    }

    /// The condition that keeps it from wanting an event, by its field of `when`; `None` if it wants it.
    #[must_use]
    pub fn unmet(&self, view: &View<'_>) -> Option<&'static str> {
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
    pub fn needed(&self, view: &View<'_>) -> Result<Vec<String>, TemplateProblem> {
        self.needs.iter().map(|key| key.state_key(view, &template::State::new())).collect()
    }

    /// What keeps it from being called for an event, if it was called for the same key that recently; and for how long it
    /// then is kept from it.
    ///
    /// # Errors
    ///
    /// When a placeholder stands for nothing.
    pub fn cooldown(&self, view: &View<'_>) -> Result<Option<(String, Duration)>, TemplateProblem> {
        self.cooldown.as_ref().map(|cooldown| cooldown.given(view)).transpose()
    }
}
