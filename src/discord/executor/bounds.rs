//! Checks whether an operation may use the objects that it names, before any of its calls is sent.
//!
//! The guild of a channel or a webhook is requested from Discord once, and stored.

use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::submission::ForeignTargetRefused;
use guildhall_core::access::{Bounds, Owner, not_found_message};
use guildhall_core::operation::FailureClass;
use guildhall_core::operation::payload::Location;
use http::Method;

use super::execution_context::ExecutionContext;
use super::execution_error::ExecutionError;
use super::model::DiscordGuildObject;

/// Rejects an operation that names a channel, a webhook or a guild of another owner.
pub(crate) async fn check(context: &ExecutionContext<'_>) -> Result<(), ExecutionError> {
    let work = context.work;
    if work.bounds == Bounds::Anywhere {
        return Ok(());
    }
    let locations = work.payload.locations();
    let mut locations = locations.map_err(|error| {
        ExecutionError::failed(
            FailureClass::Forbidden,
            format!(
                "the payload \
        {error}"
            ),
        )
    })?;
    // A response to an interaction: checked when the operation was accepted.
    locations.retain(|location| !matches!(location, Location::Webhook(id, Some(_)) if *id == context.application()));
    if locations.is_empty() {
        return Ok(());
    }
    for (location, owner) in find_owners(context, locations).await? {
        if !work.bounds.allows(&work.tenant, work.guild, &owner) {
            emit(ForeignTargetRefused { at: "dispatch" });
            return Err(ExecutionError::failed(FailureClass::NotFound, not_found_message(&location, work.guild)));
        }
    }
    Ok(())
}

/// Returns the owner of each location that exists. The call for a missing object will fail with Discord's own error.
pub(crate) async fn find_owners(
    context: &ExecutionContext<'_>,
    locations: Vec<Location>,
) -> Result<Vec<(Location, Owner)>, ExecutionError> {
    let stored = context.owners(locations.clone()).await?;
    let mut found = Vec::with_capacity(locations.len());
    for (location, stored) in locations.into_iter().zip(stored) {
        let owner = match stored {
            Some(owner) => owner,
            None => match fetch_owner(context, &location).await {
                Ok(owner) => owner,
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            },
        };
        found.push((location, owner));
    }
    Ok(found)
}

/// Requests the owner of a location from Discord, and stores it.
pub(crate) async fn fetch_owner(context: &ExecutionContext<'_>, location: &Location) -> Result<Owner, ExecutionError> {
    let path = match location {
        Location::Channel(id) => format!("/channels/{id}"),
        Location::Webhook(id, None) => format!("/webhooks/{id}"),
        Location::Webhook(id, Some(token)) => format!("/webhooks/{id}/{token}"),
        // The store knows the owner of every guild.
        Location::Guild(id) => return context.store_guild(location.clone(), Some(*id)).await,
    };
    let object: DiscordGuildObject = context.read(context.json(Method::GET, &path, None::<&()>)?).await?;
    context.store_guild(location.clone(), object.guild_id).await
}
