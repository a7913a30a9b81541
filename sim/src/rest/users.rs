//! `/users`: the bot itself, others, and direct messages with them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Form, Query, switched_on};
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
    let with_counts = switched_on(call, "with_counts");
    let first = after.map_or(0, |after| after.get().saturating_add(1));
    let last = before.map_or(u64::MAX, Snowflake::get).max(first);
    let found = world.guilds.range(Snowflake::new(first)..Snowflake::new(last)).map(|(_, guild)| guild);
    let page: Vec<Value> = found
        .filter(|guild| guild.members.contains_key(&user))
        .take(limit)
        .map(|guild| {
            let mut shown = json!({
                "id": guild.id,
                "name": guild.name,
                "icon": null,
                "banner": null,
                "owner": guild.owner == user,
                "permissions": guild.permissions_of(user).to_string(),
                "features": [],
            });
            if with_counts {
                shown["approximate_member_count"] = json!(guild.members.len());
                shown["approximate_presence_count"] =
                    json!(guild.members.values().filter(|member| member.user.bot).count());
            }
            shown
        })
        .collect();
    Ok(Reply::ok(&page))
}

/// Opens the direct channel with a user, or finds it again.
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
    let (id, made) = match world.direct_with(application, recipient.id) {
        Some(id) => (id, false),
        None => (world.make_direct(application, recipient, call.now), true),
    };
    let direct = world.directs.get(&id).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let reply = Reply::ok(&direct.view());
    if !made {
        return Ok(reply);
    }
    let name = direct.recipient.id.to_string();
    let event = Dispatch::application("CHANNEL_CREATE", application, intents::DIRECT_MESSAGES, &direct.view());
    world.outbox.push(event);
    Ok(reply.with_effect(Effect::new(Verb::Create, "direct_channel", None, id, &name)))
}
