//! Actions of users, once or at a rate: members join, send messages, use commands.

use std::sync::Arc;
use std::time::Duration;

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
use crate::world::fire::{FiredInteraction, InteractionKind, InteractionSpec};

/// Maximum number of actions of one request.
const MAX_COUNT: u64 = 1_000_000;

/// Maximum number of guilds that one request creates.
const MAX_GUILDS: u32 = 100_000;

/// Maximum duration of one request.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// Maximum number of ids in a report; the rest are only counted.
const MAX_IDS: usize = 1_000;

/// Number of actions between two yields to the runtime when there is no rate.
const BATCH_SIZE: u64 = 64;

/// An action, done once or repeated.
#[derive(Clone, Debug)]
pub(crate) enum Drive {
    /// Members join a guild.
    Join {
        /// The guild.
        guild: Snowflake,
        /// The users, and how many.
        spec: JoinSpec,
    },
    /// A member sends a message.
    Message(MessageSpec),
    /// A command is used, a button pressed, a modal submitted.
    Fire(FireSpec),
}

/// How often, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
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

fn once() -> u64 {
    1
}

/// Guilds to create.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuildsSpec {
    /// How many; 1 by default.
    pub count: Option<u32>,
    /// Their name; more than one are numbered.
    pub name: Option<String>,
    /// Members, in addition to owner and bots; 3 by default.
    pub members: Option<u32>,
    /// Text channels; 2 by default.
    pub channels: Option<u32>,
    /// Permission bits of the bots' role; ADMINISTRATOR by default.
    pub bot_permissions: Option<u64>,
}

/// Members who join.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JoinSpec {
    /// How many times; 1 by default.
    #[serde(default = "once")]
    pub count: u64,
    /// At this rate; 0 is all at once.
    pub per_second: f64,
    /// The user; only with a count of 1.
    pub user_id: Option<Snowflake>,
    /// The name of a new user; more than one are numbered.
    pub name: Option<String>,
}

/// A message of a member.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageSpec {
    /// Channel of the message.
    pub channel_id: Snowflake,
    /// Accepted for readability and ignored; the channel determines the guild.
    #[serde(default)]
    pub guild_id: Option<Snowflake>,
    /// Text of the message.
    pub content: String,
    /// Author; the guild's owner by default.
    #[serde(default)]
    pub user_id: Option<Snowflake>,
    /// How many times; 1 by default.
    #[serde(default = "once")]
    pub count: u64,
    /// At this rate; 0 is all at once.
    #[serde(default)]
    pub per_second: f64,
}

/// An interaction to fire.
#[derive(Clone, Debug)]
pub struct FireSpec {
    pub(crate) interaction: InteractionSpec,
    /// URL to POST it to, signed; without one, it is dispatched on the gateway.
    pub url: Option<String>,
    /// Makes the signature invalid, as Discord occasionally does to see whether an endpoint checks it.
    pub forged: bool,
    /// How often, and how fast.
    pub pace: Pace,
}

/// Result of a repeated action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveReport {
    /// Number of actions done.
    pub done: u64,
    /// The first id: of a user, a message or an interaction.
    pub id: Option<Snowflake>,
    /// The first interaction's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// All ids, up to a thousand.
    pub ids: Vec<Snowflake>,
    /// The response of the URL to the last interaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posted: Option<PostResponse>,
}

/// The response of a URL to an interaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body, if it was JSON.
    pub body: Value,
    /// The status that the callback route would have returned for that body; none if the response was no success or its
    /// body no object.
    pub taken: Option<u16>,
}

impl FireSpec {
    /// A command that a member of the guild uses, sent over the gateway.
    #[must_use]
    pub fn command(guild: Snowflake, name: &str) -> Self {
        let name = Some(name.to_owned());
        Self::over_gateway(InteractionSpec { guild_id: Some(guild), name, ..InteractionSpec::default() })
    }

    /// A button of the bot's newest message, pressed by a member of the guild.
    #[must_use]
    pub fn button(guild: Snowflake, custom_id: &str) -> Self {
        Self::by_custom_id(InteractionKind::Button, guild, custom_id)
    }

    /// A modal, submitted by a member of the guild.
    #[must_use]
    pub fn modal(guild: Snowflake, custom_id: &str) -> Self {
        Self::by_custom_id(InteractionKind::Modal, guild, custom_id)
    }

