//! `/users`: the bot itself, other users, and direct messages with them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Form, Query, query_flag};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::world::user::OwnUser;
use crate::world::{World, intents};

pub(crate) fn own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    Ok(Reply::ok(&OwnUser::of(access::user(world, call)?)))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    Ok(Reply::ok(world.users.get(&call.params.id("user.id")?).ok_or(ApiError::UNKNOWN_USER)?))
}

pub(crate) fn guilds(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let user = access::bot(world, call)?.user_id;
    let mut query = Query::of(call);
    let limit = query.limit(1..=200, 200);
    let (before, after) = (query.snowflake("before"), query.snowflake("after"));
    query.finish()?;
    let with_counts = query_flag(call, "with_counts");
    let first = after.map_or(0, |after| after.get().saturating_add(1));
    let last = before.map_or(u64::MAX, Snowflake::get).max(first);
    let found = world.guilds.range(Snowflake::new(first)..Snowflake::new(last)).map(|(_, guild)| guild);
    let page: Vec<Value> = found
        .filter(|guild| guild.members.contains_key(&user))
        .take(limit)
        .map(|guild| {
            let mut guild_json = json!({
                "id": guild.id,
                "name": guild.name,
                "icon": null,
                "banner": null,
                "owner": guild.owner == user,
                "permissions": guild.permissions_of(user).to_string(),
                "features": [],
            });
            if with_counts {
                guild_json["approximate_member_count"] = json!(guild.members.len());
                guild_json["approximate_presence_count"] =
                    json!(guild.members.values().filter(|member| member.user.bot).count());
            }
            guild_json
        })
        .collect();
    Ok(Reply::ok(&page))
}

/// Opens the direct channel with a user, or finds the existing one.
pub(crate) fn open_direct(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let mut form = Form::of(call)?;
    let recipient = form.snowflake("recipient_id");
    let recipient = form.required("recipient_id", recipient);
    form.finish()?;
    let recipient = recipient.and_then(|id| world.users.get(&id)).map(Arc::clone).ok_or(ApiError::UNKNOWN_USER)?;
    let application = access::bot(world, call)?.application_id;
    if recipient.bot {
        return Err(ApiError::CANNOT_SEND_TO_USER);
    }
    let (id, is_new) = match world.find_direct(application, recipient.id) {
        Some(id) => (id, false),
        None => (world.create_direct(application, recipient, call.now), true),
    };
    let direct = world.directs.get(&id).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let reply = Reply::ok(&direct.view());
    if !is_new {
        return Ok(reply);
    }
    let name = direct.recipient.id.to_string();
    let event = Dispatch::application("CHANNEL_CREATE", application, intents::DIRECT_MESSAGES, &direct.view());
    world.dispatches.push(event);
    Ok(reply.with_effect(Effect::new(Verb::Create, "direct_channel", None, id, &name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::{BotConfig, SimConfig};
    use crate::dispatch::Audience;
    use crate::rest::testing::RestFixture;
    use crate::world::drive::GuildSpec;

    #[test]
    fn bot_reads_itself_other_users_and_its_guilds() {
        let mut fixture = RestFixture::new();
        assert_eq!(fixture.get("/users/@me").json["id"], json!(fixture.application));
        assert_eq!(fixture.get(&format!("/users/{}", fixture.member)).json["bot"], false);
        assert_eq!(fixture.get("/users/5").code(), 10013);
        let second = fixture.world.add_guild(&GuildSpec::default(), fixture.now);
        let guilds = fixture.get("/users/@me/guilds?with_counts=true").json;
        assert_eq!((&guilds[0]["id"], &guilds[1]["id"]), (&json!(fixture.guild), &json!(second)));
        assert_eq!(guilds[0]["approximate_member_count"], 5);
        let rest = fixture.get(&format!("/users/@me/guilds?after={}", fixture.guild)).json;
        assert_eq!(rest.as_array().unwrap().len(), 1);
    }

    #[test]
    fn direct_channel_is_opened_once_and_visible_to_its_bot_only() {
        let mut fixture = RestFixture::new();
        let opened = fixture.post("/users/@me/channels", json!({ "recipient_id": fixture.member }));
        assert_eq!((opened.status, opened.events.as_slice()), (200, &["CHANNEL_CREATE"][..]));
        let again = fixture.post("/users/@me/channels", json!({ "recipient_id": fixture.member }));
        assert_eq!((again.id(), again.effect), (opened.id(), None));
        let sent = fixture.post(&format!("/channels/{}/messages", opened.id()), json!({ "content": "psst" }));
        assert_eq!(sent.dispatches[0].audience, Audience::Application(fixture.application));
        assert!(sent.event("MESSAGE_CREATE").get("guild_id").is_none());
        assert_eq!(fixture.get(&format!("/channels/{}", opened.id())).json["last_message_id"], sent.json["id"]);
        assert_eq!(fixture.post("/users/@me/channels", json!({ "recipient_id": "5" })).code(), 10013);
        assert_eq!(fixture.post("/users/@me/channels", json!({ "recipient_id": fixture.application })).code(), 50007);
    }

    #[test]
    fn direct_channel_of_another_bot_is_inaccessible() {
        let other = BotConfig { token: "other".into(), name: "other".into() };
        let mut fixture =
            RestFixture::with_config(&SimConfig { bots: vec![BotConfig::default(), other], ..SimConfig::default() });
        let opened = fixture.post("/users/@me/channels", json!({ "recipient_id": fixture.member })).id();
        fixture.application = fixture.world.bots[1].application_id;
        assert_eq!(fixture.get(&format!("/channels/{opened}")).code(), 50001);
    }
}
