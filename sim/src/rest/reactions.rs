//! `/channels/{channel.id}/messages/{message.id}/reactions`: reactions to a message.

use super::access::{self, ChannelAccess};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::Query;
use crate::id::Snowflake;
use crate::world::World;
use crate::world::permissions::{ADD_REACTIONS, MANAGE_MESSAGES, READ_MESSAGE_HISTORY};
use crate::world::reaction::{self, Emoji, ReactionChange};

/// A message in a channel that the bot can read.
struct Target {
    access: ChannelAccess,
    message: Snowflake,
}

impl Target {
    fn find(world: &World, call: &Call<'_>) -> Result<Self, ApiError> {
        let access = access::in_channel(world, call)?;
        access.require(READ_MESSAGE_HISTORY)?;
        let message = call.params.id("message.id")?;
        let exists = world.feeds.get(&access.channel).is_some_and(|feed| feed.get(message).is_some());
        if exists { Ok(Self { access, message }) } else { Err(ApiError::UNKNOWN_MESSAGE) }
    }

    /// The reply to a change, with its effect if it had one.
    fn reply(&self, change: ReactionChange, verb: Verb, name: &str) -> Result<Reply, ApiError> {
        match change {
            ReactionChange::Changed => {
                let effect = Effect::new(verb, "reaction", self.access.guild, self.message, name);
                Ok(Reply::no_content().with_effect(effect))
            }
            ReactionChange::Unchanged => Ok(Reply::no_content()),
            ReactionChange::TooMany => Err(ApiError::MAX_REACTIONS),
        }
    }
}

fn emoji(call: &Call<'_>) -> Result<Emoji, ApiError> {
    Emoji::parse(call.params.text("emoji")).ok_or(ApiError::UNKNOWN_EMOJI)
}

pub(crate) fn add(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    let emoji = emoji(call)?;
    // A reaction that others have given may be joined without the permission.
    let reactions = world.reactions(target.access.channel, target.message);
    if reaction::find(reactions, &emoji).is_none() {
        target.access.require(ADD_REACTIONS)?;
    }
    let user = target.access.author.id;
    let change = world.add_reaction(target.access.channel, target.message, user, &emoji);
    target.reply(change, Verb::Create, &format!("{user}:{}", emoji.path_text()))
}

pub(crate) fn remove_own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    let user = target.access.author.id;
    remove_of(world, call, &target, user)
}

pub(crate) fn remove(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    let user = call.params.id("user.id")?;
    if user != target.access.author.id {
        target.access.require(MANAGE_MESSAGES)?;
    }
    if !world.users.contains_key(&user) {
        return Err(ApiError::UNKNOWN_USER);
    }
    remove_of(world, call, &target, user)
}

fn remove_of(world: &mut World, call: &Call<'_>, target: &Target, user: Snowflake) -> Result<Reply, ApiError> {
    let emoji = emoji(call)?;
    let change = world.remove_reaction(target.access.channel, target.message, user, &emoji);
    target.reply(change, Verb::Delete, &format!("{user}:{}", emoji.path_text()))
}

/// The users who reacted with an emoji, by id.
pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    let emoji = emoji(call)?;
    let mut query = Query::of(call);
    let (limit, after) = (query.limit(1..=100, 25), query.snowflake("after"));
    query.finish()?;
    // Nobody reacts with bursts here.
    let wanted = (call.query("type") != Some("1")).then_some(world.reactions(target.access.channel, target.message));
    let users =
        wanted.and_then(|reactions| reaction::find(reactions, &emoji)).into_iter().flat_map(|found| &found.users);
    let page: Vec<_> = users
        .filter(|user| after.is_none_or(|after| **user > after))
        .filter_map(|user| world.users.get(user))
        .take(limit)
        .collect();
    Ok(Reply::ok(&page))
}

pub(crate) fn clear(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    target.access.require(MANAGE_MESSAGES)?;
    let change = world.clear_reactions(target.access.channel, target.message, None);
    target.reply(change, Verb::Delete, "*")
}

