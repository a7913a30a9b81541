//! Guilds.

use std::collections::BTreeMap;

use guildhall_actors::ports::{self, KnownGuild};
use guildhall_actors::submission;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Snowflake;

/// A page of guilds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GuildPage {
    pub(crate) guilds: Vec<Guild>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<Snowflake>,
}

/// A guild.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Guild {
    pub(crate) id: Snowflake,
    /// Its name; `null` if the gateway has not reported it.
    pub(crate) name: Option<String>,
    /// The tenant that it belongs to.
    pub(crate) tenant: String,
}

impl GuildPage {
    pub(crate) fn new(page: ports::GuildPage) -> Self {
        let guild = |KnownGuild { id, name, tenant }: KnownGuild| Guild {
            id: id.into(),
            name,
            tenant: tenant.as_ref().to_owned(),
        };
        Self { guilds: page.guilds.into_iter().map(guild).collect(), next: page.next.map(Snowflake::from) }
    }
}

/// The status of a guild.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GuildStatus {
    pub(crate) guild_id: Snowflake,
    /// Its name; `null` if the gateway has not reported it.
    pub(crate) name: Option<String>,
    /// Whether this guild is paused.
    pub(crate) paused: bool,
    /// Whether everything is paused.
    pub(crate) all_paused: bool,
    /// Number of unfinished operations.
    pub(crate) depth: u64,
    /// Whether there are more than were counted.
    pub(crate) depth_is_more: bool,
    /// Number of unfinished operations in each state.
    pub(crate) pending: BTreeMap<String, u64>,
}

impl GuildStatus {
    pub(crate) fn new(guild: u64, status: &submission::GuildStatus) -> Self {
        Self {
            guild_id: guild.into(),
            name: status.name.clone(),
            paused: status.paused,
            all_paused: status.all_paused,
            depth: status.pending.values().sum(),
            depth_is_more: status.more,
            pending: status.pending.iter().map(|(state, count)| ((*state).to_owned(), *count)).collect(),
        }
    }
}

/// Whether a guild is paused.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GuildPaused {
    pub(crate) guild_id: Snowflake,
    pub(crate) paused: bool,
}

/// Whether everything is paused.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AllPaused {
    pub(crate) all_paused: bool,
}
