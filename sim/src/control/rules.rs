//! Sets limits, faults and the permissions of bots; resets and restores the state.

use serde::Deserialize;

use super::ControlError;
use crate::fault::Fault;
use crate::id::Snowflake;
use crate::limit::{LimitConfig, RouteLimit};
use crate::rest::ROUTES;
use crate::score::Score;
use crate::state::{Core, Shared};

/// Permissions of the bots in a guild.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BotRoleSpec {
    /// Permission bits of the bots' own role.
    #[serde(default)]
    pub(crate) bot_permissions: Option<u64>,
    /// Position of that role; the bots cannot manage roles at or above it.
    #[serde(default)]
    pub(crate) bot_role_position: Option<u32>,
}

impl Shared {
    pub(crate) fn add_fault(&self, fault: Fault) -> Result<u64, ControlError> {
        self.lock().faults.add(fault, ROUTES).map_err(|error| ControlError::Invalid(error.to_string()))
    }

    pub(crate) fn set_limits(&self, limits: LimitConfig) -> Result<(), ControlError> {
        for limit in &limits.routes {
            check_route_exists(limit)?;
        }
        if let Some(error) = limits.validation_error() {
            return Err(ControlError::Invalid(error));
        }
        self.lock().limits.set(limits);
        Ok(())
    }

    pub(crate) fn set_route_limit(&self, limit: RouteLimit) -> Result<(), ControlError> {
        check_route_exists(&limit)?;
        if let Some(error) = limit.validation_error() {
            return Err(ControlError::Invalid(error));
        }
        self.lock().limits.set_route(limit);
        Ok(())
    }

    pub(crate) fn set_bot_role(&self, guild: Snowflake, spec: &BotRoleSpec) -> Result<(), ControlError> {
        let now = self.now();
        let mut core = self.lock();
        if let Some(bits) = spec.bot_permissions {
            core.world.set_bot_permissions(guild, bits).map_err(ControlError::unknown)?;
        }
        if let Some(position) = spec.bot_role_position {
            core.world.set_bot_role_position(guild, position).map_err(ControlError::unknown)?;
        }
        core.deliver(now);
        Ok(())
    }

    /// The whole score: the counters of REST calls, the gateway, interactions and bans.
    pub(crate) fn score(&self) -> Score {
        let core = self.lock();
        let mut score = core.score.score();
        score.gateway = core.gateway.score();
        score.max_invalid_in_window = core.bans.max_in_window();
        core.world.score_interactions(&mut score.interactions);
        score
    }

    pub(crate) fn reset_score(&self) {
        let mut core = self.lock();
        core.score.reset();
        core.bans.reset_max();
        core.gateway.reset_score();
        core.world.reset_interaction_score();
    }

    /// Resets everything to the start; sessions end.
    pub(crate) fn reset(&self) {
        let now = self.now();
        let mut core = self.lock();
        core.gateway.reset(now);
        let mut fresh = Core::new(&self.config, &self.urls, now);
        // The connections stay until their clients have received the close frame.
        std::mem::swap(&mut fresh.gateway, &mut core.gateway);
        *core = fresh;
    }

    /// Restores a world from `GET /sim/snapshot`; sessions end, because their state no longer matches the world.
    pub(crate) fn restore(&self, snapshot: &[u8]) -> Result<(), ControlError> {
        let mut world: crate::world::World =
            serde_json::from_slice(snapshot).map_err(|error| ControlError::BadBody(error.to_string()))?;
        if let Some(inconsistency) = world.find_inconsistency() {
            return Err(ControlError::Invalid(format!("the snapshot is inconsistent: {inconsistency}")));
        }
        let now = self.now();
        let mut core = self.lock();
        world.set_http_url(&self.urls.http);
        world.gateway_url.clone_from(&core.world.gateway_url);
        world.verify_key.clone_from(&core.world.verify_key);
        core.world = world;
        core.gateway.end_all(now);
        Ok(())
    }
}

impl ControlError {
    pub(crate) fn unknown(error: impl std::fmt::Display) -> Self {
        Self::Unknown(error.to_string())
    }
}

/// Rejects a limit for an unknown route, because it would never apply.
fn check_route_exists(limit: &RouteLimit) -> Result<(), ControlError> {
    let matches_method = |method: &str| limit.method == "*" || limit.method == method;
    if ROUTES.iter().any(|route| route.template == limit.path && matches_method(route.method.as_str())) {
        return Ok(());
    }
    Err(ControlError::Unknown(format!(
        "unknown route {} {}; GET /sim/routes lists the routes",
        limit.method, limit.path
    )))
}
