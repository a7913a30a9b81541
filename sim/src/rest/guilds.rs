//! `/guilds/{guild.id}`: a guild itself.

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use super::form::switched_on;
use crate::world::World;

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    let guild = access::guild(world, standing.guild)?;
    Ok(Reply::ok(&if switched_on(call, "with_counts") { guild.view_with_counts() } else { guild.view() }))
}
