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

#[cfg(test)]
mod tests {
    use crate::rest::testing::Stage;

    #[test]
    fn a_guild_counts_its_members_when_asked() {
        let mut stage = Stage::new();
        let plain = stage.get(&stage.guild_path("")).json;
        assert!(plain.get("approximate_member_count").is_none());
        let counted = stage.get(&stage.guild_path("?with_counts=true")).json;
        assert_eq!(counted["approximate_member_count"], 5);
    }

    #[test]
    fn a_guild_that_is_not_there_or_not_ones_own_says_which() {
        let mut stage = Stage::new();
        assert_eq!(stage.get("/guilds/5").code(), 10004);
        assert_eq!(stage.get("/guilds/five").code(), 50035);
        let bot = stage.world.bots[0].user_id;
        stage.world.guilds.get_mut(&stage.guild).unwrap().members.remove(&bot);
        assert_eq!(stage.get(&stage.guild_path("")).code(), 50001);
        assert_eq!(stage.get(&stage.channel_path("")).code(), 50001);
    }
}
