//! Tests of handler conditions.

use serde_json::{Value, json};

use super::super::EventView;
use super::{command, event, handlers, join};
use crate::event::Event;

fn accepts(when: &Value, event: &Event) -> bool {
    let handlers = handlers(&json!({"do": [], "when": when}));
    handlers.get(0).unwrap().accepts(&EventView::new(event))
}

#[test]
fn every_condition_has_to_hold() {
    for (when, holds) in [
        (json!({}), true),
        (json!({"guild": "1"}), true),
        (json!({"guild": ["2", "1"]}), true),
        (json!({"guild": ["2"]}), false),
        (json!({"user": "3"}), true),
        (json!({"user": "4"}), false),
        (json!({"channel": "2"}), false),
        (json!({"guild": "1", "user": "4"}), false),
        (json!({"fields": {"user.username": "ann"}}), true),
        (json!({"fields": {"user.username": "bob"}}), false),
        (json!({"fields": {"user.flags": 5.0, "roles.0": "8"}}), true),
        (json!({"fields": {"user.flags": "5"}}), false),
        (json!({"fields": {"user.nothing": "x"}}), false),
        (json!({"fields": {"roles": ["8"]}}), true),
    ] {
        assert_eq!(accepts(&when, &join()), holds, "{when}");
    }
    assert!(accepts(&json!({"fields": {"data.options.0.value": "bob"}}), &command()));
}

#[test]
fn bots_are_recognized_in_every_user_field() {
    for (data, bot) in [
        (json!({"author": {"bot": true}}), true),
        (json!({"author": {"bot": false}}), false),
        (json!({"author": {}, "webhook_id": "1"}), true),
        (json!({"author": {}, "webhook_id": null}), false),
        (json!({"member": {"user": {"bot": true}}}), true),
        (json!({"member": {"nick": "x"}, "author": {"bot": true}}), true),
        (json!({"user": {"bot": true}}), true),
        (json!({"user": {}}), false),
        (json!({"name": "nobody is named"}), false),
    ] {
        let event = event("message.create", &data);
        assert_eq!(accepts(&json!({"bot": true}), &event), bot, "{data}");
        assert_eq!(accepts(&json!({"bot": false}), &event), !bot, "{data}");
    }
}

#[test]
fn payload_is_parsed_only_if_a_condition_needs_it() {
    for (when, parsed) in [
        (json!({}), false),
        (json!({"guild": "1", "user": "3"}), false),
        (json!({"guild": "2", "bot": false}), false),
        (json!({"guild": "1", "bot": false}), true),
        (json!({"fields": {"a": 1}}), true),
    ] {
        let handlers = handlers(&json!({"do": [], "when": when}));
        let event = join();
        let view = EventView::new(&event);
        let _wanted = handlers.get(0).unwrap().accepts(&view);
        assert_eq!(view.is_parsed(), parsed, "{when}");
    }
}