    fn by_custom_id(kind: InteractionKind, guild: Snowflake, custom_id: &str) -> Self {
        let custom_id = Some(custom_id.to_owned());
        Self::over_gateway(InteractionSpec { kind, guild_id: Some(guild), custom_id, ..InteractionSpec::default() })
    }

    fn over_gateway(interaction: InteractionSpec) -> Self {
        Self { interaction, url: None, forged: false, pace: Pace::default() }
    }

    /// Parses the body of `/sim/commands`, `/sim/buttons` or `/sim/modals`.
    pub(super) fn from_body(kind: &str, mut body: Value) -> Result<Self, ControlError> {
        let invalid_body = |error: serde_json::Error| ControlError::BadBody(error.to_string());
        let object = body.as_object_mut().ok_or_else(|| ControlError::BadBody("it must be an object".into()))?;
        let mut take = |name: &str| object.remove(name).unwrap_or(Value::Null);
        let url = serde_json::from_value(take("url")).map_err(invalid_body)?;
        let forged: Option<bool> = serde_json::from_value(take("forged")).map_err(invalid_body)?;
        let count: Option<u64> = serde_json::from_value(take("count")).map_err(invalid_body)?;
        let per_second: Option<f64> = serde_json::from_value(take("per_second")).map_err(invalid_body)?;
        let kind = match kind {
            "buttons" => "button",
            "modals" => "modal",
            _ => "command",
        };
        object.entry("type").or_insert_with(|| kind.into());
        Ok(Self {
            interaction: serde_json::from_value(body).map_err(invalid_body)?,
            url,
            forged: forged.unwrap_or_default(),
            pace: Pace { count: count.unwrap_or(1), per_second: per_second.unwrap_or_default() },
        })
    }
}

impl Default for JoinSpec {
    fn default() -> Self {
        Self { count: 1, per_second: 0.0, user_id: None, name: None }
    }
}

impl Drive {
    fn pace(&self) -> Pace {
        match self {
            Self::Join { spec, .. } => Pace { count: spec.count, per_second: spec.per_second },
            Self::Message(spec) => Pace { count: spec.count, per_second: spec.per_second },
            Self::Fire(spec) => spec.pace,
        }
    }
}

impl Pace {
    fn check(self) -> Result<Self, ControlError> {
        if !(1..=MAX_COUNT).contains(&self.count) || !(0.0..=1e6).contains(&self.per_second) {
            return Err(ControlError::Invalid(format!(
                "`count` must be from 1 to {MAX_COUNT}, and `per_second` from 0 (all at once) to 1000000"
            )));
        }
        if self.due_after(self.count) > MAX_DURATION {
            return Err(ControlError::Invalid(format!(
                "this would take longer than {} s; lower `count` or raise \
                `per_second`",
                MAX_DURATION.as_secs()
            )));
        }
        Ok(self)
    }

    /// Time from the first action to the one with this number.
    fn due_after(self, number: u64) -> Duration {
        if self.per_second == 0.0 {
            return Duration::ZERO;
        }
        #[expect(clippy::cast_precision_loss, reason = "a million is exact in a double")]
        Duration::try_from_secs_f64(number as f64 / self.per_second).unwrap_or(Duration::MAX)
    }
}

impl Shared {
    /// Runs an action at its pace; returns after the last one.
    pub(crate) async fn drive(self: &Arc<Self>, drive: Drive) -> Result<DriveReport, ControlError> {
        let pace = drive.pace().check()?;
        let started = Instant::now();
        let mut report = DriveReport::default();
        for number in 0..pace.count {
            if pace.per_second > 0.0 {
                tokio::time::sleep_until(started + pace.due_after(number)).await;
            } else if number % BATCH_SIZE == BATCH_SIZE - 1 {
                tokio::task::yield_now().await;
            }
            let (id, token) = match &drive {
                Drive::Join { guild, spec } => (self.join(*guild, spec, number)?, None),
                Drive::Message(spec) => (self.send_message(spec)?, None),
                Drive::Fire(spec) => {
                    let fired = self.fire(spec)?;
                    if let Some(url) = &spec.url {
                        report.posted = Some(self.post_interaction(url, &fired, spec.forged).await?);
                    }
                    (fired.id, Some(fired.token))
                }
            };
            report.done += 1;
            report.id.get_or_insert(id);
            report.token = report.token.or(token);
            if report.ids.len() < MAX_IDS {
                report.ids.push(id);
            }
        }
        Ok(report)
    }

