//! Reads events from the text of frames.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::envelope::{Envelope, FrameError, JsonString, PayloadIds};
use super::event_type::{IdSubject, find_event_type};
use super::{Event, EventClass, EventName, EventOrigin, EventText, Interaction, InteractionKind};
use crate::time::UnixMs;

/// Session name of events that came over HTTP.
pub const HTTP_SESSION: &str = "http";

/// A gateway frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An event.
    Event(Event),
    /// A frame that only concerns the shard.
    Control {
        /// Its opcode.
        op: u8,
    },
}

/// Reads a frame of this session of this shard.
///
/// # Errors
///
/// When it is not a frame; or an event without its type, sequence number or payload; or an interaction without what a
/// response needs.
pub fn read(text: String, shard: u32, session: &Arc<str>, at: UnixMs) -> Result<Frame, FrameError> {
    let envelope = Envelope::scan(&text)?;
    if envelope.op != 0 {
        return Ok(Frame::Control { op: envelope.op });
    }
    let t = required_text(envelope.t, "t")?;
    let seq = required(envelope.s, "s")?;
    let data = required(envelope.d, "d")?;
    let route = EventRoute::of(&t, &envelope.ids)?;
    let origin = EventOrigin { session: Arc::clone(session), shard, seq };
    drop(t);
    Ok(Frame::Event(route.event(origin, EventText::new(text, data), at)))
}

/// Reads an interaction that came over HTTP, without a frame. Its id is its sequence number.
///
/// # Errors
///
/// When it is not an interaction, or lacks what a response needs.
pub fn read_interaction(text: String, at: UnixMs) -> Result<Event, FrameError> {
    let ids = PayloadIds::scan(&text)?;
    let seq = required(ids.id, "d.id")?.get();
    let route = EventRoute::interaction(&ids)?;
    let origin = EventOrigin { session: Arc::from(HTTP_SESSION), shard: 0, seq };
    let data = 0..text.len();
    Ok(route.event(origin, EventText::new(text, data), at))
}

/// Everything about an event except its origin and text.
struct EventRoute {
    name: EventName,
    class: EventClass,
    guild: Option<u64>,
    channel: Option<u64>,
    user: Option<u64>,
    interaction: Option<Arc<Interaction>>,
}

impl EventRoute {
    fn of(t: &str, ids: &PayloadIds<'_>) -> Result<Self, FrameError> {
        if t == "INTERACTION_CREATE" {
            return Self::interaction(ids);
        }
        Ok(match find_event_type(t) {
            Some(spec) => Self::routed(EventName::Known(spec.name), spec.class, spec.id_subject, ids),
            // An unknown event may matter to a handler.
            None => Self::routed(EventName::from_unknown_type(t), EventClass::Change, IdSubject::Other, ids),
        })
    }

    fn routed(name: EventName, class: EventClass, id_of: IdSubject, ids: &PayloadIds<'_>) -> Self {
        let own = |subject: IdSubject| ids.id.filter(|_| id_of == subject);
        let guild = own(IdSubject::Guild).or(ids.guild_id).map(NonZeroU64::get);
        let channel = own(IdSubject::Channel).or(ids.channel_id).map(NonZeroU64::get);
        let user = own(IdSubject::User).or(ids.user).or(ids.author).or(ids.member).or(ids.user_id).map(NonZeroU64::get);
        Self { name, class, guild, channel, user, interaction: None }
    }

