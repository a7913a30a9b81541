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

/// The effect of a first response.
enum Response {
    /// No message: a pong, choices, a modal.
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

/// Parses the response; a type that is not allowed for the kind of interaction is an error of `type`.
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

/// The response with `?with_response=true`.
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

/// A message of the bot in response to an interaction, not yet posted.
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
    form.apply(world, &mut message)?;
    message.flags = message.flags & !(LOADING | EPHEMERAL) | ephemeral;
    message.edited_timestamp = Some(call.now);
    if let Some(feed) = world.feeds.get_mut(&channel) {
        feed.messages.insert(id, message.clone());
    }
    world.tell_message_update(channel, id);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use crate::rest::testing::Stage;
    use crate::world::fire::InteractionSpec;

    fn fire(stage: &mut Stage, spec: Value) -> String {
        let spec: InteractionSpec = serde_json::from_value(spec).unwrap();
        let fired = stage.world.interaction(&spec, stage.now).unwrap();
        format!("/interactions/{}/{}/callback", fired.id, fired.token)
    }

    #[test]
    fn a_first_response_within_the_deadline_says_its_message() {
        let mut stage = Stage::new();
        let path = fire(&mut stage, json!({ "name": "ping" }));
        let body = json!({ "type": 4, "data": { "content": "pong" } });
        let answered = stage.pass(Duration::from_secs(3)).post(&format!("{path}?with_response=1"), body.clone());
        assert_eq!((answered.status, answered.events.as_slice()), (200, &["MESSAGE_CREATE"][..]));
        let message = &answered.json["resource"]["message"];
        assert_eq!((&message["content"], &message["type"]), (&json!("pong"), &json!(20)));
        assert_eq!(message["interaction_metadata"]["id"], answered.json["interaction"]["id"]);
        assert_eq!(answered.json["interaction"]["response_message_id"], message["id"]);
        let listed = stage.get(&stage.channel_path("/messages")).json;
        assert_eq!(listed[0]["content"], "pong");
        assert_eq!(stage.post(&path, body).code(), 40060);
        assert_eq!(stage.world.responses.doubled, 1);
        assert_eq!(stage.world.responses.times[0].1, 3_000_000);
    }

    #[test]
    fn a_late_response_finds_no_interaction() {
        let mut stage = Stage::new();
        let path = fire(&mut stage, json!({}));
        let body = json!({ "type": 4, "data": { "content": "pong" } });
        let late = stage.pass(Duration::from_millis(3_001)).post(&path, body.clone());
        assert_eq!((late.code(), late.status, stage.world.responses.late), (10062, 404, 1));
        assert_eq!(stage.get(&stage.channel_path("/messages")).json, json!([]));
        let wrong = path.replace("/callback", "x/callback");
        assert_eq!(stage.post(&wrong, body).code(), 10062);
    }

    #[test]
    fn a_bad_response_leaves_the_interaction_open() {
        let mut stage = Stage::new();
        let path = fire(&mut stage, json!({}));
        assert_eq!(stage.post(&path, json!({ "type": 4 })).code(), 50035);
        assert_eq!(stage.post(&path, json!({ "type": 3, "data": {} })).code(), 50035);
        assert_eq!(stage.post(&path, json!({ "type": 8, "data": { "choices": [] } })).code(), 50035);
        assert_eq!(stage.post(&path, json!({ "type": 4, "data": { "content": "" } })).code(), 50006);
        assert_eq!(stage.post(&path, json!({ "type": 5 })).status, 204);
    }

    #[test]
    fn each_kind_of_interaction_takes_its_own_responses() {
        let mut stage = Stage::new();
        let typed = fire(&mut stage, json!({ "type": "autocomplete" }));
        assert_eq!(stage.post(&typed, json!({ "type": 5 })).code(), 50035);
        let choices = json!({ "type": 8, "data": { "choices": [{ "name": "a", "value": "a" }] } });
        assert_eq!(stage.post(&typed, choices).status, 204);
        let asked = fire(&mut stage, json!({}));
        let modal = json!({ "type": 9, "data": { "custom_id": "m", "title": "t", "components": [] } });
        assert_eq!(stage.post(&asked, modal.clone()).status, 204);
        let filled = fire(&mut stage, json!({ "type": "modal", "custom_id": "m" }));
        assert_eq!(stage.post(&filled, modal).code(), 50035);
        let thanks = json!({ "type": 4, "data": { "content": "thanks", "flags": 64 } });
        let answered = stage.post(&format!("{filled}?with_response=true"), thanks);
        assert_eq!(answered.json["interaction"]["response_message_ephemeral"], true);
        assert!(
            answered.json["resource"]["message"]["interaction_metadata"]["triggering_interaction_metadata"].is_object()
        );
    }

    #[test]
    fn a_button_can_change_its_message() {
        let mut stage = Stage::new();
        let message = stage.post(&stage.channel_path("/messages"), json!({ "content": "press" })).id();
        let path = fire(&mut stage, json!({ "type": "button", "custom_id": "go", "message_id": message }));
        let updated = stage.post(&path, json!({ "type": 7, "data": { "content": "pressed" } }));
        assert_eq!((updated.status, updated.events.as_slice()), (204, &["MESSAGE_UPDATE"][..]));
        let shown = stage.get(&stage.channel_path(&format!("/messages/{message}"))).json;
        assert_eq!(shown["content"], "pressed");
        let path = fire(&mut stage, json!({ "type": "button", "custom_id": "go" }));
        assert_eq!(stage.post(&path, json!({ "type": 6 })).status, 204);
    }

    #[test]
    fn an_ephemeral_answer_is_nobody_elses_business() {
        let mut stage = Stage::new();
        let path = fire(&mut stage, json!({}));
        let answered = stage.post(&path, json!({ "type": 4, "data": { "content": "psst", "flags": 64 } }));
        assert_eq!((answered.status, answered.events.len()), (204, 0));
        assert_eq!(answered.effect.unwrap().name, "psst");
        assert_eq!(stage.get(&stage.channel_path("/messages")).json, json!([]));
    }
}
