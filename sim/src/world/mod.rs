//! The world: guilds, roles, channels, members, messages, interactions. A pure machine: time comes with each call, and
//! what the gateway should hear is left in the outbox.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::SimConfig;
use crate::dispatch::Dispatch;
use crate::id::{Mint, Snowflake};
use crate::time::At;

/// All that the simulated Discord holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct World {
    pub(crate) mint: Mint,
    pub(crate) bots: Vec<Bot>,
    guilds: Vec<Snowflake>,
    /// Events for the gateway, in the order they happened; drained after every change.
    #[serde(skip)]
    pub(crate) outbox: Vec<Dispatch>,
}

/// A bot that may log in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bot {
    pub(crate) token: String,
    pub(crate) application_id: Snowflake,
    pub(crate) user_id: Snowflake,
    pub(crate) name: String,
}

/// Which members a REQUEST_GUILD_MEMBERS asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberQuery {
    /// Members whose name starts with this; empty for all.
    pub(crate) query: String,
    /// At most so many; 0 for all, only together with an empty query.
    pub(crate) limit: usize,
    pub(crate) user_ids: Vec<Snowflake>,
    pub(crate) nonce: Option<String>,
}

impl World {
    pub(crate) fn new(config: &SimConfig, now: At) -> Self {
        let mut mint = Mint::default();
        let bots = config
            .bots
            .iter()
            .map(|bot| {
                let id = mint.mint(now);
                Bot { token: bot.token.clone(), application_id: id, user_id: id, name: bot.name.clone() }
            })
            .collect();
        let guilds = (0..config.guilds).map(|_| mint.mint(now)).collect();
        Self { mint, bots, guilds, outbox: Vec::new() }
    }

    pub(crate) fn bot_by_token(&self, token: &str) -> Option<&Bot> {
        self.bots.iter().find(|bot| bot.token == token)
    }

    /// The guilds that this bot is a member of, oldest first.
    pub(crate) fn guilds_of(&self, _application: Snowflake) -> impl Iterator<Item = Snowflake> + '_ {
        self.guilds.iter().copied()
    }

    /// Whether the bot with this application id is a member of the guild.
    pub(crate) fn has_bot(&self, _guild: Snowflake, _application: Snowflake) -> bool {
        true
    }

    /// The `d` of a GUILD_CREATE.
    pub(crate) fn guild_create(&self, guild: Snowflake) -> Option<Bytes> {
        Some(Bytes::from(json!({ "id": guild }).to_string()))
    }

    /// The `user` and the `application` of READY.
    pub(crate) fn ready_identity(&self, application: Snowflake) -> (Value, Value) {
        (json!({ "id": application }), json!({ "id": application, "flags": 0 }))
    }

    /// The `d` of each GUILD_MEMBERS_CHUNK that answers a request.
    pub(crate) fn member_chunks(&self, _guild: Snowflake, _query: &MemberQuery) -> Vec<Bytes> {
        Vec::new()
    }
}
