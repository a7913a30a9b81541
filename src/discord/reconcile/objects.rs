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
use crate::discord::executor::execution_context::{ExecutionContext, reference_id};
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::model::{DiscordChannel, DiscordRole};
use crate::discord::executor::result;
use crate::discord::executor::result::ObjectOutcome;

/// How to treat an object that matches, without a marker that proves that the operation created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchPolicy {
    /// As created by the operation.
    AsCreated,
    /// Leave it to the operation: the next execution adopts a matching object, no matter who created it, and updates
    /// it.
    LeaveToOperation,
}

impl MatchPolicy {
    /// The policy of an `ensure_…` operation.
    pub(crate) const fn of(adopt: bool) -> Self {
        if adopt { Self::LeaveToOperation } else { Self::AsCreated }
    }

    fn result(self, context: &ExecutionContext<'_>, kind: ManagedKind, id: u64, key: Option<&str>) -> ReconcileResult {
        match self {
            Self::AsCreated => found_result(context, kind, id, ObjectOutcome::Adopted, key),
            Self::LeaveToOperation => ReconcileResult::Absent,
        }
    }
}

/// Searches for the role that this operation created.
pub(crate) async fn find_role(
    context: &ExecutionContext<'_>,
    desired: &NewRole,
    key: Option<&str>,
    policy: MatchPolicy,
) -> Result<ReconcileResult, ExecutionError> {
    let others = match audit_log::find_marker(context, AuditLogEventType::RoleCreate).await? {
        MarkerSearch::Found(id) => return Ok(found_result(context, ManagedKind::Role, id, ObjectOutcome::Found, key)),
        // The log may lag, so a missing entry alone is no proof: the list must agree.
        MarkerSearch::Absent { others } => others,
        MarkerSearch::Unknown => Vec::new(),
    };
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(context.guild()?)).await?;
    if contains_bound(context, roles.iter().map(|role| role.id)) {
        return Ok(ReconcileResult::Absent);
    }
    let first = lowest_possible_id(context);
    let alike = roles
        .iter()
        .filter(|role| role.id >= first && !role.managed && role.name.trim() == desired.name.trim())
        .map(|role| role.id)
        .filter(|id| !others.contains(id));
    let free = context.without_owner(ManagedKind::Role, alike.collect()).await?;
    Ok(match free.as_slice() {
        // The list of a guild's roles is always complete.
        [] => ReconcileResult::Absent,
        [one] => policy.result(context, ManagedKind::Role, *one, key),
        several => ReconcileResult::Unclear(several_created("roles", &desired.name, several)),
    })
}

/// Searches for the channel that this operation created.
pub(crate) async fn find_channel(
    context: &ExecutionContext<'_>,
    desired: &NewChannel,
    key: Option<&str>,
    policy: MatchPolicy,
) -> Result<ReconcileResult, ExecutionError> {
    let (log_is_complete, others) = match audit_log::find_marker(context, AuditLogEventType::ChannelCreate).await? {
        MarkerSearch::Found(id) => {
            return Ok(found_result(context, ManagedKind::Channel, id, ObjectOutcome::Found, key));
        }
        MarkerSearch::Absent { others } => (true, others),
        MarkerSearch::Unknown => (false, Vec::new()),
    };
    let channels: Vec<DiscordChannel> = context.fetch(context.builders().guild_channels(context.guild()?)).await?;
    if contains_bound(context, channels.iter().map(|channel| channel.id)) {
        return Ok(ReconcileResult::Absent);
    }
    let parent: Option<Id<ChannelMarker>> = desired.parent.as_ref().map(reference_id).transpose()?;
    let first = lowest_possible_id(context);
    let alike = channels.iter().filter(|channel| {
        channel.id >= first
            && !others.contains(&channel.id)
            && channel.kind == desired.kind.number()
            && channel.parent_id == parent.map(Id::get)
            && diff::same_name(desired.kind, &desired.name, channel.name.as_deref())
    });
    let free = context.without_owner(ManagedKind::Channel, alike.map(|channel| channel.id).collect()).await?;
    Ok(match free.as_slice() {
        // The log includes channels that the list may omit.
        [] if log_is_complete => ReconcileResult::Absent,
        [] => match visibility::of_new_channel(context, desired, parent, &channels).await? {
            Visibility::Clear => ReconcileResult::Absent,
            Visibility::Obscured => ReconcileResult::Unclear(format!(
                "channel `{}` is not in the guild's list, but the bot may be unable to see it there, and it cannot \
                 read the audit log: check whether the channel exists, and give the bot VIEW_AUDIT_LOG",
                desired.name
            )),
        },
        [one] => policy.result(context, ManagedKind::Channel, *one, key),
        several => ReconcileResult::Unclear(several_created("channels", &desired.name, several)),
    })
}

/// Whether the object of an `ensure_…` exists: then nothing had to be created, and nothing was.
fn contains_bound(context: &ExecutionContext<'_>, mut ids: impl Iterator<Item = u64>) -> bool {
    context.work.existing.is_some_and(|(bound, _)| ids.any(|id| id == bound))
}

/// The lowest id that an object of this operation can have.
fn lowest_possible_id(context: &ExecutionContext<'_>) -> u64 {
    context.lowest_id(context.config().clock_slack)
}

fn found_result(
    context: &ExecutionContext<'_>,
    kind: ManagedKind,
    id: u64,
    outcome: ObjectOutcome,
    key: Option<&str>,
) -> ReconcileResult {
    let gone = context.work.existing.map(|(gone, _)| (kind, gone)).filter(|(_, gone)| *gone != id);
    ReconcileResult::Found(ExecutionOutput {
        unbind: gone.into_iter().collect(),
        ..result::object_output(kind, id, outcome, key, 200)
    })
}

fn several_created(kind: &str, name: &str, ids: &[u64]) -> String {
    let displayed: Vec<String> = ids.iter().take(10).map(u64::to_string).collect();
    format!(
        "{} {kind} named `{name}` were created about that time and belong to no operation ({}): delete those that \
         should not exist, and give the bot VIEW_AUDIT_LOG so that the right one can be identified",
        ids.len(),
        displayed.join(", ")
    )
}
