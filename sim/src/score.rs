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

/// Maximum number of names of created objects, and of objects among which duplicates are found.
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
    pub rate_limited: RateLimitScore,
    /// Those of them that a fault caused, and no limit.
    pub injected_rate_limits: RateLimitScore,
    /// 401s, 403s and 429s that were not `shared`.
    pub invalid_requests: u64,
    /// Maximum number of those that one address had within the window of the ban.
    pub max_invalid_in_window: u32,
    /// Bans caused by invalid requests.
    pub bans: u64,
    /// Requests that an address sent while it was banned.
    pub requests_while_banned: u64,
    /// Requests whose `User-Agent` does not have the form that Discord requires, `DiscordBot (url, version)`.
    pub invalid_user_agents: u64,
    /// Connections cut by a fault.
    pub dropped: u64,
    /// By route, such as `POST /guilds/{guild.id}/roles`.
    pub routes: BTreeMap<String, RouteScore>,
    /// Objects created, by guild (`-` for none), then `kind name`.
    pub created: BTreeMap<String, BTreeMap<String, u32>>,
    /// Roles, channels and messages that a bot created by a request that it had sent before, while the object of the
    /// earlier one still exists. The nonce of a message is not compared.
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
pub struct RateLimitScore {
    /// By a route's bucket.
    pub user: u64,
    /// By a limit of a shared resource.
    pub shared: u64,
    /// By the global limit.
    pub global: u64,
}

impl RateLimitScore {
    fn add(&mut self, scope: Scope) {
        match scope {
            Scope::User => self.user += 1,
            Scope::Shared => self.shared += 1,
            Scope::Global => self.global += 1,
        }
    }
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
pub(crate) struct ScoreCounters {
    score: Score,
    arrivals: HashMap<Credential, VecDeque<u64>>,
    /// Number of writes in flight, by guild.
    writes_in_flight: HashMap<Snowflake, u32>,
    effect_count: usize,
    max_effects: usize,
    name_count: usize,
    originals: Originals,
}

/// Objects that a repeated request would duplicate, by the request that created them.
#[derive(Debug, Default)]
struct Originals {
    /// How many objects of each request exist.
    existing: HashMap<RequestDigest, u32>,
    created_by: HashMap<Snowflake, RequestDigest>,
}

impl Originals {
    /// Adds an object; returns whether another one of the same request exists.
    fn add(&mut self, object: Snowflake, request: RequestDigest) -> bool {
        if self.created_by.len() >= MAX_NAMES {
            return false;
        }
        self.created_by.insert(object, request);
        let existing = self.existing.entry(request).or_default();
        *existing += 1;
        *existing > 1
    }

    fn remove(&mut self, object: Snowflake) {
        let Some(request) = self.created_by.remove(&object) else { return };
        if let Some(existing) = self.existing.get_mut(&request) {
            *existing -= 1;
            if *existing == 0 {
                self.existing.remove(&request);
            }
        }
    }
}

/// Digest of a request: of its caller, its path and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestDigest(pub(crate) u64);

/// A write in flight. It must be finished when its response is sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct PendingWrite {
    guild: Option<Snowflake>,
    arrived: At,
    overlapped: bool,
}

/// Position of an effect in the score, to add the time of its response later.
#[derive(Clone, Debug)]
pub(crate) struct EffectPosition {
    guild: String,
    index: usize,
}

impl ScoreCounters {
    pub(crate) fn new(max_effects: usize) -> Self {
        Self {
            score: Score::default(),
            arrivals: HashMap::new(),
            writes_in_flight: HashMap::new(),
            effect_count: 0,
            max_effects,
            name_count: 0,
            originals: Originals::default(),
        }
    }

    /// Counts a request that arrived. `exempt` ones do not count in the maximum per second.
    pub(crate) fn record_request(&mut self, credential: Credential, route: &str, exempt: bool, now: At) {
        self.score.requests += 1;
        self.route_score(route).requests += 1;
        if exempt {
            self.score.exempt_requests += 1;
            return;
        }
        let arrivals = self.arrivals.entry(credential).or_default();
        while arrivals.front().is_some_and(|first| now.micros() >= first + SECOND_US) {
            arrivals.pop_front();
        }
        arrivals.push_back(now.micros());
        let count = u32::try_from(arrivals.len()).unwrap_or(u32::MAX);
        let name = match credential {
            Credential::Application(id) => id.to_string(),
            Credential::Address(address) => address.to_string(),
        };
        let max = self.score.max_per_second.entry(name).or_default();
        *max = count.max(*max);
    }

