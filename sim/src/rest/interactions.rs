//! `/interactions/{interaction.id}/{interaction.token}/callback`: the first response to an interaction.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, switched_on};
use super::message_form::MessageForm;
use crate::id::Snowflake;
use crate::world::World;
use crate::world::interaction::{AUTOCOMPLETE, Answered, COMMAND, COMPONENT, Interaction, MODAL};
use crate::world::message::{self, EPHEMERAL, LOADING, Message, Reference};

const PONG: u8 = 1;
const MESSAGE: u8 = 4;
const DEFERRED: u8 = 5;
const DEFERRED_UPDATE: u8 = 6;
const UPDATE: u8 = 7;
const CHOICES: u8 = 8;
const SHOW_MODAL: u8 = 9;

/// What a first response does.
enum Response {
    /// Nothing that anybody could see later: a pong, choices, a modal.
    Passing,
    Message(MessageForm),
    Deferred {
        ephemeral: bool,
    },
    DeferredUpdate,
    Update(MessageForm),
}

pub(crate) fn callback(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let id = call.params.id("interaction.id")?;
    let token = call.params.text("interaction.token");
    let found = world.interactions.get(id).filter(|interaction| interaction.token == token);
    let interaction = found.ok_or(ApiError::UNKNOWN_INTERACTION)?.clone();
    if interaction.state != Answered::NotYet {
        world.responses.doubled += 1;
        return Err(ApiError::ALREADY_ACKNOWLEDGED);
    }
    let delay = call.now.since(interaction.fired);
    if delay > world.rules.interaction_deadline {
        world.responses.late += 1;
        return Err(ApiError::UNKNOWN_INTERACTION);
    }
    let (kind, response) = read(call, &interaction)?;
    let original = match response {
        Response::Passing => None,
        Response::Message(form) => Some(say(world, call, &interaction, form)?),
        Response::Deferred { ephemeral } => Some(think(world, call, &interaction, ephemeral)?),
        Response::DeferredUpdate => interaction.source,
        Response::Update(form) => Some(update(world, call, &interaction, form)?),
    };
    if let Some(open) = world.interactions.get_mut(id) {
        open.state = original.map_or(Answered::Otherwise, Answered::WithMessage);
    }
    world.responses.note(id, delay);
    let message = original.and_then(|id| world.feeds.get(&interaction.channel)?.messages.get(&id));
    let reply = if switched_on(call, "with_response") {
        Reply::ok(&outcome(&interaction, kind, message))
    } else {
        Reply::no_content()
    };
    let content = message.map_or("", |message| message.content.as_str());
    Ok(reply.with_effect(Effect::new(Verb::Create, "interaction", interaction.guild, id, content)))
}

/// Reads the response; what does not suit the interaction's kind is a fault of its `type`.
fn read(call: &Call<'_>, interaction: &Interaction) -> Result<(u8, Response), ApiError> {
    let mut form = Form::of(call)?;
    let suitable: &[u8] = match (interaction.kind, interaction.source) {
        (AUTOCOMPLETE, _) => &[CHOICES],
        (MODAL, None) => &[PONG, MESSAGE, DEFERRED],
        (_, Some(_)) => &[PONG, MESSAGE, DEFERRED, DEFERRED_UPDATE, UPDATE, SHOW_MODAL],
        (_, None) => &[PONG, MESSAGE, DEFERRED, SHOW_MODAL],
    };
    let kind = form.choice("type", suitable);
    let kind = form.required("type", kind).unwrap_or(PONG);
    if matches!(kind, MESSAGE | UPDATE | CHOICES | SHOW_MODAL) {
        form.required("data", Field::<()>::Absent);
    }
    let response = match form.raw("data").value() {
        Some(data) => form.within("data", data, |data| response(data, kind)).unwrap_or(Response::Passing),
        None if kind == DEFERRED => Response::Deferred { ephemeral: false },
        None if kind == DEFERRED_UPDATE => Response::DeferredUpdate,
        None => Response::Passing,
    };
    form.finish().map(|()| (kind, response))
}

fn response(data: &mut Form<'_>, kind: u8) -> Response {
    match kind {
        MESSAGE => Response::Message(MessageForm::read(data)),
        UPDATE => Response::Update(MessageForm::read(data)),
        DEFERRED => Response::Deferred { ephemeral: data.bits("flags").value().unwrap_or(0) & EPHEMERAL != 0 },
        DEFERRED_UPDATE => Response::DeferredUpdate,
        CHOICES => {
            let choices = data.list("choices", 25);
            data.required("choices", choices);
            Response::Passing
        }
        SHOW_MODAL => {
            for (name, most) in [("custom_id", 100), ("title", 45)] {
                let text = data.string(name, 1..=most);
                data.required(name, text);
            }
            let components = data.list("components", 5);
            data.required("components", components);
            Response::Passing
        }
        _ => Response::Passing,
    }
}

