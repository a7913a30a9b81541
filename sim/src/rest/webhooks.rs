//! `/webhooks/{application.id}/{interaction.token}`: what follows the first response to an interaction.

use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::Form;
use super::interactions;
use super::message_form::MessageForm;
use crate::id::Snowflake;
use crate::world::World;
use crate::world::interaction::{Answered, Interaction};
use crate::world::message::{LOADING, Message};

/// The interaction whose token is in the path. Without a first response there is no webhook yet.
fn interaction(world: &World, call: &Call<'_>) -> Result<Interaction, ApiError> {
    let application = call.params.id("application.id")?;
    world.bot(application).ok_or(ApiError::UNKNOWN_WEBHOOK)?;
    let found = world.interactions.by_token(call.params.text("interaction.token"));
    let alive = found.filter(|interaction| {
        interaction.application == application && call.now.since(interaction.fired) < world.rules.interaction_token_life
    });
    match alive {
        None => Err(ApiError::INVALID_WEBHOOK_TOKEN),
        Some(interaction) if interaction.state == Answered::NotYet => Err(ApiError::UNKNOWN_WEBHOOK),
        Some(interaction) => Ok(interaction.clone()),
    }
}

/// The message that the path names: the first response itself without an id.
fn named(world: &World, call: &Call<'_>) -> Result<(Interaction, Snowflake), ApiError> {
    let interaction = interaction(world, call)?;
    let original = match interaction.state {
        Answered::WithMessage(id) => Some(id),
        Answered::NotYet | Answered::Otherwise => None,
    };
    let id = match call.params.text("message.id") {
        "" => original.ok_or(ApiError::UNKNOWN_MESSAGE)?,
        _ => call.params.id("message.id")?,
    };
    let message = stored(world, &interaction, id)?;
    if original != Some(id) && message.webhook_id != Some(interaction.application) {
        return Err(ApiError::UNKNOWN_MESSAGE);
    }
    Ok((interaction, id))
}

fn stored<'w>(world: &'w World, interaction: &Interaction, id: Snowflake) -> Result<&'w Message, ApiError> {
    let feed = world.feeds.get(&interaction.channel);
    feed.and_then(|feed| feed.messages.get(&id)).ok_or(ApiError::UNKNOWN_MESSAGE)
}

fn form(call: &Call<'_>) -> Result<MessageForm, ApiError> {
    let mut form = Form::of(call)?;
    let read = MessageForm::read(&mut form);
    form.finish().map(|()| read)
}

/// Follows up. Straight after a deferred response, this fills that one in instead, as Discord does.
pub(crate) fn follow_up(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let interaction = interaction(world, call)?;
    let form = form(call)?;
    if let Answered::WithMessage(id) = interaction.state
        && stored(world, &interaction, id).is_ok_and(|original| original.flags & LOADING != 0)
    {
        return edit(world, call, &interaction, id, form);
    }
    let mut message = interactions::draft(world, call, &interaction)?;
    form.apply(world, &mut message)?;
    let reply = Reply::ok(&message);
    let effect = Effect::new(Verb::Create, "message", interaction.guild, message.id, &message.content);
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
    Ok(Reply::ok(&message).with_effect(effect))
}

pub(crate) fn get_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = named(world, call)?;
    Ok(Reply::ok(stored(world, &interaction, id)?))
}

pub(crate) fn edit_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = named(world, call)?;
    let form = form(call)?;
    edit(world, call, &interaction, id, form)
}

pub(crate) fn delete_message(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (interaction, id) = named(world, call)?;
    let gone = world.delete_messages(interaction.channel, &[id]).pop().ok_or(ApiError::UNKNOWN_MESSAGE)?;
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "message", interaction.guild, id, &gone.content)))
}
