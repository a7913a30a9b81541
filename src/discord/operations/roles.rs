//! Roles, and who has them.

use std::collections::BTreeSet;

use guildhall_actors::operations::{Done, Reconciled};
use guildhall_core::operation::ManagedKind;
use guildhall_core::operation::payload::{
    AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles,
};
use serde_json::json;
use twilight_model::guild::Permissions;
use twilight_model::id::Id;
use twilight_model::id::marker::{RoleMarker, UserMarker};

use super::errand::{Errand, id, named, read};
use super::reconcile;
use super::seen::{SeenId, SeenMember, SeenRole};
use super::told::{self, How};
use super::verdict::{Again, Stop};
use super::verify::found_if;

pub(super) async fn create(errand: &Errand<'_>, payload: &CreateRole) -> Result<Done, Stop> {
    make(errand, &payload.role, payload.key.as_deref()).await
}

async fn make(errand: &Errand<'_>, role: &NewRole, key: Option<&str>) -> Result<Done, Stop> {
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
    let answered = errand.send_marked(call.request, Again::Doubles).await?;
    let made: SeenId = read(&answered, Again::Doubles)?;
    Ok(told::object(ManagedKind::Role, made.id, How::Created, key, answered.status.as_u16()))
}

pub(super) async fn ensure(errand: &Errand<'_>, payload: &EnsureRole) -> Result<Done, Stop> {
    let roles: Vec<SeenRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let bound = errand.work.bound.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let how = if adjust(errand, &payload.role, role).await? { How::Updated } else { How::Unchanged };
        return Ok(told::object(ManagedKind::Role, role.id, how, None, 200));
    }
    let adopted = if payload.adopt { adoptable(errand, payload, &roles).await? } else { None };
    let mut done = match adopted {
        Some(role) => {
            adjust(errand, &payload.role, role).await?;
            told::object(ManagedKind::Role, role.id, How::Adopted, Some(&payload.key), 200)
        }
        None => make(errand, &payload.role, Some(&payload.key)).await?,
    };
    done.unbind = bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect();
    Ok(done)
}

/// The one role of the wanted name that has no key.
async fn adoptable<'r>(
    errand: &Errand<'_>,
    payload: &EnsureRole,
    roles: &'r [SeenRole],
) -> Result<Option<&'r SeenRole>, Stop> {
    let everyone = errand.guild()?.get();
    let named = roles
        .iter()
        .filter(|role| role.name.trim() == payload.role.name.trim() && !role.managed && role.id != everyone);
    let free = errand.strangers(ManagedKind::Role, named.map(|role| role.id).collect()).await?;
    match free.as_slice() {
        [] => Ok(None),
        [one] => Ok(roles.iter().find(|role| role.id == *one)),
        several => Err(told::several_match("roles", &payload.role.name, &payload.key, several)),
    }
}

/// Changes what differs; whether something did.
async fn adjust(errand: &Errand<'_>, wanted: &NewRole, seen: &SeenRole) -> Result<bool, Stop> {
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
    errand.change(call).await.map_err(|stop| told::vanished(stop, "the role"))?;
    Ok(true)
}

/// Whether a role is not as it should be.
fn differs(wanted: &NewRole, seen: &SeenRole) -> bool {
    wanted.name.trim() != seen.name.trim()
        || wanted.permissions.is_some_and(|permissions| permissions != seen.permissions)
        || wanted.color.is_some_and(|color| color != seen.color)
        || wanted.hoist.is_some_and(|hoist| hoist != seen.hoist)
        || wanted.mentionable.is_some_and(|mentionable| mentionable != seen.mentionable)
}

