//! Discord's rate limits, and who uses the most of them.

use std::time::Duration;

use guildhall_actors::circuit_breaker::TopSpenders;
use guildhall_actors::gate::GateView;
use guildhall_core::{
    breaker::StateCounts,
    heavy_hitters::HeavyHitter,
    invalid::{self, HolderKind, HolderSnapshot, InvalidLedgerSnapshot},
    lane::Lane as CoreLane,
    limit::{BucketRow, CredentialView},
    response::Credential,
    spending::{Consumer, Measure},
    time::UnixMs,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{BanShareHolderKind, HeldCalls, Lane, LimitSharing, Snowflake, Time, TopMeasure};

/// The current limits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Limits {
    pub(crate) global: GlobalLimit,
    pub(crate) lanes: Vec<LaneQueue>,
    /// Number of known buckets of routes.
    pub(crate) buckets: usize,
    pub(crate) invalid_requests: InvalidRequests,
    /// Number of breakers in each state.
    pub(crate) breakers: BreakerCounts,
    /// The limit of each credential with calls since the start of this process, at most a hundred.
    pub(crate) credentials: Vec<CredentialLimit>,
    /// Number of webhooks that are known not to exist.
    pub(crate) gone_webhooks: usize,
    /// Number of tokens of callers of the REST proxy that Discord has refused.
    pub(crate) refused_tokens: usize,
}

/// The limit of the calls with one credential.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CredentialLimit {
    /// The application's id; `anonymous` for calls with no token but that in the path; or `token-` and the fingerprint of
    /// a token that a caller of the REST proxy has.
    pub(crate) credential: String,
    /// Maximum number of calls of this process in a window.
    pub(crate) limit: u32,
    /// Calls that are possible now.
    pub(crate) available: u32,
    /// Calls in flight.
    pub(crate) in_flight: u32,
    /// No calls before this time, after a global 429 or a start.
    pub(crate) blocked_until: Option<Time>,
}

/// A webhook that is no longer remembered as one that does not exist.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClearedWebhook {
    pub(crate) webhook_id: Snowflake,
    /// Number of its tokens that were remembered.
    pub(crate) cleared: usize,
}

/// The limit of all calls.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GlobalLimit {
    /// Maximum number of calls of this process in a window.
    pub(crate) limit: u32,
    /// Maximum number of calls of all processes in a window.
    pub(crate) total: u32,
    /// How the processes share the total.
    pub(crate) sharing: LimitSharing,
    /// Number of processes that share it.
    pub(crate) members: Option<u32>,
    pub(crate) window_ms: u64,
    /// Calls that are possible now.
    pub(crate) available: u32,
    /// Calls in flight.
    pub(crate) in_flight: u32,
    /// Calls that wait.
    pub(crate) waiting: usize,
    /// No calls before this time, after a global 429 or a start.
    pub(crate) blocked_until: Option<Time>,
    /// Whether other processes share it.
    pub(crate) shared: bool,
    /// How this process shares it with the others, if they share it over Redis.
    pub(crate) mode: Option<String>,
}

/// The calls of a lane.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LaneQueue {
    pub(crate) lane: Lane,
    pub(crate) waiting: usize,
}

/// Requests that count towards Discord's ban.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct InvalidRequests {
    /// Responses that count towards Discord's ban.
    pub(crate) used: u32,
    /// The maximum that Discord permits.
    pub(crate) most: u32,
    /// Length of the window.
    pub(crate) window_ms: u64,
    #[schema(minimum = 0)]
    pub(crate) ratio: f64,
    /// What is held back now.
    pub(crate) stops: Option<HeldCalls>,
    /// Whether other processes are counted together with this one.
    pub(crate) shared: bool,
    /// The guilds and routes with the most of them.
    pub(crate) spenders: Vec<RouteSpender>,
    /// What one key, tenant or guild may use of it, and the largest holders.
    pub(crate) share: BanShare,
}

/// The invalid requests of a route in a guild.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RouteSpender {
    pub(crate) guild_id: Option<Snowflake>,
    pub(crate) route: String,
    pub(crate) count: u32,
    /// Maximum overestimate of the count.
    pub(crate) over: u32,
}