    pub(crate) fn record_response(&mut self, route: &str, status: u16) {
        *self.route_score(route).statuses.entry(status).or_default() += 1;
    }

    pub(crate) fn record_rate_limit(&mut self, scope: Scope, was_injected: bool) {
        self.score.rate_limited.add(scope);
        if was_injected {
            self.score.injected_rate_limits.add(scope);
        }
    }

    pub(crate) fn record_invalid_request(&mut self, banned: bool) {
        self.score.invalid_requests += 1;
        self.score.bans += u64::from(banned);
    }

    pub(crate) fn record_banned_request(&mut self) {
        self.score.requests_while_banned += 1;
    }

    pub(crate) fn record_invalid_user_agent(&mut self) {
        self.score.invalid_user_agents += 1;
    }

    pub(crate) fn record_dropped_connection(&mut self) {
        self.score.dropped += 1;
    }

    pub(crate) fn record_interaction(&mut self) {
        self.score.interactions.fired += 1;
    }

    /// Starts a write of a guild.
    pub(crate) fn start_write(&mut self, guild: Option<Snowflake>, arrived: At) -> PendingWrite {
        let mut overlapped = false;
        if let Some(guild) = guild {
            let count = self.writes_in_flight.entry(guild).or_default();
            overlapped = *count > 0;
            *count += 1;
        }
        self.score.overlaps += u64::from(overlapped);
        PendingWrite { guild, arrived, overlapped }
    }

    /// Records a change. `request` is the digest of the request, if the same request would make another object.
    pub(crate) fn record_effect(
        &mut self,
        effect: &Effect,
        request: Option<RequestDigest>,
        write: &PendingWrite,
        now: At,
    ) -> Option<EffectPosition> {
        let guild = effect.guild.map_or_else(|| "-".to_owned(), |guild| guild.to_string());
        if effect.verb == Verb::Create && self.name_count < MAX_NAMES {
            let names = self.score.created.entry(guild.clone()).or_default();
            let count = names.entry(format!("{} {}", effect.kind, effect.name)).or_default();
            *count += 1;
            self.name_count += usize::from(*count == 1);
        }
        match (effect.verb, request) {
            (Verb::Create, Some(request)) => {
                self.score.duplicates += u64::from(self.originals.add(effect.object, request));
            }
            (Verb::Delete, _) => {
                self.originals.remove(effect.object);
                effect.removed.iter().for_each(|object| self.originals.remove(*object));
            }
            (Verb::Create, None) | (Verb::Update, _) => {}
        }
        if self.effect_count >= self.max_effects {
            self.score.effects_not_kept += 1;
            return None;
        }
        self.effect_count += 1;
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
        Some(EffectPosition { guild, index: list.len() - 1 })
    }

