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
use super::execution_context::{ExecutionContext, id, named, read};
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
    fn whole(channel: &'a NewChannel) -> Result<Self, ExecutionError> {
        Ok(Self {
            name: Some(&channel.name),
            kind: Some(channel.kind.number()),
            parent_id: channel.parent.as_ref().map(id).transpose()?,
            topic: channel.topic.as_deref(),
            nsfw: channel.nsfw,
            position: channel.position,
            rate_limit_per_user: channel.rate_limit_per_user,
            bitrate: channel.bitrate,
            user_limit: channel.user_limit,
            permission_overwrites: channel.overwrites.as_deref().map(overwrites::wired).transpose()?,
        })
    }

    /// Retains only the fields that differ. No other may be sent: a name or a topic can be sent only twice in ten
    /// minutes, even if it is unchanged.
    fn beside(mut self, kind: ChannelType, seen: &DiscordChannel) -> Self {
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
        self.permission_overwrites =
            self.permission_overwrites.filter(|wanted| !overwrites::same(wanted, &seen.permission_overwrites));
        self
    }

    fn says_nothing(&self) -> bool {
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
    errand: &ExecutionContext<'_>,
    payload: &CreateChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    make(errand, &payload.channel, payload.key.as_deref()).await
}

async fn make(
    errand: &ExecutionContext<'_>,
    channel: &NewChannel,
    key: Option<&str>,
) -> Result<ExecutionOutput, ExecutionError> {
    let path = format!("/guilds/{}/channels", errand.guild()?);
    let request = errand.json(Method::POST, &path, Some(&ChannelForm::whole(channel)?))?;
    let answered = errand.send_marked(request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&answered, RepeatSafety::Doubles)?;
    Ok(result::object(ManagedKind::Channel, made.id, ObjectOutcome::Created, key, answered.status.as_u16()))
}

pub(crate) async fn ensure(
    errand: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    let bound = errand.work.bound.map(|(channel, _)| channel);
    if let Some(bound) = bound
        && let Some(seen) = get(errand, bound).await?
    {
        let how = if adjust(errand, payload, &seen).await? { ObjectOutcome::Updated } else { ObjectOutcome::Unchanged };
        return Ok(result::object(ManagedKind::Channel, bound, how, None, 200));
    }
    let adopted = if payload.adopt { adoptable(errand, payload).await? } else { None };
    let mut done = match adopted {
        Some(seen) => {
            adjust(errand, payload, &seen).await?;
            result::object(ManagedKind::Channel, seen.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        }
        None => make(errand, &payload.channel, Some(&payload.key)).await?,
    };
    done.unbind = bound.map(|gone| (ManagedKind::Channel, gone)).into_iter().collect();
    Ok(done)
}

/// Returns a channel, if it exists. A channel that the bot cannot view exists.
async fn get(errand: &ExecutionContext<'_>, channel: u64) -> Result<Option<DiscordChannel>, ExecutionError> {
    match errand.look(errand.builders().channel(named(channel)?)).await {
        Ok(seen) => Ok(Some(seen)),
        Err(stop) if stop.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Returns the only channel with the requested name, type and, if given, parent that has no key.
async fn adoptable(
    errand: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<Option<DiscordChannel>, ExecutionError> {
    let wanted = &payload.channel;
    let parent: Option<Id<ChannelMarker>> = wanted.parent.as_ref().map(id).transpose()?;
    let mut channels: Vec<DiscordChannel> = errand.look(errand.builders().guild_channels(errand.guild()?)).await?;
    channels.retain(|channel| {
        channel.kind == wanted.kind.number()
            && diff::same_name(wanted.kind, &wanted.name, channel.name.as_deref())
            && parent.is_none_or(|parent| channel.parent_id == Some(parent.get()))
    });
    let free = errand.strangers(ManagedKind::Channel, channels.iter().map(|channel| channel.id).collect()).await?;
    match free.as_slice() {
        [] => Ok(None),
        [one] => Ok(channels.into_iter().find(|channel| channel.id == *one)),
        several => Err(result::several_match("channels", &wanted.name, &payload.key, several)),
    }
}

/// Updates the fields that differ. Returns whether any did.
async fn adjust(
    errand: &ExecutionContext<'_>,
    payload: &EnsureChannel,
    seen: &DiscordChannel,
) -> Result<bool, ExecutionError> {
    let wanted = &payload.channel;
    let form = ChannelForm::whole(wanted)?.beside(wanted.kind, seen);
    if form.says_nothing() {
        return Ok(false);
    }
    if form.permission_overwrites.is_some() {
        let denials = Denials::of(wanted.overwrites.as_deref().unwrap_or_default());
        danger::check_denials(errand, &denials, &seen.permission_overwrites)?;
    }
    let convertible = |kind| [ChannelType::Text.number(), ChannelType::Announcement.number()].contains(&kind);
    if form.kind.is_some() && !(convertible(wanted.kind.number()) && convertible(seen.kind)) {
        let message = format!(
            "channel {} has type {} and cannot become `{}`: delete it, or use another key than `{}`",
            seen.id,
            seen.kind,
            wanted.kind.name(),
            payload.key,
        );
        return Err(ExecutionError::failed(FailureClass::Conflict, message));
    }
    let request = errand.json(Method::PATCH, &format!("/channels/{}", seen.id), Some(&form))?;
    let answer = errand.send_marked(request, RepeatSafety::Harmless).await;
    answer.map_err(|stop| result::vanished(stop, "the channel"))?;
    Ok(true)
}

pub(crate) async fn delete(
    errand: &ExecutionContext<'_>,
    payload: &DeleteChannel,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let answer = errand.change(errand.builders().delete_channel(channel)).await;
    result::deleted(answer.map(|answered| answered.status.as_u16()), Some((ManagedKind::Channel, channel.get())))
}

/// A channel that the bot cannot view exists.
pub(crate) async fn verify_deleted(
    errand: &ExecutionContext<'_>,
    payload: &DeleteChannel,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let is_gone = match get(errand, channel.get()).await {
        Ok(seen) => seen.is_none(),
        Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => false,
        Err(stop) => return Err(stop),
    };
    Ok(found_if(is_gone, || result::was_deleted((ManagedKind::Channel, channel.get()))))
}

/// Checks whether the channel of the key, or the one that would be adopted, is as requested; without one, whether a
/// channel was created.
pub(crate) async fn verify_ensured(
    errand: &ExecutionContext<'_>,
    payload: &EnsureChannel,
) -> Result<ReconcileResult, ExecutionError> {
    let wanted = &payload.channel;
    let is_right = |seen: &DiscordChannel| -> Result<bool, ExecutionError> {
        Ok(ChannelForm::whole(wanted)?.beside(wanted.kind, seen).says_nothing())
    };
    let bound = errand.work.bound.map(|(channel, _)| channel);
    if let Some(bound) = bound
        && let Some(seen) = get(errand, bound).await?
    {
        let done = || result::object(ManagedKind::Channel, bound, ObjectOutcome::Updated, None, 200);
        return Ok(found_if(is_right(&seen)?, done));
    }
    if payload.adopt
        && let Some(seen) = adoptable(errand, payload).await?
    {
        let done = || ExecutionOutput {
            unbind: bound.map(|gone| (ManagedKind::Channel, gone)).into_iter().collect(),
            ..result::object(ManagedKind::Channel, seen.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        };
        return Ok(found_if(is_right(&seen)?, done));
    }
    reconcile::reconcile(errand).await
}
