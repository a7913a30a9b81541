//! `/channels/{channel.id}/messages`: what is said in a channel.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{self, Spot};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, Query};
use super::message_form::{self, MessageForm};
use crate::id::Snowflake;
use crate::world::World;
use crate::world::audit::{self, Draft};
use crate::world::message::{EPHEMERAL, Message, MessageEvent, REPLY, Reference};
use crate::world::permissions::{MANAGE_MESSAGES, READ_MESSAGE_HISTORY, SEND_MESSAGES};
use crate::world::{channel, intents};

/// How old a message may be to be deleted with others at once.
const BULK_AGE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    if !channel::takes_messages(spot.kind) {
        return Err(ApiError::NOT_TEXT_BASED);
    }
    spot.need(SEND_MESSAGES)?;
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    let nonce = message_form::nonce(&mut form);
    let enforced = form.boolean("enforce_nonce").value().unwrap_or(false);
    let reference = reference(&mut form, world, &spot);
    form.finish()?;
    let nonce_text = nonce.as_ref().map(|nonce| nonce.as_str().map_or_else(|| nonce.to_string(), str::to_owned));
    if enforced
        && let Some(text) = &nonce_text
        && let Some(first) = first_with(world, call, spot.author.id, text)
    {
        return Ok(Reply::ok(&answer(&first, nonce.as_ref(), spot.kind)));
    }
    let mut message =
        Message::new(world.mint.mint(call.now), spot.channel, Arc::clone(&spot.author), String::new(), call.now);
    if let Some(reference) = reference {
        message.kind = REPLY;
        message.message_reference = Some(reference);
    }
    read.apply(world, &mut message)?;
    message.flags &= !EPHEMERAL;
    if let Some(text) = &nonce_text {
        world.nonces.note(spot.author.id, text, &message, call.now);
    }
    let reply = Reply::ok(&answer(&message, nonce.as_ref(), spot.kind));
    let effect = Effect::new(Verb::Create, "message", spot.guild, message.id, &message.content);
    world.post(message, nonce.as_ref());
    Ok(reply.with_effect(effect))
}

/// The message as its maker sees it: with the nonce, which nobody sees later.
fn answer<'a>(message: &'a Message, nonce: Option<&'a Value>, channel_type: u8) -> MessageEvent<'a> {
    MessageEvent { message, guild_id: None, member: None, channel_type, nonce }
}

/// The message that this author already sent with this nonce.
fn first_with(world: &mut World, call: &Call<'_>, author: Snowflake, nonce: &str) -> Option<Message> {
    let (channel, id) = world.nonces.find(author, nonce, world.rules.nonce_window, call.now)?;
    world.feeds.get(&channel)?.get(id).cloned()
}

/// The message that a new one answers.
fn reference(form: &mut Form<'_>, world: &World, spot: &Spot) -> Option<Reference> {
    let value = form.raw("message_reference").value()?;
    let (id, strict) = form.within("message_reference", value, |form| {
        let id = form.snowflake("message_id");
        (form.required("message_id", id), form.boolean("fail_if_not_exists").value().unwrap_or(true))
    })?;
    let id = id?;
    let known = world.feeds.get(&spot.channel).is_some_and(|feed| feed.get(id).is_some());
    match (known, strict) {
        (true, _) => Some(Reference { kind: 0, message_id: id, channel_id: spot.channel, guild_id: spot.guild }),
        (false, true) => {
            form.fault("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message");
            None
        }
        (false, false) => None,
    }
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    spot.need(READ_MESSAGE_HISTORY)?;
    Ok(Reply::ok(message(world, &spot, call.params.id("message.id")?)?))
}