    /// Finishes a write; `responded_at` is when its response was sent, if it was.
    pub(crate) fn finish_write(
        &mut self,
        write: &PendingWrite,
        position: Option<&EffectPosition>,
        responded_at: Option<At>,
    ) {
        if let Some(guild) = write.guild
            && let Some(count) = self.writes_in_flight.get_mut(&guild)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.writes_in_flight.remove(&guild);
            }
        }
        if let Some(position) = position
            && let Some(effect) =
                self.score.effects.get_mut(&position.guild).and_then(|list| list.get_mut(position.index))
        {
            effect.answered = responded_at;
        }
    }

    /// The score so far, without the parts that are counted elsewhere: interactions, gateway and bans.
    pub(crate) fn score(&self) -> Score {
        self.score.clone()
    }

    /// Resets the score; writes in flight stay in flight.
    pub(crate) fn reset(&mut self) {
        let writes_in_flight = std::mem::take(&mut self.writes_in_flight);
        *self = Self { writes_in_flight, ..Self::new(self.max_effects) };
    }

    fn route_score(&mut self, route: &str) -> &mut RouteScore {
        if !self.score.routes.contains_key(route) {
            self.score.routes.insert(route.to_owned(), RouteScore::default());
        }
        self.score.routes.get_mut(route).expect("invariant: it was inserted above")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::call::Repetition;

    const BOT: Credential = Credential::Application(Snowflake::new(9));
    const GUILD: Option<Snowflake> = Some(Snowflake::new(1));

    fn at(micros: u64) -> At {
        At::from_micros(micros)
    }

    fn role(name: &str) -> Effect {
        Effect::new_object("role", GUILD, Snowflake::new(5), name)
    }

    fn record(counters: &mut ScoreCounters, effect: &Effect, request: u64) {
        let request = (effect.repetition == Repetition::Duplicates).then_some(RequestDigest(request));
        let write = counters.start_write(effect.guild, at(0));
        let position = counters.record_effect(effect, request, &write, at(1));
        counters.finish_write(&write, position.as_ref(), Some(at(2)));
    }

    #[test]
    fn max_per_second_is_exact_to_the_microsecond() {
        let mut counters = ScoreCounters::new(10);
        for micros in [0, 500_000, 999_999, 1_000_000] {
            counters.record_request(BOT, "GET /x", false, at(micros));
        }
        assert_eq!(counters.score().max_per_second["9"], 3, "0 and 1,000,000 are a second apart, so not in one second");
        counters.record_request(BOT, "GET /x", true, at(1_000_001));
        assert_eq!(counters.score().max_per_second["9"], 3, "an exempt request is not counted");
    }

    #[test]
    fn second_object_of_a_request_is_a_duplicate() {
        let mut counters = ScoreCounters::new(10);
        for (object, name, request) in [(5, "Elder", 1), (6, "Elder", 1), (7, "Baker", 2), (8, "Elder", 3)] {
            record(&mut counters, &Effect { object: Snowflake::new(object), ..role(name) }, request);
        }
        let score = counters.score();
        assert_eq!((score.duplicates, score.overlaps), (1, 0));
        assert_eq!(score.created["1"]["role Elder"], 3);
        assert_eq!(score.effects["1"][2].answered, Some(at(2)));
    }

    #[test]
    fn object_created_again_after_its_deletion_is_no_duplicate() {
        let mut counters = ScoreCounters::new(10);
        let message = |object| Effect::new_object("message", GUILD, Snowflake::new(object), "hi");
        record(&mut counters, &message(5), 1);
        record(&mut counters, &Effect::new(Verb::Delete, "message", GUILD, Snowflake::new(5), "hi"), 2);
        record(&mut counters, &message(6), 1);
        let bulk = Effect::new(Verb::Delete, "messages", GUILD, Snowflake::new(4), "1");
        record(&mut counters, &bulk.with_removed(vec![Snowflake::new(6)]), 3);
        record(&mut counters, &message(7), 1);
        assert_eq!(counters.score().duplicates, 0);
        record(&mut counters, &message(8), 1);
        assert_eq!((counters.score().duplicates, counters.score().created["1"]["message hi"]), (1, 4));
    }

    #[test]
    fn object_named_by_its_request_is_no_duplicate() {
        let mut counters = ScoreCounters::new(10);
        for interaction in [5, 6] {
            let answer = Effect::new(Verb::Create, "interaction", GUILD, Snowflake::new(interaction), "pong");
            record(&mut counters, &answer, 1);
        }
        assert_eq!((counters.score().duplicates, counters.score().created["1"]["interaction pong"]), (0, 2));
    }

    #[test]
    fn only_concurrent_writes_of_one_guild_overlap() {
        let mut counters = ScoreCounters::new(10);
        let first = counters.start_write(Some(Snowflake::new(1)), at(0));
        let other = counters.start_write(Some(Snowflake::new(2)), at(1));
        let second = counters.start_write(Some(Snowflake::new(1)), at(2));
        assert_eq!(counters.score().overlaps, 1);
        for write in [first, other, second] {
            counters.finish_write(&write, None, None);
        }
        let third = counters.start_write(Some(Snowflake::new(1)), at(3));
        assert_eq!(counters.score().overlaps, 1);
        counters.finish_write(&third, None, None);
    }

    #[test]
    fn effects_beyond_the_bound_are_only_counted() {
        let mut counters = ScoreCounters::new(1);
        let write = counters.start_write(None, at(0));
        assert!(counters.record_effect(&role("a"), None, &write, at(1)).is_some());
        assert!(counters.record_effect(&role("b"), None, &write, at(1)).is_none());
        assert_eq!(counters.score().effects_not_kept, 1);
        counters.finish_write(&write, None, None);
    }
}
