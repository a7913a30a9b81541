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

use super::execution_context::{ExecutionContext, read, reference_id, typed_id};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::model::{DiscordMember, DiscordObject, DiscordRole};
use super::result::{self, ObjectOutcome};
use super::verify::found_if;
use crate::discord::reconcile;

pub(crate) async fn create(
    context: &ExecutionContext<'_>,
    payload: &CreateRole,
) -> Result<ExecutionOutput, ExecutionError> {
    create_role(context, &payload.role, payload.key.as_deref()).await
}

async fn create_role(
    context: &ExecutionContext<'_>,
    role: &NewRole,
    key: Option<&str>,
) -> Result<ExecutionOutput, ExecutionError> {
    let call = context.calls().create_role(context.guild()?, |mut call| {
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
    let response = context.send_marked(call.request, RepeatSafety::Doubles).await?;
    let made: DiscordObject = read(&response, RepeatSafety::Doubles)?;
    Ok(result::object_output(ManagedKind::Role, made.id, ObjectOutcome::Created, key, response.status.as_u16()))
}

pub(crate) async fn ensure(
    context: &ExecutionContext<'_>,
    payload: &EnsureRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(context.guild()?)).await?;
    let bound = context.work.existing.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let outcome =
            if adjust(context, &payload.role, role).await? { ObjectOutcome::Updated } else { ObjectOutcome::Unchanged };
        return Ok(result::object_output(ManagedKind::Role, role.id, outcome, None, 200));
    }
    let adopted = if payload.adopt { adoptable(context, payload, &roles).await? } else { None };
    let mut done = match adopted {
        Some(role) => {
            adjust(context, &payload.role, role).await?;
            result::object_output(ManagedKind::Role, role.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        }
        None => create_role(context, &payload.role, Some(&payload.key)).await?,
    };
    done.unbind = bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect();
    Ok(done)
}

/// Returns the only role with the requested name that has no key.
async fn adoptable<'r>(
    context: &ExecutionContext<'_>,
    payload: &EnsureRole,
    roles: &'r [DiscordRole],
) -> Result<Option<&'r DiscordRole>, ExecutionError> {
    let everyone = context.guild()?.get();
    let candidates = roles
        .iter()
        .filter(|role| role.name.trim() == payload.role.name.trim() && !role.managed && role.id != everyone);
    let free = context.without_owner(ManagedKind::Role, candidates.map(|role| role.id).collect()).await?;
    match free.as_slice() {
        [] => Ok(None),
        [one] => Ok(roles.iter().find(|role| role.id == *one)),
        several => Err(result::several_match("roles", &payload.role.name, &payload.key, several)),
    }
}

/// Updates the fields that differ. Returns whether any did.
async fn adjust(context: &ExecutionContext<'_>, desired: &NewRole, seen: &DiscordRole) -> Result<bool, ExecutionError> {
    if !differs(desired, seen) {
        return Ok(false);
    }
    let mut call = context.builders().update_role(context.guild()?, typed_id(seen.id)?);
    if desired.name.trim() != seen.name.trim() {
        call = call.name(Some(&desired.name));
    }
    if let Some(permissions) = desired.permissions.filter(|permissions| *permissions != seen.permissions) {
        call = call.permissions(Permissions::from_bits_retain(permissions));
    }
    if let Some(color) = desired.color.filter(|color| *color != seen.color) {
        call = call.color(Some(color));
    }
    if let Some(hoist) = desired.hoist.filter(|hoist| *hoist != seen.hoist) {
        call = call.hoist(hoist);
    }
    if let Some(mentionable) = desired.mentionable.filter(|mentionable| *mentionable != seen.mentionable) {
        call = call.mentionable(mentionable);
    }
    context.change(call).await.map_err(|error| result::retry_if_gone(error, "the role"))?;
    Ok(true)
}

/// Whether a role differs from the request.
fn differs(desired: &NewRole, seen: &DiscordRole) -> bool {
    desired.name.trim() != seen.name.trim()
        || desired.permissions.is_some_and(|permissions| permissions != seen.permissions)
        || desired.color.is_some_and(|color| color != seen.color)
        || desired.hoist.is_some_and(|hoist| hoist != seen.hoist)
        || desired.mentionable.is_some_and(|mentionable| mentionable != seen.mentionable)
}

/// Checks whether the role of the key, or the one that would be adopted, is as requested; without one, whether a role
/// was created.
pub(crate) async fn verify_ensured(
    context: &ExecutionContext<'_>,
    payload: &EnsureRole,
) -> Result<ReconcileResult, ExecutionError> {
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(context.guild()?)).await?;
    let bound = context.work.existing.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let done = || result::object_output(ManagedKind::Role, role.id, ObjectOutcome::Updated, None, 200);
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    if payload.adopt
        && let Some(role) = adoptable(context, payload, &roles).await?
    {
        let done = || ExecutionOutput {
            unbind: bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect(),
            ..result::object_output(ManagedKind::Role, role.id, ObjectOutcome::Adopted, Some(&payload.key), 200)
        };
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    reconcile::reconcile(context).await
}

