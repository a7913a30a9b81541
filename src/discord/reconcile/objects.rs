//! Reconciles roles and channels that may have been created.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::ManagedKind;
use guildhall_core::operation::payload::{NewChannel, NewRole};
use twilight_model::guild::audit_log::AuditLogEventType;
use twilight_model::id::Id;
use twilight_model::id::marker::ChannelMarker;

use super::audit_log::{self, MarkerSearch};
use super::visibility::{self, Visibility};
use crate::discord::executor::diff;
use crate::discord::executor::execution_context::{ExecutionContext, id};
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::model::{DiscordChannel, DiscordRole};
use crate::discord::executor::result;
use crate::discord::executor::result::ObjectOutcome;

/// How to treat an object that matches, without a marker that proves that the operation created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchPolicy {
    /// As created by the operation.
    Taken,
    /// Leave it to the operation: the next execution adopts a matching object, no matter who created it, and updates
    /// it.
    Left,
}

impl MatchPolicy {
    /// The policy of an `ensure_…` operation.
    pub(crate) const fn of(adopt: bool) -> Self {
        if adopt { Self::Left } else { Self::Taken }
    }

    fn found(self, errand: &ExecutionContext<'_>, kind: ManagedKind, id: u64, key: Option<&str>) -> ReconcileResult {
        match self {
            Self::Taken => found(errand, kind, id, ObjectOutcome::Adopted, key),
            Self::Left => ReconcileResult::Absent,
        }
    }
}

/// Searches for the role that this operation created.
pub(crate) async fn role(
    errand: &ExecutionContext<'_>,
    wanted: &NewRole,
    key: Option<&str>,
    match_is: MatchPolicy,
) -> Result<ReconcileResult, ExecutionError> {
    let others = match audit_log::trace(errand, AuditLogEventType::RoleCreate).await? {
        MarkerSearch::Made(id) => return Ok(found(errand, ManagedKind::Role, id, ObjectOutcome::Found, key)),
        // The log may lag, so a missing entry alone is no proof: the list must agree.
        MarkerSearch::Nothing { others } => others,
        MarkerSearch::Silent => Vec::new(),
    };
    let roles: Vec<DiscordRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    if holds_bound(errand, roles.iter().map(|role| role.id)) {
        return Ok(ReconcileResult::Absent);
    }
    let first = first_possible(errand);
    let alike = roles
        .iter()
        .filter(|role| role.id >= first && !role.managed && role.name.trim() == wanted.name.trim())
        .map(|role| role.id)
        .filter(|id| !others.contains(id));
    let free = errand.strangers(ManagedKind::Role, alike.collect()).await?;
    Ok(match free.as_slice() {
        // The list of a guild's roles is always complete.
        [] => ReconcileResult::Absent,
        [one] => match_is.found(errand, ManagedKind::Role, *one, key),
        several => ReconcileResult::Unclear(several_made("roles", &wanted.name, several)),
    })
}

/// Searches for the channel that this operation created.
pub(crate) async fn channel(
    errand: &ExecutionContext<'_>,
    wanted: &NewChannel,
    key: Option<&str>,
    match_is: MatchPolicy,
) -> Result<ReconcileResult, ExecutionError> {
    let (log_is_whole, others) = match audit_log::trace(errand, AuditLogEventType::ChannelCreate).await? {
        MarkerSearch::Made(id) => return Ok(found(errand, ManagedKind::Channel, id, ObjectOutcome::Found, key)),
        MarkerSearch::Nothing { others } => (true, others),
        MarkerSearch::Silent => (false, Vec::new()),
    };
    let channels: Vec<DiscordChannel> = errand.look(errand.builders().guild_channels(errand.guild()?)).await?;
    if holds_bound(errand, channels.iter().map(|channel| channel.id)) {
        return Ok(ReconcileResult::Absent);
    }
    let parent: Option<Id<ChannelMarker>> = wanted.parent.as_ref().map(id).transpose()?;
    let first = first_possible(errand);
    let alike = channels.iter().filter(|channel| {
        channel.id >= first
            && !others.contains(&channel.id)
            && channel.kind == wanted.kind.number()
            && channel.parent_id == parent.map(Id::get)
            && diff::same_name(wanted.kind, &wanted.name, channel.name.as_deref())
    });
    let free = errand.strangers(ManagedKind::Channel, alike.map(|channel| channel.id).collect()).await?;
    Ok(match free.as_slice() {
        // The log includes channels that the list may omit.
        [] if log_is_whole => ReconcileResult::Absent,
        [] => match visibility::of_new_channel(errand, wanted, parent, &channels).await? {
            Visibility::Clear => ReconcileResult::Absent,
            Visibility::Obscured => ReconcileResult::Unclear(format!(
                "channel `{}` is not in the guild's list, but the bot may be unable to see it there, and it cannot \
                 read the audit log: check whether the channel exists, and give the bot VIEW_AUDIT_LOG",
                wanted.name
            )),
        },
        [one] => match_is.found(errand, ManagedKind::Channel, *one, key),
        several => ReconcileResult::Unclear(several_made("channels", &wanted.name, several)),
    })
}

/// Whether the object of an `ensure_…` exists: then nothing had to be created, and nothing was.
fn holds_bound(errand: &ExecutionContext<'_>, mut ids: impl Iterator<Item = u64>) -> bool {
    errand.work.bound.is_some_and(|(bound, _)| ids.any(|id| id == bound))
}

/// The lowest id that an object of this operation can have.
fn first_possible(errand: &ExecutionContext<'_>) -> u64 {
    errand.lowest_id(errand.config().clock_slack)
}

fn found(
    errand: &ExecutionContext<'_>,
    kind: ManagedKind,
    id: u64,
    how: ObjectOutcome,
    key: Option<&str>,
) -> ReconcileResult {
    let gone = errand.work.bound.map(|(gone, _)| (kind, gone)).filter(|(_, gone)| *gone != id);
    ReconcileResult::Found(ExecutionOutput {
        unbind: gone.into_iter().collect(),
        ..result::object(kind, id, how, key, 200)
    })
}

fn several_made(what: &str, name: &str, ids: &[u64]) -> String {
    let shown: Vec<String> = ids.iter().take(10).map(u64::to_string).collect();
    format!(
        "{} {what} named `{name}` were created about that time and belong to no operation ({}): delete those that \
         should not exist, and give the bot VIEW_AUDIT_LOG so that the right one can be identified",
        ids.len(),
        shown.join(", ")
    )
}