/// What `?with_response=true` is answered.
fn outcome(interaction: &Interaction, kind: u8, message: Option<&Message>) -> Value {
    let mut shown = json!({ "id": interaction.id, "type": interaction.kind, "channel_id": interaction.channel });
    if let Some(guild) = interaction.guild {
        shown["guild_id"] = json!(guild);
    }
    let Some(message) = message else { return json!({ "interaction": shown }) };
    shown["response_message_id"] = json!(message.id);
    shown["response_message_loading"] = json!(message.flags & LOADING != 0);
    shown["response_message_ephemeral"] = json!(message.is_ephemeral());
    match kind {
        MESSAGE | UPDATE => json!({ "interaction": shown, "resource": { "type": kind, "message": message } }),
        _ => json!({ "interaction": shown }),
    }
}

/// A message of the bot in answer to an interaction, not yet posted.
pub(super) fn draft(world: &mut World, call: &Call<'_>, interaction: &Interaction) -> Result<Message, ApiError> {
    let bot = world.bot(interaction.application).ok_or(ApiError::UNKNOWN_WEBHOOK)?.user_id;
    let author = Arc::clone(world.users.get(&bot).ok_or(ApiError::UNKNOWN_WEBHOOK)?);
    let id = world.mint.mint(call.now);
    let mut message = Message::new(id, interaction.channel, author, String::new(), call.now);
    message.application_id = Some(interaction.application);
    message.webhook_id = Some(interaction.application);
    message.interaction_metadata = Some(metadata(world, interaction));
    match interaction.source {
        Some(source) => {
            message.kind = message::REPLY;
            message.message_reference = Some(Reference {
                kind: 0,
                message_id: source,
                channel_id: interaction.channel,
                guild_id: interaction.guild,
            });
        }
        None => message.kind = message::COMMAND,
    }
    Ok(message)
}

fn metadata(world: &World, interaction: &Interaction) -> Value {
    let owners = interaction.guild.map_or_else(|| json!({ "0": "0" }), |guild| json!({ "0": guild }));
    let user = world.users.get(&interaction.user);
    let mut shown = json!({
        "id": interaction.id,
        "type": interaction.kind,
        "user": user,
        "authorizing_integration_owners": owners,
    });
    if interaction.kind == COMPONENT {
        shown["interacted_message_id"] = json!(interaction.source);
    }
    if let Some(trigger) = interaction.trigger {
        shown["triggering_interaction_metadata"] =
            json!({ "id": trigger, "type": COMMAND, "user": user, "authorizing_integration_owners": owners });
    }
    shown
}

fn say(
    world: &mut World,
    call: &Call<'_>,
    interaction: &Interaction,
    form: MessageForm,
) -> Result<Snowflake, ApiError> {
    let mut message = draft(world, call, interaction)?;
    form.apply(world, &mut message)?;
    let id = message.id;
    world.post(message, None);
    Ok(id)
}

fn think(
    world: &mut World,
    call: &Call<'_>,
    interaction: &Interaction,
    ephemeral: bool,
) -> Result<Snowflake, ApiError> {
    let mut message = draft(world, call, interaction)?;
    message.flags = LOADING | if ephemeral { EPHEMERAL } else { 0 };
    let id = message.id;
    world.post(message, None);
    Ok(id)
}

fn update(
    world: &mut World,
    call: &Call<'_>,
    interaction: &Interaction,
    form: MessageForm,
) -> Result<Snowflake, ApiError> {
    let id = interaction.source.ok_or(ApiError::UNKNOWN_MESSAGE)?;
    edit(world, call, interaction.channel, id, form)?;
    Ok(id)
}

/// Edits a message of the bot that an interaction leads to. A deferred one is ready after that; it stays as ephemeral
/// as it was.
pub(super) fn edit(
    world: &mut World,
    call: &Call<'_>,
    channel: Snowflake,
    id: Snowflake,
    form: MessageForm,
) -> Result<Message, ApiError> {
    let stored = world.feeds.get(&channel).and_then(|feed| feed.messages.get(&id));
    let mut message = stored.ok_or(ApiError::UNKNOWN_MESSAGE)?.clone();
    let ephemeral = message.flags & EPHEMERAL;
    form.apply(world, &mut message)?;
    message.flags = message.flags & !(LOADING | EPHEMERAL) | ephemeral;
    message.edited_timestamp = Some(call.now);
    if let Some(feed) = world.feeds.get_mut(&channel) {
        feed.messages.insert(id, message.clone());
    }
    world.tell_message_update(channel, id);
    Ok(message)
}
