//! `/guilds/{guild.id}/channels` and `/channels/{channel.id}`: channels.

use http::StatusCode;
use serde_json::Value;

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form};
use super::overwrites;
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::world::audit::{self, Draft};
use crate::world::channel::{self, Channel, Home, MAX_CHANNELS};
use crate::world::guild::Guild;
use crate::world::permissions::{MANAGE_CHANNELS, MANAGE_ROLES, Overwrite};
use crate::world::{World, intents};

/// The kinds of channel that can be created in a guild.
const KINDS: &[u8] =
    &[channel::TEXT, channel::VOICE, channel::CATEGORY, channel::ANNOUNCEMENT, channel::STAGE, channel::FORUM];
/// The fields of a channel that the audit log records.
const AUDITED: &[&str] = &[
    "name",
    "type",
    "topic",
    "nsfw",
    "parent_id",
    "rate_limit_per_user",
    "bitrate",
    "user_limit",
    "permission_overwrites",
];

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let channels = access::guild(world, guild_access.guild)?.channels.values();
    let visible: Vec<&Channel> = channels.filter(|channel| !call.hidden.contains(&channel.id)).collect();
    Ok(Reply::ok(&visible))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    match channel_access.guild {
        Some(guild) => Ok(Reply::ok(&access::guild(world, guild)?.channels[&channel_access.channel])),
        None => Ok(Reply::ok(&world.directs.get(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?.view())),
    }
}

/// Fields of a channel in a form.
struct ChannelForm {
    name: Field<String>,
    position: Field<u32>,
    topic: Field<String>,
    nsfw: Field<bool>,
    rate_limit: Field<u32>,
    bitrate: Field<u32>,
    user_limit: Field<u32>,
    archive: Field<u32>,
    parent: Field<Snowflake>,
    overwrites: Field<Vec<Overwrite>>,
    tags: Field<Vec<Value>>,
}

impl ChannelForm {
    fn read(form: &mut Form<'_>, kind: u8, guild: &Guild, id: Option<Snowflake>) -> Self {
        let max_topic = if kind == channel::FORUM { 4_096 } else { 1_024 };
        let parent = form.snowflake("parent_id");
        if let Field::Given(category) = parent {
            check_parent(form, "parent_id", kind, guild, category, id);
        }
        Self {
            name: form.string("name", 1..=100).map(|name| channel::normalize_name(kind, name)),
            position: form.small("position", 0..=10_000),
            topic: form.string("topic", 0..=max_topic).map(str::to_owned),
            nsfw: form.boolean("nsfw"),
            rate_limit: form.small("rate_limit_per_user", 0..=21_600),
            bitrate: form.small("bitrate", 8_000..=384_000),
            user_limit: form.small("user_limit", 0..=10_000),
            archive: form.small("default_auto_archive_duration", 60..=10_080),
            parent,
            overwrites: overwrites::list(form),
            tags: form.list("available_tags", 20).map(<[Value]>::to_vec),
        }
    }

    fn apply(self, channel: &mut Channel) {
        self.name.update(&mut channel.name);
        self.position.update(&mut channel.position);
        self.topic.update_or_clear(&mut channel.topic);
        self.nsfw.update(&mut channel.nsfw);
        self.rate_limit.update(&mut channel.rate_limit_per_user);
        if matches!(channel.kind, channel::VOICE | channel::STAGE) {
            self.bitrate.map(Some).update(&mut channel.bitrate);
            self.user_limit.map(Some).update(&mut channel.user_limit);
        }
        self.archive.update_or_clear(&mut channel.default_auto_archive_duration);
        self.parent.update_or_clear(&mut channel.parent_id);
        match self.overwrites {
            Field::Absent => {}
            Field::Null => channel.permission_overwrites.clear(),
            Field::Given(overwrites) => channel.permission_overwrites = overwrites,
        }
        if channel.kind == channel::FORUM {
            self.tags.map(Some).update(&mut channel.available_tags);
        }
    }
}

/// Checks that a parent is a category of the guild with room for one more channel.
pub(super) fn check_parent(
    form: &mut Form<'_>,
    field: &str,
    kind: u8,
    guild: &Guild,
    category: Snowflake,
    child: Option<Snowflake>,
) {
    match guild.channels.get(&category) {
        None => form.add_error(field, "CHANNEL_PARENT_INVALID", "Category does not exist"),
        Some(parent) if parent.kind != channel::CATEGORY || kind == channel::CATEGORY => {
            form.add_error(field, "CHANNEL_PARENT_INVALID_TYPE", "Not a category");
        }
        Some(_) if guild.is_full(category, child) => {
            form.add_error(field, "CHANNEL_PARENT_MAX_CHANNELS", "Maximum number of channels in category reached (50)");
        }
        Some(_) => {}
    }
}

pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = world.guilds.get_mut(&guild_access.guild).ok_or(ApiError::UNKNOWN_GUILD)?;
    let mut form = Form::of(call)?;
    let kind = form.choice("type", KINDS).value().unwrap_or(channel::TEXT);
    let mut fields = ChannelForm::read(&mut form, kind, guild, None);
    form.required("name", Field::<()>::Absent);
    form.finish()?;
    if guild.channels.len() >= MAX_CHANNELS {
        return Err(ApiError::MAX_CHANNELS);
    }
    if let Field::Given(given) = &fields.overwrites {
        overwrites::check(&guild_access, given)?;
    } else if let Field::Given(category) = fields.parent {
        // A channel without overwrites of its own inherits those of its category.
        fields.overwrites = Field::Given(guild.channels[&category].permission_overwrites.clone());
    }
    let siblings = guild.channels.values().filter(|other| channel::same_order_group(other.kind, kind));
    let position = siblings.map(|other| other.position + 1).max().unwrap_or(0);
    let mut channel = Channel::new(world.mint.generate(call.now), kind, guild_access.guild, String::new(), position);
    fields.apply(&mut channel);
    guild.channels.insert(channel.id, channel.clone());
    world.homes.insert(channel.id, Home::Guild(guild_access.guild));
    world.dispatches.push(Dispatch::guild("CHANNEL_CREATE", guild_access.guild, intents::GUILDS, &channel));
    let changes = audit::changes(None, Some(&channel), AUDITED);
    let draft = Draft::new(audit::CHANNEL_CREATE, guild_access.user, channel.id, reason).changes(changes);
    world.audit(guild_access.guild, draft, call.now);
    let effect = Effect::new_object("channel", Some(guild_access.guild), channel.id, &channel.name);
    Ok(Reply::json(StatusCode::CREATED, &channel).with_effect(effect))
}

pub(crate) fn modify(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (channel_access, guild_access) = access::in_guild_channel(world, call)?;
    guild_access.require(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_access.guild)?;
    let mut form = Form::of(call)?;
    let kind = match channel_access.kind {
        // These two can be converted into one another.
        channel::TEXT | channel::ANNOUNCEMENT => form.choice("type", &[channel::TEXT, channel::ANNOUNCEMENT]).value(),
        _ => None,
    };
    let kind = kind.unwrap_or(channel_access.kind);
    let fields = ChannelForm::read(&mut form, kind, guild, Some(channel_access.channel));
    form.finish()?;
    let channel = guild.channels.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    if let Field::Given(given) = &fields.overwrites {
        guild_access.require(MANAGE_ROLES)?;
        let changed: Vec<Overwrite> =
            given.iter().filter(|overwrite| !channel.permission_overwrites.contains(overwrite)).cloned().collect();
        overwrites::check(&guild_access, &changed)?;
    }
    let old = channel.clone();
    channel.kind = kind;
    fields.apply(channel);
    let new = channel.clone();
    let changes = audit::changes(Some(&old), Some(&new), AUDITED);
    notify_update(world, &new);
    if !changes.is_empty() {
        let draft = Draft::new(audit::CHANNEL_UPDATE, guild_access.user, new.id, reason).changes(changes);
        world.audit(guild_access.guild, draft, call.now);
    }
    Ok(Reply::ok(&new).with_effect(Effect::new(Verb::Update, "channel", Some(guild_access.guild), new.id, &new.name)))
}