pub(crate) fn clear_emoji(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let target = Target::find(world, call)?;
    target.access.require(MANAGE_MESSAGES)?;
    let emoji = emoji(call)?;
    let change = world.clear_reactions(target.access.channel, target.message, Some(&emoji));
    target.reply(change, Verb::Delete, &format!("*:{}", emoji.path_text()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::rest::testing::RestFixture;
    use crate::world::permissions;
    use crate::world::reaction::MAX_REACTIONS;

    /// Posts a message; returns the paths of the message and of its reactions.
    fn message(fixture: &mut RestFixture) -> (String, String) {
        let id = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "vote" })).id();
        let path = fixture.channel_path(&format!("/messages/{id}"));
        (path.clone(), format!("{path}/reactions"))
    }

    fn react(fixture: &mut RestFixture, path: &str, emoji: &str) {
        let id = path.split('/').nth(4).unwrap().parse().unwrap();
        fixture.world.user_reaction(fixture.channel, id, Some(fixture.member), emoji, false).unwrap();
    }

    #[test]
    fn reaction_is_dispatched_shown_and_removed() {
        let mut fixture = RestFixture::new();
        let (message, reactions) = message(&mut fixture);
        let own = format!("{reactions}/🔥/@me");
        let added = fixture.put(&own, Value::Null);
        assert_eq!((added.status, added.events.as_slice()), (204, &["MESSAGE_REACTION_ADD"][..]));
        let event = added.event("MESSAGE_REACTION_ADD");
        assert_eq!(event["emoji"], json!({ "id": null, "name": "🔥" }));
        assert_eq!((&event["guild_id"], &event["member"]["user"]["id"]), (&json!(fixture.guild), &event["user_id"]));
        let again = fixture.put(&own, Value::Null);
        assert_eq!((again.status, again.effect, again.events.len()), (204, None, 0));

        react(&mut fixture, &message, "🔥");
        let shown = fixture.get(&message).json;
        assert_eq!((&shown["reactions"][0]["count"], &shown["reactions"][0]["me"]), (&json!(2), &json!(true)));
        assert_eq!(fixture.get(&fixture.channel_path("/messages")).json[0]["reactions"], shown["reactions"]);
        let removed = fixture.delete(&own);
        assert_eq!((removed.status, removed.events.as_slice()), (204, &["MESSAGE_REACTION_REMOVE"][..]));
        let shown = fixture.get(&message).json;
        assert_eq!((&shown["reactions"][0]["count"], &shown["reactions"][0]["me"]), (&json!(1), &json!(false)));
        assert_eq!(fixture.delete(&own).events.len(), 0);
        let theirs = format!("{reactions}/🔥/{}", fixture.member);
        assert_eq!(fixture.delete(&theirs).events, ["MESSAGE_REACTION_REMOVE"]);
        assert!(fixture.get(&message).json.get("reactions").is_none());
    }

    #[test]
    fn users_of_a_reaction_are_listed_by_page() {
        let mut fixture = RestFixture::new();
        let (message, reactions) = message(&mut fixture);
        fixture.put(&format!("{reactions}/ok:7/@me"), Value::Null);
        react(&mut fixture, &message, "ok:7");
        let listed = fixture.get(&format!("{reactions}/ok:7")).json;
        let first = fixture.get(&format!("{reactions}/ok:7?limit=1")).json;
        assert_eq!((listed.as_array().unwrap().len(), &first[0]), (2, &listed[0]));
        let rest = fixture.get(&format!("{reactions}/ok:7?after={}", first[0]["id"].as_str().unwrap())).json;
        assert_eq!(rest, json!([listed[1]]));
        assert_eq!(fixture.get(&format!("{reactions}/ok:7?limit=101")).code(), 50035);
        assert_eq!(fixture.get(&format!("{reactions}/ok:8")).json, json!([]));
    }

    #[test]
    fn reactions_of_all_or_of_one_emoji_are_cleared() {
        let mut fixture = RestFixture::new();
        let (message, reactions) = message(&mut fixture);
        for emoji in ["🔥", "🎉", "✅"] {
            react(&mut fixture, &message, emoji);
        }
        assert_eq!(fixture.delete(&format!("{reactions}/🎉")).events, ["MESSAGE_REACTION_REMOVE_EMOJI"]);
        assert_eq!(fixture.get(&message).json["reactions"].as_array().unwrap().len(), 2);
        assert_eq!(fixture.delete(&reactions).events, ["MESSAGE_REACTION_REMOVE_ALL"]);
        assert_eq!(fixture.delete(&reactions).events.len(), 0);
    }

    #[test]
    fn reactions_need_permission_and_have_a_bound() {
        let mut fixture = RestFixture::new();
        let (message, reactions) = message(&mut fixture);
        for number in 0..MAX_REACTIONS {
            assert_eq!(fixture.put(&format!("{reactions}/e:{}/@me", number + 1), Value::Null).status, 204);
        }
        assert_eq!(fixture.put(&format!("{reactions}/🔥/@me"), Value::Null).code(), 30010);
        assert_eq!(fixture.put(&format!("{reactions}/fire/@me"), Value::Null).code(), 10014);
        let everyone = fixture.channel_path(&format!("/permissions/{}", fixture.guild));
        fixture.delete(&reactions);
        react(&mut fixture, &message, "✅");
        let deny = (permissions::ADD_REACTIONS | permissions::MANAGE_MESSAGES).to_string();
        fixture.put(&everyone, json!({ "type": 0, "deny": deny }));
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.put(&format!("{reactions}/🔥/@me"), Value::Null).code(), 50013);
        assert_eq!(fixture.put(&format!("{reactions}/✅/@me"), Value::Null).status, 204, "others reacted with it");
        assert_eq!(fixture.delete(&format!("{reactions}/✅/{}", fixture.member)).code(), 50013);
        assert_eq!(fixture.delete(&reactions).code(), 50013);
        assert_eq!(fixture.delete(&format!("{reactions}/✅")).code(), 50013);
        assert_eq!(fixture.put(&fixture.channel_path("/messages/5/reactions/✅/@me"), Value::Null).code(), 10008);
    }
}
