//! `/channels/{channel.id}/messages`: messages of a channel.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{self, ChannelAccess};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, Query};
use super::message_form::{self, MessageForm};
use crate::id::Snowflake;
use crate::world::World;
use crate::world::audit::{self, Draft};
use crate::world::message::{EPHEMERAL, Message, MessageEvent, REPLY, Reference};
use crate::world::permissions::{ATTACH_FILES, MANAGE_MESSAGES, READ_MESSAGE_HISTORY, SEND_MESSAGES};
use crate::world::{channel, intents};

/// Maximum age of a message in a bulk delete.
const MAX_BULK_DELETE_AGE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    if !channel::accepts_messages(channel_access.kind) {
        return Err(ApiError::NOT_TEXT_BASED);
    }
    channel_access.require(SEND_MESSAGES)?;
    require_files(&channel_access, call)?;
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    let nonce = message_form::nonce(&mut form);
    let enforced = form.boolean("enforce_nonce").value().unwrap_or(false);
    let reference = reference(&mut form, world, &channel_access);
    form.finish()?;
    let nonce_text = nonce.as_ref().map(|nonce| nonce.as_str().map_or_else(|| nonce.to_string(), str::to_owned));
    if enforced
        && let Some(text) = &nonce_text
        && let Some(first) = find_by_nonce(world, call, channel_access.author.id, text)
    {
        return Ok(Reply::ok(&with_nonce(&first, nonce.as_ref())));
    }
    let mut message = Message::new(
        world.mint.generate(call.now),
        channel_access.channel,
        Arc::clone(&channel_access.author),
        String::new(),
        call.now,
    );
    if let Some(reference) = reference {
        message.kind = REPLY;
        message.message_reference = Some(reference);
    }
    read.apply(world, call, &mut message)?;
    message.flags &= !EPHEMERAL;
    if let Some(text) = &nonce_text {
        world.nonces.record(channel_access.author.id, text, &message, call.now);
    }
    let reply = Reply::ok(&with_nonce(&message, nonce.as_ref()));
    let effect = Effect::new_object("message", channel_access.guild, message.id, &message.content);
    world.post(message, nonce.as_ref());
    Ok(reply.with_effect(effect))
}

/// Requires the permission for the files of the call, if it has any.
fn require_files(channel_access: &ChannelAccess, call: &Call<'_>) -> Result<(), ApiError> {
    if call.files.is_empty() { Ok(()) } else { channel_access.require(ATTACH_FILES) }
}

/// The message as its author receives it: with the nonce, which is not visible later.
fn with_nonce<'a>(message: &'a Message, nonce: Option<&'a Value>) -> MessageEvent<'a> {
    MessageEvent { message, guild_id: None, member: None, channel_type: None, nonce }
}

/// The message that this author has already sent with this nonce.
fn find_by_nonce(world: &mut World, call: &Call<'_>, author: Snowflake, nonce: &str) -> Option<Message> {
    let (channel, id) = world.nonces.find(author, nonce, world.rules.nonce_window, call.now)?;
    world.feeds.get(&channel)?.get(id).cloned()
}

/// The message that a new one replies to.
fn reference(form: &mut Form<'_>, world: &World, channel_access: &ChannelAccess) -> Option<Reference> {
    let value = form.raw("message_reference").value()?;
    let (id, strict) = form.nested("message_reference", value, |form| {
        let id = form.snowflake("message_id");
        (form.required("message_id", id), form.boolean("fail_if_not_exists").value().unwrap_or(true))
    })?;
    let id = id?;
    let exists = world.feeds.get(&channel_access.channel).is_some_and(|feed| feed.get(id).is_some());
    match (exists, strict) {
        (true, _) => Some(Reference {
            kind: 0,
            message_id: id,
            channel_id: channel_access.channel,
            guild_id: channel_access.guild,
        }),
        (false, true) => {
            form.add_error("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message");
            None
        }
        (false, false) => None,
    }
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    channel_access.require(READ_MESSAGE_HISTORY)?;
    let message = message(world, &channel_access, call.params.id("message.id")?)?;
    let feed = world.feeds.get(&channel_access.channel).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    Ok(Reply::ok(&feed.view(message, channel_access.author.id)))
}

