//! Configuration of a simulator.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::LimitConfig;

/// Settings of a simulator. The default is a small, faithful Discord on a free port.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Address to listen on; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Seed of everything random, so that runs are repeatable.
    pub seed: u64,
    /// The bots that can log in. At least one is required.
    pub bots: Vec<BotConfig>,
    /// Number of guilds at the start; every bot is in all of them.
    pub guilds: u32,
    /// Members of each of those guilds, in addition to its owner and the bots.
    pub members: u32,
    /// Text channels of each of those guilds.
    pub channels: u32,
    /// Rate limits.
    pub limits: LimitConfig,
    /// The gateway's settings.
    pub gateway: GatewayConfig,
    /// Time until which an interaction needs its first response.
    pub interaction_deadline: Duration,
    /// Lifetime of an interaction's token.
    pub interaction_token_life: Duration,
    /// How long `enforce_nonce` finds the first message.
    pub nonce_window: Duration,
    /// Largest request body; Discord's own limit is of this order of magnitude.
    pub max_body: usize,
    /// Maximum number of open connections; further ones get a 503 and are closed.
    pub max_connections: usize,
    /// How long a connection may be silent before its first request, between requests, or within one.
    pub idle_timeout: Duration,
    /// Number of effects that the score stores in full; further ones are only counted.
    pub max_effects: usize,
    /// Messages stored in a channel; the oldest are removed first.
    pub max_messages: usize,
    /// Maximum size of all attachments in memory, in bytes; the files of the oldest are removed first.
    pub max_attachment_bytes: usize,
    /// Whether REST calls need a `User-Agent` of the form `DiscordBot (url, version)`. Discord documents it as required,
    /// and accepts others from some libraries; the score counts those in any case.
    pub require_user_agent: bool,
    /// Whether it serves HTTPS and secure WebSockets, with a generated certificate.
    pub tls: bool,
    /// How many seconds Discord's clock is ahead of this machine's; negative if it is behind. Ids, timestamps and the
    /// `Date` of REST responses have its time.
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
            max_attachment_bytes: 64 * 1024 * 1024,
            require_user_agent: false,
            tls: false,
            clock_ahead_s: 0,
        }
    }
}

/// A bot that can log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BotConfig {
    /// Its token, without `Bot ` in front.
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
    /// Heartbeat interval in HELLO.
    pub heartbeat_interval: Duration,
    /// A connection without a heartbeat for this many intervals is closed; Discord's own tolerance is unknown.
    pub missed_heartbeats: u32,
    /// Shards that `/gateway/bot` recommends.
    pub shards: u32,
    /// IDENTIFYs per five seconds; also the number of identify buckets.
    pub max_concurrency: u32,
    /// The time window of `max_concurrency`; five seconds on Discord.
    pub identify_window: Duration,
    /// IDENTIFYs per day.
    pub session_starts: u32,
    /// Events stored for a RESUME, and events waiting to be sent; a session whose reader is further behind is ended.
    pub replay_events: usize,
    /// How long a session outlives its connection.
    pub session_life: Duration,
    /// Frames that a connection may send per minute.
    pub sends_per_minute: u32,
    /// Whether `compress=zlib-stream` is supported; if not, such connections get text frames.
    pub compression: bool,
    /// Whether bots may request the privileged intents, and whether the flags of their applications show them; if not,
    /// such an IDENTIFY is closed with 4014.
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
