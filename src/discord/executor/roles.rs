//! Roles, and the members that have them.

use std::collections::BTreeSet;

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::ManagedKind;
use guildhall_core::operation::payload::{
    AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles,
};
use serde_json::json;
use twilight_model::guild::Permissions;
use twilight_model::id::Id;
use twilight_model::id::marker::{RoleMarker, UserMarker};

use super::execution_context::{ExecutionContext, id, named, read};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::model::{DiscordMember, DiscordObject, DiscordRole};
use super::result::{self, ObjectOutcome};
use super::verify::found_if;
use crate::discord::reconcile;

pub(crate) async fn create(
    errand: &ExecutionContext<'_>,
    payload: &CreateRole,
) -> Result<ExecutionOutput, ExecutionError> {
    make(errand, &payload.role, payload.key.as_deref()).await
}

async fn make(
    errand: &ExecutionContext<'_>,
    role: &NewRole,
    key: Option<&str>,
) -> Result<ExecutionOutput, ExecutionError> {
    let call = errand.calls().create_role(errand.guild()?, |mut call| {
        call = call.name(&role.name);
        if let Some(permissions) = role.permissions {
            call = call.permissions(Permissions::from_bits_retain(permissions));
        }
        if let Some(color) = role.color {
            call = call.color(color);
        }
        if let Some(hoist) = role.hoist {
            call = call.hoist(hoist);
        }
        if let Some(mentionable) = role.mentionable {
            call = call.mentionable(mentionable);
        }
        call
    })?;
    let answered = errand.send_marked(call.request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&answered, RepeatSafety::Doubles)?;
    Ok(result::object(ManagedKind::Role, made.id, ObjectOutcome::Created, key, answered.status.as_u16()))
}

pub(crate) async fn ensure(
    errand: &ExecutionContext<'_>,
    payload: &EnsureRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let roles: Vec<DiscordRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let bound = errand.work.bound.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let how =
            if adjust(errand, &payload.role, role).await? { ObjectOutcome::Updated } else { ObjectOutcome::Unchanged };
        return Ok(result::object(ManagedKind::Role, role.id, how, None, 200));
    }
    let adopted = if payload.adopt { adoptable(errand, payload, &roles).await? } else { None };
    let mut done = match adopted {
        Some(role) => {
            adjust(errand, &payload.role, role).await?;
            result::object(ManagedKind::Role, role.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        }
        None => make(errand, &payload.role, Some(&payload.key)).await?,
    };
    done.unbind = bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect();
    Ok(done)
}

/// Returns the only role with the requested name that has no key.
async fn adoptable<'r>(
    errand: &ExecutionContext<'_>,
    payload: &EnsureRole,
    roles: &'r [DiscordRole],
) -> Result<Option<&'r DiscordRole>, ExecutionError> {
    let everyone = errand.guild()?.get();
    let named = roles
        .iter()
        .filter(|role| role.name.trim() == payload.role.name.trim() && !role.managed && role.id != everyone);
    let free = errand.strangers(ManagedKind::Role, named.map(|role| role.id).collect()).await?;
    match free.as_slice() {
        [] => Ok(None),
        [one] => Ok(roles.iter().find(|role| role.id == *one)),
        several => Err(result::several_match("roles", &payload.role.name, &payload.key, several)),
    }
}

/// Updates the fields that differ. Returns whether any did.
async fn adjust(errand: &ExecutionContext<'_>, wanted: &NewRole, seen: &DiscordRole) -> Result<bool, ExecutionError> {
    if !differs(wanted, seen) {
        return Ok(false);
    }
    let mut call = errand.builders().update_role(errand.guild()?, named(seen.id)?);
    if wanted.name.trim() != seen.name.trim() {
        call = call.name(Some(&wanted.name));
    }
    if let Some(permissions) = wanted.permissions.filter(|permissions| *permissions != seen.permissions) {
        call = call.permissions(Permissions::from_bits_retain(permissions));
    }
    if let Some(color) = wanted.color.filter(|color| *color != seen.color) {
        call = call.color(Some(color));
    }
    if let Some(hoist) = wanted.hoist.filter(|hoist| *hoist != seen.hoist) {
        call = call.hoist(hoist);
    }
    if let Some(mentionable) = wanted.mentionable.filter(|mentionable| *mentionable != seen.mentionable) {
        call = call.mentionable(mentionable);
    }
    errand.change(call).await.map_err(|stop| result::vanished(stop, "the role"))?;
    Ok(true)
}

/// Whether a role differs from the request.
fn differs(wanted: &NewRole, seen: &DiscordRole) -> bool {
    wanted.name.trim() != seen.name.trim()
        || wanted.permissions.is_some_and(|permissions| permissions != seen.permissions)
        || wanted.color.is_some_and(|color| color != seen.color)
        || wanted.hoist.is_some_and(|hoist| hoist != seen.hoist)
        || wanted.mentionable.is_some_and(|mentionable| mentionable != seen.mentionable)
}

