//! Pins of a channel, by the newer paths (`…/messages/pins`) and the older ones (`…/pins`).

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, json};

use super::access::{self, ChannelAccess};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::Query;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::audit::{self, Draft};
use crate::world::feed::{Feed, MAX_PINS};
use crate::world::message::MessageView;
use crate::world::permissions::{MANAGE_MESSAGES, PIN_MESSAGES};
use crate::world::{World, intents, wire};

#[derive(Serialize)]
struct Pin<'a> {
    #[serde(with = "wire::iso")]
    pinned_at: At,
    message: MessageView<'a>,
}

/// The pins of a channel as `viewer` reads them, newest first.
fn newest_first(feed: &Feed, viewer: Snowflake) -> Vec<Pin<'_>> {
    let mut pins: Vec<Pin<'_>> = feed
        .pins
        .iter()
        .filter_map(|(id, pinned_at)| {
            Some(Pin { pinned_at: *pinned_at, message: feed.view(feed.messages.get(id)?, viewer) })
        })
        .collect();
    pins.sort_by_key(|pin| std::cmp::Reverse((pin.pinned_at, pin.message.message.id)));
    pins
}

fn pins_of<'w>(world: &'w World, channel_access: &ChannelAccess) -> Vec<Pin<'w>> {
    let feed = world.feeds.get(&channel_access.channel);
    feed.map(|feed| newest_first(feed, channel_access.author.id)).unwrap_or_default()
}

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let mut query = Query::of(call);
    let limit = query.limit(1..=50, 50);
    query.finish()?;
    let before = match call.query("before") {
        None => None,
        Some(text) => Some(wire::parse_iso(text).ok_or_else(|| {
            ApiError::form("before", "DATE_TIME_TYPE_PARSE", &format!("Could not parse {text}. Should be ISO8601."))
        })?),
    };
    let mut items = pins_of(world, &channel_access);
    items.retain(|pin| before.is_none_or(|before| pin.pinned_at < before));
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(Reply::ok(&json!({ "items": items, "has_more": has_more })))
}

pub(crate) fn list_old(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let pins = pins_of(world, &channel_access);
    let messages: Vec<_> = pins.into_iter().map(|pin| pin.message).take(50).collect();
    Ok(Reply::ok(&messages))
}

/// Either permission is enough: PIN_MESSAGES was split from MANAGE_MESSAGES.
fn require_pin(channel_access: &ChannelAccess) -> Result<(), ApiError> {
    if channel_access.allows(PIN_MESSAGES) || channel_access.allows(MANAGE_MESSAGES) {
        Ok(())
    } else {
        Err(ApiError::MISSING_PERMISSIONS)
    }
}

pub(crate) fn pin(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    require_pin(&channel_access)?;
    let reason = access::reason(call)?;
    let id = call.params.id("message.id")?;
    let feed = world.feeds.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    feed.get(id).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    if feed.pins.contains_key(&id) {
        return Ok(Reply::no_content());
    }
    if feed.pins.len() >= MAX_PINS {
        return Err(ApiError::MAX_PINS);
    }
    feed.pins.insert(id, call.now);
    set_pinned(world, call.now, &channel_access, id, reason, PinChange::Pinned)?;
    world.post_pin_notice(channel_access.channel, id, &Arc::clone(&channel_access.author), call.now);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Create, "pin", channel_access.guild, id, &id.to_string())))
}

pub(crate) fn unpin(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    require_pin(&channel_access)?;
    let reason = access::reason(call)?;
    let id = call.params.id("message.id")?;
    let feed = world.feeds.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    feed.get(id).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    if feed.pins.remove(&id).is_none() {
        return Ok(Reply::no_content());
    }
    set_pinned(world, call.now, &channel_access, id, reason, PinChange::Unpinned)?;
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "pin", channel_access.guild, id, &id.to_string())))
}

/// Whether a message is pinned or unpinned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PinChange {
    Pinned,
    Unpinned,
}

