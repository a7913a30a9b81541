//! The simulator without sockets and without a clock: days of traffic in seconds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Full;

use crate::config::SimConfig;
use crate::control::ControlError;
use crate::fault::Fault;
use crate::http;
use crate::id::Snowflake;
use crate::score::Score;
use crate::state::Shared;
use crate::time::{At, Clock};

/// The REST side of a simulator, with the same bans, limits, faults and score, for a caller that says when each request
/// arrives. Times must not decrease.
#[derive(Debug)]
pub struct OfflineSim {
    shared: Arc<Shared>,
}

impl OfflineSim {
    /// Creates a simulator whose world begins at `now`. The address of the configuration is not used.
    #[must_use]
    pub fn new(config: SimConfig, now: At) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { shared: Arc::new(Shared::with_clock(config, address, Clock::starting_at(now))) }
    }

    /// The response to a request that arrives from `peer` at `now`, with a body that is JSON; `None` if a fault cuts
    /// the connection. Delays by faults do not apply: the caller decides when a request arrives.
    #[must_use]
    pub fn respond(&self, peer: IpAddr, request: Request<Bytes>, now: At) -> Option<Response<Full<Bytes>>> {
        http::handle_at(&self.shared, peer, request, now).ok()
    }

    /// What arrived, and its effects.
    #[must_use]
    pub fn score(&self) -> Score {
        self.shared.score()
    }

    /// The guilds that the bots are in, oldest first.
    #[must_use]
    pub fn guilds(&self) -> Vec<Snowflake> {
        self.shared.lock().world.guilds.keys().copied().collect()
    }

    /// The application id of the bot with this token.
    #[must_use]
    pub fn application(&self, token: &str) -> Option<Snowflake> {
        self.shared.lock().world.bot_by_token(token).map(|bot| bot.application_id)
    }

    /// Adds a REST fault; returns its id.
    ///
    /// # Errors
    ///
    /// When it matches no route, or a number is out of range.
    pub fn add_fault(&self, fault: Fault) -> Result<u64, ControlError> {
        self.shared.add_fault(fault)
    }

    /// Removes a REST fault, or all of them; returns the number removed.
    pub fn remove_faults(&self, id: Option<u64>) -> usize {
        self.shared.lock().faults.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ::http::{StatusCode, header};

    use super::*;
    use crate::config::BotConfig;

    #[test]
    fn limits_follow_the_time_of_the_caller() {
        let start = At::from_micros(1_700_000_000_000_000);
        let sim = OfflineSim::new(SimConfig::default(), start);
        let path = format!("/api/v10/guilds/{}", sim.guilds()[0]);
        let get = |after_ms: u64| {
            let request = Request::get(&path)
                .header(header::AUTHORIZATION, format!("Bot {}", BotConfig::default().token))
                .header(header::USER_AGENT, "DiscordBot (https://example.invalid, 1)");
            let now = start.after(Duration::from_millis(after_ms));
            sim.respond(Ipv4Addr::LOCALHOST.into(), request.body(Bytes::new()).unwrap(), now).unwrap().status()
        };
        assert_eq!([0, 1, 2, 3, 4].map(get), [StatusCode::OK; 5]);
        assert_eq!(get(5), StatusCode::TOO_MANY_REQUESTS);
        // One of five is free again after a fifth of five seconds.
        assert_eq!(get(1_001), StatusCode::OK);
        let score = sim.score();
        assert_eq!((score.requests, score.rate_limited.user, score.injected_rate_limits.user), (7, 1, 0));
    }
}