/// Whether the role of the key is as it should be, or the one that would be adopted; else whether one was made.
pub(super) async fn verify_ensured(errand: &Errand<'_>, payload: &EnsureRole) -> Result<Reconciled, Stop> {
    let roles: Vec<SeenRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let bound = errand.work.bound.map(|(role, _)| role);
    if let Some(role) = bound.and_then(|bound| roles.iter().find(|role| role.id == bound)) {
        let done = || told::object(ManagedKind::Role, role.id, How::Updated, None, 200);
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    if payload.adopt
        && let Some(role) = adoptable(errand, payload, &roles).await?
    {
        let done = || Done {
            unbind: bound.map(|gone| (ManagedKind::Role, gone)).into_iter().collect(),
            ..told::object(ManagedKind::Role, role.id, How::Adopted, Some(&payload.key), 200)
        };
        return Ok(found_if(!differs(&payload.role, role), done));
    }
    reconcile::reconcile(errand).await
}

pub(super) async fn delete(errand: &Errand<'_>, payload: &DeleteRole) -> Result<Done, Stop> {
    let role: Id<RoleMarker> = id(&payload.role)?;
    let answer = errand.change(errand.builders().delete_role(errand.guild()?, role)).await;
    told::deleted(answer.map(|answered| answered.status.as_u16()), Some((ManagedKind::Role, role.get())))
}

/// A guild's roles are always listed whole.
pub(super) async fn verify_deleted(errand: &Errand<'_>, payload: &DeleteRole) -> Result<Reconciled, Stop> {
    let role: Id<RoleMarker> = id(&payload.role)?;
    let roles: Vec<SeenRole> = errand.look(errand.builders().roles(errand.guild()?)).await?;
    let is_gone = roles.iter().all(|seen| seen.id != role.get());
    Ok(found_if(is_gone, || told::was_deleted((ManagedKind::Role, role.get()))))
}

pub(super) async fn assign(errand: &Errand<'_>, payload: &AssignRole) -> Result<Done, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answered = errand.change(errand.builders().add_guild_member_role(errand.guild()?, user, role)).await?;
    Ok(of_member(user, role, answered.status.as_u16()))
}

fn of_member(user: Id<UserMarker>, role: Id<RoleMarker>, status: u16) -> Done {
    Done { result: json!({ "user_id": user, "role_id": role }), status: Some(status), ..Done::default() }
}

/// The roles of a member; nothing if there is no such member.
async fn roles_of(errand: &Errand<'_>, user: Id<UserMarker>) -> Result<Option<Vec<u64>>, Stop> {
    match errand.look::<SeenMember>(errand.builders().guild_member(errand.guild()?, user)).await {
        Ok(member) => Ok(Some(member.roles)),
        Err(stop) if stop.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

pub(super) async fn verify_assigned(errand: &Errand<'_>, payload: &AssignRole) -> Result<Reconciled, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let has = roles_of(errand, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(has, || of_member(user, role, 200)))
}

/// Somebody who is no member, or a role that is gone: nobody has it, and that was asked for.
pub(super) async fn remove(errand: &Errand<'_>, payload: &RemoveRole) -> Result<Done, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answer = errand.change(errand.builders().remove_guild_member_role(errand.guild()?, user, role)).await;
    let done = told::deleted(answer.map(|answered| answered.status.as_u16()), None)?;
    Ok(of_member(user, role, done.status.unwrap_or(204)))
}

pub(super) async fn verify_removed(errand: &Errand<'_>, payload: &RemoveRole) -> Result<Reconciled, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let has = roles_of(errand, user).await?.is_some_and(|roles| roles.contains(&role.get()));
    Ok(found_if(!has, || of_member(user, role, 200)))
}

pub(super) async fn set(errand: &Errand<'_>, payload: &SetMemberRoles) -> Result<Done, Stop> {
    let user = named(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(id).collect::<Result<_, _>>()?;
    let call = errand.builders().update_guild_member(errand.guild()?, user).roles(&roles);
    let answered = errand.change(call).await?;
    Ok(of_member_set(user, &roles, answered.status.as_u16()))
}

fn of_member_set(user: Id<UserMarker>, roles: &[Id<RoleMarker>], status: u16) -> Done {
    Done { result: json!({ "user_id": user, "role_ids": roles }), status: Some(status), ..Done::default() }
}

pub(super) async fn verify_set(errand: &Errand<'_>, payload: &SetMemberRoles) -> Result<Reconciled, Stop> {
    let user = named(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(id).collect::<Result<_, _>>()?;
    let wanted: BTreeSet<u64> = roles.iter().map(|role| role.get()).collect();
    let held = roles_of(errand, user).await?.map(|held| held.into_iter().collect::<BTreeSet<u64>>());
    Ok(found_if(held == Some(wanted), || of_member_set(user, &roles, 200)))
}