/// Marks the message, queues the events, and writes the audit log.
fn set_pinned(
    world: &mut World,
    now: At,
    channel_access: &ChannelAccess,
    id: Snowflake,
    reason: Option<String>,
    pin_change: PinChange,
) -> Result<(), ApiError> {
    let feed = world.feeds.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    let message = feed.messages.get_mut(&id).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    message.pinned = pin_change == PinChange::Pinned;
    let author = message.author.id;
    let last = feed.pins.values().max().copied();
    if let Some(guild) = channel_access.guild
        && let Some(channel) = access::guild_mut(world, guild)?.channels.get_mut(&channel_access.channel)
    {
        channel.last_pin_timestamp = last;
    }
    world.notify_message_update(channel_access.channel, id);
    let event = Map::from_iter([("last_pin_timestamp".into(), json!(last.map(At::iso8601)))]);
    // This event needs the intent of channels, not that of messages.
    world.notify_channel(
        "CHANNEL_PINS_UPDATE",
        channel_access.channel,
        (intents::GUILDS, intents::DIRECT_MESSAGES),
        event,
    );
    if let Some(guild) = channel_access.guild {
        let action = match pin_change {
            PinChange::Pinned => audit::MESSAGE_PIN,
            PinChange::Unpinned => audit::MESSAGE_UNPIN,
        };
        let options = json!({ "channel_id": channel_access.channel, "message_id": id });
        world.audit(guild, Draft::new(action, channel_access.author.id, author, reason).options(options), now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    #[test]
    fn pin_is_dispatched_listed_and_removed() {
        let mut fixture = RestFixture::new();
        let message = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "rules" })).id();
        let path = fixture.channel_path(&format!("/messages/pins/{message}"));
        let pinned = fixture.put(&path, json!(null));
        let events = ["MESSAGE_UPDATE", "CHANNEL_PINS_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE", "MESSAGE_CREATE"];
        assert_eq!((pinned.status, pinned.events.as_slice()), (204, &events[..]));
        let again = fixture.put(&path, json!(null));
        assert_eq!((again.effect, again.events.len()), (None, 0));
        let listed = fixture.get(&fixture.channel_path("/messages/pins")).json;
        assert_eq!((&listed["items"][0]["message"]["id"], &listed["has_more"]), (&json!(message), &json!(false)));
        assert_eq!(listed["items"][0]["message"]["pinned"], true);
        assert_eq!(fixture.get(&fixture.channel_path("/pins")).json[0]["id"], json!(message));
        let lifted = fixture.delete(&fixture.channel_path(&format!("/pins/{message}")));
        assert_eq!(lifted.status, 204);
        assert_eq!(fixture.get(&fixture.channel_path("/pins")).json, json!([]));
    }

    #[test]
    fn a_channel_has_at_most_250_pins() {
        let mut fixture = RestFixture::new();
        for number in 0..=250 {
            let message = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "x" })).id();
            let pinned = fixture.put(&fixture.channel_path(&format!("/pins/{message}")), json!(null));
            assert_eq!(pinned.status, if number < 250 { 204 } else { 400 });
        }
        let page = fixture.get(&fixture.channel_path("/messages/pins?limit=20")).json;
        assert_eq!((page["items"].as_array().unwrap().len(), &page["has_more"]), (20, &json!(true)));
    }

    #[test]
    fn pinning_needs_permission() {
        let mut fixture = RestFixture::new();
        let message = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "x" })).id();
        let path = fixture.channel_path(&format!("/pins/{message}"));
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.put(&path, json!(null)).code(), 50013);
        fixture.world.set_bot_permissions(fixture.guild, permissions::PIN_MESSAGES).unwrap();
        assert_eq!(fixture.put(&path, json!(null)).status, 204);
        assert_eq!(fixture.put(&fixture.channel_path("/pins/5"), json!(null)).code(), 10008);
    }
}
