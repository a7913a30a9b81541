//! Making things happen, once or at a rate: members join, people write, commands are used.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{ControlError, signed};
use crate::id::Snowflake;
use crate::rest::ROUTES;
use crate::rest::call::Call;
use crate::rest::route;
use crate::state::Shared;
use crate::world::drive::{GuildSpec, MemberSpec};
use crate::world::fire::{Fired, InteractionSpec};

/// Things that one request may make happen.
const MAX_COUNT: u64 = 1_000_000;

/// Guilds that one request may make.
const MAX_GUILDS: u32 = 100_000;

/// How long one request may keep making things happen.
const MAX_TIME: Duration = Duration::from_secs(600);

/// Ids that a report names; the rest are only counted.
const MAX_IDS: usize = 1_000;

/// How many happen under one lock when there is no rate.
const AT_ONCE: u64 = 64;

/// Something that happens, once or more often.
#[derive(Clone, Debug)]
pub enum Drive {
    /// Members join a guild.
    Join {
        /// The guild.
        guild: Snowflake,
        /// Who, and how many.
        spec: JoinSpec,
    },
    /// A member writes.
    Message(MessageSpec),
    /// A command is used, a button pressed, a modal sent.
    Fire(FireSpec),
}

/// How often, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// How many times; 1 by default.
    pub count: u64,
    /// At this rate; 0 is all at once.
    pub per_second: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { count: 1, per_second: 0.0 }
    }
}

/// Guilds to make.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuildsSpec {
    /// How many; 1 by default.
    pub count: Option<u32>,
    /// Their name; more than one are numbered.
    pub name: Option<String>,
    /// Members beside owner and bots; 3 by default.
    pub members: Option<u32>,
    /// Text channels; 2 by default.
    pub channels: Option<u32>,
    /// Permission bits of the bots' role; ADMINISTRATOR by default.
    pub bot_permissions: Option<u64>,
}

/// Members who join.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JoinSpec {
    /// How many times; 1 by default.
    pub count: Option<u64>,
    /// At this rate; without, all at once.
    pub per_second: Option<f64>,
    /// A certain user; only with a count of 1.
    pub user_id: Option<Snowflake>,
    /// The name of a new user; more than one are numbered.
    pub name: Option<String>,
}

/// A member who writes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageSpec {
    /// Where.
    pub channel_id: Snowflake,
    /// For the reader's sake; the channel tells the guild.
    #[serde(default)]
    pub guild_id: Option<Snowflake>,
    /// What.
    pub content: String,
    /// Who; the guild's owner by default.
    #[serde(default)]
    pub user_id: Option<Snowflake>,
    /// How many times; 1 by default.
    #[serde(default)]
    pub count: Option<u64>,
    /// At this rate; without, all at once.
    #[serde(default)]
    pub per_second: Option<f64>,
}

/// An interaction to fire.
#[derive(Clone, Debug)]
pub struct FireSpec {
    pub(crate) interaction: InteractionSpec,
    /// Where to POST it, signed; without, it is dispatched on the gateway.
    pub url: Option<String>,
    /// Signs it wrongly, as Discord does now and then to see whether an endpoint checks.
    pub forged: bool,
    /// How often, and how fast.
    pub pace: Pace,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveReport {
    /// How many things happened.
    pub done: u64,
    /// The first one: a user, a message or an interaction.
    pub id: Option<Snowflake>,
    /// The first interaction's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// All of them, up to a thousand.
    pub ids: Vec<Snowflake>,
    /// What the URL answered to the last interaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posted: Option<Posted>,
}

/// What a URL answered to an interaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The HTTP status.
    pub status: u16,
    /// The body, if it was JSON.
    pub body: Value,
    /// The status that the simulator gave to that body as a first response; nothing if it was not asked.
    pub taken: Option<u16>,
}

impl FireSpec {
    /// Reads the body of `/sim/commands`, `/sim/buttons` or `/sim/modals`.
    pub(super) fn of(kind: &str, mut body: Value) -> Result<Self, ControlError> {
        let misfit = |error: serde_json::Error| ControlError::BadBody(error.to_string());
        let object = body.as_object_mut().ok_or_else(|| ControlError::BadBody("it must be an object".into()))?;
        let mut own = |name: &str| object.remove(name).unwrap_or(Value::Null);
        let url = serde_json::from_value(own("url")).map_err(misfit)?;
        let forged: Option<bool> = serde_json::from_value(own("forged")).map_err(misfit)?;
        let count: Option<u64> = serde_json::from_value(own("count")).map_err(misfit)?;
        let per_second: Option<f64> = serde_json::from_value(own("per_second")).map_err(misfit)?;
        let kind = match kind {
            "buttons" => "button",
            "modals" => "modal",
            _ => "command",
        };
        object.entry("kind").or_insert_with(|| kind.into());
        Ok(Self {
            interaction: serde_json::from_value(body).map_err(misfit)?,
            url,
            forged: forged.unwrap_or_default(),
            pace: Pace { count: count.unwrap_or(1), per_second: per_second.unwrap_or_default() },
        })
    }
}

impl Drive {
    fn pace(&self) -> Result<Pace, ControlError> {
        let pace = match self {
            Self::Join { spec, .. } => Pace { count: spec.count.unwrap_or(1), per_second: spec.per_second.unwrap_or(0.0) },
            Self::Message(spec) => Pace { count: spec.count.unwrap_or(1), per_second: spec.per_second.unwrap_or(0.0) },
            Self::Fire(spec) => spec.pace,
        };
        let takes = if pace.per_second > 0.0 { Duration::try_from_secs_f64(pace.count as f64 / pace.per_second) } else { Ok(Duration::ZERO) };
        if !(1..=MAX_COUNT).contains(&pace.count) || !(0.0..=1e6).contains(&pace.per_second) || takes.is_err_and(|_| true) {
            return Err(ControlError::Invalid(format!(
                "`count` must be 1 to {MAX_COUNT} and `per_second` 0 (all at once) to 1000000"
            )));
        }
        Ok(pace)
    }
}
