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

use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::submission::DangerRefused;
use guildhall_core::access::{
    AssignedRoles, Danger, Denials, GuildRoles, MissingAccess, PermissionEffect, RoleGuild, Scope, UnknownRole,
};
use guildhall_core::operation::payload::{Location, Method, Request};
use guildhall_core::operation::{FailureClass, Payload};

use super::bounds::look_up;
use super::execution_context::{ExecutionContext, named};
use super::execution_error::ExecutionError;
use super::model::{DiscordChannel, DiscordMember, DiscordOverwrite, DiscordRole};

/// Rejects an operation that grants a dangerous permission and was accepted without the scope for it.
pub(crate) async fn check(errand: &ExecutionContext<'_>) -> Result<(), ExecutionError> {
    if may_give(errand) {
        return Ok(());
    }
    let effect = PermissionEffect::of(&errand.work.payload, errand.work.guild);
    if let Some(danger) = effect.danger() {
        return Err(refused(&danger));
    }
    if let Some(assigned) = effect.assigned() {
        check_roles(errand, assigned).await?;
    }
    if let Some(denials) = effect.denials()
        && let Some(channel) = denials.channel
    {
        match errand.look::<DiscordChannel>(errand.builders().channel(named(channel)?)).await {
            Ok(seen) => check_denials(errand, denials, &seen.permission_overwrites)?,
            // Without the channel there is nothing to grant: the call fails with Discord's own error.
            Err(stop) if stop.is_gone() => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

/// Rejects an operation that removes the denial of a dangerous permission from these overwrites.
pub(crate) fn check_denials(
    errand: &ExecutionContext<'_>,
    denials: &Denials,
    present: &[DiscordOverwrite],
) -> Result<(), ExecutionError> {
    if may_give(errand) {
        return Ok(());
    }
    let lifted = denials.lifted(present.iter().map(|overwrite| (overwrite.id, overwrite.deny)));
    lifted.map_or(Ok(()), |danger| Err(refused(&danger)))
}

fn may_give(errand: &ExecutionContext<'_>) -> bool {
    errand.work.scopes.allow(Scope::Danger)
}

fn refused(danger: &Danger) -> ExecutionError {
    emit(DangerRefused { at: "dispatch", danger });
    ExecutionError::failed(FailureClass::Forbidden, MissingAccess::Danger(*danger).to_string())
}

async fn check_roles(errand: &ExecutionContext<'_>, assigned: &AssignedRoles) -> Result<(), ExecutionError> {
    let guild = match assigned.guild {
        RoleGuild::Guild(guild) => guild,
        RoleGuild::Channel(channel) => match guild_of(errand, channel).await? {
            Some(guild) => guild,
            // A channel without a guild has no roles to grant: Discord's error says why the call is rejected.
            None => return Ok(()),
        },
    };
    let (mut roles, is_cached) = match errand.roles().get(guild) {
        Some(known) => (known, true),
        None => (read_roles(errand, guild).await?, false),
    };
    if is_cached && assigned.danger(&roles).is_err() {
        // The role may be newer than the cache.
        roles = read_roles(errand, guild).await?;
    }
    let unknown = |UnknownRole(role): UnknownRole| {
        ExecutionError::failed(FailureClass::NotFound, format!("no role {role} in guild {guild}"))
    };
    let Some(danger) = assigned.danger(&roles).map_err(unknown)? else { return Ok(()) };
    let Some(member) = assigned.replaces else { return Err(refused(&danger)) };
    // Roles that the member already has are not granted.
    let held = match errand.look::<DiscordMember>(errand.builders().guild_member(named(guild)?, named(member)?)).await {
        Ok(member) => member.roles,
        Err(stop) if stop.is_gone() => Vec::new(),
        Err(stop) => return Err(stop),
    };
    assigned.without(&held).danger(&roles).map_err(unknown)?.map_or(Ok(()), |danger| Err(refused(&danger)))
}

/// Returns the guild of a channel, if the channel exists and has one.
async fn guild_of(errand: &ExecutionContext<'_>, channel: u64) -> Result<Option<u64>, ExecutionError> {
    let location = Location::Channel(channel);
    let known = errand.whose(vec![location.clone()]).await?.into_iter().next().flatten();
    match known {
        Some(whose) => Ok(whose.guild),
        None => match look_up(errand, &location).await {
            Ok(whose) => Ok(whose.guild),
            Err(stop) if stop.is_gone() => Ok(None),
            Err(stop) => Err(stop),
        },
    }
}

/// Reads the permissions of a guild's roles: their own, and those that channel overwrites allow.
async fn read_roles(errand: &ExecutionContext<'_>, guild: u64) -> Result<Arc<GuildRoles>, ExecutionError> {
    let read = errand.roles().begin(guild);
    let roles: Vec<DiscordRole> = errand.look(errand.builders().roles(named(guild)?)).await?;
    let channels: Vec<DiscordChannel> = errand.look(errand.builders().guild_channels(named(guild)?)).await?;
    let roles = roles.iter().map(|role| (role.id, role.permissions));
    let overwrites = channels.iter().flat_map(|channel| &channel.permission_overwrites);
    Ok(read.finish(GuildRoles::new(roles, overwrites.map(|overwrite| (overwrite.id, overwrite.allow)))))
}

/// Invalidates what an operation may have changed, however its execution ends.
pub(crate) struct RoleCacheInvalidation<'a>(ExecutionContext<'a>);

impl<'a> RoleCacheInvalidation<'a> {
    /// Returns a guard for an operation that changes roles or overwrites.
    pub(crate) fn of(errand: ExecutionContext<'a>) -> Option<Self> {
        let changes = match &errand.work.payload {
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
        changes.then(|| Self(errand))
    }
}

impl Drop for RoleCacheInvalidation<'_> {
    fn drop(&mut self) {
        let (work, roles) = (self.0.work, self.0.roles());
        if let Some(guild) = work.guild {
            roles.invalidate(guild);
        }
        if !matches!(work.payload, Payload::Request(_)) {
            return;
        }
        // A call may be about another guild than its operation, or about a channel of one.
        match work.payload.locations().as_deref() {
            Ok([]) => {}
            Ok(names) if names.iter().all(|name| matches!(name, Location::Guild(_))) => {
                names.iter().for_each(|name| roles.invalidate(name.id()));
            }
            Ok(_) | Err(_) => roles.clear(),
        }
    }
}
