//! A summary of the world, for the control API.

use std::ops::Bound;

use serde::Serialize;
use serde_json::{Value, json};

use super::World;
use crate::id::Snowflake;

#[derive(Serialize)]
struct GuildSummary<'a> {
    id: Snowflake,
    name: &'a str,
    owner_id: Snowflake,
    member_count: usize,
    channels: Vec<ChannelSummary<'a>>,
    roles: Vec<RoleSummary<'a>>,
}

#[derive(Serialize)]
struct ChannelSummary<'a> {
    id: Snowflake,
    name: &'a str,
    #[serde(rename = "type")]
    kind: u8,
}

#[derive(Serialize)]
struct RoleSummary<'a> {
    id: Snowflake,
    name: &'a str,
    position: u32,
}

impl World {
    /// The bots, and up to `limit` guilds with an id above `after`. `guild_count` is the number of all guilds.
    pub(crate) fn state(&self, after: Option<Snowflake>, limit: usize) -> Value {
        let bots: Vec<Value> = self
            .bots
            .iter()
            .map(|bot| json!({ "token": bot.token, "application_id": bot.application_id, "user_id": bot.user_id }))
            .collect();
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let guilds: Vec<GuildSummary<'_>> = self
            .guilds
            .range((first, Bound::Unbounded))
            .take(limit)
            .map(|(_, guild)| GuildSummary {
                id: guild.id,
                name: &guild.name,
                owner_id: guild.owner,
                member_count: guild.members.len(),
                channels: guild
                    .channels
                    .values()
                    .map(|channel| ChannelSummary { id: channel.id, name: &channel.name, kind: channel.kind })
                    .collect(),
                roles: guild
                    .roles
                    .iter()
                    .map(|role| RoleSummary { id: role.id, name: &role.name, position: role.position })
                    .collect(),
            })
            .collect();
        json!({ "bots": bots, "guild_count": self.guilds.len(), "guilds": guilds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SimConfig;
    use crate::time::At;

    #[test]
    fn guilds_are_paged() {
        let config = SimConfig { guilds: 5, ..SimConfig::default() };
        let world = World::new(&config, At::from_micros(1_700_000_000_000_000));
        let first = world.state(None, 3);
        assert_eq!(first["guild_count"], 5);
        assert_eq!(first["bots"][0]["token"], "sim-bot-token");
        let last: Snowflake = first["guilds"][2]["id"].as_str().unwrap().parse().unwrap();
        let second = world.state(Some(last), 3);
        assert_eq!(second["guilds"].as_array().unwrap().len(), 2);
        assert_eq!(second["guilds"][0]["name"], "guild-4");
        assert_eq!(second["guilds"][0]["channels"][0]["name"], "general");
        let past_all = world.state(Some(Snowflake::new(u64::MAX)), 3);
        assert_eq!(past_all["guilds"].as_array().unwrap().len(), 0);
    }
}
