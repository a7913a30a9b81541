//! Reads handlers and reports all errors at once.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::check;
use super::condition::HandlerCondition;
use super::json_template::JsonTemplate;
use super::pattern::EventPattern;
use super::rule::{Cooldown, Rule, StateWrite};
use super::template::{PlaceholderScope, Template};
use super::view::DataPath;
use super::webhook::{ResponsePolicy, Secret, WebhookSpec};
use super::{DeferMode, EventHandler, EventHandlers, HandlerAction};
use crate::operation::payload::{
    field_reader::{FieldReader, object},
    validation::{ErrorCollector, FieldContext, NullHandling, truncated},
    value::{boolean, choice, id, integer, list},
};

/// Maximum number of handlers.
const MAX_HANDLERS: usize = 1_000;
/// Maximum number of entries in any list of a handler.
const MAX_ENTRIES: usize = 100;
/// Maximum number of stored values that one handler needs.
const MAX_NEEDS: usize = 20;
/// Maximum lifetime of a stored value or a cooldown: a year, in milliseconds.
const MAX_LIFETIME_MS: u64 = 365 * 24 * 3_600_000;
/// Maximum timeout of a webhook, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 600_000;

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerFieldError {
    /// The field: `handlers[2].do[0].payload.role_id`; empty for the whole document.
    pub field: String,
    /// What is wrong, and what to do. Never contains a secret.
    pub message: String,
}

impl fmt::Display for HandlerFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "the document {}", self.message),
            field => write!(f, "`{field}` {}", self.message),
        }
    }
}

impl EventHandlers {
    /// Parses handlers: `{"handlers": [{"name": …, "on": …, …}, …]}`.
    ///
    /// # Errors
    ///
    /// All errors at once, at most 50.
    pub fn parse(value: &Value) -> Result<Self, Vec<HandlerFieldError>> {
        let mut findings = ErrorCollector::new(NullHandling::Omitted);
        let read = object(value, &mut findings.top(), |form| {
            Some(form.optional("handlers", |value, at| {
                distinct_names(value, at);
                list(0, MAX_HANDLERS, handler)(value, at)
            }))
        });
        match read {
            Some(handlers) if findings.is_empty() => Ok(handlers.unwrap_or_default().into_iter().collect()),
            Some(_) | None => {
                let errors = findings.into_invalid().errors;
                Err(errors
                    .into_iter()
                    .map(|error| HandlerFieldError { field: error.field, message: error.message })
                    .collect())
            }
        }
    }
}

/// Compares the names as written, so that duplicates are reported even if a handler has other errors.
fn distinct_names(handlers: &Value, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (n, handler) in handlers.as_array().into_iter().flatten().take(MAX_HANDLERS).enumerate() {
        let name = handler.get("name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !seen.insert(*name)) {
            let message = format!("is `{}`, which is the name of another handler; use a unique name", truncated(name));
            at.item(n).field("name").invalid::<()>(message);
        }
    }
}

fn handler(value: &Value, at: &mut FieldContext<'_>) -> Option<EventHandler> {
    object(value, at, |form| {
        let name = form.required("name", name);
        let on = form.required("on", one_or_several(pattern));
        let when = form.optional("when", |value, at| when(value, on.as_deref(), at)).unwrap_or_default();
        let needs =
            form.optional("needs", list(0, MAX_NEEDS, |value, at| state_key(value, PlaceholderScope::Event, at)));
        let needs = needs.unwrap_or_default();
        let keys: Vec<String> = needs.iter().map(|key| key.as_str().to_owned()).collect();
        let is_webhook = form.has_value("webhook");
        let cooldown = form.optional("cooldown", |value, at| cooldown(value, is_webhook, at));
        let action = action(form, PlaceholderScope::EventAndState(&keys), cooldown.as_ref());
        let defer = form.optional("defer", choice(&[("auto", DeferMode::Auto), ("never", DeferMode::Never)]));
        let ephemeral = form.optional("ephemeral", boolean);
        let shadow = form.optional("shadow", boolean).unwrap_or(false);
        if on.as_ref().is_some_and(|on| !on.iter().any(EventPattern::can_match_interactions)) {
            for field in ["reply", "defer", "ephemeral"] {
                if form.has_value(field) {
                    form.invalid(
                        field,
                        "applies only to interactions, and `on` matches none; add for example `interaction.#`",
                    );
                }
            }
        }
        Some(EventHandler { name: name?, on: on?, when, action: action?, defer, ephemeral, needs, shadow, cooldown })
    })
}

