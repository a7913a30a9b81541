//! Channels, webhooks and guilds that the calls of an operation address, besides its own guild.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    CreateChannel, DeleteChannel, DeleteMessage, EditMessage, EnsureChannel, EnsureMessage, Method, NewChannel,
    Payload, Read, ReplaceOverwrites, Request, SendMessage, UpdatePermissions,
};
use crate::operation::Reference;

/// Maximum number of locations in one operation. Calls with more objects concern one guild, and have it in their path.
const MAX_LOCATIONS: usize = 50;

/// An object that belongs to a guild and is addressed by its own id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Location {
    /// A guild.
    Guild(u64),
    /// A channel or a thread.
    Channel(u64),
    /// A webhook, with its token if it is addressed with it.
    Webhook(u64, Option<String>),
}

impl Location {
    /// Name of its type, for people.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Guild(_) => "guild",
            Self::Channel(_) => "channel",
            Self::Webhook(..) => "webhook",
        }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> u64 {
        match self {
            Self::Guild(id) | Self::Channel(id) | Self::Webhook(id, _) => *id,
        }
    }
}

/// The target of a call cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// An id is not written as plain digits.
    #[error("contains a guild, channel or webhook id that is not written as plain digits")]
    NotAnId,
    /// An invite is addressed by its code, not by its guild.
    #[error("changes an invite, and the guild of an invite cannot be determined")]
    Invite,
    /// Too many locations.
    #[error("addresses more than {MAX_LOCATIONS} guilds, channels and webhooks")]
    TooMany,
}

impl Payload {
    /// The locations that it addresses by id. An object that it addresses by key or by operation is in its own guild;
    /// the content of a call to the guild itself is checked by Discord.
    ///
    /// # Errors
    ///
    /// When the target of a `read` or `request` call cannot be determined.
    pub fn locations(&self) -> Result<Vec<Location>, LocationError> {
        let mut found = Vec::new();
        match self {
            Self::DeleteChannel(DeleteChannel { channel })
            | Self::UpdatePermissions(UpdatePermissions { channel, .. })
            | Self::ReplaceOverwrites(ReplaceOverwrites { channel, .. })
            | Self::SendMessage(SendMessage { channel, .. })
            | Self::EditMessage(EditMessage { channel, .. })
            | Self::DeleteMessage(DeleteMessage { channel, .. })
            | Self::EnsureMessage(EnsureMessage { channel, .. }) => found.extend(channel_location(channel)),
            Self::CreateChannel(CreateChannel { channel: NewChannel { parent, .. }, .. })
            | Self::EnsureChannel(EnsureChannel { channel: NewChannel { parent, .. }, .. }) => {
                found.extend(parent.as_ref().and_then(channel_location));
            }
            Self::Read(Read { path }) => in_path(Method::Get, path, &mut found)?,
            Self::Request(Request { method, path, body, .. }) => {
                in_path(*method, path, &mut found)?;
                body.as_ref().map_or(Ok(()), |body| in_body(body, &mut found))?;
            }
            Self::CreateRole(_)
            | Self::DeleteRole(_)
            | Self::AssignRole(_)
            | Self::RemoveRole(_)
            | Self::SetMemberRoles(_)
            | Self::EnsureRole(_)
            | Self::Reorder(_)
            | Self::SendDm(_)
            | Self::DeferReply(_)
            | Self::SendFollowup(_)
            | Self::EditOriginal(_) => {}
        }
        found.sort();
        found.dedup();
        if found.len() > MAX_LOCATIONS { Err(LocationError::TooMany) } else { Ok(found) }
    }
}

fn channel_location(reference: &Reference) -> Option<Location> {
    match reference {
        Reference::Id(id) => Some(Location::Channel(*id)),
        Reference::Key(_) | Reference::Operation(_) => None,
    }
}

/// Ids after a segment that names their type, anywhere in the path: `/users/@me/guilds/1` leaves a guild.
fn in_path(method: Method, path: &str, found: &mut Vec<Location>) -> Result<(), LocationError> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let segments: Vec<Cow<'_, str>> = path.split('/').skip(1).map(decoded).collect();
    for (index, segment) in segments.iter().enumerate() {
        let Some(next) = segments.get(index + 1) else { break };
        match segment.to_ascii_lowercase().as_str() {
            // A template is addressed by its code and belongs to none of the guilds that use it.
            "guilds" if next.eq_ignore_ascii_case("templates") => {}
            "guilds" => found.push(Location::Guild(parse_id(next)?)),
            "channels" | "stage-instances" => found.push(Location::Channel(parse_id(next)?)),
            "webhooks" => {
                let token = segments.get(index + 2).map(|token| token.clone().into_owned());
                found.push(Location::Webhook(parse_id(next)?, token));
            }
            "invites" if method != Method::Get => return Err(LocationError::Invite),
            _ => {}
        }
    }
    Ok(())
}

/// Ids in the body of a `request`: for example a forwarded message or a followed channel.
fn in_body(body: &Value, found: &mut Vec<Location>) -> Result<(), LocationError> {
    match body {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            if name.ends_with("channel_id") {
                found.extend(id(value)?.map(Location::Channel));
            } else if name.ends_with("guild_id") {
                found.extend(id(value)?.map(Location::Guild));
            }
            in_body(value, found)
        }),
        Value::Array(values) => values.iter().try_for_each(|value| in_body(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn id(value: &Value) -> Result<Option<u64>, LocationError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => parse_id(text).map(Some),
        Value::Number(number) => number.as_u64().map(Some).ok_or(LocationError::NotAnId),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(LocationError::NotAnId),
    }
}

