//! The score: what arrived and its effects, counted by the simulator alone. Tests check every guarantee against it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::gateway::GatewayScore;
use crate::id::Snowflake;
use crate::limit::{Credential, Scope};
use crate::rest::call::{Effect, Verb};
use crate::time::At;

/// The window in which arrivals are counted: one second.
const SECOND_US: u64 = 1_000_000;

/// Names of created objects that are stored to find duplicates.
const MAX_NAMES: usize = 1_000_000;

/// Counters since the start or the last reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// REST requests that arrived, whatever their response.
    pub requests: u64,
    /// Those of them that are exempt from the global limit; they are not in `max_per_second`.
    pub exempt_requests: u64,
    /// Maximum number of requests in any second, to the microsecond, by application id (or address, without a token).
    pub max_per_second: BTreeMap<String, u32>,
    /// 429s, by scope.
    pub rate_limited: RateLimited,
    /// 401s, 403s and 429s that were not `shared`.
    pub invalid_requests: u64,
    /// Maximum number of those that one address had within the window of the ban.
    pub max_invalid_in_window: u32,
    /// Bans caused by invalid requests.
    pub bans: u64,
    /// Requests that an address sent while it was banned.
    pub requests_while_banned: u64,
    /// Connections cut by a fault.
    pub dropped: u64,
    /// By route, such as `POST /guilds/{guild.id}/roles`.
    pub routes: BTreeMap<String, RouteScore>,
    /// Objects created, by guild (`-` for none), then `kind name`.
    pub created: BTreeMap<String, BTreeMap<String, u32>>,
    /// Objects created beyond the first of the same guild, kind and name.
    pub duplicates: u64,
    /// Effects in the order they happened, by guild (`-` for none).
    pub effects: BTreeMap<String, Vec<EffectScore>>,
    /// Effects that were only counted, because the maximum number is stored.
    pub effects_not_kept: u64,
    /// Writes that arrived while another of the same guild had no response.
    pub overlaps: u64,
    /// Responses to interactions.
    pub interactions: InteractionScore,
    /// Counters of the gateway.
    pub gateway: GatewayScore,
}

/// 429s by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimited {
    /// By a route's bucket.
    pub user: u64,
    /// By a limit of a shared resource.
    pub shared: u64,
    /// By the global limit.
    pub global: u64,
}

/// Counters of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteScore {
    /// Requests that arrived.
    pub requests: u64,
    /// Responses by status, without those of cut connections.
    pub statuses: BTreeMap<u16, u64>,
}

/// One change of the world by a REST call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectScore {
    /// When the call arrived, in microseconds since the Unix epoch.
    pub arrived: At,
    /// When it took effect.
    pub at: At,
    /// When its response was sent; none while the call is in flight or if its connection was cut.
    pub answered: Option<At>,
    /// `create`, `update` or `delete`.
    pub verb: String,
    /// `role`, `channel`, `message` and so on.
    pub kind: String,
    /// The object's id.
    pub object: Snowflake,
    /// The name of a role or channel, or the content of a message.
    pub name: String,
    /// Whether another write of the same guild was in flight when it arrived.
    pub overlapped: bool,
}

/// Responses to interactions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionScore {
    /// Interactions fired.
    pub fired: u64,
    /// First responses in time.
    pub answered: u64,
    /// First responses that arrived too late (10062).
    pub late: u64,
    /// Repeated first responses (40060).
    pub doubled: u64,
    /// Time from firing to the first response, in microseconds, in the order of the responses; the last 10,000.
    pub response_us: Vec<u64>,
}

/// Maintains the score.
#[derive(Debug)]
pub(crate) struct ScoreKeeper {
    score: Score,
    arrivals: HashMap<Credential, VecDeque<u64>>,
    /// Number of writes in flight, by guild.
    under_way: HashMap<Snowflake, u32>,
    kept: usize,
    max_effects: usize,
    names: usize,
}

