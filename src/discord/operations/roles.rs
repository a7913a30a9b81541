//! Roles, and who has them.

use guildhall_actors::operations::Done;
use guildhall_core::operation::ManagedKind;
use guildhall_core::operation::payload::{
    AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles,
};
use serde_json::json;
use twilight_model::guild::Permissions;
use twilight_model::id::Id;
use twilight_model::id::marker::RoleMarker;

use super::errand::{Errand, id, named, read};
use super::seen::{SeenId, SeenRole};
use super::told::{self, How};
use super::verdict::{Again, Stop};

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
    let mut call = errand.builders().update_role(errand.guild()?, named(seen.id)?);
    let mut differs = false;
    if wanted.name.trim() != seen.name.trim() {
        (call, differs) = (call.name(Some(&wanted.name)), true);
    }
    if let Some(permissions) = wanted.permissions.filter(|permissions| *permissions != seen.permissions) {
        (call, differs) = (call.permissions(Permissions::from_bits_retain(permissions)), true);
    }
    if let Some(color) = wanted.color.filter(|color| *color != seen.color) {
        (call, differs) = (call.color(Some(color)), true);
    }
    if let Some(hoist) = wanted.hoist.filter(|hoist| *hoist != seen.hoist) {
        (call, differs) = (call.hoist(hoist), true);
    }
    if let Some(mentionable) = wanted.mentionable.filter(|mentionable| *mentionable != seen.mentionable) {
        (call, differs) = (call.mentionable(mentionable), true);
    }
    if differs {
        errand.change(call).await.map_err(|stop| told::vanished(stop, "the role"))?;
    }
    Ok(differs)
}

pub(super) async fn delete(errand: &Errand<'_>, payload: &DeleteRole) -> Result<Done, Stop> {
    let role: Id<RoleMarker> = id(&payload.role)?;
    let answer = errand.change(errand.builders().delete_role(errand.guild()?, role)).await;
    told::deleted(answer.map(|answered| answered.status.as_u16()), Some((ManagedKind::Role, role.get())))
}

pub(super) async fn assign(errand: &Errand<'_>, payload: &AssignRole) -> Result<Done, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answered = errand.change(errand.builders().add_guild_member_role(errand.guild()?, user, role)).await?;
    let result = json!({ "user_id": user, "role_id": role });
    Ok(Done { result, status: Some(answered.status.as_u16()), ..Done::default() })
}

/// Somebody who is no member, or a role that is gone: nobody has it, and that was asked for.
pub(super) async fn remove(errand: &Errand<'_>, payload: &RemoveRole) -> Result<Done, Stop> {
    let (user, role) = (named(payload.user)?, id::<RoleMarker>(&payload.role)?);
    let answer = errand.change(errand.builders().remove_guild_member_role(errand.guild()?, user, role)).await;
    let mut done = told::deleted(answer.map(|answered| answered.status.as_u16()), None)?;
    done.result = json!({ "user_id": user, "role_id": role });
    Ok(done)
}

pub(super) async fn set(errand: &Errand<'_>, payload: &SetMemberRoles) -> Result<Done, Stop> {
    let user = named(payload.user)?;
    let roles: Vec<Id<RoleMarker>> = payload.roles.iter().map(id).collect::<Result<_, _>>()?;
    let call = errand.builders().update_guild_member(errand.guild()?, user).roles(&roles);
    let answered = errand.change(call).await?;
    let result = json!({ "user_id": user, "role_ids": roles });
    Ok(Done { result, status: Some(answered.status.as_u16()), ..Done::default() })
}
