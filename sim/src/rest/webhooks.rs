//! `/webhooks/{application.id}/{interaction.token}`: what follows the first response to an interaction.

use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::Form;
use super::interactions;
use super::message_form::MessageForm;
use crate::id::Snowflake;
use crate::world::World;
use crate::world::interaction::{Interaction, ResponseState};
use crate::world::message::{LOADING, Message};

/// The interaction of the token in the path. Before the first response, there is no webhook.
fn interaction(world: &World, call: &Call<'_>) -> Result<Interaction, ApiError> {
    let application = call.params.id("application.id")?;
    world.bot(application).ok_or(ApiError::UNKNOWN_WEBHOOK)?;
    let found = world.interactions.by_token(call.params.text("interaction.token"));
    let valid = found.filter(|interaction| {
        interaction.application == application && call.now.since(interaction.fired) < world.rules.interaction_token_life
    });
    match valid {
        None => Err(ApiError::INVALID_WEBHOOK_TOKEN),
        Some(interaction) if interaction.state == ResponseState::NotYet => Err(ApiError::UNKNOWN_WEBHOOK),
        Some(interaction) => Ok(interaction.clone()),
    }
}

/// The message in the path: without an id, the first response.
fn find_target(world: &World, call: &Call<'_>) -> Result<(Interaction, Snowflake), ApiError> {
    let interaction = interaction(world, call)?;
    let original = match interaction.state {
        ResponseState::WithMessage(id) => Some(id),
        ResponseState::NotYet | ResponseState::Otherwise => None,
    };
    let id = match call.params.text("message.id") {
        "" => original.ok_or(ApiError::UNKNOWN_MESSAGE)?,
        _ => call.params.id("message.id")?,
    };
    let message = find_message(world, &interaction, id)?;
    if original != Some(id) && message.webhook_id != Some(interaction.application) {
        return Err(ApiError::UNKNOWN_MESSAGE);
    }
    Ok((interaction, id))
}

fn find_message<'w>(world: &'w World, interaction: &Interaction, id: Snowflake) -> Result<&'w Message, ApiError> {
    let feed = world.feeds.get(&interaction.channel);
    feed.and_then(|feed| feed.messages.get(&id)).ok_or(ApiError::UNKNOWN_MESSAGE)
}

fn read_form(call: &Call<'_>) -> Result<MessageForm, ApiError> {
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    form.finish().map(|()| read)
}

/// Sends a follow-up. The first one after a deferred response completes that response instead, as with Discord.
pub(crate) fn follow_up(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let interaction = interaction(world, call)?;
    let form = read_form(call)?;
    if let ResponseState::WithMessage(id) = interaction.state
        && find_message(world, &interaction, id).is_ok_and(|original| original.flags & LOADING != 0)
    {
        return edit(world, call, &interaction, id, form);
    }
    let mut message = interactions::draft(world, call, &interaction)?;
    form.apply(world, call, &mut message)?;
    let reply = Reply::ok(&message);
    let effect = Effect::new_object("message", interaction.guild, message.id, &message.content);
    world.post(message, None);
    Ok(reply.with_effect(effect))
}

fn edit(
    world: &mut World,
    call: &Call<'_>,
    interaction: &Interaction,
    id: Snowflake,
    form: MessageForm,
) -> Result<Reply, ApiError> {
    let message = interactions::edit(world, call, interaction.channel, id, form)?;
    let effect = Effect::new(Verb::Update, "message", interaction.guild, id, &message.content);
    Ok(Reply::ok(&interactions::view(world, interaction, &message)).with_effect(effect))
}

pub(crate) fn get_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = find_target(world, call)?;
    Ok(Reply::ok(&interactions::view(world, &interaction, find_message(world, &interaction, id)?)))
}

pub(crate) fn edit_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = find_target(world, call)?;
    let form = read_form(call)?;
    edit(world, call, &interaction, id, form)
}

