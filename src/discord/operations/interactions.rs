//! Answers to interactions.

use guildhall_actors::operations::Done;
use guildhall_core::operation::payload::{DeferReply, EditOriginal, SendFollowup};
use http::Method;
use serde_json::json;
use twilight_model::channel::message::MessageFlags;
use twilight_model::http::interaction::{InteractionResponse, InteractionResponseData, InteractionResponseType};

use super::errand::{Errand, named, read};
use super::messages::form;
use super::seen::SeenId;
use super::verdict::{Again, Stop};

/// Discord's code for an interaction that has its first response already.
const ALREADY_ACKNOWLEDGED: u32 = 40_060;

/// Tells Discord that an answer is on its way. One that was told already has been told.
pub(super) async fn defer(errand: &Errand<'_>, payload: &DeferReply) -> Result<Done, Stop> {
    let kind = if payload.update {
        InteractionResponseType::DeferredUpdateMessage
    } else {
        InteractionResponseType::DeferredChannelMessageWithSource
    };
    let data = payload.ephemeral.then(|| InteractionResponseData {
        flags: Some(MessageFlags::EPHEMERAL),
        ..InteractionResponseData::default()
    });
    let response = InteractionResponse { kind, data };
    let call = errand.calls().interaction_callback(named(payload.interaction)?, &payload.token, &response)?;
    let (already, status) = match errand.send(call.request, Again::Harmless).await {
        Ok(answered) => (false, answered.status.as_u16()),
        Err(stop) if stop.is(400, &[ALREADY_ACKNOWLEDGED]) => (true, 400),
        Err(stop) => return Err(stop),
    };
    Ok(Done { result: json!({ "already": already }), status: Some(status), ..Done::default() })
}

/// Says something more. Nothing tells a followup from another one afterwards, so a doubt about it cannot be cleared up.
pub(super) async fn follow_up(errand: &Errand<'_>, payload: &SendFollowup) -> Result<Done, Stop> {
    let mut form = form(&payload.body);
    if payload.ephemeral {
        form.insert("flags".to_owned(), MessageFlags::EPHEMERAL.bits().into());
    }
    let path = format!("/webhooks/{}/{}", errand.application(), payload.token);
    let request = errand.json(Method::POST, &path, Some(&form))?;
    let answered = errand.send(request, Again::Doubles).await?;
    let made: SeenId = read(&answered, Again::Doubles)?;
    let result = json!({ "message_id": made.id.to_string() });
    Ok(Done { result, made: Some(made.id), status: Some(answered.status.as_u16()), ..Done::default() })
}

pub(super) async fn edit_original(errand: &Errand<'_>, payload: &EditOriginal) -> Result<Done, Stop> {
    let path = format!("/webhooks/{}/{}/messages/@original", errand.application(), payload.token);
    let request = errand.json(Method::PATCH, &path, Some(&form(&payload.body)))?;
    let answered = errand.send(request, Again::Harmless).await?;
    let edited: SeenId = read(&answered, Again::Harmless)?;
    let result = json!({ "message_id": edited.id.to_string() });
    Ok(Done { result, made: Some(edited.id), status: Some(answered.status.as_u16()), ..Done::default() })
}
