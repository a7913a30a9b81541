//! Messages, in channels and to users.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::payload::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{FailureClass, ManagedKind, ProgressStep};
use http::Method;
use serde_json::{Map, Value, json};
use twilight_model::id::Id;
use twilight_model::id::marker::{ChannelMarker, MessageMarker};

use super::diff::{self, Similarity};
use super::execution_context::{ExecutionContext, read, reference_id, typed_id};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::model::{DiscordMessage, DiscordObject};
use super::result::{self, ObjectOutcome};
use super::verify::found_if;
use crate::discord::reconcile;
use crate::discord::reconcile::messages::{ExpectedMessage, ScanResult};

/// The body of a message in Discord's format. It mentions no one unless it lists allowed mentions.
pub(crate) fn message_form(body: &MessageBody) -> Map<String, Value> {
    let mut form = Map::new();
    if let Some(content) = &body.content {
        form.insert("content".to_owned(), content.as_str().into());
    }
    if let Some(embeds) = &body.embeds {
        form.insert("embeds".to_owned(), embeds.clone().into());
    }
    if let Some(components) = &body.components {
        form.insert("components".to_owned(), components.clone().into());
    }
    let mentions = body.allowed_mentions.clone().unwrap_or_else(|| json!({ "parse": [] }));
    form.insert("allowed_mentions".to_owned(), mentions);
    form
}

/// Sends a message with the operation's marker as its nonce. If it is sent again within minutes, Discord returns the
/// first message.
async fn post(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
    body: &MessageBody,
    reply_to: Option<Id<MessageMarker>>,
) -> Result<(u64, u16), ExecutionError> {
    let mut form = message_form(body);
    form.insert("nonce".to_owned(), context.work.marker.to_string().into());
    form.insert("enforce_nonce".to_owned(), true.into());
    if let Some(message) = reply_to {
        form.insert("message_reference".to_owned(), json!({ "message_id": message }));
    }
    let request = context.json(Method::POST, &format!("/channels/{channel}/messages"), Some(&form))?;
    let response = context.send(request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&response, RepeatSafety::Doubles)?;
    Ok((made.id, response.status.as_u16()))
}

pub(crate) async fn send(
    context: &ExecutionContext<'_>,
    payload: &SendMessage,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let reply_to = payload.reply_to.as_ref().map(reference_id).transpose()?;
    let (made, status) = post(context, channel, &payload.body, reply_to).await?;
    Ok(result::message_output(channel.get(), made, ObjectOutcome::Created, payload.key.as_deref(), status))
}

/// Returns the direct message channel with a user. Idempotent.
pub(crate) async fn open_dm(context: &ExecutionContext<'_>, user: u64) -> Result<Id<ChannelMarker>, ExecutionError> {
    let call = context.builders().create_private_channel(typed_id(user)?);
    let opened: DiscordObject = context.fetch(call).await?;
    typed_id(opened.id)
}

pub(crate) async fn send_dm(
    context: &ExecutionContext<'_>,
    payload: &SendDm,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel = open_dm(context, payload.user).await?;
    let (made, status) = post(context, channel, &payload.body, None).await?;
    Ok(result::message_output(channel.get(), made, ObjectOutcome::Created, None, status))
}

pub(crate) async fn edit(
    context: &ExecutionContext<'_>,
    payload: &EditMessage,
) -> Result<ExecutionOutput, ExecutionError> {
    let (channel, message): (Id<ChannelMarker>, Id<MessageMarker>) =
        (reference_id(&payload.channel)?, reference_id(&payload.message)?);
    let status = patch(context, channel, message.get(), &message_form(&payload.body)).await?;
    Ok(result::message_output(channel.get(), message.get(), ObjectOutcome::Updated, None, status))
}

async fn patch(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
    message: u64,
    form: &Map<String, Value>,
) -> Result<u16, ExecutionError> {
    let request = context.json(Method::PATCH, &format!("/channels/{channel}/messages/{message}"), Some(form))?;
    Ok(context.send(request, RepeatSafety::Harmless).await?.status.as_u16())
}