/// Reads the action of a handler: a rule, a webhook or the broker.
fn action(
    form: &mut FieldReader<'_, '_>,
    names: PlaceholderScope<'_>,
    cooldown: Option<&Cooldown>,
) -> Option<HandlerAction> {
    let operations = form.optional("do", list(0, MAX_ENTRIES, |value, at| check::operation(value, names, at)));
    let reply = form.optional("reply", |value, at| check::reply(value, names, at));
    let set = form.optional("set", list(0, MAX_ENTRIES, |value, at| state_write(value, names, at)));
    let webhook = form.optional("webhook", webhook);
    let broker = form.optional("broker", broker);
    let rule = ["do", "reply", "set"].into_iter().find(|field| form.has_value(field));
    if form.has_value("broker") {
        if let Some(field) = rule.or_else(|| form.has_value("webhook").then_some("webhook")) {
            let message = format!("must not be combined with `{field}`: use a handler for each");
            form.invalid("broker", message);
            return None;
        }
        return broker;
    }
    match (rule, form.has_value("webhook")) {
        (Some(field), true) => {
            let message = format!("must not be combined with `{field}`: use either a built-in rule or a webhook");
            form.invalid("webhook", message);
            None
        }
        (None, true) => webhook.map(HandlerAction::Webhook),
        (Some(_), false) => {
            let (operations, set) = (operations.unwrap_or_default(), set.unwrap_or_default());
            Some(HandlerAction::Rule(Rule { operations, reply, set, cooldown: cooldown.cloned() }))
        }
        (None, false) => {
            form.invalid_here("must have an action: `do` (operations), `reply`, `set`, `webhook`, or `broker`");
            None
        }
    }
}

fn name(value: &Value, at: &mut FieldContext<'_>) -> Option<Arc<str>> {
    let name = value.as_str().filter(|name| (1..=64).contains(&name.len()));
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    match name.filter(|name| name.bytes().all(plain)) {
        Some(name) => Some(name.into()),
        None => at.invalid("must be a name of 1 to 64 characters: lower-case letters a to z, digits, `-` and `_`"),
    }
}

fn pattern(value: &Value, at: &mut FieldContext<'_>) -> Option<EventPattern> {
    let Some(text) = value.as_str() else {
        return at.invalid("must be a pattern, as a string: `member.join`");
    };
    match EventPattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(message) => at.invalid(message),
    }
}

/// Reads one value, or a list that is not empty.
fn one_or_several<T>(
    mut read: impl FnMut(&Value, &mut FieldContext<'_>) -> Option<T>,
) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<Vec<T>> {
    move |value, at| match value {
        Value::Array(_) => list(1, MAX_ENTRIES, read)(value, at),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            read(value, at).map(|one| vec![one])
        }
    }
}

fn when(value: &Value, on: Option<&[EventPattern]>, at: &mut FieldContext<'_>) -> Option<HandlerCondition> {
    object(value, at, |form| {
        let guilds = form.optional("guild", one_or_several(id));
        let channels = form.optional("channel", one_or_several(id));
        let users = form.optional("user", one_or_several(id));
        let bot = form.optional("bot", boolean);
        let fields = form.optional("fields", |value, at| {
            let Some(fields) = value.as_object() else {
                return at.invalid("must be paths and their values: { \"user.id\" = \"1\" }");
            };
            if fields.len() > MAX_ENTRIES {
                return at.invalid(format!("must have at most {MAX_ENTRIES} paths"));
            }
            let read: Vec<Option<(DataPath, Value)>> = fields
                .iter()
                .map(|(path, value)| Some((field_path(path, on, &mut at.field(path))?, value.clone())))
                .collect();
            read.into_iter().collect()
        });
        Some(HandlerCondition { guilds, channels, users, bot, fields: fields.unwrap_or_default() })
    })
}

