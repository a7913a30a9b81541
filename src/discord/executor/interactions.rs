//! Responses to interactions.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::events::DeferredResponseChecked;
use guildhall_core::operation::FailureClass;
use guildhall_core::operation::payload::{DeferReply, EditOriginal, MessageBody, SendFollowup};
use http::Method;
use serde_json::{Value, json};
use twilight_model::channel::message::MessageFlags;
use twilight_model::http::interaction::{InteractionResponse, InteractionResponseData, InteractionResponseType};

use super::diff;
use super::execution_context::{ExecutionContext, read, typed_id};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::messages::{edit_result, message_form};
use super::model::{DiscordMessage, DiscordObject};
use super::verify::found_if;

/// Discord's code for an interaction that has its first response already.
const ALREADY_ACKNOWLEDGED: u32 = 40_060;

/// Discord's code for an interaction without a first response.
const UNKNOWN_WEBHOOK: u32 = 10_015;

/// Defers the response to an interaction. Succeeds if there is a response already.
pub(crate) async fn defer(
    context: &ExecutionContext<'_>,
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
    let call = context.calls().interaction_callback(typed_id(payload.interaction)?, &payload.token, &response)?;
    let (already, status) = match context.send(call.request, RepeatSafety::Harmless).await {
        Ok(sent) => (false, sent.status.as_u16()),
        Err(error) if error.is_response(400, &[ALREADY_ACKNOWLEDGED]) => (true, 400),
        Err(error) => return Err(error),
    };
    Ok(ExecutionOutput { result: json!({ "already": already }), status: Some(status), ..ExecutionOutput::default() })
}

/// Sends a followup. Followups cannot be distinguished afterwards, so an unknown outcome cannot be resolved.
pub(crate) async fn follow_up(
    context: &ExecutionContext<'_>,
    payload: &SendFollowup,
) -> Result<ExecutionOutput, ExecutionError> {
    let mut form = message_form(&payload.body);
    if payload.ephemeral {
        form.insert("flags".to_owned(), MessageFlags::EPHEMERAL.bits().into());
    }
    let path = format!("/webhooks/{}/{}", context.application(), &*payload.token);
    let request = context.json(Method::POST, &path, Some(&form))?;
    let response = context.send(request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&response, RepeatSafety::Doubles)?;
    let result = json!({ "message_id": made.id.to_string() });
    Ok(ExecutionOutput {
        result,
        created: Some(made.id),
        status: Some(response.status.as_u16()),
        ..ExecutionOutput::default()
    })
}

/// Edits the first response. If Discord rejects the message, a response that is still deferred becomes `if_rejected`.
pub(crate) async fn edit_original(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
) -> Result<ExecutionOutput, ExecutionError> {
    if payload.only_if_deferred
        && let Some(answered) = answered(context, payload).await?
    {
        emit(DeferredResponseChecked { id: context.work.id, guild: context.work.guild, outcome: "answered" });
        return Ok(answered);
    }
    match (patch(context, payload, &payload.body).await, &payload.if_rejected) {
        (Err(rejected), Some(text)) if rejected.is_rejected() => {
            match replace_deferral(context, payload, text).await {
                // Both are sent again.
                Err(error) if error.is_temporary() => Err(error),
                // The operation fails for its own reason.
                Ok(()) | Err(_) => Err(rejected),
            }
        }
        (Ok(edited), _) if payload.only_if_deferred => {
            emit(DeferredResponseChecked { id: context.work.id, guild: context.work.guild, outcome: "sent" });
            Ok(ExecutionOutput { result: with_edited(edited.result, true), ..edited })
        }
        (edited, _) => edited,
    }
}

/// Replaces a first response that is still deferred by a text. Any other response stays as it is.
async fn replace_deferral(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
    text: &str,
) -> Result<(), ExecutionError> {
    if answered(context, payload).await?.is_some() {
        return Ok(());
    }
    let body = MessageBody { content: Some(text.to_owned()), ..MessageBody::default() };
    patch(context, payload, &body).await.map(drop)
}

/// Replaces the first response.
async fn patch(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
    body: &MessageBody,
) -> Result<ExecutionOutput, ExecutionError> {
    let path = original_path(context, &payload.token);
    let request = context.json(Method::PATCH, &path, Some(&message_form(body)))?;
    let sent = context.send(request, RepeatSafety::Harmless).await;
    let response = sent.map_err(|error| without_first_response(context, payload, error))?;
    let edited: DiscordObject = read(&response, RepeatSafety::Harmless)?;
    Ok(edited_message(edited.id, response.status.as_u16()))
}

/// The output of an edit that is not made, because the first response is not deferred, or does not exist.
async fn answered(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
) -> Result<Option<ExecutionOutput>, ExecutionError> {
    let request = context.json(Method::GET, &original_path(context, &payload.token), None::<&()>)?;
    let found = match context.read::<DiscordMessage>(request).await {
        Ok(found) => Some(found),
        Err(error) => match without_first_response(context, payload, error) {
            error if error.is_gone() => None,
            error => return Err(error),
        },
    };
    let result = match found {
        Some(response) if response.is_deferred() => return Ok(None),
        Some(response) => json!({ "message_id": response.id.to_string() }),
        None => json!({}),
    };
    Ok(Some(ExecutionOutput { result: with_edited(result, false), ..ExecutionOutput::default() }))
}

/// The error of a call for the first response. Discord may be about to receive that response, above all to a posted
/// interaction, whose handler may finish before Discord has the deferral. The call is sent again then.
fn without_first_response(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
    error: ExecutionError,
) -> ExecutionError {
    if error.is_response(404, &[UNKNOWN_WEBHOOK]) && context.is_new_interaction(payload.interaction) {
        return ExecutionError::failed(
            FailureClass::Transient,
            "Discord has not received the first response to this interaction yet",
        );
    }
    error
}

fn with_edited(mut result: Value, edited: bool) -> Value {
    result["edited"] = edited.into();
    result
}

fn edited_message(id: u64, status: u16) -> ExecutionOutput {
    let result = json!({ "message_id": id.to_string() });
    ExecutionOutput { result, created: Some(id), status: Some(status), ..ExecutionOutput::default() }
}

fn original_path(context: &ExecutionContext<'_>, token: &str) -> String {
    format!("/webhooks/{}/{token}/messages/@original", context.application())
}

/// The first response; `None` if there is none. An expired token gives an error.
async fn original(context: &ExecutionContext<'_>, token: &str) -> Result<Option<DiscordMessage>, ExecutionError> {
    let request = context.json(Method::GET, &original_path(context, token), None::<&()>)?;
    match context.read(request).await {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the interaction has its first response, from any sender.
pub(crate) async fn verify_deferred(
    context: &ExecutionContext<'_>,
    payload: &DeferReply,
) -> Result<ReconcileResult, ExecutionError> {
    let is_deferred = original(context, &payload.token).await?.is_some();
    Ok(found_if(is_deferred, || ExecutionOutput {
        result: json!({ "already": true }),
        status: Some(200),
        ..ExecutionOutput::default()
    }))
}

pub(crate) async fn verify_edited(
    context: &ExecutionContext<'_>,
    payload: &EditOriginal,
) -> Result<ReconcileResult, ExecutionError> {
    if payload.only_if_deferred {
        return Ok(answered(context, payload).await?.map_or(ReconcileResult::Absent, ReconcileResult::Found));
    }
    let Some(seen) = original(context, &payload.token).await? else { return Ok(ReconcileResult::Absent) };
    Ok(edit_result(diff::compare_edit(&payload.body, &seen), seen.id, || edited_message(seen.id, 200)))
}