fn message<'w>(world: &'w World, channel_access: &ChannelAccess, id: Snowflake) -> Result<&'w Message, ApiError> {
    world.feeds.get(&channel_access.channel).and_then(|feed| feed.get(id)).ok_or(ApiError::UNKNOWN_MESSAGE)
}

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    if !channel::accepts_messages(channel_access.kind) {
        return Err(ApiError::NOT_TEXT_BASED);
    }
    let mut query = Query::of(call);
    let limit = query.limit(1..=100, 50);
    let (before, after, around) = (query.snowflake("before"), query.snowflake("after"), query.snowflake("around"));
    query.finish()?;
    let Some(feed) = world.feeds.get(&channel_access.channel).filter(|_| channel_access.allows(READ_MESSAGE_HISTORY))
    else {
        return Ok(Reply::ok(&json!([])));
    };
    let is_visible = |(_, message): &(&Snowflake, &'_ Message)| !message.is_ephemeral();
    let older = |than: Snowflake, count: usize| feed.messages.range(..than).rev().filter(is_visible).take(count);
    let newer = |than: Snowflake, count: usize| {
        let first = Snowflake::new(than.get().saturating_add(1));
        feed.messages.range(first..).filter(is_visible).take(count)
    };
    // Newest first, in every case.
    let page: Vec<&Message> = match (around, before, after) {
        (Some(middle), _, _) => {
            let mut page: Vec<_> = newer(middle, limit / 2).collect();
            page.reverse();
            page.extend(feed.messages.get_key_value(&middle).filter(is_visible));
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
    let page: Vec<_> = page.into_iter().map(|message| feed.view(message, channel_access.author.id)).collect();
    Ok(Reply::ok(&page))
}

pub(crate) fn edit(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let id = call.params.id("message.id")?;
    let mut edited = message(world, &channel_access, id)?.clone();
    if edited.author.id != channel_access.author.id {
        return Err(ApiError::CANNOT_EDIT_OTHERS);
    }
    require_files(&channel_access, call)?;
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    form.finish()?;
    read.apply(world, call, &mut edited)?;
    edited.flags &= !EPHEMERAL;
    edited.edited_timestamp = Some(call.now);
    let effect = Effect::new(Verb::Update, "message", channel_access.guild, id, &edited.content);
    let feed = world.feeds.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_MESSAGE)?;
    let reply = Reply::ok(&feed.view(&edited, channel_access.author.id));
    feed.messages.insert(id, edited);
    world.notify_message_update(channel_access.channel, id);
    Ok(reply.with_effect(effect))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let id = call.params.id("message.id")?;
    let author = message(world, &channel_access, id)?.author.id;
    let own = author == channel_access.author.id;
    if !own {
        channel_access.require(MANAGE_MESSAGES)?;
    }
    let reason = access::reason(call)?;
    let deleted = world.delete_messages(channel_access.channel, &[id]).pop().ok_or(ApiError::UNKNOWN_MESSAGE)?;
    if let (false, Some(guild)) = (own, channel_access.guild) {
        // Deleting one's own message is not logged.
        let options = json!({ "channel_id": channel_access.channel, "count": "1" });
        let draft = Draft::new(audit::MESSAGE_DELETE, channel_access.author.id, author, reason).options(options);
        world.audit(guild, draft, call.now);
    }
    Ok(Reply::no_content().with_effect(Effect::new(
        Verb::Delete,
        "message",
        channel_access.guild,
        id,
        &deleted.content,
    )))
}

pub(crate) fn delete_many(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    let guild = channel_access.guild.ok_or(ApiError::WRONG_CHANNEL_TYPE)?;
    channel_access.require(MANAGE_MESSAGES)?;
    let reason = access::reason(call)?;
    let mut form = Form::of(call)?;
    let ids = form.snowflakes("messages");
    if let Field::Given(ids) = &ids
        && !(2..=100).contains(&ids.len())
    {
        form.add_error("messages", "BASE_TYPE_BAD_LENGTH", "Must be between 2 and 100 in length.");
    }
    let ids = form.required("messages", ids).unwrap_or_default();
    form.finish()?;
    if ids.iter().any(|id| call.now.since(id.created_at()) > MAX_BULK_DELETE_AGE) {
        return Err(ApiError::TOO_OLD_TO_DELETE);
    }
    let deleted = world.delete_messages(channel_access.channel, &ids);
    if deleted.is_empty() {
        return Ok(Reply::no_content());
    }
    let options = json!({ "count": deleted.len().to_string() });
    let draft = Draft::new(audit::MESSAGE_BULK_DELETE, channel_access.author.id, channel_access.channel, reason)
        .options(options);
    world.audit(guild, draft, call.now);
    let effect = Effect::new(Verb::Delete, "messages", Some(guild), channel_access.channel, &deleted.len().to_string())
        .with_removed(deleted.iter().map(|message| message.id).collect());
    Ok(Reply::no_content().with_effect(effect))
}

pub(crate) fn typing(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let channel_access = access::in_channel(world, call)?;
    channel_access.require(SEND_MESSAGES)?;
    let event = json!({ "user_id": channel_access.author.id, "timestamp": call.now.millis() / 1_000 });
    let Value::Object(event) = event else { unreachable!("built as an object") };
    let readers = (intents::GUILD_MESSAGE_TYPING, intents::DIRECT_MESSAGE_TYPING);
    world.notify_channel("TYPING_START", channel_access.channel, readers, event);
    Ok(Reply::no_content())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::config::SimConfig;
    use crate::id::Snowflake;
    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    #[test]
    fn nonce_is_returned_only_on_creation() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let made = fixture.post(&path, json!({ "content": " hello ", "nonce": "op-1" }));
        assert_eq!((made.status, &made.json["content"], &made.json["nonce"]), (200, &json!("hello"), &json!("op-1")));
        let event = made.event("MESSAGE_CREATE");
        assert_eq!((&event["nonce"], &event["guild_id"]), (&json!("op-1"), &json!(fixture.guild)));
        assert!(event["member"]["roles"].is_array() && event["member"].get("user").is_none());
        let later = fixture.get(&format!("{path}/{}", made.id())).json;
        assert_eq!((&later["content"], later.get("nonce")), (&json!("hello"), None));
        assert_eq!(fixture.get(&fixture.channel_path("")).json["last_message_id"], made.json["id"]);
    }

    #[test]
    fn enforced_nonce_finds_the_first_message_within_its_window() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let body = json!({ "content": "once", "nonce": "n", "enforce_nonce": true });
        let first = fixture.post(&path, body.clone());
        let second = fixture.advance(Duration::from_secs(299)).post(&path, body.clone());
        assert_eq!((second.id(), &second.effect, second.events.len()), (first.id(), &None, 0));
        assert_eq!(second.json["nonce"], "n");
        let third = fixture.advance(Duration::from_secs(1)).post(&path, body);
        assert_ne!(third.id(), first.id());
        let loose = fixture.post(&path, json!({ "content": "once", "nonce": "n" }));
        assert_ne!(loose.id(), third.id());
    }

    #[test]
    fn listings_page_before_after_and_around() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let ids: Vec<String> =
            (0..10).map(|number| fixture.post(&path, json!({ "content": number.to_string() })).id()).collect();
        let mut list = |query: String| -> Vec<String> {
            let page = fixture.get(&format!("{path}?{query}")).json;
            page.as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(list("limit=3".into()), ["9", "8", "7"]);
        assert_eq!(list(format!("limit=2&before={}", ids[5])), ["4", "3"]);
        assert_eq!(list(format!("limit=2&after={}", ids[5])), ["7", "6"]);
        assert_eq!(list(format!("limit=3&around={}", ids[5])), ["6", "5", "4"]);
        assert_eq!(fixture.get(&format!("{path}?limit=101")).code(), 50035);
        assert_eq!(fixture.get(&format!("{path}?limit=0")).code(), 50035);
    }

    #[test]
    fn only_authors_edit_and_others_need_permission_to_delete() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let own = fixture.post(&path, json!({ "content": "a" })).id();
        let edited = fixture.patch(&format!("{path}/{own}"), json!({ "content": "b" }));
        assert_eq!((&edited.json["content"], edited.events.as_slice()), (&json!("b"), &["MESSAGE_UPDATE"][..]));
        assert!(edited.json["edited_timestamp"].is_string());
        let theirs = fixture.world.user_message(fixture.channel, None, "c".into(), fixture.now).unwrap();
        assert_eq!(fixture.patch(&format!("{path}/{theirs}"), json!({ "content": "d" })).code(), 50005);
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.delete(&format!("{path}/{theirs}")).code(), 50013);
        assert_eq!(fixture.delete(&format!("{path}/{own}")).events, ["MESSAGE_DELETE"]);
        fixture.world.set_bot_permissions(fixture.guild, permissions::MANAGE_MESSAGES).unwrap();
        let deleted = fixture.delete(&format!("{path}/{theirs}"));
        assert_eq!(deleted.events, ["MESSAGE_DELETE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(fixture.delete(&format!("{path}/{theirs}")).code(), 10008);
    }

    #[test]
    fn bulk_delete_refuses_old_messages() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let ids: Vec<String> = (0..3).map(|_| fixture.post(&path, json!({ "content": "x" })).id()).collect();
        let bulk = format!("{path}/bulk-delete");
        assert_eq!(fixture.post(&bulk, json!({ "messages": ids[..1] })).code(), 50035);
        let deleted = fixture.post(&bulk, json!({ "messages": ids[..2] }));
        assert_eq!((deleted.status, deleted.events[0]), (204, "MESSAGE_DELETE_BULK"));
        assert_eq!(deleted.event("MESSAGE_DELETE_BULK")["ids"], json!(ids[..2]));
        assert_eq!(fixture.get(&path).json.as_array().unwrap().len(), 1);
        fixture.advance(Duration::from_secs(15 * 24 * 60 * 60));
        assert_eq!(fixture.post(&bulk, json!({ "messages": ids })).code(), 50034);
    }

    #[test]
    fn invalid_messages_are_refused_with_their_code() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        assert_eq!(fixture.post(&path, json!({ "content": "  " })).code(), 50006);
        assert_eq!(fixture.post(&path, json!({ "content": "x".repeat(2_001) })).code(), 50035);
        assert_eq!(fixture.post(&path, json!({ "content": "x", "nonce": "n".repeat(26) })).code(), 50035);
        assert_eq!(fixture.post(&path, json!({ "embeds": vec![json!({ "title": "t" }); 11] })).code(), 50035);
        let long = json!({ "description": "d".repeat(3_001) });
        assert_eq!(fixture.post(&path, json!({ "embeds": [long, long] })).code(), 50035);
        let unknown = json!({ "content": "x", "message_reference": { "message_id": "5" } });
        assert_eq!(fixture.post(&path, unknown).code(), 50035);
        let category = fixture.post(&fixture.guild_path("/channels"), json!({ "name": "c", "type": 4 })).id();
        assert_eq!(fixture.post(&format!("/channels/{category}/messages"), json!({ "content": "x" })).code(), 50008);
        assert_eq!(fixture.post("/channels/5/messages", json!({ "content": "x" })).code(), 10003);
        let everyone = fixture.channel_path(&format!("/permissions/{}", fixture.guild));
        fixture.put(&everyone, json!({ "type": 0, "deny": permissions::SEND_MESSAGES.to_string() }));
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.post(&path, json!({ "content": "x" })).code(), 50013);
    }

    #[test]
    fn files_are_attached_described_edited_and_removed() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let described =
            json!({ "attachments": [{ "id": 1, "description": "low" }, { "id": "0", "filename": "high.txt" }] });
        let made = fixture.file("files[0]", "a.txt", "one").file("files[1]", "b c.txt", "two!").post(&path, described);
        assert_eq!(made.status, 200, "{made:?}");
        let attachments = made.json["attachments"].as_array().unwrap().clone();
        let names: Vec<_> = attachments.iter().map(|one| (&one["filename"], &one["size"])).collect();
        assert_eq!(names, [(&json!("high.txt"), &json!(3)), (&json!("b_c.txt"), &json!(4))]);
        assert_eq!((&attachments[1]["description"], &attachments[1]["title"]), (&json!("low"), &json!("b c")));
        let ids: Vec<Snowflake> = attachments.iter().map(|one| one["id"].as_str().unwrap().parse().unwrap()).collect();
        let url = format!("http://127.0.0.1:1/attachments/{}/{}/high.txt", fixture.channel, ids[0]);
        assert_eq!(attachments[0]["url"], url);
        assert_eq!(fixture.world.files.get(ids[1]).unwrap().content, "two!");

        let message = format!("{path}/{}", made.id());
        let added = fixture.file("files[0]", "c.txt", "three").patch(&message, json!({ "content": "more" }));
        assert_eq!(added.json["attachments"].as_array().unwrap().len(), 3, "an edit adds files");
        let kept = fixture.patch(&message, json!({ "attachments": [{ "id": ids[1], "description": "new" }] }));
        assert_eq!(kept.json["attachments"].as_array().unwrap().len(), 1);
        assert_eq!(kept.json["attachments"][0]["description"], "new");
        assert!(fixture.world.files.get(ids[0]).is_none(), "the file of a removed attachment is removed");
        fixture.delete(&message);
        assert!(fixture.world.files.get(ids[1]).is_none(), "the files of a deleted message are removed");
    }

    #[test]
    fn attachments_have_a_bound_a_permission_and_a_file() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let unknown = json!({ "content": "x", "attachments": [{ "id": 0 }] });
        assert_eq!(
            fixture.post(&path, unknown).json["errors"]["attachments"]["0"]["_errors"][0]["code"],
            "ATTACHMENT_NOT_FOUND"
        );
        for number in 0..11 {
            fixture.file(&format!("files[{number}]"), "a.txt", "x");
        }
        assert_eq!(fixture.post(&path, json!({})).code(), 30015);
        let everyone = fixture.channel_path(&format!("/permissions/{}", fixture.guild));
        fixture.put(&everyone, json!({ "type": 0, "deny": permissions::ATTACH_FILES.to_string() }));
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.file("files[0]", "a.txt", "x").post(&path, json!({ "content": "x" })).code(), 50013);
        assert_eq!(fixture.post(&path, json!({ "content": "x" })).status, 200);
    }

    #[test]
    fn files_of_dropped_messages_and_channels_are_removed() {
        let mut fixture = RestFixture::with_config(&SimConfig { max_messages: 1, ..SimConfig::default() });
        let path = fixture.channel_path("/messages");
        let mut post = || -> Snowflake {
            let made = fixture.file("files[0]", "a.txt", "x").post(&path, json!({}));
            made.json["attachments"][0]["id"].as_str().unwrap().parse().unwrap()
        };
        let (first, second) = (post(), post());
        assert!(fixture.world.files.get(first).is_none() && fixture.world.files.get(second).is_some());
        fixture.delete(&fixture.channel_path(""));
        assert!(fixture.world.files.get(second).is_none());
    }

    #[test]
    fn mentions_follow_allowed_mentions() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let content = format!("<@{}> <@!{}> <@&7> @everyone", fixture.member, fixture.member);
        let loud = fixture.post(&path, json!({ "content": content })).json;
        assert_eq!(loud["mentions"].as_array().unwrap().len(), 1);
        assert_eq!((&loud["mention_roles"], &loud["mention_everyone"]), (&json!(["7"]), &json!(true)));
        let quiet = fixture.post(&path, json!({ "content": content, "allowed_mentions": { "parse": [] } })).json;
        assert_eq!((&quiet["mentions"], &quiet["mention_everyone"]), (&json!([]), &json!(false)));
    }

    #[test]
    fn embeds_components_and_references_are_stored() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/messages");
        let first = fixture.post(&path, json!({ "content": "question" })).id();
        let button = json!({ "type": 2, "style": 1, "custom_id": "go", "label": "Go" });
        let body = json!({
            "embeds": [{ "title": "t", "fields": [{ "name": "n", "value": "v" }] }],
            "components": [{ "type": 1, "components": [button] }],
            "message_reference": { "message_id": first },
        });
        let made = fixture.post(&path, body).json;
        assert_eq!((&made["type"], &made["message_reference"]["message_id"]), (&json!(19), &json!(first)));
        assert_eq!(made["embeds"][0]["type"], "rich");
        assert_eq!(made["components"][0]["components"][0]["custom_id"], "go");
        assert_eq!(
            (&made["components"][0]["id"], &made["components"][0]["components"][0]["id"]),
            (&json!(1), &json!(2))
        );
    }

    #[test]
    fn full_channel_drops_its_oldest_message() {
        let mut fixture = RestFixture::with_config(&SimConfig { max_messages: 3, ..SimConfig::default() });
        let path = fixture.channel_path("/messages");
        let ids: Vec<String> = (0..5).map(|_| fixture.post(&path, json!({ "content": "x" })).id()).collect();
        assert_eq!(fixture.get(&path).json.as_array().unwrap().len(), 3);
        assert_eq!(fixture.get(&format!("{path}/{}", ids[1])).code(), 10008);
    }

    #[test]
    fn typing_sends_an_event_and_has_no_effect() {
        let mut fixture = RestFixture::new();
        let typed = fixture.post(&fixture.channel_path("/typing"), json!(null));
        assert_eq!((typed.status, typed.events.as_slice(), typed.effect), (204, &["TYPING_START"][..], None));
    }
}