/// Reads a path into the payload. In templates it starts with `data`; here it starts inside the payload.
fn field_path(text: &str, on: Option<&[EventPattern]>, at: &mut FieldContext<'_>) -> Option<DataPath> {
    let Some(path) = DataPath::parse(text) else {
        return at.invalid("must be a path into the payload: words separated by dots, numbers for list items");
    };
    // Only interactions have a `data` field in their payload.
    let never = on.is_some_and(|on| !on.iter().any(EventPattern::can_match_interactions));
    if never && path.first() == Some("data") {
        let data_path = text.strip_prefix("data.").unwrap_or("user.id");
        return at.invalid(format!("must start inside the payload: write `{data_path}`"));
    }
    Some(path)
}

fn template(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<Template> {
    let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
        return at.invalid("must be a key, as a string: `sess:profile:{user_id}`");
    };
    match Template::parse(text, names) {
        Ok(template) => Some(template),
        Err(message) => at.invalid(message),
    }
}

/// Reads the key of a stored value.
fn state_key(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<Template> {
    let key = template(value, names, at)?;
    match key.check_reserved() {
        Ok(()) => Some(key),
        Err(reserved) => at.invalid(reserved.to_string()),
    }
}

fn millis(min: u64, max: u64) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<Duration> {
    move |value, at| integer(min, max)(value, at).map(Duration::from_millis)
}

/// Reads a cooldown. Without a duration, only the responses of a webhook start it.
fn cooldown(value: &Value, is_webhook: bool, at: &mut FieldContext<'_>) -> Option<Cooldown> {
    object(value, at, |form| {
        let key = form.required("key", |value, at| template(value, PlaceholderScope::Event, at));
        let duration = if is_webhook {
            form.optional("for_ms", millis(1, MAX_LIFETIME_MS))
        } else {
            Some(form.required("for_ms", millis(1, MAX_LIFETIME_MS))?)
        };
        Some(Cooldown { key: key?, duration })
    })
}

fn state_write(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<StateWrite> {
    object(value, at, |form| {
        let key = form.required("key", |value, at| state_key(value, names, at));
        let value_template = form.optional("value", |value, at| JsonTemplate::read(value, names, at));
        let lifetime = form.optional("for_ms", millis(1, MAX_LIFETIME_MS));
        Some(StateWrite { key: key?, value: value_template.unwrap_or(JsonTemplate::Fixed(Value::Null)), lifetime })
    })
}

/// Reads `broker = true`.
fn broker(value: &Value, at: &mut FieldContext<'_>) -> Option<HandlerAction> {
    match boolean(value, at)? {
        true => Some(HandlerAction::Broker),
        false => at.invalid("must be true, or be absent"),
    }
}

fn webhook(value: &Value, at: &mut FieldContext<'_>) -> Option<WebhookSpec> {
    object(value, at, |form| {
        let url = form.required("url", |value, at| match value.as_str() {
            Some(url) if url.starts_with("https://") || url.starts_with("http://") => Some(url.to_owned()),
            Some(_) | None => at.invalid("must be a URL that starts with https:// or http://, as a string"),
        });
        let secrets = form.required(
            "secrets",
            list(1, 4, |value, at| match Secret::parse(value.as_str().unwrap_or_default()) {
                Ok(secret) => Some(secret),
                Err(message) => at.invalid(message),
            }),
        );
        let timeout = form.optional("timeout_ms", millis(1, MAX_TIMEOUT_MS));
        let allow_private = form.optional("allow_private", boolean).unwrap_or(false);
        let answers = form.optional(
            "answers",
            choice(&[
                ("secure", ResponsePolicy::Secure),
                ("signed", ResponsePolicy::Signed),
                ("any", ResponsePolicy::Any),
            ]),
        );
        let answers = answers.unwrap_or_default();
        Some(WebhookSpec { url: url?, secrets: secrets?, timeout, allow_private, answers })
    })
}
