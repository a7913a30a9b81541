//! `/interactions/{interaction.id}/{interaction.token}/callback`: the first response to an interaction.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, query_flag};
use super::message_form::MessageForm;
use crate::id::Snowflake;
use crate::world::World;
use crate::world::interaction::{AUTOCOMPLETE, COMMAND, COMPONENT, Interaction, MODAL, ResponseState};
use crate::world::message::{self, EPHEMERAL, LOADING, Message, MessageView, Reference};

const PONG: u8 = 1;
const MESSAGE: u8 = 4;
const DEFERRED: u8 = 5;
const DEFERRED_UPDATE: u8 = 6;
const UPDATE: u8 = 7;
const CHOICES: u8 = 8;
const SHOW_MODAL: u8 = 9;

/// The effect of a first response.
enum Response {
    /// No message: a pong, choices, a modal.
    NoMessage,
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
    if interaction.state != ResponseState::NotYet {
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
        Response::NoMessage => None,
        Response::Message(form) => Some(post_message(world, call, &interaction, form)?),
        Response::Deferred { ephemeral } => Some(defer(world, call, &interaction, ephemeral)?),
        Response::DeferredUpdate => interaction.source,
        Response::Update(form) => Some(update(world, call, &interaction, form)?),
    };
    if let Some(open) = world.interactions.get_mut(id) {
        open.state = original.map_or(ResponseState::Otherwise, ResponseState::WithMessage);
    }
    world.responses.record(id, delay);
    let message = original.and_then(|id| world.feeds.get(&interaction.channel)?.messages.get(&id));
    let reply = if query_flag(call, "with_response") {
        Reply::ok(&callback_response(world, &interaction, kind, message))
    } else {
        Reply::no_content()
    };
    let content = message.map_or("", |message| message.content.as_str());
    Ok(reply.with_effect(Effect::new(Verb::Create, "interaction", interaction.guild, id, content)))
}

/// Parses the response; a type that is not allowed for the kind of interaction is an error of `type`.
fn read(call: &Call<'_>, interaction: &Interaction) -> Result<(u8, Response), ApiError> {
    let mut form = Form::of(call)?;
    let allowed: &[u8] = match (interaction.kind, interaction.source) {
        (AUTOCOMPLETE, _) => &[CHOICES],
        (MODAL, None) => &[PONG, MESSAGE, DEFERRED],
        (_, Some(_)) => &[PONG, MESSAGE, DEFERRED, DEFERRED_UPDATE, UPDATE, SHOW_MODAL],
        (_, None) => &[PONG, MESSAGE, DEFERRED, SHOW_MODAL],
    };
    let kind = form.choice("type", allowed);
    let kind = form.required("type", kind).unwrap_or(PONG);
    if matches!(kind, MESSAGE | UPDATE | CHOICES | SHOW_MODAL) {
        form.required("data", Field::<()>::Absent);
    }
    let response = match form.raw("data").value() {
        Some(data) => form.nested("data", data, |data| response(data, kind)).unwrap_or(Response::NoMessage),
        None if kind == DEFERRED => Response::Deferred { ephemeral: false },
        None if kind == DEFERRED_UPDATE => Response::DeferredUpdate,
        None => Response::NoMessage,
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
            Response::NoMessage
        }
        SHOW_MODAL => {
            for (name, max) in [("custom_id", 100), ("title", 45)] {
                let text = data.string(name, 1..=max);
                data.required(name, text);
            }
            let components = data.list("components", 5);
            data.required("components", components);
            Response::NoMessage
        }
        _ => Response::NoMessage,
    }
}

/// The message as the interaction's bot reads it.
pub(super) fn view<'w>(world: &'w World, interaction: &Interaction, message: &'w Message) -> MessageView<'w> {
    let viewer = world.bot(interaction.application).map(|bot| bot.user_id);
    match (world.feeds.get(&interaction.channel), viewer) {
        (Some(feed), Some(viewer)) => feed.view(message, viewer),
        (None, _) | (_, None) => MessageView { message, reactions: Vec::new() },
    }
}

