//! A simulated Discord that takes 20 ms for every call, with members who should get a role in a fixed order.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use guildhall_sim::{
    BotConfig, Fault, FaultAction, GatewayConfig, GuildsSpec, LimitConfig, Score, Sim, SimConfig, SimHandle, Stage,
};
use http::Method;
use serde_json::{Value, json};

use crate::http_client::Connection;

/// A token of Discord's form. It contains the bot's user id.
pub(crate) const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.bench.ZnCjm1XVW7vRze4b7Cq4se7kKWs";

/// Latency of every call.
const LATENCY_MS: u64 = 20;

/// A guild, the role for its members, and the members in the order in which they should get it.
#[derive(Clone, Debug)]
pub(super) struct Guild {
    pub(super) id: String,
    pub(super) role: String,
    pub(super) members: Vec<String>,
}

/// A simulator without limits, and its guilds.
pub(super) struct SimFixture {
    pub(super) sim: SimHandle,
    pub(super) guilds: Vec<Guild>,
}

impl SimFixture {
    /// Creates the guilds, with this number of members each.
    pub(super) async fn start(guilds: u32, members: u32) -> anyhow::Result<Self> {
        let config = SimConfig {
            bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
            guilds: 0,
            limits: LimitConfig::off(),
            gateway: GatewayConfig { max_concurrency: 1_000, ..GatewayConfig::default() },
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.context("cannot start the simulator")?;
        let spec = GuildsSpec { count: Some(guilds), members: Some(members), ..GuildsSpec::default() };
        let ids = sim.create_guilds(&spec)?;
        let mut discord = BotClient(Connection::open(sim.address()).await?);
        let mut guilds = Vec::new();
        for id in ids {
            guilds.push(discord.prepare_guild(&id.to_string()).await?);
        }
        let action = FaultAction::Latency { fixed_ms: LATENCY_MS, jitter_ms: 0, at: Stage::Effect };
        sim.add_fault(Fault { route: "*".to_owned(), action, probability: 1.0, count: None, skip: 0 })?;
        sim.reset_score();
        Ok(Self { sim, guilds })
    }

    /// Number of calls that arrived out of order, twice, or while another call of their guild was in flight.
    pub(super) fn violations(&self) -> usize {
        violations(&self.sim.score(), &self.guilds)
    }
}

fn violations(score: &Score, guilds: &[Guild]) -> usize {
    let mut count = usize::try_from(score.overlaps).unwrap_or(usize::MAX);
    for guild in guilds {
        let positions: HashMap<String, usize> = guild
            .members
            .iter()
            .enumerate()
            .map(|(position, user)| (format!("{user}:{}", guild.role), position))
            .collect();
        let mut next = 0;
        for effect in score.effects.get(&guild.id).into_iter().flatten() {
            let position = positions.get(&effect.name).copied();
            count += usize::from(position != Some(next));
            next = position.map_or(next, |position| position + 1);
        }
    }
    count
}

/// The simulator's API, called as its bot.
struct BotClient(Connection);

impl BotClient {
    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Value> {
        let path = format!("/api/v10{path}");
        let (status, response) = self.0.call(method, &path, &format!("Bot {TOKEN}"), body).await?;
        ensure!(status < 300, "{path} returned {status}");
        Ok(serde_json::from_slice(&response)?)
    }

    async fn prepare_guild(&mut self, guild: &str) -> anyhow::Result<Guild> {
        let role_spec = json!({ "name": "wanted" }).to_string();
        let role = self.call(Method::POST, &format!("/guilds/{guild}/roles"), role_spec.into()).await?;
        let members = self.call(Method::GET, &format!("/guilds/{guild}/members?limit=1000"), Bytes::new()).await?;
        let humans = members.as_array().context("the member list is not an array")?.iter();
        let humans = humans.filter(|member| member["user"]["bot"] != true);
        let text = |id: &Value| id.as_str().map(str::to_owned).context("an id is not a string");
        Ok(Guild {
            id: guild.to_owned(),
            role: text(&role["id"])?,
            members: humans.map(|member| text(&member["user"]["id"])).collect::<anyhow::Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use guildhall_sim::{At, EffectScore, Snowflake};

    use super::*;

    fn count_violations(order: &[&str]) -> usize {
        let members = ["1", "2", "3"].map(str::to_owned).to_vec();
        let guild = Guild { id: "9".to_owned(), role: "7".to_owned(), members };
        let effects = order.iter().map(|user| EffectScore {
            arrived: At::from_micros(0),
            at: At::from_micros(0),
            answered: None,
            verb: "create".to_owned(),
            kind: "member_role".to_owned(),
            object: Snowflake::new(7),
            name: format!("{user}:7"),
            overlapped: false,
        });
        let effects = [("9".to_owned(), effects.collect())].into();
        violations(&Score { effects, ..Score::default() }, &[guild])
    }

    #[test]
    fn unordered_and_repeated_calls_are_violations() {
        assert_eq!(count_violations(&["1", "2", "3"]), 0);
        assert_eq!(count_violations(&["1", "3"]), 1, "2 is missing");
        assert_eq!(count_violations(&["1", "1", "2", "3"]), 1);
        assert_eq!(count_violations(&["2", "1", "3"]), 3);
    }
}
