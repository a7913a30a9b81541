//! Channels and categories.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::access::Denials;
use guildhall_core::operation::payload::{ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel};
use guildhall_core::operation::{Failure, FailureClass, ManagedKind};
use http::Method;
use serde::Serialize;
use twilight_model::id::Id;
use twilight_model::id::marker::ChannelMarker;

use super::danger;
use super::diff;
use super::execution_context::{ExecutionContext, read, reference_id, typed_id};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::model::{DiscordChannel, DiscordObject};
use super::overwrites::{self, OverwriteForm};
use super::result::{self, ObjectOutcome};
use super::verify::found_if;
use crate::discord::reconcile;

/// The body of a channel request: all fields to create one, the differing fields to change one. Twilight's builders do
/// not accept a forum topic of full length.
#[derive(Debug, Serialize)]
struct ChannelForm<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<Id<ChannelMarker>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nsfw: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limit_per_user: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bitrate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_limit: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permission_overwrites: Option<Vec<OverwriteForm>>,
}

impl<'a> ChannelForm<'a> {
    fn complete(channel: &'a NewChannel) -> Result<Self, ExecutionError> {
        Ok(Self {
            name: Some(&channel.name),
            kind: Some(channel.kind.number()),
            parent_id: channel.parent.as_ref().map(reference_id).transpose()?,
            topic: channel.topic.as_deref(),
            nsfw: channel.nsfw,
            position: channel.position,
            rate_limit_per_user: channel.rate_limit_per_user,
            bitrate: channel.bitrate,
            user_limit: channel.user_limit,
            permission_overwrites: channel.overwrites.as_deref().map(overwrites::to_forms).transpose()?,
        })
    }

    /// Retains only the fields that differ. No other may be sent: a name or a topic can be sent only twice in ten
    /// minutes, even if it is unchanged.
    fn without_unchanged(mut self, kind: ChannelType, seen: &DiscordChannel) -> Self {
        self.name = self.name.filter(|name| !diff::same_name(kind, name, seen.name.as_deref()));
        self.kind = self.kind.filter(|kind| *kind != seen.kind);
        self.parent_id = self.parent_id.filter(|parent| Some(parent.get()) != seen.parent_id);
        let old_topic = seen.topic.as_deref().unwrap_or_default().trim();
        self.topic = self.topic.filter(|topic| topic.trim() != old_topic);
        self.nsfw = self.nsfw.filter(|nsfw| *nsfw != seen.nsfw);
        self.position = self.position.filter(|position| Some(i64::from(*position)) != seen.position);
        let old_rate = seen.rate_limit_per_user.unwrap_or_default();
        self.rate_limit_per_user = self.rate_limit_per_user.filter(|rate| *rate != old_rate);
        self.bitrate = self.bitrate.filter(|bitrate| Some(*bitrate) != seen.bitrate);
        self.user_limit = self.user_limit.filter(|limit| *limit != seen.user_limit.unwrap_or_default());
        self.permission_overwrites = self
            .permission_overwrites
            .filter(|desired| !overwrites::same_overwrites(desired, &seen.permission_overwrites));
        self
    }

    fn is_empty(&self) -> bool {
        let Self {
            name: None,
            kind: None,
            parent_id: None,
            topic: None,
            nsfw: None,
            position: None,
            rate_limit_per_user: None,
            bitrate: None,
            user_limit: None,
            permission_overwrites: None,
        } = self
        else {
            return false;
        };
        true
    }
}

pub(crate) async fn create(
    context: &ExecutionContext<'_>,
    payload: &CreateChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    create_channel(context, &payload.channel, payload.key.as_deref()).await
}

async fn create_channel(
    context: &ExecutionContext<'_>,
    channel: &NewChannel,
    key: Option<&str>,
) -> Result<ExecutionOutput, ExecutionError> {
    let path = format!("/guilds/{}/channels", context.guild()?);
    let request = context.json(Method::POST, &path, Some(&ChannelForm::complete(channel)?))?;
    let response = context.send_marked(request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&response, RepeatSafety::Doubles)?;
    Ok(result::object_output(ManagedKind::Channel, made.id, ObjectOutcome::Created, key, response.status.as_u16()))
}