/// The response with `?with_response=true`.
fn callback_response(world: &World, interaction: &Interaction, kind: u8, message: Option<&Message>) -> Value {
    let mut interaction_json =
        json!({ "id": interaction.id, "type": interaction.kind, "channel_id": interaction.channel });
    if let Some(guild) = interaction.guild {
        interaction_json["guild_id"] = json!(guild);
    }
    let Some(message) = message else { return json!({ "interaction": interaction_json }) };
    interaction_json["response_message_id"] = json!(message.id);
    interaction_json["response_message_loading"] = json!(message.flags & LOADING != 0);
    interaction_json["response_message_ephemeral"] = json!(message.is_ephemeral());
    match kind {
        MESSAGE | UPDATE => {
            let message = view(world, interaction, message);
            json!({ "interaction": interaction_json, "resource": { "type": kind, "message": message } })
        }
        _ => json!({ "interaction": interaction_json }),
    }
}

/// A message of the bot in response to an interaction, not yet posted.
pub(super) fn draft(world: &mut World, call: &Call<'_>, interaction: &Interaction) -> Result<Message, ApiError> {
    let bot = world.bot(interaction.application).ok_or(ApiError::UNKNOWN_WEBHOOK)?.user_id;
    let author = Arc::clone(world.users.get(&bot).ok_or(ApiError::UNKNOWN_WEBHOOK)?);
    let id = world.mint.generate(call.now);
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
    let mut metadata = json!({
        "id": interaction.id,
        "type": interaction.kind,
        "user": user,
        "authorizing_integration_owners": owners,
    });
    if interaction.kind == COMPONENT {
        metadata["interacted_message_id"] = json!(interaction.source);
    }
    if let Some(trigger) = interaction.trigger {
        metadata["triggering_interaction_metadata"] =
            json!({ "id": trigger, "type": COMMAND, "user": user, "authorizing_integration_owners": owners });
    }
    metadata
}

fn post_message(
    world: &mut World,
    call: &Call<'_>,
    interaction: &Interaction,
    form: MessageForm,
) -> Result<Snowflake, ApiError> {
    let mut message = draft(world, call, interaction)?;
    form.apply(world, call, &mut message)?;
    let id = message.id;
    world.post(message, None);
    Ok(id)
}