/// Checks whether the role of the key, or the one that would be adopted, is as requested; without one, whether a role
/// was created.
pub(crate) async fn verify_ensured(
    errand: &ExecutionContext<'_>,
    payload: &EnsureRole,
) -> Result<ReconcileResult, ExecutionError> {
    let roles: Vec<DiscordRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let bound = errand.work.bound.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let done = || result::object(ManagedKind::Role, role.id, ObjectOutcome::Updated, None, 200);
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    if payload.adopt
        && let Some(role) = adoptable(errand, payload, &roles).await?
    {
        let done = || ExecutionOutput {
            unbind: bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect(),
            ..result::object(ManagedKind::Role, role.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        };
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    reconcile::reconcile(errand).await
}

pub(crate) async fn delete(
    errand: &ExecutionContext<'_>,
    payload: &DeleteRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let role: Id<RoleMarker> = id(&payload.role)?;
    let answer = errand.change(errand.builders().delete_role(errand.guild()?, role)).await;
    result::deleted(answer.map(|answered| answered.status.as_u16()), Some((ManagedKind::Role, role.get())))
}

/// The list of a guild's roles is always complete.
pub(crate) async fn verify_deleted(
    errand: &ExecutionContext<'_>,
    payload: &DeleteRole,
) -> Result<ReconcileResult, ExecutionError> {
    let role: Id<RoleMarker> = id(&payload.role)?;
    let roles: Vec<DiscordRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let is_gone = roles.iter().all(|seen| seen.id != role.get());
    Ok(found_if(is_gone, || result::was_deleted((ManagedKind::Role, role.get()))))
}

pub(crate) async fn assign(
    errand: &ExecutionContext<'_>,
    payload: &AssignRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answered = errand.change(errand.builders().add_guild_member_role(errand.guild()?, user, role)).await?;
    Ok(of_member(user, role, answered.status.as_u16()))
}

fn of_member(user: Id<UserMarker>, role: Id<RoleMarker>, status: u16) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "user_id": user, "role_id": role }),
        status: Some(status),
        ..ExecutionOutput::default()
    }
}

/// The roles of a member; `None` if there is no such member.
async fn roles_of(errand: &ExecutionContext<'_>, user: Id<UserMarker>) -> Result<Option<Vec<u64>>, ExecutionError> {
    match errand.look::<DiscordMember>(errand.builders().guild_member(errand.guild()?, user)).await {
        Ok(member) => Ok(Some(member.roles)),
        Err(stop) if stop.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

pub(crate) async fn verify_assigned(
    errand: &ExecutionContext<'_>,
    payload: &AssignRole,
) -> Result<ReconcileResult, ExecutionError> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let has = roles_of(errand, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(has, || of_member(user, role, 200)))
}

/// If the user is not a member, or the role is gone, the requested state is reached.
pub(crate) async fn remove(
    errand: &ExecutionContext<'_>,
    payload: &RemoveRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answer = errand.change(errand.builders().remove_guild_member_role(errand.guild()?, user, role)).await;
    let done = result::deleted(answer.map(|answered| answered.status.as_u16()), None)?;
    Ok(of_member(user, role, done.status.unwrap_or(204)))
}

pub(crate) async fn verify_removed(
    errand: &ExecutionContext<'_>,
    payload: &RemoveRole,
) -> Result<ReconcileResult, ExecutionError> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let has = roles_of(errand, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(!has, || of_member(user, role, 200)))
}

pub(crate) async fn set(
    errand: &ExecutionContext<'_>,
    payload: &SetMemberRoles,
) -> Result<ExecutionOutput, ExecutionError> {
    let user = named(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(id).collect::<Result<_, _>>()?;
    let call = errand.builders().update_guild_member(errand.guild()?, user).roles(&roles);
    let answered = errand.change(call).await?;
    Ok(of_member_set(user, &roles, answered.status.as_u16()))
}

fn of_member_set(user: Id<UserMarker>, roles: &[Id<RoleMarker>], status: u16) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "user_id": user, "role_ids": roles }),
        status: Some(status),
        ..ExecutionOutput::default()
    }
}

pub(crate) async fn verify_set(
    errand: &ExecutionContext<'_>,
    payload: &SetMemberRoles,
) -> Result<ReconcileResult, ExecutionError> {
    let user = named(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(id).collect::<Result<_, _>>()?;
    let wanted: BTreeSet<u64> = roles.iter().map(|role| role.get()).collect();
    let held = roles_of(errand, user).await?.map(|held| held.into_iter().collect::<BTreeSet<u64>>());
    Ok(found_if(held == Some(wanted), || of_member_set(user, &roles, 200)))
}