pub(crate) async fn delete(
    context: &ExecutionContext<'_>,
    payload: &DeleteMessage,
) -> Result<ExecutionOutput, ExecutionError> {
    let (channel, message): (Id<ChannelMarker>, Id<MessageMarker>) =
        (reference_id(&payload.channel)?, reference_id(&payload.message)?);
    let result = context.change(context.builders().delete_message(channel, message)).await;
    result::delete_output(result.map(|response| response.status.as_u16()), Some((ManagedKind::Message, message.get())))
}

/// Creates or updates a message. Without pinning, one call creates or changes it. With pinning, there may be two: the
/// journal records what the first one did and binds the key to the message, so that the next execution continues from
/// there. If the process ended before that was stored, this searches for the message first.
pub(crate) async fn ensure(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let bound = context.work.existing;
    if let Some((message, home)) = bound
        && home.is_none_or(|home| home == channel.get())
        && let Some(seen) = get(context, channel, message).await?
    {
        let edited = adjust(context, channel, &payload.body, &seen).await?;
        if edited {
            context
                .work
                .journal
                .add_step(ProgressStep::MessageEdited { channel_id: channel.get(), message_id: message });
        }
        let pinned = pin(context, channel, &seen, payload.pin).await?;
        let outcome = match previous_outcome(context, message) {
            Some(outcome) => outcome,
            None if edited || pinned => ObjectOutcome::Updated,
            None => ObjectOutcome::Unchanged,
        };
        return Ok(result::message_output(channel.get(), message, outcome, None, 200));
    }
    let earlier = match payload.pin {
        Some(true) => find_earlier(context, payload, channel).await?,
        Some(false) | None => None,
    };
    let (seen, outcome, status) = match earlier {
        Some(seen) => (seen, ObjectOutcome::Found, 200),
        None => {
            let (made, status) = post(context, channel, &payload.body, None).await?;
            if payload.pin == Some(true) {
                let (channel_id, key) = (channel.get(), Some(payload.key.clone()));
                context.work.journal.add_step(ProgressStep::MessageSent { channel_id, message_id: made, key });
            }
            (DiscordMessage::unpinned(made), ObjectOutcome::Created, status)
        }
    };
    pin(context, channel, &seen, payload.pin).await?;
    let mut done = result::message_output(channel.get(), seen.id, outcome, Some(&payload.key), status);
    // A message in another channel stays there; only its binding is removed.
    done.unbind = bound.map(|(gone, _)| (ManagedKind::Message, gone)).into_iter().collect();
    Ok(done)
}

/// What earlier executions of this operation did to a message.
fn previous_outcome(context: &ExecutionContext<'_>, message: u64) -> Option<ObjectOutcome> {
    context.work.progress.steps().iter().find_map(|step| {
        let (done, outcome) = match step {
            ProgressStep::MessageSent { message_id, .. } => (*message_id, ObjectOutcome::Created),
            ProgressStep::MessageEdited { message_id, .. } => (*message_id, ObjectOutcome::Updated),
            ProgressStep::RoleOverwriteSet { .. } | ProgressStep::MemberOverwriteSet { .. } => return None,
        };
        (done == message).then_some(outcome)
    })
}

/// Returns the message that an earlier attempt of this operation sent, if any.
async fn find_earlier(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
    channel: Id<ChannelMarker>,
) -> Result<Option<DiscordMessage>, ExecutionError> {
    let expected = ExpectedMessage { channel, body: &payload.body, reply_to: None };
    match expected.scan(context).await? {
        ScanResult::Found(seen) => Ok(Some(*seen)),
        ScanResult::Absent => Ok(None),
        ScanResult::Unclear(reason) => Err(ExecutionError::failed(FailureClass::Conflict, reason)),
    }
}