pub(crate) async fn delete(
    context: &ExecutionContext<'_>,
    payload: &DeleteRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let role: Id<RoleMarker> = reference_id(&payload.role)?;
    let result = context.change(context.builders().delete_role(context.guild()?, role)).await;
    result::delete_output(result.map(|response| response.status.as_u16()), Some((ManagedKind::Role, role.get())))
}

/// The list of a guild's roles is always complete.
pub(crate) async fn verify_deleted(
    context: &ExecutionContext<'_>,
    payload: &DeleteRole,
) -> Result<ReconcileResult, ExecutionError> {
    let role: Id<RoleMarker> = reference_id(&payload.role)?;
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(context.guild()?)).await?;
    let is_gone = roles.iter().all(|seen| seen.id != role.get());
    Ok(found_if(is_gone, || result::already_deleted_output((ManagedKind::Role, role.get()))))
}

pub(crate) async fn assign(
    context: &ExecutionContext<'_>,
    payload: &AssignRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let (user, role) = (typed_id(payload.user)?, reference_id::<RoleMarker>(&payload.role)?);
    let response = context.change(context.builders().add_guild_member_role(context.guild()?, user, role)).await?;
    Ok(member_output(user, role, response.status.as_u16()))
}

fn member_output(user: Id<UserMarker>, role: Id<RoleMarker>, status: u16) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "user_id": user, "role_id": role }),
        status: Some(status),
        ..ExecutionOutput::default()
    }
}

/// The roles of a member; `None` if there is no such member.
async fn roles_of(context: &ExecutionContext<'_>, user: Id<UserMarker>) -> Result<Option<Vec<u64>>, ExecutionError> {
    match context.fetch::<DiscordMember>(context.builders().guild_member(context.guild()?, user)).await {
        Ok(member) => Ok(Some(member.roles)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn verify_assigned(
    context: &ExecutionContext<'_>,
    payload: &AssignRole,
) -> Result<ReconcileResult, ExecutionError> {
    let (user, role) = (typed_id(payload.user)?, reference_id::<RoleMarker>(&payload.role)?);
    let has = roles_of(context, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(has, || member_output(user, role, 200)))
}

/// If the user is not a member, or the role is gone, the requested state is reached.
pub(crate) async fn remove(
    context: &ExecutionContext<'_>,
    payload: &RemoveRole,
) -> Result<ExecutionOutput, ExecutionError> {
    let (user, role) = (typed_id(payload.user)?, reference_id::<RoleMarker>(&payload.role)?);
    let result = context.change(context.builders().remove_guild_member_role(context.guild()?, user, role)).await;
    let done = result::delete_output(result.map(|response| response.status.as_u16()), None)?;
    Ok(member_output(user, role, done.status.unwrap_or(204)))
}

pub(crate) async fn verify_removed(
    context: &ExecutionContext<'_>,
    payload: &RemoveRole,
) -> Result<ReconcileResult, ExecutionError> {
    let (user, role) = (typed_id(payload.user)?, reference_id::<RoleMarker>(&payload.role)?);
    let has = roles_of(context, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(!has, || member_output(user, role, 200)))
}

pub(crate) async fn set(
    context: &ExecutionContext<'_>,
    payload: &SetMemberRoles,
) -> Result<ExecutionOutput, ExecutionError> {
    let user = typed_id(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(reference_id).collect::<Result<_, _>>()?;
    let call = context.builders().update_guild_member(context.guild()?, user).roles(&roles);
    let response = context.change(call).await?;
    Ok(member_set_output(user, &roles, response.status.as_u16()))
}

fn member_set_output(user: Id<UserMarker>, roles: &[Id<RoleMarker>], status: u16) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "user_id": user, "role_ids": roles }),
        status: Some(status),
        ..ExecutionOutput::default()
    }
}

pub(crate) async fn verify_set(
    context: &ExecutionContext<'_>,
    payload: &SetMemberRoles,
) -> Result<ReconcileResult, ExecutionError> {
    let user = typed_id(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(reference_id).collect::<Result<_, _>>()?;
    let desired: BTreeSet<u64> = roles.iter().map(|role| role.get()).collect();
    let held = roles_of(context, user).await?.map(|held| held.into_iter().collect::<BTreeSet<u64>>());
    Ok(found_if(held == Some(desired), || member_set_output(user, &roles, 200)))
}
