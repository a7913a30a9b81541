//! Tests of handlers as configured by users.

mod bodies;
mod conditions;
mod parsing;
mod rules;

use std::sync::Arc;

use serde_json::{Value, json};

use super::{EventHandlers, HandlerAction, Rule, names};
use crate::event::{Event, EventOrigin, EventText, Interaction, InteractionKind};
use crate::time::UnixMs;

/// An event of this name and payload, in guild 1, channel 2, of user 3.
fn event(name: &str, data: &Value) -> Event {
    let data = data.to_string();
    let range = 0..data.len();
    Event {
        origin: EventOrigin { session: "abc".into(), shard: 4, seq: 7 },
        name: names::event_name(name),
        class: names::class(name),
        guild: Some(1),
        channel: Some(2),
        user: Some(3),
        interaction: None,
        received_at: UnixMs::new(1_767_225_600_123),
        text: EventText::new(data, range),
    }
}

/// A member joins.
fn join() -> Event {
    let data =
        json!({"guild_id": "1", "nick": null, "roles": ["8"], "user": {"id": "3", "username": "ann", "flags": 5}});
    Event { channel: None, ..event("member.join", &data) }
}

/// A user runs `/hello`.
fn command() -> Event {
    let data = json!({
        "id": "9", "type": 2, "token": "tkn", "application_id": "5",
        "data": {"name": "hello", "options": [{"name": "to", "value": "bob"}]}, "member": {"user": {"id": "3"}},
    });
    let interaction = Interaction { id: 9, token: "tkn".to_owned(), application: 5, kind: InteractionKind::Command };
    Event { interaction: Some(Arc::new(interaction)), ..event("interaction.command.hello", &data) }
}

/// One handler for all events, with these additional fields.
fn handlers(fields: &Value) -> EventHandlers {
    let mut handler = json!({"name": "one", "on": "#"});
    handler.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    EventHandlers::parse(&json!({"handlers": [handler]})).unwrap()
}

/// The rule of the only handler.
fn rule(fields: &Value) -> Rule {
    match &handlers(fields).get(0).unwrap().action {
        HandlerAction::Rule(rule) => rule.clone(),
        HandlerAction::Webhook(_) | HandlerAction::Broker => unreachable!("it is a rule"),
    }
}

/// Errors of a handler with these fields added to or replacing valid ones: field and message.
fn errors_of(fields: &Value) -> Vec<(String, String)> {
    let mut handler = json!({"name": "one", "on": "#", "do": []});
    for (name, value) in fields.as_object().unwrap() {
        if value.is_null() {
            handler.as_object_mut().unwrap().remove(name);
        } else {
            handler[name] = value.clone();
        }
    }
    let found = EventHandlers::parse(&json!({"handlers": [handler]})).unwrap_err();
    let short = |field: &str| field.strip_prefix("handlers[0].").unwrap_or(field).to_owned();
    found.into_iter().map(|error| (short(&error.field), error.message)).collect()
}