pub(crate) fn delete_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = find_target(world, call)?;
    let deleted = world.delete_messages(interaction.channel, &[id]).pop().ok_or(ApiError::UNKNOWN_MESSAGE)?;
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "message", interaction.guild, id, &deleted.content)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::rest::testing::RestFixture;
    use crate::world::fire::InteractionSpec;

    /// Fires a command and responds to it; returns the path of its webhook.
    fn respond(fixture: &mut RestFixture, response: serde_json::Value) -> String {
        let fired = fixture.world.create_interaction(&InteractionSpec::default(), fixture.now).unwrap();
        let callback = format!("/interactions/{}/{}/callback", fired.id, fired.token);
        assert_eq!(fixture.post(&callback, response).status, 204);
        format!("/webhooks/{}/{}", fired.application_id, fired.token)
    }

    #[test]
    fn deferred_response_is_completed_by_an_edit() {
        let mut fixture = RestFixture::new();
        let hook = respond(&mut fixture, json!({ "type": 5 }));
        let original = format!("{hook}/messages/@original");
        let waiting = fixture.get(&original).json;
        assert_eq!(waiting["flags"], 128);
        let edited = fixture.advance(Duration::from_secs(10)).patch(&original, json!({ "content": "done" }));
        assert_eq!((&edited.json["content"], &edited.json["flags"]), (&json!("done"), &json!(0)));
        assert_eq!(edited.events, ["MESSAGE_UPDATE"]);
        let by_id = format!("{hook}/messages/{}", waiting["id"].as_str().unwrap());
        assert_eq!(fixture.get(&by_id).json, edited.json);
        assert_eq!(fixture.delete(&original).events, ["MESSAGE_DELETE"]);
        assert_eq!(fixture.get(&original).code(), 10008);
    }

    #[test]
    fn first_follow_up_completes_a_deferred_response() {
        let mut fixture = RestFixture::new();
        let hook = respond(&mut fixture, json!({ "type": 5, "data": { "flags": 64 } }));
        let first = fixture.post(&hook, json!({ "content": "one" }));
        assert_eq!((&first.json["flags"], first.events.len()), (&json!(64), 0));
        let second = fixture.post(&hook, json!({ "content": "two" }));
        assert_ne!(second.id(), first.id());
        assert_eq!(second.events, ["MESSAGE_CREATE"]);
        assert_eq!(fixture.get(&format!("{hook}/messages/@original")).json["id"], first.json["id"]);
        assert_eq!(fixture.get(&fixture.channel_path("/messages")).json[0]["content"], "two");
        let changed = fixture.patch(&format!("{hook}/messages/{}", second.id()), json!({ "content": "2" }));
        assert_eq!((changed.status, &changed.json["content"]), (200, &json!("2")));
    }

    #[test]
    fn invalid_and_expired_tokens_are_refused() {
        let mut fixture = RestFixture::new();
        let hook = respond(&mut fixture, json!({ "type": 4, "data": { "content": "x" } }));
        let invalid = fixture.post(&format!("{hook}0"), json!({ "content": "x" }));
        assert_eq!((invalid.status, invalid.code()), (401, 50027));
        let unknown_application = hook.replacen(&fixture.application.to_string(), "5", 1);
        assert_eq!(fixture.post(&unknown_application, json!({ "content": "x" })).code(), 10015);
        assert_eq!(fixture.advance(Duration::from_secs(899)).post(&hook, json!({ "content": "x" })).status, 200);
        assert_eq!(fixture.advance(Duration::from_secs(1)).post(&hook, json!({ "content": "x" })).code(), 50027);
    }

    #[test]
    fn follow_up_needs_a_first_response() {
        let mut fixture = RestFixture::new();
        let fired = fixture.world.create_interaction(&InteractionSpec::default(), fixture.now).unwrap();
        let hook = format!("/webhooks/{}/{}", fired.application_id, fired.token);
        assert_eq!(fixture.post(&hook, json!({ "content": "x" })).code(), 10015);
    }

    #[test]
    fn token_gives_no_access_to_other_messages() {
        let mut fixture = RestFixture::new();
        let other = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "mine" })).id();
        let hook = respond(&mut fixture, json!({ "type": 4, "data": { "content": "x" } }));
        assert_eq!(fixture.patch(&format!("{hook}/messages/{other}"), json!({ "content": "y" })).code(), 10008);
    }
}
