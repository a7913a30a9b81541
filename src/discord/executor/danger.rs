//! Checks whether an operation may grant the permissions that it grants, right before any of its calls is sent.
//!
//! ```text
//!  Execution ──▶ scopes allow `danger`? ──▶ send
//!                  └─no─▶ PermissionEffect ──▶ roles of the guild (cache, else Discord) ──▶ Forbidden │ send
//! ```
//!
//! The scopes are those that the operation was accepted with. The check at acceptance is repeated here: a role may have
//! other permissions by now, and references are resolved only at dispatch.

use std::sync::Arc;

use guildhall_actors::access::RoleCache;
use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::submission::DangerRefused;
use guildhall_core::access::{
    AssignedRoles, Danger, Denials, GuildRoles, MissingAccess, PermissionEffect, RoleGuild, Scope, UnknownRole,
};
use guildhall_core::operation::payload::{Location, Method, Request};
use guildhall_core::operation::{FailureClass, Payload};

use super::bounds::fetch_owner;
use super::execution_context::{ExecutionContext, typed_id};
use super::execution_error::ExecutionError;
use super::model::{DiscordChannel, DiscordMember, DiscordOverwrite, DiscordRole};

/// Rejects an operation that grants a dangerous permission and was accepted without the scope for it.
pub(crate) async fn check(context: &ExecutionContext<'_>) -> Result<(), ExecutionError> {
    if may_grant(context) {
        return Ok(());
    }
    let effect = PermissionEffect::of(&context.work.payload, context.work.guild);
    if let Some(danger) = effect.danger() {
        return Err(rejection(&danger));
    }
    if let Some(assigned) = effect.assigned() {
        check_roles(context, assigned).await?;
    }
    if let Some(denials) = effect.denials()
        && let Some(channel) = denials.channel
    {
        match context.fetch::<DiscordChannel>(context.builders().channel(typed_id(channel)?)).await {
            Ok(seen) => check_denials(context, denials, &seen.permission_overwrites)?,
            // Without the channel there is nothing to grant: the call fails with Discord's own error.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Rejects an operation that removes the denial of a dangerous permission from these overwrites.
pub(crate) fn check_denials(
    context: &ExecutionContext<'_>,
    denials: &Denials,
    present: &[DiscordOverwrite],
) -> Result<(), ExecutionError> {
    if may_grant(context) {
        return Ok(());
    }
    let lifted = denials.lifted(present.iter().map(|overwrite| (overwrite.id, overwrite.deny)));
    lifted.map_or(Ok(()), |danger| Err(rejection(&danger)))
}

fn may_grant(context: &ExecutionContext<'_>) -> bool {
    context.work.scopes.allow(Scope::Danger)
}

fn rejection(danger: &Danger) -> ExecutionError {
    emit(DangerRefused { at: "dispatch", danger });
    ExecutionError::failed(FailureClass::Forbidden, MissingAccess::Danger(*danger).to_string())
}

async fn check_roles(context: &ExecutionContext<'_>, assigned: &AssignedRoles) -> Result<(), ExecutionError> {
    let guild = match assigned.guild {
        RoleGuild::Guild(guild) => guild,
        RoleGuild::Channel(channel) => match guild_of(context, channel).await? {
            Some(guild) => guild,
            // A channel without a guild has no roles to grant: Discord's error says why the call is rejected.
            None => return Ok(()),
        },
    };
    let (mut roles, is_cached) = match context.roles().get(guild) {
        Some(cached) => (cached, true),
        None => (read_roles(context, guild).await?, false),
    };
    if is_cached && assigned.danger(&roles).is_err() {
        // The role may be newer than the cache.
        roles = read_roles(context, guild).await?;
    }
    let unknown = |UnknownRole(role): UnknownRole| {
        ExecutionError::failed(FailureClass::NotFound, format!("no role {role} in guild {guild}"))
    };
    let Some(danger) = assigned.danger(&roles).map_err(unknown)? else { return Ok(()) };
    let Some(member) = assigned.replaces else { return Err(rejection(&danger)) };
    // Roles that the member already has are not granted.
    let held = match context
        .fetch::<DiscordMember>(context.builders().guild_member(typed_id(guild)?, typed_id(member)?))
        .await
    {
        Ok(member) => member.roles,
        Err(error) if error.is_gone() => Vec::new(),
        Err(error) => return Err(error),
    };
    assigned.without(&held).danger(&roles).map_err(unknown)?.map_or(Ok(()), |danger| Err(rejection(&danger)))
}

/// Returns the guild of a channel, if the channel exists and has one.
async fn guild_of(context: &ExecutionContext<'_>, channel: u64) -> Result<Option<u64>, ExecutionError> {
    let location = Location::Channel(channel);
    let cached = context.owners(vec![location.clone()]).await?.into_iter().next().flatten();
    match cached {
        Some(owner) => Ok(owner.guild),
        None => match fetch_owner(context, &location).await {
            Ok(owner) => Ok(owner.guild),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        },
    }
}

/// Reads the permissions of a guild's roles: their own, and those that channel overwrites allow.
async fn read_roles(context: &ExecutionContext<'_>, guild: u64) -> Result<Arc<GuildRoles>, ExecutionError> {
    let read = context.roles().start_read(guild);
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(typed_id(guild)?)).await?;
    let channels: Vec<DiscordChannel> = context.fetch(context.builders().guild_channels(typed_id(guild)?)).await?;
    let roles = roles.iter().map(|role| (role.id, role.permissions));
    let overwrites = channels.iter().flat_map(|channel| &channel.permission_overwrites);
    Ok(read.finish(GuildRoles::new(roles, overwrites.map(|overwrite| (overwrite.id, overwrite.allow)))))
}

/// Invalidates what an operation may have changed, however its execution ends.
pub(crate) struct RoleCacheInvalidation<'a>(ExecutionContext<'a>);

impl<'a> RoleCacheInvalidation<'a> {
    /// Returns a guard for an operation that changes roles or overwrites.
    pub(crate) fn of(context: ExecutionContext<'a>) -> Option<Self> {
        let changes_roles = match &context.work.payload {
            Payload::CreateRole(_)
            | Payload::DeleteRole(_)
            | Payload::EnsureRole(_)
            | Payload::CreateChannel(_)
            | Payload::DeleteChannel(_)
            | Payload::EnsureChannel(_)
            | Payload::UpdatePermissions(_)
            | Payload::ReplaceOverwrites(_) => true,
            Payload::Request(Request { method, .. }) => match method {
                Method::Get => false,
                Method::Post | Method::Put | Method::Patch | Method::Delete => true,
            },
            Payload::AssignRole(_)
            | Payload::RemoveRole(_)
            | Payload::SetMemberRoles(_)
            | Payload::Reorder(_)
            | Payload::EnsureMessage(_)
            | Payload::SendMessage(_)
            | Payload::EditMessage(_)
            | Payload::DeleteMessage(_)
            | Payload::SendDm(_)
            | Payload::DeferReply(_)
            | Payload::SendFollowup(_)
            | Payload::EditOriginal(_)
            | Payload::Read(_) => false,
        };
        // Lazily: dropping a guard has an effect.
        changes_roles.then(|| Self(context))
    }
}

impl Drop for RoleCacheInvalidation<'_> {
    fn drop(&mut self) {
        let work = self.0.work;
        invalidate_changed_roles(self.0.roles(), work.guild, &work.payload);
    }
}

/// Invalidates what an operation or a call may have changed, in its guild and elsewhere.
pub(crate) fn invalidate_changed_roles(roles: &RoleCache, guild: Option<u64>, payload: &Payload) {
    if let Some(guild) = guild {
        roles.invalidate(guild);
    }
    if !matches!(payload, Payload::Request(_)) {
        return;
    }
    // A call may be about another guild than its operation, or about a channel of one.
    match payload.locations().as_deref() {
        Ok([]) => {}
        Ok(locations) if locations.iter().all(|location| matches!(location, Location::Guild(_))) => {
            locations.iter().for_each(|location| roles.invalidate(location.id()));
        }
        Ok(_) | Err(_) => roles.clear(),
    }
}