/// Returns a message, if it exists.
pub(crate) async fn get(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
    message: u64,
) -> Result<Option<DiscordMessage>, ExecutionError> {
    match context.fetch(context.builders().message(channel, typed_id(message)?)).await {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Updates the fields of a message that differ. Returns whether any did. Fields that are not given stay unchanged.
async fn adjust(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
    body: &MessageBody,
    seen: &DiscordMessage,
) -> Result<bool, ExecutionError> {
    let mut differs = message_form(body);
    let same = |field: &str| match field {
        "content" => diff::same_content(body.content.as_deref(), &seen.content),
        "embeds" => body.embeds.as_deref().is_none_or(|embeds| diff::same_embeds(embeds, &seen.embeds)),
        _ => body.components.as_deref().is_none_or(|rows| diff::same_list(rows, &seen.components)),
    };
    for field in ["content", "embeds", "components"] {
        if same(field) {
            differs.remove(field);
        }
    }
    // Allowed mentions alone are no reason for an edit.
    if differs.len() == 1 {
        return Ok(false);
    }
    let result = patch(context, channel, seen.id, &differs).await;
    result.map_err(|error| result::retry_if_gone(error, "the message"))?;
    Ok(true)
}

/// Pins or unpins a message if its state differs. Returns whether it did.
async fn pin(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
    seen: &DiscordMessage,
    desired: Option<bool>,
) -> Result<bool, ExecutionError> {
    let Some(desired) = desired.filter(|desired| *desired != seen.pinned) else { return Ok(false) };
    let method = if desired { Method::PUT } else { Method::DELETE };
    let path = format!("/channels/{channel}/messages/pins/{}", seen.id);
    let request = context.json(method, &path, None::<&()>)?;
    let result = context.send_marked(request, RepeatSafety::Harmless).await;
    result.map_err(|error| result::retry_if_gone(error, "the message"))?;
    Ok(true)
}

/// If the message is gone, the edit counts as absent.
pub(crate) async fn verify_edited(
    context: &ExecutionContext<'_>,
    payload: &EditMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let (channel, message): (Id<ChannelMarker>, Id<MessageMarker>) =
        (reference_id(&payload.channel)?, reference_id(&payload.message)?);
    let Some(seen) = get(context, channel, message.get()).await? else { return Ok(ReconcileResult::Absent) };
    let done = || result::message_output(channel.get(), message.get(), ObjectOutcome::Updated, None, 200);
    Ok(edit_result(diff::compare_edit(&payload.body, &seen), message.get(), done))
}

/// Maps the similarity of a message to the result of an edit that may have taken effect.
pub(crate) fn edit_result(
    similarity: Similarity,
    message: u64,
    done: impl FnOnce() -> ExecutionOutput,
) -> ReconcileResult {
    match similarity {
        Similarity::Same => ReconcileResult::Found(done()),
        Similarity::Other => ReconcileResult::Absent,
        Similarity::Alike => ReconcileResult::Unclear(format!(
            "message {message} has the requested text, but its embeds or components differ: check whether it was \
             edited"
        )),
    }
}

pub(crate) async fn verify_deleted(
    context: &ExecutionContext<'_>,
    payload: &DeleteMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let (channel, message): (Id<ChannelMarker>, Id<MessageMarker>) =
        (reference_id(&payload.channel)?, reference_id(&payload.message)?);
    let is_gone = get(context, channel, message.get()).await?.is_none();
    Ok(found_if(is_gone, || result::already_deleted_output((ManagedKind::Message, message.get()))))
}

/// Checks whether the message of the key is as requested; without one, whether a message was sent, and pinned if
/// requested.
pub(crate) async fn verify_ensured(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    if let Some((message, home)) = context.work.existing
        && home.is_none_or(|home| home == channel.get())
        && let Some(seen) = get(context, channel, message).await?
    {
        if payload.pin.is_some_and(|pin| pin != seen.pinned) {
            return Ok(ReconcileResult::Absent);
        }
        let done = || result::message_output(channel.get(), message, ObjectOutcome::Updated, None, 200);
        return Ok(edit_result(diff::compare_edit(&payload.body, &seen), message, done));
    }
    reconcile::verify_sent_and_pinned(context, payload).await
}