    pub(crate) fn create_guilds(&self, spec: &GuildsSpec) -> Result<Vec<Snowflake>, ControlError> {
        let count = spec.count.unwrap_or(1);
        let (members, channels) = (spec.members.unwrap_or(3), spec.channels.unwrap_or(2));
        if !(1..=MAX_GUILDS).contains(&count) || members > 100_000 || channels > 500 {
            return Err(ControlError::Invalid(format!(
                "`count` must be from 1 to {MAX_GUILDS}, `members` at most 100000, `channels` at most 500"
            )));
        }
        let name = spec.name.as_deref().unwrap_or("guild");
        let mut created = Vec::new();
        for number in 0..count {
            let name = if count == 1 { name.to_owned() } else { format!("{name} {}", number + 1) };
            let mut guild = GuildSpec { name, members, channels, ..GuildSpec::default() };
            if let Some(bits) = spec.bot_permissions {
                guild.bot_permissions = bits;
            }
            let now = self.now();
            let mut core = self.lock();
            created.push(core.world.add_guild(&guild, now));
            core.deliver(now);
        }
        Ok(created)
    }

    pub(crate) fn remove_guild(&self, guild: Snowflake) -> Result<(), ControlError> {
        let now = self.now();
        let mut core = self.lock();
        core.world.remove_guild(guild).map_err(ControlError::unknown)?;
        core.deliver(now);
        Ok(())
    }

    pub(crate) fn leave(&self, guild: Snowflake, user: Snowflake) -> Result<(), ControlError> {
        let now = self.now();
        let mut core = self.lock();
        core.world.leave(guild, user).map_err(ControlError::unknown)?;
        core.deliver(now);
        Ok(())
    }

    fn join(&self, guild: Snowflake, spec: &JoinSpec, number: u64) -> Result<Snowflake, ControlError> {
        let name = match &spec.name {
            Some(name) if spec.count > 1 => Some(format!("{name}{}", number + 1)),
            name => name.clone(),
        };
        let now = self.now();
        let mut core = self.lock();
        let member = MemberSpec { user_id: spec.user_id, name };
        let user = core.world.join(guild, member, now).map_err(ControlError::unknown)?;
        core.deliver(now);
        Ok(user)
    }

    fn send_message(&self, spec: &MessageSpec) -> Result<Snowflake, ControlError> {
        let now = self.now();
        let mut core = self.lock();
        let message = core
            .world
            .user_message(spec.channel_id, spec.user_id, spec.content.clone(), now)
            .map_err(ControlError::unknown)?;
        core.deliver(now);
        Ok(message)
    }

    fn fire(&self, spec: &FireSpec) -> Result<FiredInteraction, ControlError> {
        let now = self.now();
        let mut core = self.lock();
        let fired = core.world.create_interaction(&spec.interaction, now).map_err(ControlError::unknown)?;
        core.score.record_interaction();
        if spec.url.is_none() {
            core.world.dispatch_interaction(&fired);
        }
        core.deliver(now);
        Ok(fired)
    }

    /// Posts an interaction to a URL; the response becomes the first response.
    async fn post_interaction(
        self: &Arc<Self>,
        url: &str,
        fired: &FiredInteraction,
        forged: bool,
    ) -> Result<PostResponse, ControlError> {
        let timestamp = (self.now().millis() / 1_000).to_string();
        let (status, body) = signed::post(url, &self.signing_key, &timestamp, fired.data.clone(), forged).await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let accepted_status =
            (status.is_success() && body.is_object()).then(|| self.set_first_response(fired, body.clone()));
        Ok(PostResponse { status: status.as_u16(), body, taken: accepted_status })
    }

    /// Sets the first response of an interaction, as the callback route does.
    fn set_first_response(&self, fired: &FiredInteraction, body: Value) -> u16 {
        let path = format!("/interactions/{}/{}/callback", fired.id, fired.token);
        let Ok((route, params)) = route::find(ROUTES, &Method::POST, &path) else { return 404 };
        let now = self.now();
        let call = Call {
            params,
            query: Vec::new(),
            body,
            files: Vec::new(),
            reason: None,
            caller: None,
            hidden: Vec::new(),
            now,
        };
        let mut core = self.lock();
        let status = match (route.handler)(&mut core.world, &call) {
            Ok(reply) => reply.status,
            Err(error) => error.status,
        };
        core.deliver(now);
        status.as_u16()
    }
}