    fn interaction(ids: &PayloadIds<'_>) -> Result<Self, FrameError> {
        let routed = |name| Self::routed(name, EventClass::Interaction, IdSubject::Other, ids);
        let (kind, name) = match required(ids.kind, "d.type")? {
            1 => return Ok(routed(EventName::Known("interaction.ping"))),
            2 => {
                (InteractionKind::Command, EventName::for_command("command", &required_text(ids.name, "d.data.name")?))
            }
            3 => {
                let component = match ids.component {
                    Some(2) => "button",
                    Some(3 | 5..=8) => "menu",
                    Some(_) | None => "component",
                };
                (
                    InteractionKind::Component,
                    EventName::for_custom_id(component, &required_text(ids.custom_id, "d.data.custom_id")?),
                )
            }
            4 => (
                InteractionKind::Autocomplete,
                EventName::for_command("autocomplete", &required_text(ids.name, "d.data.name")?),
            ),
            5 => (
                InteractionKind::Modal,
                EventName::for_custom_id("modal", &required_text(ids.custom_id, "d.data.custom_id")?),
            ),
            // An interaction type that this version does not know: a handler may know it.
            newer => return Ok(routed(EventName::Other(format!("interaction.type.{newer}").into()))),
        };
        let interaction = Interaction {
            id: required(ids.id, "d.id")?.get(),
            token: required_text(ids.token, "d.token")?.into_owned(),
            application: required(ids.application_id, "d.application_id")?.get(),
            kind,
        };
        Ok(Self { interaction: Some(Arc::new(interaction)), ..routed(name) })
    }

    fn event(self, origin: EventOrigin, text: EventText, received_at: UnixMs) -> Event {
        let Self { name, class, guild, channel, user, interaction } = self;
        Event { origin, name, class, guild, channel, user, interaction, received_at, text }
    }
}

fn required<T>(value: Option<T>, field: &'static str) -> Result<T, FrameError> {
    value.ok_or(FrameError::Missing { field })
}

fn required_text<'a>(word: Option<JsonString<'a>>, field: &'static str) -> Result<Cow<'a, str>, FrameError> {
    required(word.and_then(JsonString::text), field)
}

#[cfg(test)]
mod tests {
    use super::super::GuildChange;
    use super::*;

    fn frame(text: &str) -> Result<Frame, FrameError> {
        read(text.to_owned(), 3, &Arc::from("a-session"), UnixMs::new(5))
    }

