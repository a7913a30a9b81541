//! Positions of roles and channels.

use std::collections::BTreeMap;

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::payload::{Reorder, ReorderPosition, ReorderTarget};
use serde_json::json;
use twilight_model::guild::RolePosition;
use twilight_model::http::channel_position::Position;
use twilight_model::id::Id;
use twilight_model::id::marker::GenericMarker;

use super::execution_context::{ExecutionContext, reference_id};
use super::execution_error::ExecutionError;
use super::model::{DiscordChannel, DiscordRole};
use super::verify::found_if;

/// Sets the order of roles or channels in one call.
pub(crate) async fn reorder(
    context: &ExecutionContext<'_>,
    payload: &Reorder,
) -> Result<ExecutionOutput, ExecutionError> {
    let guild = context.guild()?;
    let response = match payload.what {
        ReorderTarget::Roles => {
            let positions: Vec<RolePosition> = payload.places.iter().map(role_position).collect::<Result<_, _>>()?;
            context.change(context.builders().update_role_positions(guild, &positions)).await?
        }
        ReorderTarget::Channels => {
            let positions: Vec<Position> = payload.places.iter().map(channel_position).collect::<Result<_, _>>()?;
            context.change(context.builders().update_guild_channel_positions(guild, &positions)).await?
        }
    };
    Ok(output(payload, response.status.as_u16()))
}

fn output(payload: &Reorder, status: u16) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "moved": payload.places.len() }),
        status: Some(status),
        ..ExecutionOutput::default()
    }
}

fn role_position(position: &ReorderPosition) -> Result<RolePosition, ExecutionError> {
    Ok(RolePosition { id: reference_id(&position.object)?, position: position.position.into() })
}

fn channel_position(position: &ReorderPosition) -> Result<Position, ExecutionError> {
    Ok(Position {
        id: reference_id(&position.object)?,
        lock_permissions: None,
        parent_id: position.parent.as_ref().map(reference_id).transpose()?.map(Some),
        position: Some(Some(position.position.into())),
    })
}

/// Channels of one parent are ordered together; voice and stage channels separately from the others.
type ChannelGroup = (Option<u64>, bool);

/// A role or a channel in a list.
#[derive(Clone, Copy, Debug)]
struct ListedObject {
    id: u64,
    position: i64,
    group: ChannelGroup,
}

pub(crate) async fn verify_reordered(
    context: &ExecutionContext<'_>,
    payload: &Reorder,
) -> Result<ReconcileResult, ExecutionError> {
    let guild = context.guild()?;
    let listed: Vec<ListedObject> = match payload.what {
        ReorderTarget::Roles => {
            let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(guild)).await?;
            roles
                .iter()
                .map(|role| ListedObject { id: role.id, position: role.position, group: (None, false) })
                .collect()
        }
        ReorderTarget::Channels => {
            let channels: Vec<DiscordChannel> = context.fetch(context.builders().guild_channels(guild)).await?;
            channels.iter().map(listed_channel).collect()
        }
    };
    let mut desired = BTreeMap::new();
    for position in &payload.places {
        let object = reference_id::<GenericMarker>(&position.object)?.get();
        let parent = position.parent.as_ref().map(reference_id::<GenericMarker>).transpose()?.map(Id::get);
        let Some(seen) = listed.iter().find(|seen| seen.id == object) else { return Ok(ReconcileResult::Absent) };
        if parent.is_some() && parent != seen.group.0 {
            return Ok(ReconcileResult::Absent);
        }
        desired.insert(object, i64::from(position.position));
    }
    Ok(found_if(is_in_order(listed, &desired), || output(payload, 200)))
}

fn listed_channel(channel: &DiscordChannel) -> ListedObject {
    /// Voice and stage.
    const VOICE_KINDS: [u8; 2] = [2, 13];
    let group = (channel.parent_id, VOICE_KINDS.contains(&channel.kind));
    ListedObject { id: channel.id, position: channel.position.unwrap_or_default(), group }
}

/// Whether all objects are at their positions. Discord may number them differently than requested, so it is enough if
/// moving them there would not change their order.
fn is_in_order(mut listed: Vec<ListedObject>, desired: &BTreeMap<u64, i64>) -> bool {
    let target = |one: &ListedObject| desired.get(&one.id).copied().unwrap_or(one.position);
    let is_elsewhere = |one: &ListedObject| target(one) != one.position;
    if !listed.iter().any(is_elsewhere) {
        return true;
    }
    listed.sort_unstable_by_key(|one| (one.group, one.position, one.id));
    listed.windows(2).filter(|pair| pair[0].group == pair[1].group).all(|pair| {
        // Of two that would share a position, the one that is moved takes it.
        if pair.iter().any(is_elsewhere) {
            target(&pair[0]) < target(&pair[1])
        } else {
            target(&pair[0]) <= target(&pair[1])
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_order(positions: &[i64], desired: &[(u64, i64)]) -> bool {
        let listed =
            positions.iter().zip(1..).map(|(&position, id)| ListedObject { id, position, group: (None, false) });
        is_in_order(listed.collect(), &desired.iter().copied().collect())
    }

    #[test]
    fn order_holds_if_everything_is_at_its_position() {
        assert!(in_order(&[0, 1, 2, 3], &[(2, 1), (4, 3)]));
        assert!(in_order(&[0, 5, 5], &[(2, 5), (3, 5)]), "two may share a position");
    }

    #[test]
    fn order_holds_if_moving_would_change_nothing() {
        assert!(in_order(&[0, 1, 2, 3], &[(4, 900)]), "Discord numbers the last one 3");
        assert!(in_order(&[0, 1, 2, 3], &[(3, 10), (4, 20)]));
    }

    #[test]
    fn order_does_not_hold_if_one_would_pass_another() {
        assert!(!in_order(&[0, 1, 2, 3], &[(2, 2)]), "it should have taken the position of the third");
        assert!(!in_order(&[0, 1, 2, 3], &[(2, 3)]));
        assert!(!in_order(&[0, 1, 2, 3], &[(3, 20), (4, 10)]));
    }
}