/// What one key, tenant or guild may use of the permitted invalid requests.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BanShare {
    /// The share that one key, tenant or guild may use, in percent.
    pub(crate) percent: u32,
    /// The share as a number of invalid requests.
    pub(crate) most: u32,
    /// Number of holders that have used up their share.
    pub(crate) capped: usize,
    /// Calls held back by a share since this process started.
    pub(crate) held: u64,
    /// The largest holders, the largest first.
    pub(crate) holders: Vec<BanShareHolder>,
}

/// A key, a tenant or a guild with invalid requests.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BanShareHolder {
    pub(crate) by: BanShareHolderKind,
    /// The id of the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) guild_id: Option<Snowflake>,
    /// Its invalid requests in the window, in all processes as far as this one knows.
    pub(crate) used: u32,
    /// Its calls in flight in this process.
    pub(crate) in_flight: u32,
    /// Used fraction of its share.
    #[schema(minimum = 0)]
    pub(crate) ratio: f64,
    /// Whether its calls wait.
    pub(crate) capped: bool,
    /// When its calls can continue.
    pub(crate) room_at: Option<Time>,
}

/// Number of breakers in each state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BreakerCounts {
    pub(crate) closed: usize,
    pub(crate) open: usize,
    pub(crate) half_open: usize,
    pub(crate) forced_open: usize,
}

/// A page of buckets.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BucketPage {
    pub(crate) buckets: Vec<Bucket>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// A bucket of a route.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Bucket {
    /// Method and path of the calls.
    pub(crate) route: Option<String>,
    /// All routes that share the bucket.
    pub(crate) routes: Vec<String>,
    /// Discord's name of the bucket.
    pub(crate) bucket: Option<String>,
    /// The guild, channel or webhook of the bucket.
    pub(crate) id: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) left: Option<u32>,
    pub(crate) resets_at: Option<Time>,
    /// Calls that wait for the bucket.
    pub(crate) waiting: usize,
}

/// The heaviest users of the limits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Top {
    pub(crate) by: TopMeasure,
    pub(crate) since: Time,
    pub(crate) top: Vec<TopSpender>,
}

/// A heavy user of the limits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopSpender {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) guild_id: Option<Snowflake>,
    /// The caller, if it is not a guild.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) caller: Option<String>,
    pub(crate) count: u64,
    /// Maximum overestimate of the count.
    pub(crate) over: u64,
}

/// Maximum number of listed credentials: the bots first.
const MAX_CREDENTIALS: usize = 100;

impl CredentialLimit {
    fn new(view: &CredentialView, now: UnixMs) -> Self {
        Self {
            credential: view.credential.to_string(),
            limit: view.limit,
            available: view.available,
            in_flight: view.in_flight,
            blocked_until: (view.closed_ms > 0).then(|| (now + Duration::from_millis(view.closed_ms)).into()),
        }
    }
}

impl Limits {
    pub(crate) fn new(seen: &GateView, credential: Credential, now: UnixMs) -> Self {
        let limits = &seen.limits;
        // Before its first call the bot has no window of its own, and nothing is taken from it.
        let own = limits.credentials.iter().find(|view| view.credential == credential);
        let closed = own.map_or(0, |own| own.closed_ms);
        let lanes = CoreLane::ALL.iter().zip(limits.lanes);
        let sharing = match (own.is_some_and(|own| own.shared.is_some()), limits.division) {
            (true, _) => "redis",
            (false, Some(_)) => "store",
            (false, None) => "alone",
        };
        let usable = limits.division.map_or(limits.limit, |division| division.share);
        let redis = own.and_then(|own| own.shared.as_ref());
        Self {
            global: GlobalLimit {
                limit: own.map_or(usable, |own| own.limit),
                total: limits.limit,
                sharing: sharing.into(),
                members: redis.map(|shared| shared.members).or(limits.division.map(|division| division.members)),
                window_ms: limits.window_ms,
                available: own.map_or(usable, |own| own.available),
                in_flight: own.map_or(0, |own| own.in_flight),
                waiting: limits.waiting,
                blocked_until: (closed > 0).then(|| (now + Duration::from_millis(closed)).into()),
                shared: sharing != "alone",
                mode: redis.map(|shared| shared.mode.name().to_owned()),
            },
            lanes: lanes.map(|(lane, waiting)| LaneQueue { lane: lane.name().into(), waiting }).collect(),
            buckets: limits.known,
            invalid_requests: InvalidRequests::new(&seen.breakers.invalid_requests, now),
            breakers: seen.breakers.breakers.states.into(),
            credentials: limits
                .credentials
                .iter()
                .take(MAX_CREDENTIALS)
                .map(|view| CredentialLimit::new(view, now))
                .collect(),
            gone_webhooks: seen.breakers.breakers.gone_webhooks,
            refused_tokens: seen.breakers.breakers.refused_tokens,
        }
    }
}