/// A write in flight. It must be finished when its response is sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct Write {
    guild: Option<Snowflake>,
    arrived: At,
    overlapped: bool,
}

/// Position of an effect in the score, to add the time of its response later.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    guild: String,
    index: usize,
}

impl ScoreKeeper {
    pub(crate) fn new(max_effects: usize) -> Self {
        Self {
            score: Score::default(),
            arrivals: HashMap::new(),
            under_way: HashMap::new(),
            kept: 0,
            max_effects,
            names: 0,
        }
    }

    /// Counts a request that arrived. `exempt` ones do not count in the maximum per second.
    pub(crate) fn arrived(&mut self, credential: Credential, route: &str, exempt: bool, now: At) {
        self.score.requests += 1;
        self.route(route).requests += 1;
        if exempt {
            self.score.exempt_requests += 1;
            return;
        }
        let arrivals = self.arrivals.entry(credential).or_default();
        while arrivals.front().is_some_and(|first| now.micros() >= first + SECOND_US) {
            arrivals.pop_front();
        }
        arrivals.push_back(now.micros());
        let seen = u32::try_from(arrivals.len()).unwrap_or(u32::MAX);
        let name = match credential {
            Credential::Application(id) => id.to_string(),
            Credential::Address(address) => address.to_string(),
        };
        let most = self.score.max_per_second.entry(name).or_default();
        *most = seen.max(*most);
    }

    pub(crate) fn answered(&mut self, route: &str, status: u16) {
        *self.route(route).statuses.entry(status).or_default() += 1;
    }

    pub(crate) fn rate_limited(&mut self, scope: Scope) {
        match scope {
            Scope::User => self.score.rate_limited.user += 1,
            Scope::Shared => self.score.rate_limited.shared += 1,
            Scope::Global => self.score.rate_limited.global += 1,
        }
    }

    pub(crate) fn invalid(&mut self, banned: bool) {
        self.score.invalid_requests += 1;
        self.score.bans += u64::from(banned);
    }

    pub(crate) fn arrived_while_banned(&mut self) {
        self.score.requests_while_banned += 1;
    }

    pub(crate) fn dropped(&mut self) {
        self.score.dropped += 1;
    }

    pub(crate) fn interaction_fired(&mut self) {
        self.score.interactions.fired += 1;
    }

    /// Starts a write of a guild.
    pub(crate) fn write_began(&mut self, guild: Option<Snowflake>, arrived: At) -> Write {
        let mut overlapped = false;
        if let Some(guild) = guild {
            let count = self.under_way.entry(guild).or_default();
            overlapped = *count > 0;
            *count += 1;
        }
        self.score.overlaps += u64::from(overlapped);
        Write { guild, arrived, overlapped }
    }

    pub(crate) fn took_effect(&mut self, effect: &Effect, write: &Write, now: At) -> Option<Place> {
        let guild = effect.guild.map_or_else(|| "-".to_owned(), |guild| guild.to_string());
        if effect.verb == Verb::Create && self.names < MAX_NAMES {
            let names = self.score.created.entry(guild.clone()).or_default();
            let count = names.entry(format!("{} {}", effect.kind, effect.name)).or_default();
            *count += 1;
            self.score.duplicates += u64::from(*count > 1);
            self.names += usize::from(*count == 1);
        }
        if self.kept >= self.max_effects {
            self.score.effects_not_kept += 1;
            return None;
        }
        self.kept += 1;
        let list = self.score.effects.entry(guild.clone()).or_default();
        list.push(EffectScore {
            arrived: write.arrived,
            at: now,
            answered: None,
            verb: match effect.verb {
                Verb::Create => "create",
                Verb::Update => "update",
                Verb::Delete => "delete",
            }
            .to_owned(),
            kind: effect.kind.to_owned(),
            object: effect.object,
            name: effect.name.clone(),
            overlapped: write.overlapped,
        });
        Some(Place { guild, index: list.len() - 1 })
    }

