//! Responses to interactions.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::payload::{DeferReply, EditOriginal, SendFollowup};
use http::Method;
use serde_json::json;
use twilight_model::channel::message::MessageFlags;
use twilight_model::http::interaction::{InteractionResponse, InteractionResponseData, InteractionResponseType};

use super::diff;
use super::execution_context::{ExecutionContext, named, read};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::messages::{by_likeness, form};
use super::model::{DiscordMessage, DiscordObject};
use super::verify::found_if;

/// Discord's code for an interaction that has its first response already.
const ALREADY_ACKNOWLEDGED: u32 = 40_060;

/// Defers the response to an interaction. Succeeds if there is a response already.
pub(crate) async fn defer(
    errand: &ExecutionContext<'_>,
    payload: &DeferReply,
) -> Result<ExecutionOutput, ExecutionError> {
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
    let (already, status) = match errand.send(call.request, RepeatSafety::Harmless).await {
        Ok(answered) => (false, answered.status.as_u16()),
        Err(stop) if stop.is(400, &[ALREADY_ACKNOWLEDGED]) => (true, 400),
        Err(stop) => return Err(stop),
    };
    Ok(ExecutionOutput { result: json!({ "already": already }), status: Some(status), ..ExecutionOutput::default() })
}

/// Sends a followup. Followups cannot be told apart afterwards, so an unknown outcome cannot be resolved.
pub(crate) async fn follow_up(
    errand: &ExecutionContext<'_>,
    payload: &SendFollowup,
) -> Result<ExecutionOutput, ExecutionError> {
    let mut form = form(&payload.body);
    if payload.ephemeral {
        form.insert("flags".to_owned(), MessageFlags::EPHEMERAL.bits().into());
    }
    let path = format!("/webhooks/{}/{}", errand.application(), payload.token);
    let request = errand.json(Method::POST, &path, Some(&form))?;
    let answered = errand.send(request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&answered, RepeatSafety::Doubles)?;
    let result = json!({ "message_id": made.id.to_string() });
    Ok(ExecutionOutput {
        result,
        made: Some(made.id),
        status: Some(answered.status.as_u16()),
        ..ExecutionOutput::default()
    })
}

pub(crate) async fn edit_original(
    errand: &ExecutionContext<'_>,
    payload: &EditOriginal,
) -> Result<ExecutionOutput, ExecutionError> {
    let path = original_path(errand, &payload.token);
    let request = errand.json(Method::PATCH, &path, Some(&form(&payload.body)))?;
    let answered = errand.send(request, RepeatSafety::Harmless).await?;
    let edited: DiscordObject = read(&answered, RepeatSafety::Harmless)?;
    Ok(edited_message(edited.id, answered.status.as_u16()))
}

fn edited_message(id: u64, status: u16) -> ExecutionOutput {
    let result = json!({ "message_id": id.to_string() });
    ExecutionOutput { result, made: Some(id), status: Some(status), ..ExecutionOutput::default() }
}

fn original_path(errand: &ExecutionContext<'_>, token: &str) -> String {
    format!("/webhooks/{}/{token}/messages/@original", errand.application())
}

/// The first response; `None` if there is none. An expired token gives an error.
async fn original(errand: &ExecutionContext<'_>, token: &str) -> Result<Option<DiscordMessage>, ExecutionError> {
    let request = errand.json(Method::GET, &original_path(errand, token), None::<&()>)?;
    match errand.read(request).await {
        Ok(seen) => Ok(Some(seen)),
        Err(stop) if stop.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Whether the interaction has its first response, from any sender.
pub(crate) async fn verify_deferred(
    errand: &ExecutionContext<'_>,
    payload: &DeferReply,
) -> Result<ReconcileResult, ExecutionError> {
    let is_deferred = original(errand, &payload.token).await?.is_some();
    Ok(found_if(is_deferred, || ExecutionOutput {
        result: json!({ "already": true }),
        status: Some(200),
        ..ExecutionOutput::default()
    }))
}

pub(crate) async fn verify_edited(
    errand: &ExecutionContext<'_>,
    payload: &EditOriginal,
) -> Result<ReconcileResult, ExecutionError> {
    let Some(seen) = original(errand, &payload.token).await? else { return Ok(ReconcileResult::Absent) };
    Ok(by_likeness(diff::of_edit(&payload.body, &seen), seen.id, || edited_message(seen.id, 200)))
}
