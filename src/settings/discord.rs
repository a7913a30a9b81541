//! Settings of the connection to Discord, and of REST calls.

use std::time::Duration;

use guildhall_core::{breaker::BreakerConfig, invalid::InvalidConfig, limit::LimitConfig};

use super::{
    declare::settings,
    kind::{self, Bool, HTTP_URL, Integer, NAME, Optional, Text},
    secret::SecretValue,
};

settings! {
    /// Connection to Discord, and the bot's token.
    #[derive(Clone, Debug)]
    pub struct DiscordSettings in "discord" {
        /// The bot's token, without a leading `Bot `; `serve` needs one. Do not store it in the settings file: use the
        /// environment or `discord.token_file`.
        #[reloadable]
        pub token: Option<SecretValue> = kind::secret(kind::token, "letters, digits, `.`, `_` and `-`");
        /// URL of Discord's REST API.
        pub api_url: String = HTTP_URL, "https://discord.com/api/v10";
        /// URL of the gateway. Empty: the one that `GET /gateway/bot` returns.
        pub gateway_url: Option<String> = Optional(GATEWAY_URL), "";
    }

    /// Settings of REST calls.
    #[derive(Clone, Debug)]
    pub struct RestSettings in "rest" {
        /// How long a REST call may wait for a connection to Discord, including TLS, in milliseconds. A call without a
        /// connection was never sent.
        pub connect_timeout as "connect_timeout_ms": Duration = Integer(1..=600_000), 3000;
        /// How long a REST call may take in total, in milliseconds. After that the outcome of the call is unknown.
        pub request_timeout as "request_timeout_ms": Duration = Integer(1..=600_000), 15000;
        /// Maximum size of the response to a REST call, in bytes.
        pub max_response_bytes: usize = Integer(1_024..=1_073_741_824), 16777216;
        /// How long an unused connection to Discord's REST API stays open, in milliseconds.
        pub pool_idle as "pool_idle_ms": Duration = Integer(1..=3_600_000), 30000;
        /// Whether REST calls have the header `traceparent`, for a proxy between Guildhall and Discord that records
        /// traces. Discord itself ignores it.
        pub traceparent: bool = Bool, false;
    }

    /// Rate limits, breakers and the budget of invalid requests.
    #[derive(Clone, Debug)]
    pub struct GateSettings {
        /// Rate limits.
        pub limits: LimitConfig;
        /// Circuit breakers.
        pub breakers: BreakerConfig;
        /// The budget of invalid requests.
        pub invalid: InvalidConfig;
    }

    impl LimitConfig in "limits" {
        /// Calls to Discord in any second, for each credential. Raise it only if Discord granted the bot more.
        pub global: u32 = Integer(1..=10_000), 50;
        /// Added to the global window, for differences between clocks, in milliseconds.
        pub margin as "margin_ms": Duration = Integer(0..=10_000), 10;
        /// How much longer than a window a new process makes no call, in milliseconds: calls of the previous process may
        /// still be in flight.
        pub settling as "settling_ms": Duration = Integer(0..=60_000), 500;
        /// Whether interaction endpoints are exempt from the global limit, as they are at Discord.
        pub interactions_exempt: bool = Bool, true;
        /// Maximum number of calls that wait for a permit. More are rejected with the time of a retry.
        pub max_waiters as "max_waiting": usize = Integer(1..=1_000_000), 10000;
        /// Maximum number of rate limit buckets in memory. Idle ones are removed first.
        pub max_buckets: usize = Integer(16..=10_000_000), 100000;
        pub request_timeout: Duration => |values| RestSettings::read(values).request_timeout;
    }

    impl BreakerConfig in "breaker" {
        /// Consecutive failures after which a breaker opens.
        pub failures_in_row: u32 = Integer(1..=1000), 5;
        /// Time window for a breaker's percentages of failed and slow calls, in milliseconds.
        pub window as "window_ms": Duration = Integer(100..=3_600_000), 30000;
        /// Minimum number of calls within that window before a percentage can open a breaker.
        pub min_calls: u32 = Integer(1..=100_000), 20;
        /// Percentage of failed calls that opens a breaker.
        pub failure_percent: u32 = Integer(1..=100), 50;
        /// A call that takes longer is slow, in milliseconds.
        pub slow_call as "slow_call_ms": Duration = Integer(1..=600_000), 5000;
        /// Percentage of slow calls that opens a breaker.
        pub slow_percent: u32 = Integer(1..=100), 80;
        /// How long a breaker stays open before it permits probes, in milliseconds. Doubles with each failed attempt.
        pub cooldown as "cooldown_ms": Duration = Integer(1..=3_600_000), 30000;
        /// Maximum time that a breaker stays open before it permits probes, in milliseconds.
        pub max_cooldown as "max_cooldown_ms": Duration = Integer(1..=86_400_000), 300000;
    }

    impl InvalidConfig in "invalid_requests" {
        /// Invalid requests (401, 403, 429) in ten minutes that the thresholds are percentages of. Discord bans at
        /// 10,000.
        pub limit: u32 = Integer(1..=10_000), 10000;
        /// Maximum share of `invalid_requests.limit` that one API key, tenant or guild may use, in percent. A hard
        /// limit: beyond it, only its own calls wait. The admin key and handlers are limited by guild only.
        pub share_percent as "share": u32 = Integer(1..=100), 25;
    }

    /// Settings that processes with the same address share.
    #[derive(Clone, Debug)]
    pub struct EgressSettings in "egress" {
        /// Processes that reach Discord from one address share a budget of invalid requests. Give processes behind
        /// another address another name.
        pub ip_group: String = NAME, "default";
    }
}

const GATEWAY_URL: Text<String> =
    Text::new(|text| kind::url(text, ["wss", "ws"]), "a ws or wss URL without user name, password, query or fragment");
