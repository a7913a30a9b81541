//! `/guilds/{guild.id}`: a guild itself.

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use super::form::query_flag;
use crate::world::World;

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let guild = access::guild(world, guild_access.guild)?;
    Ok(Reply::ok(&if query_flag(call, "with_counts") { guild.view_with_counts() } else { guild.view() }))
}

#[cfg(test)]
mod tests {
    use crate::rest::testing::RestFixture;

    #[test]
    fn member_counts_are_returned_on_request() {
        let mut fixture = RestFixture::new();
        let plain = fixture.get(&fixture.guild_path("")).json;
        assert!(plain.get("approximate_member_count").is_none());
        let counted = fixture.get(&fixture.guild_path("?with_counts=true")).json;
        assert_eq!(counted["approximate_member_count"], 5);
    }

    #[test]
    fn unknown_and_inaccessible_guilds_have_different_errors() {
        let mut fixture = RestFixture::new();
        assert_eq!(fixture.get("/guilds/5").code(), 10004);
        assert_eq!(fixture.get("/guilds/five").code(), 50035);
        let bot = fixture.world.bots[0].user_id;
        fixture.world.guilds.get_mut(&fixture.guild).unwrap().members.remove(&bot);
        assert_eq!(fixture.get(&fixture.guild_path("")).code(), 50001);
        assert_eq!(fixture.get(&fixture.channel_path("")).code(), 50001);
    }
}
