//! What a simulator is started with.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::LimitConfig;

/// Everything that can be set before the start. The default is a small, faithful Discord on a free port.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Where to listen; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Seed of everything that is left to chance, so that a run repeats.
    pub seed: u64,
    /// The bots that may log in. There must be at least one.
    pub bots: Vec<BotConfig>,
    /// Guilds made at the start, with every bot in them.
    pub guilds: u32,
    /// Members of each of those guilds, beside owner and bots.
    pub members: u32,
    /// Text channels of each of those guilds.
    pub channels: u32,
    /// Rate limits.
    pub limits: LimitConfig,
    /// The gateway's settings.
    pub gateway: GatewayConfig,
    /// How long an interaction may go without a first response.
    pub interaction_deadline: Duration,
    /// How long an interaction's token lives.
    pub interaction_token_life: Duration,
    /// How long `enforce_nonce` finds the first message again.
    pub nonce_window: Duration,
    /// Largest request body; Discord's own limit is of this order.
    pub max_body: usize,
    /// Connections held at once; more are answered with a 503 and closed.
    pub max_connections: usize,
    /// How long a connection may be silent before its first request, between requests, or within one.
    pub idle_timeout: Duration,
    /// How many effects the score keeps in full; past it they are only counted.
    pub max_effects: usize,
    /// Messages kept in a channel; the oldest go first.
    pub max_messages: usize,
    /// How many seconds Discord's clock is ahead of this machine's; behind it, if negative. Ids, timestamps and the `Date` of
    /// REST answers have its time.
    pub clock_ahead_s: i64,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            seed: 1,
            bots: vec![BotConfig::default()],
            guilds: 1,
            members: 3,
            channels: 2,
            limits: LimitConfig::default(),
            gateway: GatewayConfig::default(),
            interaction_deadline: Duration::from_secs(3),
            interaction_token_life: Duration::from_secs(15 * 60),
            nonce_window: Duration::from_secs(5 * 60),
            max_body: 10 * 1024 * 1024,
            max_connections: 16_384,
            idle_timeout: Duration::from_secs(60),
            max_effects: 1_000_000,
            max_messages: 10_000,
            clock_ahead_s: 0,
        }
    }
}

/// A bot that may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BotConfig {
    /// Its token, without the `Bot ` in front.
    pub token: String,
    /// Its user name.
    pub name: String,
}

impl Default for BotConfig {
    fn default() -> Self {
        Self { token: "sim-bot-token".into(), name: "guildhall".into() }
    }
}

/// The gateway's settings.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// What HELLO tells clients to heartbeat at.
    pub heartbeat_interval: Duration,
    /// A connection that has not heartbeaten for this many intervals is closed; Discord's own grace is unknown.
    pub missed_heartbeats: u32,
    /// Shards that `/gateway/bot` recommends.
    pub shards: u32,
    /// IDENTIFYs per five seconds, in as many buckets.
    pub max_concurrency: u32,
    /// The five seconds of `max_concurrency`.
    pub identify_window: Duration,
    /// IDENTIFYs a day.
    pub session_starts: u32,
    /// Events kept for a RESUME, and waiting to be sent; a reader further behind loses its session.
    pub replay_events: usize,
    /// How long a session outlives its connection.
    pub session_life: Duration,
    /// Sends that a connection may make per minute.
    pub sends_per_minute: u32,
    /// Whether `compress=zlib-stream` is honoured; if not, text frames are sent all the same.
    pub compression: bool,
    /// Whether bots may ask for the privileged intents, and their application's flags say so; if not, such an IDENTIFY is
    /// closed with 4014.
    pub privileged_intents: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(41_250),
            missed_heartbeats: 2,
            shards: 1,
            max_concurrency: 1,
            identify_window: Duration::from_secs(5),
            session_starts: 1_000,
            replay_events: 65_536,
            session_life: Duration::from_secs(180),
            sends_per_minute: 120,
            compression: true,
            privileged_intents: true,
        }
    }
}