fn defer(
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

/// Edits a message of the bot that belongs to an interaction. A deferred one is no longer loading after that; it stays
/// ephemeral or not.
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
    form.apply(world, call, &mut message)?;
    message.flags = message.flags & !(LOADING | EPHEMERAL) | ephemeral;
    message.edited_timestamp = Some(call.now);
    if let Some(feed) = world.feeds.get_mut(&channel) {
        feed.messages.insert(id, message.clone());
    }
    world.notify_message_update(channel, id);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use crate::rest::testing::RestFixture;
    use crate::world::fire::InteractionSpec;

    fn fire(fixture: &mut RestFixture, spec: Value) -> String {
        let spec: InteractionSpec = serde_json::from_value(spec).unwrap();
        let fired = fixture.world.create_interaction(&spec, fixture.now).unwrap();
        format!("/interactions/{}/{}/callback", fired.id, fired.token)
    }

    #[test]
    fn first_response_within_the_deadline_posts_its_message() {
        let mut fixture = RestFixture::new();
        let path = fire(&mut fixture, json!({ "name": "ping" }));
        let body = json!({ "type": 4, "data": { "content": "pong" } });
        let response = fixture.advance(Duration::from_secs(3)).post(&format!("{path}?with_response=1"), body.clone());
        assert_eq!((response.status, response.events.as_slice()), (200, &["MESSAGE_CREATE"][..]));
        let message = &response.json["resource"]["message"];
        assert_eq!((&message["content"], &message["type"]), (&json!("pong"), &json!(20)));
        assert_eq!(message["interaction_metadata"]["id"], response.json["interaction"]["id"]);
        assert_eq!(response.json["interaction"]["response_message_id"], message["id"]);
        let listed = fixture.get(&fixture.channel_path("/messages")).json;
        assert_eq!(listed[0]["content"], "pong");
        assert_eq!(fixture.post(&path, body).code(), 40060);
        assert_eq!(fixture.world.responses.doubled, 1);
        assert_eq!(fixture.world.responses.times[0].1, 3_000_000);
    }

    #[test]
    fn late_response_is_an_unknown_interaction() {
        let mut fixture = RestFixture::new();
        let path = fire(&mut fixture, json!({}));
        let body = json!({ "type": 4, "data": { "content": "pong" } });
        let late = fixture.advance(Duration::from_millis(3_001)).post(&path, body.clone());
        assert_eq!((late.code(), late.status, fixture.world.responses.late), (10062, 404, 1));
        assert_eq!(fixture.get(&fixture.channel_path("/messages")).json, json!([]));
        let invalid = path.replace("/callback", "x/callback");
        assert_eq!(fixture.post(&invalid, body).code(), 10062);
    }

    #[test]
    fn a_bad_response_leaves_the_interaction_open() {
        let mut fixture = RestFixture::new();
        let path = fire(&mut fixture, json!({}));
        assert_eq!(fixture.post(&path, json!({ "type": 4 })).code(), 50035);
        assert_eq!(fixture.post(&path, json!({ "type": 3, "data": {} })).code(), 50035);
        assert_eq!(fixture.post(&path, json!({ "type": 8, "data": { "choices": [] } })).code(), 50035);
        assert_eq!(fixture.post(&path, json!({ "type": 4, "data": { "content": "" } })).code(), 50006);
        assert_eq!(fixture.post(&path, json!({ "type": 5 })).status, 204);
    }

    #[test]
    fn each_kind_of_interaction_allows_its_own_responses() {
        let mut fixture = RestFixture::new();
        let typed = fire(&mut fixture, json!({ "type": "autocomplete" }));
        assert_eq!(fixture.post(&typed, json!({ "type": 5 })).code(), 50035);
        let choices = json!({ "type": 8, "data": { "choices": [{ "name": "a", "value": "a" }] } });
        assert_eq!(fixture.post(&typed, choices).status, 204);
        let command = fire(&mut fixture, json!({}));
        let modal = json!({ "type": 9, "data": { "custom_id": "m", "title": "t", "components": [] } });
        assert_eq!(fixture.post(&command, modal.clone()).status, 204);
        let filled = fire(&mut fixture, json!({ "type": "modal", "custom_id": "m" }));
        assert_eq!(fixture.post(&filled, modal).code(), 50035);
        let thanks = json!({ "type": 4, "data": { "content": "thanks", "flags": 64 } });
        let response = fixture.post(&format!("{filled}?with_response=true"), thanks);
        assert_eq!(response.json["interaction"]["response_message_ephemeral"], true);
        assert!(
            response.json["resource"]["message"]["interaction_metadata"]["triggering_interaction_metadata"].is_object()
        );
    }

    #[test]
    fn a_button_can_change_its_message() {
        let mut fixture = RestFixture::new();
        let message = fixture.post(&fixture.channel_path("/messages"), json!({ "content": "press" })).id();
        let path = fire(&mut fixture, json!({ "type": "button", "custom_id": "go", "message_id": message }));
        let updated = fixture.post(&path, json!({ "type": 7, "data": { "content": "pressed" } }));
        assert_eq!((updated.status, updated.events.as_slice()), (204, &["MESSAGE_UPDATE"][..]));
        let message_json = fixture.get(&fixture.channel_path(&format!("/messages/{message}"))).json;
        assert_eq!(message_json["content"], "pressed");
        let path = fire(&mut fixture, json!({ "type": "button", "custom_id": "go" }));
        assert_eq!(fixture.post(&path, json!({ "type": 6 })).status, 204);
    }

    #[test]
    fn ephemeral_response_is_hidden_from_others() {
        let mut fixture = RestFixture::new();
        let path = fire(&mut fixture, json!({}));
        let response = fixture.post(&path, json!({ "type": 4, "data": { "content": "psst", "flags": 64 } }));
        assert_eq!((response.status, response.events.len()), (204, 0));
        assert_eq!(response.effect.unwrap().name, "psst");
        assert_eq!(fixture.get(&fixture.channel_path("/messages")).json, json!([]));
    }
}