pub(crate) fn parse_id(text: &str) -> Result<u64, LocationError> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain).ok_or(LocationError::NotAnId)
}

/// Percent-decodes a segment, as Discord does. A segment that is not valid UTF-8 after that is returned as it is, since
/// no known segment looks like that.
pub(crate) fn decoded(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(segment.len()), segment.as_bytes());
    while let [first, after @ ..] = rest {
        let byte = match after {
            [high, low, ..] if *first == b'%' => {
                let hex = |digit: u8| char::from(digit).to_digit(16);
                hex(*high).zip(hex(*low)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(segment), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::OperationKind, *};

    fn locations_of(kind: OperationKind, payload: &Value) -> Result<Vec<Location>, LocationError> {
        Payload::parse(kind, payload, None).or_else(|_| Payload::parse(kind, payload, Some(42))).unwrap().locations()
    }

    fn request(method: &str, path: &str) -> Result<Vec<Location>, LocationError> {
        locations_of(OperationKind::Request, &json!({"method": method, "path": path}))
    }

    #[test]
    fn every_kind_with_a_channel_returns_its_location() {
        let message = json!({"channel_id": "7", "message_id": "8", "content": "hi"});
        let overwrites = json!({"channel_id": "7", "overwrites": []});
        for (kind, payload) in [
            (OperationKind::SendMessage, json!({"channel_id": "7", "content": "hi"})),
            (OperationKind::EnsureMessage, json!({"channel_id": "7", "key": "a", "content": "hi"})),
            (OperationKind::EditMessage, message.clone()),
            (OperationKind::DeleteMessage, json!({"channel_id": "7", "message_id": "8"})),
            (OperationKind::DeleteChannel, json!({"channel_id": "7"})),
            (OperationKind::ReplaceOverwrites, overwrites),
            (
                OperationKind::UpdatePermissions,
                json!({"channel_id": "7", "overwrites": [{"role_id": "1", "allow": "0"}]}),
            ),
            (OperationKind::CreateChannel, json!({"name": "a", "parent_id": "7"})),
            (OperationKind::EnsureChannel, json!({"name": "a", "key": "a", "parent_id": "7"})),
        ] {
            assert_eq!(locations_of(kind, &payload), Ok(vec![Location::Channel(7)]), "{kind:?}");
        }
        let by_key = json!({"channel_id": {"key": "rules"}, "content": "hi"});
        assert_eq!(locations_of(OperationKind::SendMessage, &by_key), Ok(vec![]), "a key belongs to its own guild");
        assert_eq!(locations_of(OperationKind::CreateRole, &json!({"name": "a"})), Ok(vec![]));
    }

    #[test]
    fn path_locations_are_found_in_any_encoding() {
        use Location::{Channel, Guild, Webhook};
        for (path, expected) in [
            ("/users/@me", vec![]),
            ("/guilds/7/channels", vec![Guild(7)]),
            ("/channels/7/messages/8/reactions/%F0%9F%91%8D/@me", vec![Channel(7)]),
            ("/ch%61nnels/%37/messages", vec![Channel(7)]),
            ("/Channels/7", vec![Channel(7)]),
            ("/users/@me/guilds/7", vec![Guild(7)]),
            ("/applications/1/guilds/7/commands?with=/channels/9", vec![Guild(7)]),
            ("/stage-instances/7", vec![Channel(7)]),
            ("/webhooks/7", vec![Webhook(7, None)]),
            ("/webhooks/7/to-ken/messages/@original", vec![Webhook(7, Some("to-ken".to_owned()))]),
            ("/guilds/templates/abc", vec![]),
            ("/invites/abc", vec![]),
        ] {
            assert_eq!(request("GET", path), Ok(expected.clone()), "{path}");
            assert_eq!(locations_of(OperationKind::Read, &json!({"path": path})), Ok(expected), "{path}");
        }
    }

    #[test]
    fn undeterminable_location_is_an_error() {
        for path in ["/channels/+7", "/channels/7x", "/guilds/@me", "/webhooks/seven", "/channels/%2507/messages"] {
            assert_eq!(request("GET", path), Err(LocationError::NotAnId), "{path}");
        }
        assert_eq!(request("DELETE", "/invites/abc"), Err(LocationError::Invite));
        let many: Vec<_> = (1..=51).map(|id| json!({"channel_id": id})).collect();
        let many = json!({"method": "POST", "path": "/guilds/1/x", "body": many});
        assert_eq!(locations_of(OperationKind::Request, &many), Err(LocationError::TooMany));
    }

    #[test]
    fn body_locations_are_found_at_any_depth() {
        let body = json!({"content": "look", "message_reference":
            {"type": 1, "channel_id": "9", "message_id": "1", "guild_id": 8}, "webhook_channel_id": null});
        let forward = json!({"method": "POST", "path": "/channels/7/messages", "body": body});
        let expected = vec![Location::Guild(8), Location::Channel(7), Location::Channel(9)];
        assert_eq!(locations_of(OperationKind::Request, &forward), Ok(expected));
        let sly = json!({"method": "POST", "path": "/channels/7/messages", "body": {"channel_id": ["9"]}});
        assert_eq!(locations_of(OperationKind::Request, &sly), Err(LocationError::NotAnId));
    }
}
