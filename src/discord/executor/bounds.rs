//! Checks whether an operation may use the objects that it names, before any of its calls is sent.
//!
//! The guild of a channel or a webhook is requested from Discord once, and stored.

use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::submission::ForeignTargetRefused;
use guildhall_core::access::{Bounds, Owner, no_such};
use guildhall_core::operation::FailureClass;
use guildhall_core::operation::payload::Location;
use http::Method;

use super::execution_context::ExecutionContext;
use super::execution_error::ExecutionError;
use super::model::DiscordGuildObject;

/// Rejects an operation that names a channel, a webhook or a guild of another owner.
pub(crate) async fn check(errand: &ExecutionContext<'_>) -> Result<(), ExecutionError> {
    let work = errand.work;
    if work.bounds == Bounds::Anywhere {
        return Ok(());
    }
    let names = work.payload.locations();
    let mut names = names.map_err(|untold| {
        ExecutionError::failed(
            FailureClass::Forbidden,
            format!(
                "the payload \
        {untold}"
            ),
        )
    })?;
    // A response to an interaction: checked when the operation was accepted.
    names.retain(|name| !matches!(name, Location::Webhook(id, Some(_)) if *id == errand.application()));
    if names.is_empty() {
        return Ok(());
    }
    let known = errand.whose(names.clone()).await?;
    for (name, known) in names.into_iter().zip(known) {
        let whose = match known {
            Some(whose) => whose,
            None => match look_up(errand, &name).await {
                Ok(whose) => whose,
                // A missing object has no owner: the call will fail with Discord's own error.
                Err(stop) if stop.is_gone() => continue,
                Err(stop) => return Err(stop),
            },
        };
        if !work.bounds.admit(&work.tenant, work.guild, &whose) {
            emit(ForeignTargetRefused { at: "dispatch" });
            return Err(ExecutionError::failed(FailureClass::NotFound, no_such(&name, work.guild)));
        }
    }
    Ok(())
}

/// Requests the owner of a location from Discord, and stores it.
pub(crate) async fn look_up(errand: &ExecutionContext<'_>, name: &Location) -> Result<Owner, ExecutionError> {
    let path = match name {
        Location::Channel(id) => format!("/channels/{id}"),
        Location::Webhook(id, None) => format!("/webhooks/{id}"),
        Location::Webhook(id, Some(token)) => format!("/webhooks/{id}/{token}"),
        // The store knows the owner of every guild.
        Location::Guild(id) => return errand.learn(name.clone(), Some(*id)).await,
    };
    let seen: DiscordGuildObject = errand.read(errand.json(Method::GET, &path, None::<&()>)?).await?;
    errand.learn(name.clone(), seen.guild_id).await
}