    fn event(t: &str, data: &str) -> Event {
        match frame(&format!(r#"{{"t":"{t}","s":7,"op":0,"d":{data}}}"#)) {
            Ok(Frame::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    /// The guild, channel and user of an event.
    fn ids_of(t: &str, data: &str) -> (Option<u64>, Option<u64>, Option<u64>) {
        let event = event(t, data);
        (event.guild, event.channel, event.user)
    }

    #[test]
    fn event_has_its_origin_and_ids() {
        let data = r#"{"id":"4","guild_id":"1","channel_id":"2","author":{"id":"3","bot":true}, "content":"hi"}"#;
        let event = event("MESSAGE_CREATE", data);
        assert_eq!(event.origin, EventOrigin { session: Arc::from("a-session"), shard: 3, seq: 7 });
        assert_eq!(event.name, EventName::Known("message.create"));
        assert_eq!(event.class, EventClass::Chatter);
        assert_eq!((event.guild, event.channel, event.user), (Some(1), Some(2), Some(3)));
        assert_eq!(event.interaction, None);
        assert_eq!(event.received_at, UnixMs::new(5));
        assert_eq!(event.text.data(), data);
    }

    #[test]
    fn own_id_of_guild_channel_and_user_is_used() {
        for t in ["GUILD_CREATE", "GUILD_UPDATE", "GUILD_DELETE"] {
            assert_eq!(ids_of(t, r#"{"id":"1","unavailable":true}"#), (Some(1), None, None), "{t}");
        }
        for t in ["CHANNEL_CREATE", "CHANNEL_DELETE", "THREAD_CREATE", "THREAD_MEMBERS_UPDATE"] {
            assert_eq!(ids_of(t, r#"{"id":"2","guild_id":"1"}"#), (Some(1), Some(2), None), "{t}");
        }
        assert_eq!(ids_of("CHANNEL_PINS_UPDATE", r#"{"channel_id":"2","guild_id":"1"}"#), (Some(1), Some(2), None));
        assert_eq!(ids_of("USER_UPDATE", r#"{"id":"3"}"#), (None, None, Some(3)));
        assert_eq!(ids_of("GUILD_SCHEDULED_EVENT_CREATE", r#"{"id":"9","guild_id":"1"}"#), (Some(1), None, None));
        assert_eq!(ids_of("SOME_NEW_EVENT", r#"{"id":"9","guild_id":"1"}"#), (Some(1), None, None));
    }

    #[test]
    fn guild_events_name_the_guilds_that_the_bot_is_in() {
        let named = |name: &str| Some(GuildChange::Named { guild: 1, name: name.into() });
        let large = r#"{"members":[{"name":"no"}],"id":"1","name":"Pi\u006cots \"A\"","roles":[{"name":"no"}]}"#;
        for t in ["GUILD_CREATE", "GUILD_UPDATE"] {
            assert_eq!(event(t, large).guild_change(), named("Pilots \"A\""), "{t}");
            for nameless in [r#"{"id":"1"}"#, r#"{"id":"1","name":null}"#, r#"{"id":"1","name":7}"#] {
                assert_eq!(event(t, nameless).guild_change(), None, "{t} {nameless}");
            }
        }
        let long = format!(r#"{{"id":"1","name":"{}"}}"#, "ü".repeat(500));
        assert_eq!(event("GUILD_CREATE", &long).guild_change(), named(&"ü".repeat(100)));
        assert_eq!(event("GUILD_DELETE", r#"{"id":"1"}"#).guild_change(), Some(GuildChange::Left { guild: 1 }));
        assert_eq!(event("GUILD_DELETE", r#"{"id":"1","unavailable":true}"#).guild_change(), None);
        assert_eq!(event("GUILD_ROLE_UPDATE", r#"{"guild_id":"1","name":"x"}"#).guild_change(), None);
    }

    #[test]
    fn ready_has_the_guilds_of_its_shard() {
        let ready = r#"{"v":10,"guilds":[{"id":"8388608","unavailable":true},{"id":"4194304"}],"shard":[1,2]}"#;
        let guilds = event("READY", ready).shard_guilds().unwrap();
        assert_eq!((guilds.shard, guilds.shards, &*guilds.guilds), (1, 2, &[8_388_608, 4_194_304][..]));
        assert!(guilds.covers(4_194_304) && !guilds.covers(8_388_608));
        let alone = event("READY", r#"{"guilds":[]}"#).shard_guilds().unwrap();
        assert!((alone.shard, alone.shards) == (0, 1) && alone.covers(7));
        assert_eq!(event("READY", r#"{"v":10}"#).shard_guilds(), None);
        assert_eq!(event("RESUMED", ready).shard_guilds(), None);
    }

    #[test]
    fn user_is_found_in_every_known_field() {
        for data in [
            r#"{"user":{"id":"3"}}"#,
            r#"{"author":{"id":"3"}}"#,
            r#"{"member":{"user":{"id":"3"},"roles":[]}}"#,
            r#"{"user_id":"3"}"#,
        ] {
            assert_eq!(ids_of("GUILD_MEMBER_ADD", data), (None, None, Some(3)), "{data}");
        }
    }

    #[test]
    fn interaction_has_its_name_and_response_data() {
        for (kind, data, name, expected) in [
            (2, r#"{"name":"hello"}"#, "interaction.command.hello", InteractionKind::Command),
            (3, r#"{"custom_id":"vote:7","component_type":2}"#, "interaction.button.vote", InteractionKind::Component),
            (3, r#"{"custom_id":"colour","component_type":3}"#, "interaction.menu.colour", InteractionKind::Component),
            (3, r#"{"custom_id":"who","component_type":8}"#, "interaction.menu.who", InteractionKind::Component),
            (3, r#"{"custom_id":"x","component_type":99}"#, "interaction.component.x", InteractionKind::Component),
            (4, r#"{"name":"hello"}"#, "interaction.autocomplete.hello", InteractionKind::Autocomplete),
            (5, r#"{"custom_id":"form/2"}"#, "interaction.modal.form", InteractionKind::Modal),
        ] {
            let payload = format!(
                r#"{{"type":{kind},"token":"s\u0065cret","id":"8","application_id":"9","data":{data},
                   "guild_id":"1","channel_id":"2","member":{{"user":{{"id":"3"}}}}}}"#
            );
            let received = event("INTERACTION_CREATE", &payload);
            assert_eq!(received.name.as_str(), name);
            assert_eq!(received.class, EventClass::Interaction);
            assert_eq!((received.guild, received.channel, received.user), (Some(1), Some(2), Some(3)));
            let interaction = Interaction { id: 8, token: "secret".to_owned(), application: 9, kind: expected };
            assert_eq!(received.interaction.as_deref(), Some(&interaction));

            let posted = read_interaction(payload.clone(), UnixMs::new(5)).expect("it is an interaction");
            assert_eq!(posted.origin, EventOrigin { session: Arc::from("http"), shard: 0, seq: 8 });
            assert_eq!((posted.name, posted.interaction), (received.name, received.interaction));
            assert_eq!(posted.text.data(), payload);
        }
    }

    #[test]
    fn ping_and_unknown_interactions_are_events() {
        let ping = event("INTERACTION_CREATE", r#"{"type":1,"id":"8","application_id":"9","token":"secret"}"#);
        assert_eq!(
            (ping.name.as_str(), ping.class, ping.interaction),
            ("interaction.ping", EventClass::Interaction, None)
        );
        let newer = event("INTERACTION_CREATE", r#"{"type":17,"id":"8","application_id":"9","token":"secret"}"#);
        assert_eq!(newer.name.as_str(), "interaction.type.17");
    }

    #[test]
    fn interaction_without_response_data_is_malformed() {
        let whole = r#"{"type":2,"id":"8","application_id":"9","token":"secret","data":{"name":"hello"}}"#;
        for (part, field) in [
            (r#""type":2"#, "d.type"),
            (r#""id":"8""#, "d.id"),
            (r#""application_id":"9""#, "d.application_id"),
            (r#""token":"secret""#, "d.token"),
            (r#""name":"hello""#, "d.data.name"),
        ] {
            let data = whole.replace(part, r#""other":0"#);
            let refused = frame(&format!(r#"{{"t":"INTERACTION_CREATE","s":7,"op":0,"d":{data}}}"#));
            assert_eq!(refused, Err(FrameError::Missing { field }));
        }
    }

    #[test]
    fn ready_and_resumed_are_gateway_events() {
        let ready = event("READY", r#"{"session_id":"x","resume_gateway_url":"wss://example"}"#);
        assert_eq!((ready.name.as_str(), ready.class), ("gateway.ready", EventClass::Gateway));
        let resumed = event("RESUMED", "null");
        assert_eq!((resumed.name.as_str(), resumed.class), ("gateway.resumed", EventClass::Gateway));
        assert_eq!(resumed.text.data(), "null");
    }

    #[test]
    fn other_opcodes_are_control_frames() {
        assert_eq!(frame(r#"{"op":11}"#), Ok(Frame::Control { op: 11 }));
        let hello = r#"{"t":null,"s":null,"op":10,"d":{"heartbeat_interval":41250}}"#;
        assert_eq!(frame(hello), Ok(Frame::Control { op: 10 }));
    }

    #[test]
    fn event_without_type_sequence_or_payload_is_malformed() {
        for (text, field) in [
            (r#"{"op":0,"s":1,"d":{}}"#, "t"),
            (r#"{"op":0,"t":null,"s":1,"d":{}}"#, "t"),
            (r#"{"op":0,"t":"\ud800","s":1,"d":{}}"#, "t"),
            (r#"{"op":0,"t":"X","d":{}}"#, "s"),
            (r#"{"op":0,"t":"X","s":null,"d":{}}"#, "s"),
            (r#"{"op":0,"t":"X","s":1}"#, "d"),
        ] {
            assert_eq!(frame(text), Err(FrameError::Missing { field }), "{text}");
        }
    }
}
