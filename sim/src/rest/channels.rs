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
    let standing = access::in_guild(world, call)?;
    let channels = access::guild(world, standing.guild)?.channels.values();
    let shown: Vec<&Channel> = channels.filter(|channel| !call.hidden.contains(&channel.id)).collect();
    Ok(Reply::ok(&shown))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    match spot.guild {
        Some(guild) => Ok(Reply::ok(&access::guild(world, guild)?.channels[&spot.channel])),
        None => Ok(Reply::ok(&world.directs.get(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?.view())),
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
        let longest_topic = if kind == channel::FORUM { 4_096 } else { 1_024 };
        let parent = form.snowflake("parent_id");
        if let Field::Given(category) = parent {
            check_parent(form, "parent_id", kind, guild, category, id);
        }
        Self {
            name: form.string("name", 1..=100).map(|name| channel::shaped_name(kind, name)),
            position: form.small("position", 0..=10_000),
            topic: form.string("topic", 0..=longest_topic).map(str::to_owned),
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
        None => form.fault(field, "CHANNEL_PARENT_INVALID", "Category does not exist"),
        Some(parent) if parent.kind != channel::CATEGORY || kind == channel::CATEGORY => {
            form.fault(field, "CHANNEL_PARENT_INVALID_TYPE", "Not a category");
        }
        Some(_) if guild.is_full(category, child) => {
            form.fault(field, "CHANNEL_PARENT_MAX_CHANNELS", "Maximum number of channels in category reached (50)");
        }
        Some(_) => {}
    }
}

pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    standing.need(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = world.guilds.get_mut(&standing.guild).ok_or(ApiError::UNKNOWN_GUILD)?;
    let mut form = Form::of(call)?;
    let kind = form.choice("type", KINDS).value().unwrap_or(channel::TEXT);
    let mut read = ChannelForm::read(&mut form, kind, guild, None);
    form.required("name", Field::<()>::Absent);
    form.finish()?;
    if guild.channels.len() >= MAX_CHANNELS {
        return Err(ApiError::MAX_CHANNELS);
    }
    if let Field::Given(given) = &read.overwrites {
        overwrites::check(&standing, given)?;
    } else if let Field::Given(category) = read.parent {
        // A channel without overwrites of its own inherits those of its category.
        read.overwrites = Field::Given(guild.channels[&category].permission_overwrites.clone());
    }
    let shelf = guild.channels.values().filter(|other| channel::same_shelf(other.kind, kind));
    let position = shelf.map(|other| other.position + 1).max().unwrap_or(0);
    let mut made = Channel::new(world.mint.mint(call.now), kind, standing.guild, String::new(), position);
    read.apply(&mut made);
    guild.channels.insert(made.id, made.clone());
    world.homes.insert(made.id, Home::Guild(standing.guild));
    world.outbox.push(Dispatch::guild("CHANNEL_CREATE", standing.guild, intents::GUILDS, &made));
    let changes = audit::changes(None, Some(&made), AUDITED);
    let draft = Draft::new(audit::CHANNEL_CREATE, standing.user, made.id, reason).changes(changes);
    world.audit(standing.guild, draft, call.now);
    let effect = Effect::new(Verb::Create, "channel", Some(standing.guild), made.id, &made.name);
    Ok(Reply::json(StatusCode::CREATED, &made).with_effect(effect))
}

pub(crate) fn modify(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (spot, standing) = access::in_guild_channel(world, call)?;
    standing.need(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, standing.guild)?;
    let mut form = Form::of(call)?;
    let kind = match spot.kind {
        // These two can be converted into one another.
        channel::TEXT | channel::ANNOUNCEMENT => form.choice("type", &[channel::TEXT, channel::ANNOUNCEMENT]).value(),
        _ => None,
    };
    let kind = kind.unwrap_or(spot.kind);
    let read = ChannelForm::read(&mut form, kind, guild, Some(spot.channel));
    form.finish()?;
    let channel = guild.channels.get_mut(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    if let Field::Given(given) = &read.overwrites {
        standing.need(MANAGE_ROLES)?;
        let fresh: Vec<Overwrite> =
            given.iter().filter(|overwrite| !channel.permission_overwrites.contains(overwrite)).cloned().collect();
        overwrites::check(&standing, &fresh)?;
    }
    let old = channel.clone();
    channel.kind = kind;
    read.apply(channel);
    let new = channel.clone();
    let changes = audit::changes(Some(&old), Some(&new), AUDITED);
    tell_update(world, &new);
    if !changes.is_empty() {
        let draft = Draft::new(audit::CHANNEL_UPDATE, standing.user, new.id, reason).changes(changes);
        world.audit(standing.guild, draft, call.now);
    }
    Ok(Reply::ok(&new).with_effect(Effect::new(Verb::Update, "channel", Some(standing.guild), new.id, &new.name)))
}

/// Queues an event for a changed channel.
pub(super) fn tell_update(world: &mut World, channel: &Channel) {
    world.outbox.push(Dispatch::guild("CHANNEL_UPDATE", channel.guild_id, intents::GUILDS, channel));
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    let Some(guild_id) = spot.guild else {
        // Closing a direct channel hides it from the bot's list; its id and messages stay.
        return Ok(Reply::ok(&world.directs.get(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?.view()));
    };
    spot.need(MANAGE_CHANNELS)?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_id)?;
    let gone = guild.channels.remove(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let mut orphans = Vec::new();
    for child in guild.channels.values_mut().filter(|child| child.parent_id == Some(gone.id)) {
        child.parent_id = None;
        orphans.push(child.clone());
    }
    world.homes.remove(&gone.id);
    world.feeds.remove(&gone.id);
    for orphan in &orphans {
        tell_update(world, orphan);
    }
    world.outbox.push(Dispatch::guild("CHANNEL_DELETE", guild_id, intents::GUILDS, &gone));
    let changes = audit::changes(Some(&gone), None, AUDITED);
    let draft = Draft::new(audit::CHANNEL_DELETE, spot.author.id, gone.id, reason).changes(changes);
    world.audit(guild_id, draft, call.now);
    Ok(Reply::ok(&gone).with_effect(Effect::new(Verb::Delete, "channel", Some(guild_id), gone.id, &gone.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::Stage;
    use crate::world::permissions;

    #[test]
    fn a_channel_is_made_kept_told_and_logged() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let made =
            stage.post(&path, json!({ "name": "Match Day  One", "topic": "kick-off", "rate_limit_per_user": 5 }));
        assert_eq!((made.status, &made.json["name"]), (201, &json!("match-day-one")));
        assert_eq!(made.json["guild_id"], json!(stage.guild));
        assert_eq!(made.events, ["CHANNEL_CREATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(made.effect.as_ref().unwrap().name, "match-day-one");
        assert_eq!(stage.get(&format!("/channels/{}", made.id())).json, made.json);
        let log = stage.get(&stage.guild_path("/audit-logs?action_type=10")).json;
        assert_eq!(log["audit_log_entries"][0]["target_id"], made.json["id"]);
    }

    #[test]
    fn each_kind_has_its_own_fields_and_names() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let voice = stage.post(&path, json!({ "name": "Loud Room", "type": 2, "user_limit": 5 })).json;
        assert_eq!(
            (&voice["name"], &voice["bitrate"], &voice["user_limit"]),
            (&json!("Loud Room"), &json!(64_000), &json!(5))
        );
        let text = stage.post(&path, json!({ "name": "quiet", "bitrate": 64_000 })).json;
        assert!(text.get("bitrate").is_none());
        for kind in [4, 5, 13, 15] {
            assert_eq!(stage.post(&path, json!({ "name": "x", "type": kind })).status, 201, "{kind}");
        }
        assert_eq!(stage.post(&path, json!({ "name": "x", "type": 1 })).code(), 50035);
    }

    #[test]
    fn the_501st_channel_is_refused() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let standing = stage.get(&path).json.as_array().unwrap().len();
        for _ in standing..500 {
            assert_eq!(stage.post(&path, json!({ "name": "x" })).status, 201);
        }
        assert_eq!(stage.post(&path, json!({ "name": "x" })).code(), 30013);
    }

    #[test]
    fn a_category_holds_fifty() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let category = stage.post(&path, json!({ "name": "full", "type": 4 })).id();
        for _ in 0..50 {
            assert_eq!(stage.post(&path, json!({ "name": "x", "parent_id": category })).status, 201);
        }
        let refused = stage.post(&path, json!({ "name": "x", "parent_id": category }));
        let fault = &refused.json["errors"]["parent_id"]["_errors"][0]["code"];
        assert_eq!((refused.code(), fault), (50035, &json!("CHANNEL_PARENT_MAX_CHANNELS")));
        let moved = stage.patch(&stage.channel_path(""), json!({ "parent_id": category }));
        assert_eq!(moved.code(), 50035);
        let not_a_category = json!({ "name": "x", "parent_id": stage.channel });
        assert_eq!(stage.post(&path, not_a_category).code(), 50035);
    }

    #[test]
    fn an_edit_clears_what_is_null_and_keeps_what_is_absent() {
        let mut stage = Stage::new();
        let path = stage.channel_path("");
        stage.patch(&path, json!({ "topic": "old", "nsfw": true }));
        let edited = stage.patch(&path, json!({ "topic": null }));
        assert_eq!((&edited.json["topic"], &edited.json["nsfw"]), (&json!(null), &json!(true)));
        assert_eq!(edited.events, ["CHANNEL_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(stage.patch(&path, json!({ "topic": "t".repeat(1_025) })).code(), 50035);
    }

    #[test]
    fn a_deleted_category_lets_its_channels_go() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let category = stage.post(&path, json!({ "name": "cup", "type": 4 })).id();
        let child = stage.post(&path, json!({ "name": "x", "parent_id": category })).id();
        let deleted = stage.delete(&format!("/channels/{category}"));
        assert_eq!((deleted.status, &deleted.json["id"]), (200, &json!(category)));
        assert_eq!(deleted.events, ["CHANNEL_UPDATE", "CHANNEL_DELETE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(stage.get(&format!("/channels/{child}")).json["parent_id"], json!(null));
        assert_eq!(stage.get(&format!("/channels/{category}")).code(), 10003);
    }

    #[test]
    fn a_listing_leaves_out_what_a_fault_hides() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/channels");
        let all = stage.get(&path).json.as_array().unwrap().len();
        stage.hidden = vec![stage.channel];
        assert_eq!(stage.get(&path).json.as_array().unwrap().len(), all - 1);
        assert_eq!(stage.get(&stage.channel_path("")).status, 200);
    }

    #[test]
    fn what_a_bot_cannot_see_or_manage_it_cannot_touch() {
        let mut stage = Stage::new();
        let own = permissions::VIEW_CHANNEL | permissions::MANAGE_ROLES;
        stage.world.set_bot_permissions(stage.guild, own).unwrap();
        assert_eq!(stage.patch(&stage.channel_path(""), json!({ "name": "x" })).code(), 50013);
        assert_eq!(stage.delete(&stage.channel_path("")).code(), 50013);
        assert_eq!(stage.post(&stage.guild_path("/channels"), json!({ "name": "x" })).code(), 50013);
        let everyone = stage.channel_path(&format!("/permissions/{}", stage.guild));
        assert_eq!(stage.put(&everyone, json!({ "type": 0, "deny": "1024" })).status, 204);
        assert_eq!(stage.get(&stage.channel_path("")).code(), 50001);
    }
}
