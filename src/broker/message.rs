//! Events as messages.

use guildhall_actors::ports::BrokerEvent;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};

use super::route::{priority, routing_key};

/// Headers of each message. `docs/broker.md` describes them.
pub(super) mod header {
    pub(in crate::broker) const SESSION: &str = "guildhall-session";
    pub(in crate::broker) const SEQ: &str = "guildhall-seq";
    pub(in crate::broker) const SHARD: &str = "guildhall-shard";
    pub(in crate::broker) const GUILD: &str = "guildhall-guild";
    pub(in crate::broker) const HANDLER: &str = "guildhall-handler";
    pub(in crate::broker) const STREAM: &str = "guildhall-stream";
    pub(in crate::broker) const EPOCH: &str = "guildhall-epoch";
    pub(in crate::broker) const COUNTER: &str = "guildhall-counter";
    pub(in crate::broker) const TRACEPARENT: &str = "traceparent";
    /// How often a dead letter was redriven.
    pub(in crate::broker) const REDRIVEN: &str = "guildhall-redriven";
}

/// Delivery mode of messages that survive a restart of the server.
const PERSISTENT: u8 = 2;

/// Maximum length of a short string in bytes.
const MAX_SHORT: usize = 255;

/// A message to publish.
pub(super) struct EventMessage {
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: std::sync::Arc<str>,
}

/// A short string; a longer text is truncated.
pub(super) fn short(text: &str) -> ShortString {
    ShortString::from(&text[..text.floor_char_boundary(MAX_SHORT)])
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn number(value: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(value).unwrap_or(i64::MAX))
}

impl EventMessage {
    pub(super) fn new(event: &BrokerEvent, partitions: u16) -> Self {
        let mut headers = FieldTable::default();
        let mut set = |name: &str, value| {
            headers.insert(name.into(), value);
        };
        set(header::SESSION, text(&event.origin.session));
        set(header::SEQ, number(event.origin.seq));
        set(header::SHARD, number(u64::from(event.origin.shard)));
        set(header::HANDLER, text(&event.handler));
        set(header::TRACEPARENT, text(&event.trace.to_string()));
        if let Some(guild) = event.guild {
            set(header::GUILD, text(&guild.to_string()));
        }
        if let Some(position) = event.position {
            set(header::STREAM, text(&format!("{}:{}", event.handler, event.lane)));
            set(header::EPOCH, number(position.epoch.millis()));
            set(header::COUNTER, number(position.counter));
        }
        let properties = BasicProperties::default()
            .with_app_id("guildhall".into())
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short(&event.id))
            .with_type(short(&event.name))
            .with_priority(priority(&event.name))
            .with_timestamp(event.received_at.millis() / 1_000)
            .with_headers(headers);
        Self { routing_key: short(&routing_key(event, partitions)), properties, body: event.json.clone() }
    }
}