fn message<'w>(world: &'w World, spot: &Spot, id: Snowflake) -> Result<&'w Message, ApiError> {
    world.feeds.get(&spot.channel).and_then(|feed| feed.get(id)).ok_or(ApiError::UNKNOWN_MESSAGE)
}

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    if !channel::takes_messages(spot.kind) {
        return Err(ApiError::NOT_TEXT_BASED);
    }
    let mut query = Query::of(call);
    let limit = query.limit(1..=100, 50);
    let (before, after, around) = (query.snowflake("before"), query.snowflake("after"), query.snowflake("around"));
    query.finish()?;
    let Some(feed) = world.feeds.get(&spot.channel).filter(|_| spot.may(READ_MESSAGE_HISTORY)) else {
        return Ok(Reply::ok(&json!([])));
    };
    let seen = |(_, message): &(&Snowflake, &'_ Message)| !message.is_ephemeral();
    let older = |than: Snowflake, count: usize| feed.messages.range(..than).rev().filter(seen).take(count);
    let newer = |than: Snowflake, count: usize| {
        let first = Snowflake::new(than.get().saturating_add(1));
        feed.messages.range(first..).filter(seen).take(count)
    };
    // Newest first, whatever was asked for.
    let page: Vec<&Message> = match (around, before, after) {
        (Some(middle), _, _) => {
            let mut page: Vec<_> = newer(middle, limit / 2).collect();
            page.reverse();
            page.extend(feed.messages.get_key_value(&middle).filter(seen));
            let room = limit - page.len().min(limit);
            page.extend(older(middle, room));
            page.into_iter().map(|(_, message)| message).collect()
        }
        (None, Some(before), _) => older(before, limit).map(|(_, message)| message).collect(),
        (None, None, Some(after)) => {
            let mut page: Vec<_> = newer(after, limit).map(|(_, message)| message).collect();
            page.reverse();
            page
        }
        (None, None, None) => older(Snowflake::new(u64::MAX), limit).map(|(_, message)| message).collect(),
    };
    Ok(Reply::ok(&page))
}

pub(crate) fn edit(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    let id = call.params.id("message.id")?;
    let mut edited = message(world, &spot, id)?.clone();
    if edited.author.id != spot.author.id {
        return Err(ApiError::CANNOT_EDIT_OTHERS);
    }
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    form.finish()?;
    read.apply(world, &mut edited)?;
    edited.flags &= !EPHEMERAL;
    edited.edited_timestamp = Some(call.now);
    let reply = Reply::ok(&edited);
    let effect = Effect::new(Verb::Update, "message", spot.guild, id, &edited.content);
    if let Some(feed) = world.feeds.get_mut(&spot.channel) {
        feed.messages.insert(id, edited);
    }
    world.tell_message_update(spot.channel, id);
    Ok(reply.with_effect(effect))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    let id = call.params.id("message.id")?;
    let author = message(world, &spot, id)?.author.id;
    let own = author == spot.author.id;
    if !own {
        spot.need(MANAGE_MESSAGES)?;
    }
    let reason = access::reason(call)?;
    let gone = world.delete_messages(spot.channel, &[id]).pop().ok_or(ApiError::UNKNOWN_MESSAGE)?;
    if let (false, Some(guild)) = (own, spot.guild) {
        // Who deletes what they said themselves leaves no trace in the log.
        let options = json!({ "channel_id": spot.channel, "count": "1" });
        let draft = Draft::new(audit::MESSAGE_DELETE, spot.author.id, author, reason).options(options);
        world.audit(guild, draft, call.now);
    }
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "message", spot.guild, id, &gone.content)))
}

pub(crate) fn delete_many(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    let guild = spot.guild.ok_or(ApiError::WRONG_CHANNEL_TYPE)?;
    spot.need(MANAGE_MESSAGES)?;
    let reason = access::reason(call)?;
    let mut form = Form::of(call)?;
    let ids = form.snowflakes("messages");
    if let Field::Given(ids) = &ids
        && !(2..=100).contains(&ids.len())
    {
        form.fault("messages", "BASE_TYPE_BAD_LENGTH", "Must be between 2 and 100 in length.");
    }
    let ids = form.required("messages", ids).unwrap_or_default();
    form.finish()?;
    if ids.iter().any(|id| call.now.since(id.made_at()) > BULK_AGE) {
        return Err(ApiError::TOO_OLD_TO_DELETE);
    }
    let gone = world.delete_messages(spot.channel, &ids);
    if gone.is_empty() {
        return Ok(Reply::no_content());
    }
    let options = json!({ "count": gone.len().to_string() });
    let draft = Draft::new(audit::MESSAGE_BULK_DELETE, spot.author.id, spot.channel, reason).options(options);
    world.audit(guild, draft, call.now);
    let effect = Effect::new(Verb::Delete, "messages", Some(guild), spot.channel, &gone.len().to_string());
    Ok(Reply::no_content().with_effect(effect))
}

pub(crate) fn typing(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let spot = access::in_channel(world, call)?;
    spot.need(SEND_MESSAGES)?;
    let event = json!({ "user_id": spot.author.id, "timestamp": call.now.millis() / 1_000 });
    let Value::Object(event) = event else { unreachable!("made as an object") };
    let readers = (intents::GUILD_MESSAGE_TYPING, intents::DIRECT_MESSAGE_TYPING);
    world.tell_channel("TYPING_START", spot.channel, readers, event);
    Ok(Reply::no_content())
}
