//! Positions of roles and channels.

use guildhall_actors::operations::Done;
use guildhall_core::operation::payload::{Place, Reorder, Reordered};
use serde_json::json;
use twilight_model::guild::RolePosition;
use twilight_model::http::channel_position::Position;

use super::errand::{Errand, id};
use super::verdict::Stop;

/// Puts roles or channels in order, all in one call.
pub(super) async fn reorder(errand: &Errand<'_>, payload: &Reorder) -> Result<Done, Stop> {
    let guild = errand.guild()?;
    let answered = match payload.what {
        Reordered::Roles => {
            let places: Vec<RolePosition> = payload.places.iter().map(of_role).collect::<Result<_, _>>()?;
            errand.change(errand.builders().update_role_positions(guild, &places)).await?
        }
        Reordered::Channels => {
            let places: Vec<Position> = payload.places.iter().map(of_channel).collect::<Result<_, _>>()?;
            errand.change(errand.builders().update_guild_channel_positions(guild, &places)).await?
        }
    };
    let result = json!({ "moved": payload.places.len() });
    Ok(Done { result, status: Some(answered.status.as_u16()), ..Done::default() })
}

fn of_role(place: &Place) -> Result<RolePosition, Stop> {
    Ok(RolePosition { id: id(&place.object)?, position: place.position.into() })
}

fn of_channel(place: &Place) -> Result<Position, Stop> {
    Ok(Position {
        id: id(&place.object)?,
        lock_permissions: None,
        parent_id: place.parent.as_ref().map(id).transpose()?.map(Some),
        position: Some(Some(place.position.into())),
    })
}