    /// Finishes a write; `responded_at` is when its response was sent, if it was.
    pub(crate) fn write_ended(&mut self, write: &Write, place: Option<&Place>, answer: Option<At>) {
        if let Some(guild) = write.guild
            && let Some(count) = self.under_way.get_mut(&guild)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.under_way.remove(&guild);
            }
        }
        if let Some(place) = place
            && let Some(effect) = self.score.effects.get_mut(&place.guild).and_then(|list| list.get_mut(place.index))
        {
            effect.answered = answer;
        }
    }

    /// The score so far, without the parts that are counted elsewhere: interactions, gateway and bans.
    pub(crate) fn score(&self) -> Score {
        self.score.clone()
    }

    /// Resets the score; writes in flight stay in flight.
    pub(crate) fn reset(&mut self) {
        let under_way = std::mem::take(&mut self.under_way);
        *self = Self { under_way, ..Self::new(self.max_effects) };
    }

    fn route(&mut self, route: &str) -> &mut RouteScore {
        if !self.score.routes.contains_key(route) {
            self.score.routes.insert(route.to_owned(), RouteScore::default());
        }
        self.score.routes.get_mut(route).expect("invariant: it was inserted above")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOT: Credential = Credential::Application(Snowflake::new(9));

    fn at(micros: u64) -> At {
        At::from_micros(micros)
    }

    fn role(name: &str) -> Effect {
        Effect {
            guild: Some(Snowflake::new(1)),
            verb: Verb::Create,
            kind: "role",
            object: Snowflake::new(5),
            name: name.into(),
        }
    }

    #[test]
    fn the_most_in_any_second_is_exact_to_the_microsecond() {
        let mut keeper = ScoreKeeper::new(10);
        for micros in [0, 500_000, 999_999, 1_000_000] {
            keeper.arrived(BOT, "GET /x", false, at(micros));
        }
        assert_eq!(keeper.score().max_per_second["9"], 3, "0 and 1,000,000 are a second apart, so not in one second");
        keeper.arrived(BOT, "GET /x", true, at(1_000_001));
        assert_eq!(keeper.score().max_per_second["9"], 3, "an exempt request is not counted");
    }

    #[test]
    fn a_second_object_of_one_name_is_a_duplicate() {
        let mut keeper = ScoreKeeper::new(10);
        for name in ["Elder", "Elder", "Baker"] {
            let write = keeper.write_began(Some(Snowflake::new(1)), at(0));
            let place = keeper.took_effect(&role(name), &write, at(1));
            keeper.write_ended(&write, place.as_ref(), Some(at(2)));
        }
        let score = keeper.score();
        assert_eq!((score.duplicates, score.overlaps), (1, 0));
        assert_eq!(score.created["1"]["role Elder"], 2);
        assert_eq!(score.effects["1"][2].answered, Some(at(2)));
    }

    #[test]
    fn writes_of_one_guild_that_meet_are_an_overlap_and_of_two_are_none() {
        let mut keeper = ScoreKeeper::new(10);
        let first = keeper.write_began(Some(Snowflake::new(1)), at(0));
        let other = keeper.write_began(Some(Snowflake::new(2)), at(1));
        let second = keeper.write_began(Some(Snowflake::new(1)), at(2));
        assert_eq!(keeper.score().overlaps, 1);
        for write in [first, other, second] {
            keeper.write_ended(&write, None, None);
        }
        let third = keeper.write_began(Some(Snowflake::new(1)), at(3));
        assert_eq!(keeper.score().overlaps, 1);
        keeper.write_ended(&third, None, None);
    }

    #[test]
    fn effects_past_the_bound_are_counted_only() {
        let mut keeper = ScoreKeeper::new(1);
        let write = keeper.write_began(None, at(0));
        assert!(keeper.took_effect(&role("a"), &write, at(1)).is_some());
        assert!(keeper.took_effect(&role("b"), &write, at(1)).is_none());
        assert_eq!(keeper.score().effects_not_kept, 1);
        keeper.write_ended(&write, None, None);
    }
}
