//! View of an event for handlers.

use std::cell::OnceCell;

use serde_json::Value;

use crate::event::Event;

/// View of an event for handlers: its payload is parsed on first access, and at most once.
#[derive(Debug)]
pub struct EventView<'a> {
    event: &'a Event,
    data: OnceCell<Option<Value>>,
}

impl<'a> EventView<'a> {
    /// Creates a view of an event.
    #[must_use]
    pub const fn new(event: &'a Event) -> Self {
        Self { event, data: OnceCell::new() }
    }

    /// The event.
    #[must_use]
    pub const fn event(&self) -> &'a Event {
        self.event
    }

    /// The payload; `None` if it is not JSON.
    #[must_use]
    pub fn data(&self) -> Option<&Value> {
        self.data.get_or_init(|| serde_json::from_str(self.event.text.data()).ok()).as_ref()
    }

    /// Whether the payload was parsed.
    #[must_use]
    pub fn is_parsed(&self) -> bool {
        self.data.get().is_some()
    }

    /// Whether the event was caused by a bot; `None` if the event has no user.
    #[must_use]
    pub(super) fn is_from_bot(&self) -> Option<bool> {
        let data = self.data()?;
        if data.get("webhook_id").is_some_and(|id| !id.is_null()) {
            return Some(true);
        }
        let user = [data.get("author"), data.get("member").and_then(|member| member.get("user")), data.get("user")]
            .into_iter()
            .flatten()
            .find(|user| user.is_object())?;
        // Discord omits it for human users.
        Some(user.get("bot").and_then(Value::as_bool).unwrap_or(false))
    }
}

/// A path into a payload: `user.id`, `options.0.value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataPath(Vec<String>);

impl DataPath {
    /// Parses a path: words separated by dots, numbers for list items.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let words: Vec<String> = text.split('.').map(str::to_owned).collect();
        let fits = words.iter().all(|word| !word.is_empty()) && words.len() <= 32;
        fits.then_some(Self(words))
    }

    /// The path to the value itself.
    pub(super) const fn root() -> Self {
        Self(Vec::new())
    }

    /// First word.
    pub(super) fn first(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }

    /// The value at the path. `null` counts as missing.
    pub(super) fn find<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        let found = self.0.iter().try_fold(value, |value, word| match value {
            Value::Object(fields) => fields.get(word),
            Value::Array(items) => items.get(word.parse::<usize>().ok()?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        });
        found.filter(|value| !value.is_null())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_finds_values_in_objects_and_lists() {
        let value = json!({"a": [{"b": 7}, null], "0": "x"});
        let find = |path: &str| DataPath::parse(path).unwrap().find(&value).cloned();
        assert_eq!(find("a.0.b"), Some(json!(7)));
        assert_eq!(find("0"), Some(json!("x")));
        for nothing in ["a.1", "a.2", "a.b", "a.0.b.c", "z"] {
            assert_eq!(find(nothing), None, "{nothing}");
        }
        assert_eq!(DataPath::parse("a..b"), None);
        assert_eq!(DataPath::parse(""), None);
        assert_eq!(DataPath::root().find(&value), Some(&value));
    }
}