impl InvalidRequests {
    fn new(ledger: &InvalidLedgerSnapshot, now: UnixMs) -> Self {
        let stops = match ledger.used {
            used if used >= ledger.thresholds.interactive => Some("everything"),
            used if used >= ledger.thresholds.operation => Some("all_but_interactive"),
            used if used >= ledger.thresholds.background => Some("background"),
            _ => None,
        };
        let share = &ledger.share;
        Self {
            used: ledger.used,
            most: ledger.limit,
            window_ms: ledger.window_seconds * 1_000,
            ratio: ledger.ratio,
            stops: stops.map(HeldCalls::from),
            shared: ledger.shared.is_some(),
            spenders: ledger.top_spenders.iter().map(RouteSpender::from).collect(),
            share: BanShare {
                percent: share.percent,
                most: share.cap,
                capped: share.capped,
                held: share.held,
                holders: share.holders.iter().map(|holder| BanShareHolder::new(holder, now)).collect(),
            },
        }
    }
}

impl From<&invalid::Spender> for RouteSpender {
    fn from(spender: &invalid::Spender) -> Self {
        Self {
            guild_id: spender.guild.map(Snowflake::from),
            route: spender.route.as_str().to_owned(),
            count: spender.count,
            over: spender.error,
        }
    }
}

impl BanShareHolder {
    fn new(holder: &HolderSnapshot, now: UnixMs) -> Self {
        let id = |kind: HolderKind| (holder.by == kind).then(|| holder.id.clone());
        Self {
            by: holder.by.name().into(),
            key: id(HolderKind::Key),
            tenant: id(HolderKind::Tenant),
            guild_id: id(HolderKind::Guild).map(Snowflake::from),
            used: holder.used,
            in_flight: holder.in_flight,
            ratio: holder.ratio,
            capped: holder.capped,
            room_at: holder.room_in_ms.map(|room| (now + Duration::from_millis(room)).into()),
        }
    }
}

impl From<StateCounts> for BreakerCounts {
    fn from(StateCounts { closed, open, half_open, forced_open }: StateCounts) -> Self {
        Self { closed, open, half_open, forced_open }
    }
}

impl Bucket {
    pub(crate) fn new(row: &BucketRow, now: UnixMs) -> Self {
        let id = row.major.id();
        let routes: Vec<_> = row.routes.iter().map(|route| route.as_str().to_owned()).collect();
        Self {
            route: routes.first().cloned(),
            routes,
            bucket: row.bucket.clone(),
            id: (id != 0).then(|| id.to_string()),
            limit: row.limit,
            left: row.left,
            resets_at: row.resets_in.map(|wait| (now + wait).into()),
            waiting: row.waiting,
        }
    }
}

impl Top {
    pub(crate) fn new(by: Measure, TopSpenders { top, period }: &TopSpenders, now: UnixMs) -> Self {
        let spender = |HeavyHitter { key, count, over }: &HeavyHitter<Consumer>| {
            let (guild_id, caller) = match key {
                Consumer::Guild(guild) => (Some((*guild).into()), None),
                Consumer::Application => (None, Some("application".to_owned())),
            };
            TopSpender { guild_id, caller, count: *count, over: *over }
        };
        Self { by: by.name().into(), since: now.before(*period).into(), top: top.iter().map(spender).collect() }
    }
}