pub(crate) async fn ensure(
    context: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    let bound = context.work.existing.map(|(channel, _)| channel);
    if let Some(bound) = bound
        && let Some(seen) = get(context, bound).await?
    {
        let outcome =
            if adjust(context, payload, &seen).await? { ObjectOutcome::Updated } else { ObjectOutcome::Unchanged };
        return Ok(result::object_output(ManagedKind::Channel, bound, outcome, None, 200));
    }
    let adopted = if payload.adopt { adoptable(context, payload).await? } else { None };
    let mut done = match adopted {
        Some(seen) => {
            adjust(context, payload, &seen).await?;
            result::object_output(ManagedKind::Channel, seen.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        }
        None => create_channel(context, &payload.channel, Some(&payload.key)).await?,
    };
    done.unbind = bound.map(|gone| (ManagedKind::Channel, gone)).into_iter().collect();
    Ok(done)
}

/// Returns a channel, if it exists. A channel that the bot cannot view exists.
async fn get(context: &ExecutionContext<'_>, channel: u64) -> Result<Option<DiscordChannel>, ExecutionError> {
    match context.fetch(context.builders().channel(typed_id(channel)?)).await {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the only channel with the requested name, type and, if given, parent that has no key.
async fn adoptable(
    context: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<Option<DiscordChannel>, ExecutionError> {
    let desired = &payload.channel;
    let parent: Option<Id<ChannelMarker>> = desired.parent.as_ref().map(reference_id).transpose()?;
    let mut channels: Vec<DiscordChannel> = context.fetch(context.builders().guild_channels(context.guild()?)).await?;
    channels.retain(|channel| {
        channel.kind == desired.kind.number()
            && diff::same_name(desired.kind, &desired.name, channel.name.as_deref())
            && parent.is_none_or(|parent| channel.parent_id == Some(parent.get()))
    });
    let free = context.without_owner(ManagedKind::Channel, channels.iter().map(|channel| channel.id).collect()).await?;
    match free.as_slice() {
        [] => Ok(None),
        [one] => Ok(channels.into_iter().find(|channel| channel.id == *one)),
        several => Err(result::several_match("channels", &desired.name, &payload.key, several)),
    }
}

/// Updates the fields that differ. Returns whether any did.
async fn adjust(
    context: &ExecutionContext<'_>,
    payload: &EnsureChannel,
    seen: &DiscordChannel,
) -> Result<bool, ExecutionError> {
    let desired = &payload.channel;
    let form = ChannelForm::complete(desired)?.without_unchanged(desired.kind, seen);
    if form.is_empty() {
        return Ok(false);
    }
    if form.permission_overwrites.is_some() {
        let denials = Denials::of(desired.overwrites.as_deref().unwrap_or_default());
        danger::check_denials(context, &denials, &seen.permission_overwrites)?;
    }
    let convertible = |kind| [ChannelType::Text.number(), ChannelType::Announcement.number()].contains(&kind);
    if form.kind.is_some() && !(convertible(desired.kind.number()) && convertible(seen.kind)) {
        let message = format!(
            "channel {} has type {} and cannot become `{}`: delete it, or use another key than `{}`",
            seen.id,
            seen.kind,
            desired.kind.name(),
            payload.key,
        );
        return Err(ExecutionError::failed(FailureClass::Conflict, message));
    }
    let request = context.json(Method::PATCH, &format!("/channels/{}", seen.id), Some(&form))?;
    let result = context.send_marked(request, RepeatSafety::Harmless).await;
    result.map_err(|error| result::retry_if_gone(error, "the channel"))?;
    Ok(true)
}

pub(crate) async fn delete(
    context: &ExecutionContext<'_>,
    payload: &DeleteChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let result = context.change(context.builders().delete_channel(channel)).await;
    result::delete_output(result.map(|response| response.status.as_u16()), Some((ManagedKind::Channel, channel.get())))
}

/// A channel that the bot cannot view exists.
pub(crate) async fn verify_deleted(
    context: &ExecutionContext<'_>,
    payload: &DeleteChannel,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let is_gone = match get(context, channel.get()).await {
        Ok(seen) => seen.is_none(),
        Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => false,
        Err(error) => return Err(error),
    };
    Ok(found_if(is_gone, || result::already_deleted_output((ManagedKind::Channel, channel.get()))))
}

/// Checks whether the channel of the key, or the one that would be adopted, is as requested; without one, whether a
/// channel was created.
pub(crate) async fn verify_ensured(
    context: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<ReconcileResult, ExecutionError> {
    let desired = &payload.channel;
    let matches_request = |seen: &DiscordChannel| -> Result<bool, ExecutionError> {
        Ok(ChannelForm::complete(desired)?.without_unchanged(desired.kind, seen).is_empty())
    };
    let bound = context.work.existing.map(|(channel, _)| channel);
    if let Some(bound) = bound
        && let Some(seen) = get(context, bound).await?
    {
        let done = || result::object_output(ManagedKind::Channel, bound, ObjectOutcome::Updated, None, 200);
        return Ok(found_if(matches_request(&seen)?, done));
    }
    if payload.adopt
        && let Some(seen) = adoptable(context, payload).await?
    {
        let done = || ExecutionOutput {
            unbind: bound.map(|gone| (ManagedKind::Channel, gone)).into_iter().collect(),
            ..result::object_output(ManagedKind::Channel, seen.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        };
        return Ok(found_if(matches_request(&seen)?, done));
    }
    reconcile::reconcile(context).await
}