/// Queues an event for a changed channel.
pub(super) fn notify_update(world: &mut World, channel: &Channel) {
    world.dispatches.push(Dispatch::guild("CHANNEL_UPDATE", channel.guild_id, intents::GUILDS, channel));
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let Some(guild_id) = channel_access.guild else {
        // Closing a direct channel hides it from the bot's list; its id and messages stay.
        return Ok(Reply::ok(&world.directs.get(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?.view()));
    };
    channel_access.require(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_id)?;
    let deleted = guild.channels.remove(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let mut orphans = Vec::new();
    for child in guild.channels.values_mut().filter(|child| child.parent_id == Some(deleted.id)) {
        child.parent_id = None;
        orphans.push(child.clone());
    }
    world.homes.remove(&deleted.id);
    world.remove_feed(deleted.id);
    for orphan in &orphans {
        notify_update(world, orphan);
    }
    world.dispatches.push(Dispatch::guild("CHANNEL_DELETE", guild_id, intents::GUILDS, &deleted));
    let changes = audit::changes(Some(&deleted), None, AUDITED);
    let draft = Draft::new(audit::CHANNEL_DELETE, channel_access.author.id, deleted.id, reason).changes(changes);
    world.audit(guild_id, draft, call.now);
    Ok(Reply::ok(&deleted).with_effect(Effect::new(Verb::Delete, "channel", Some(guild_id), deleted.id, &deleted.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    #[test]
    fn created_channel_is_stored_dispatched_and_logged() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let made =
            fixture.post(&path, json!({ "name": "Match Day  One", "topic": "kick-off", "rate_limit_per_user": 5 }));
        assert_eq!((made.status, &made.json["name"]), (201, &json!("match-day-one")));
        assert_eq!(made.json["guild_id"], json!(fixture.guild));
        assert_eq!(made.events, ["CHANNEL_CREATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(made.effect.as_ref().unwrap().name, "match-day-one");
        assert_eq!(fixture.get(&format!("/channels/{}", made.id())).json, made.json);
        let log = fixture.get(&fixture.guild_path("/audit-logs?action_type=10")).json;
        assert_eq!(log["audit_log_entries"][0]["target_id"], made.json["id"]);
    }

    #[test]
    fn each_kind_has_its_own_fields_and_name_format() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let voice = fixture.post(&path, json!({ "name": "Loud Room", "type": 2, "user_limit": 5 })).json;
        assert_eq!(
            (&voice["name"], &voice["bitrate"], &voice["user_limit"]),
            (&json!("Loud Room"), &json!(64_000), &json!(5))
        );
        let text = fixture.post(&path, json!({ "name": "quiet", "bitrate": 64_000 })).json;
        assert!(text.get("bitrate").is_none());
        for kind in [4, 5, 13, 15] {
            assert_eq!(fixture.post(&path, json!({ "name": "x", "type": kind })).status, 201, "{kind}");
        }
        assert_eq!(fixture.post(&path, json!({ "name": "x", "type": 1 })).code(), 50035);
    }

    #[test]
    fn the_501st_channel_is_refused() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let existing = fixture.get(&path).json.as_array().unwrap().len();
        for _ in existing..500 {
            assert_eq!(fixture.post(&path, json!({ "name": "x" })).status, 201);
        }
        assert_eq!(fixture.post(&path, json!({ "name": "x" })).code(), 30013);
    }

    #[test]
    fn category_has_at_most_fifty_channels() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let category = fixture.post(&path, json!({ "name": "full", "type": 4 })).id();
        for _ in 0..50 {
            assert_eq!(fixture.post(&path, json!({ "name": "x", "parent_id": category })).status, 201);
        }
        let refused = fixture.post(&path, json!({ "name": "x", "parent_id": category }));
        let code = &refused.json["errors"]["parent_id"]["_errors"][0]["code"];
        assert_eq!((refused.code(), code), (50035, &json!("CHANNEL_PARENT_MAX_CHANNELS")));
        let moved = fixture.patch(&fixture.channel_path(""), json!({ "parent_id": category }));
        assert_eq!(moved.code(), 50035);
        let not_a_category = json!({ "name": "x", "parent_id": fixture.channel });
        assert_eq!(fixture.post(&path, not_a_category).code(), 50035);
    }

    #[test]
    fn edit_clears_null_fields_and_keeps_absent_ones() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("");
        fixture.patch(&path, json!({ "topic": "old", "nsfw": true }));
        let edited = fixture.patch(&path, json!({ "topic": null }));
        assert_eq!((&edited.json["topic"], &edited.json["nsfw"]), (&json!(null), &json!(true)));
        assert_eq!(edited.events, ["CHANNEL_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(fixture.patch(&path, json!({ "topic": "t".repeat(1_025) })).code(), 50035);
    }

    #[test]
    fn deleting_a_category_keeps_its_channels() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let category = fixture.post(&path, json!({ "name": "cup", "type": 4 })).id();
        let child = fixture.post(&path, json!({ "name": "x", "parent_id": category })).id();
        let deleted = fixture.delete(&format!("/channels/{category}"));
        assert_eq!((deleted.status, &deleted.json["id"]), (200, &json!(category)));
        assert_eq!(deleted.events, ["CHANNEL_UPDATE", "CHANNEL_DELETE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(fixture.get(&format!("/channels/{child}")).json["parent_id"], json!(null));
        assert_eq!(fixture.get(&format!("/channels/{category}")).code(), 10003);
    }

    #[test]
    fn listing_omits_hidden_channels() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let all = fixture.get(&path).json.as_array().unwrap().len();
        fixture.hidden = vec![fixture.channel];
        assert_eq!(fixture.get(&path).json.as_array().unwrap().len(), all - 1);
        assert_eq!(fixture.get(&fixture.channel_path("")).status, 200);
    }

    #[test]
    fn channel_changes_need_permissions() {
        let mut fixture = RestFixture::new();
        let own = permissions::VIEW_CHANNEL | permissions::MANAGE_ROLES;
        fixture.world.set_bot_permissions(fixture.guild, own).unwrap();
        assert_eq!(fixture.patch(&fixture.channel_path(""), json!({ "name": "x" })).code(), 50013);
        assert_eq!(fixture.delete(&fixture.channel_path("")).code(), 50013);
        assert_eq!(fixture.post(&fixture.guild_path("/channels"), json!({ "name": "x" })).code(), 50013);
        let everyone = fixture.channel_path(&format!("/permissions/{}", fixture.guild));
        assert_eq!(fixture.put(&everyone, json!({ "type": 0, "deny": "1024" })).status, 204);
        assert_eq!(fixture.get(&fixture.channel_path("")).code(), 50001);
    }
}
