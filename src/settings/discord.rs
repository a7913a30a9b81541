//! Settings of the connection to Discord, and of REST calls.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::{breaker::BreakerConfig, invalid::InvalidConfig, limit::LimitConfig};
use url::Url;

use super::{
    api::TlsSettings,
    declare::settings,
    kind::{self, Bool, Choice, HTTP_URL, Integer, List, NAME, Optional, Text, ValueError},
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
        /// Whether calls to Discord use HTTP/2, if the server offers it. Fewer connections are open then, but the loss of
        /// one makes the outcome of all calls on it unknown.
        pub http2: bool = Bool, false;
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
        /// How long a webhook that Discord does not know (404, code 10015) gets no more calls, in milliseconds; 0: each
        /// call is sent. `guildhall egress clear-webhook` ends it earlier.
        pub gone_webhook_ttl as "gone_webhook_ms": Duration = Integer(0..=604_800_000), 3600000;
    }

    impl InvalidConfig in "invalid_requests" {
        /// Invalid requests (401, 403, 429) in ten minutes that the thresholds are percentages of. Discord bans at
        /// 10,000.
        pub limit: u32 = Integer(1..=10_000), 10000;
        /// Maximum share of `invalid_requests.limit` that one API key, tenant or guild may use, in percent. A hard
        /// limit: beyond it, only its own calls wait. The admin key and handlers are limited by guild only.
        pub share_percent as "share": u32 = Integer(1..=100), 25;
    }

    /// The REST proxy, and settings that processes with the same address share.
    #[derive(Clone, Debug)]
    pub struct EgressSettings in "egress" {
        /// Whether bots may make their own calls to Discord through this process (docs/egress.md).
        pub enabled: bool = Bool, false;
        /// IP address and port of the REST proxy. Port 0 selects a free port, which the log names.
        pub bind: SocketAddr = kind::address("an IP address and a port, such as 127.0.0.1:8081"), "127.0.0.1:8081";
        /// Path of a Unix socket on which the REST proxy listens as well, for processes of this user. A socket that is left
        /// of a process that has ended is replaced. Empty: none.
        pub socket: Option<PathBuf> = kind::path("the path of a socket"), "";
        /// Whether `egress.bind` may be an address that other machines can reach without TLS (`egress.tls`). Keys and tokens
        /// can then be read in transit: use it only behind a proxy that terminates TLS, or in a network without other users.
        pub allow_plaintext: bool = Bool, false;
        /// Whether calls may have no key or bot token although other machines can reach `egress.bind`, if the path
        /// contains a token: those to webhooks and interactions. On a loopback address they always may.
        pub allow_anonymous: bool = Bool, false;
        /// Whether calls may have any token of another bot or of a user (`Bearer`): Discord decides whether it is valid.
        /// Each token has limits and breakers of its own.
        pub foreign_tokens: bool = Bool, false;
        /// Files with the tokens of more bots, one in each, whose calls are accepted. Calls with the admin key use them
        /// with `X-Guildhall-Application`.
        pub bot_token_files: Vec<PathBuf> = FILES, [];
        /// How long a call waits for a permit, in milliseconds, unless it has `X-Guildhall-Deadline-Ms`. After that it is
        /// answered with 429. Bot libraries wait for 10 to 15 seconds for a response.
        pub max_wait as "max_wait_ms": Duration = Integer(0..=600_000), 5000;
        /// Maximum number of calls in progress, including those that wait for a permit. More are answered with 429.
        pub max_calls: usize = Integer(1..=100_000), 2000;
        /// The same for one key, for the bot token, or for one address without either. A caller also never has more than
        /// what it leaves to others, which alone is half of `egress.max_calls`.
        pub max_calls_per_caller: usize = Integer(1..=100_000), 1000;
        /// Maximum number of connections. For one more, the one that is idle for the longest time is closed, of the address
        /// with the most; if none is idle, the new one is rejected with a response.
        pub max_connections: usize = Integer(1..=1_000_000), 10000;
        /// The same for one address, or one /64 network of IPv6 addresses.
        pub max_connections_per_address: usize = Integer(1..=1_000_000), 5000;
        /// How long a connection may take to send the head of its next request, in milliseconds.
        pub idle_timeout as "idle_timeout_ms": Duration = Integer(1..=3_600_000), 60000;
        /// How long the body of a request may take to arrive, in milliseconds; of a body of more than 1 MiB its first part.
        pub body_timeout as "body_timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// Maximum size of a body, in bytes. Bodies of more than 1 MiB pass as they arrive; with a key that has limits, only
        /// forms with files may be that large.
        pub max_body_bytes: u64 = Integer(1_048_576..=10_737_418_240), 134217728;
        /// Minimum rate of a body of more than 1 MiB, in bytes a second, within each `egress.body_timeout_ms`. A slower one
        /// ends the call.
        pub min_upload_rate as "min_upload_bytes_per_second": u64 = Integer(1..=1_073_741_824), 16384;
        /// How long a client may read nothing of its response, in milliseconds, before the connection is closed.
        pub write_timeout as "write_timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// Minimum rate at which a client must read a response that waits for it, in bytes a second, within each
        /// `egress.write_timeout_ms`. The connection of a slower one is closed.
        pub min_download_rate as "min_download_bytes_per_second": u64 = Integer(1..=1_073_741_824), 4096;
        /// Routes of which identical `GET` calls in flight are sent once, and share the response: of the same credential,
        /// with the same path, query and headers, and without `X-Guildhall-Deadline-Ms`. They are named as in `/v1/limits`.
        /// Their responses are read whole.
        pub coalesce: Vec<String> = ROUTES, [];
        /// URL of the gateway that `GET /gateway` and `GET /gateway/bot` return through the proxy. Empty: Discord's.
        pub gateway_url: Option<String> = Optional(GATEWAY_URL), "";
        /// Behaves like another REST proxy (docs/coming-from-nirn.md). `nirn`: serves `/nirn/healthz`, writes the metrics
        /// `nirn_proxy_…`, and reads nirn-proxy's environment variables. `twilight`: writes the metric
        /// `twilight_http_proxy`.
        pub compat: EgressCompat = Choice(COMPATS), "none";
        /// Processes that reach Discord from one address share a budget of invalid requests. Give processes behind
        /// another address another name.
        pub ip_group: String = NAME, "default";
        use EgressTlsFiles;
        /// TLS files; `None` means no TLS.
        pub tls: Option<TlsSettings> => |values| {
            let EgressTlsFiles { cert_file, key_file } = EgressTlsFiles::read(values);
            cert_file.zip(key_file).map(|(cert_file, key_file)| TlsSettings { section: "egress.tls", cert_file, key_file })
        };
    }

    struct EgressTlsFiles in "egress.tls" {
        /// PEM file of the REST proxy's certificate and its intermediate certificates. With `egress.tls.key_file`,
        /// `egress.bind` uses TLS. Both files are checked every few seconds and reloaded when they change. Empty: no TLS.
        #[reloadable]
        pub cert_file: Option<PathBuf> = kind::path("the path of a file"), "";
        /// PEM file of the certificate's private key, not encrypted.
        #[reloadable]
        pub key_file: Option<PathBuf> = kind::path("the path of a file"), "";
    }
}

/// Another REST proxy whose users switch to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressCompat {
    /// None.
    None,
    /// nirn-proxy.
    Nirn,
    /// twilight's http-proxy.
    Twilight,
}

const COMPATS: &[(&str, EgressCompat)] =
    &[("none", EgressCompat::None), ("nirn", EgressCompat::Nirn), ("twilight", EgressCompat::Twilight)];

/// Token of the simulator's bot, unless `guildhall sim --token` sets another.
pub const SIMULATOR_TOKEN: &str = "sim-bot-token";

/// What the tokens of simulators start with. No token of Discord does: they start with the bot's id in base64.
const SIMULATOR_TOKEN_PREFIX: &str = "sim-";

/// Domains of Discord's REST API and gateway.
const DISCORD_DOMAINS: [&str; 3] = ["discord.com", "discordapp.com", "discord.gg"];

/// The bot's token cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BotTokenError {
    /// It is not set.
    #[error(
        "there is no bot token; set GUILDHALL__DISCORD__TOKEN, or GUILDHALL__DISCORD__TOKEN_FILE to a file that holds \
         it, or token_file under [discord] in config/guildhall.toml{}",
        WITHOUT_TOKEN
    )]
    Missing,
    /// It is a simulator's, but it would be sent to Discord.
    #[error(
        "discord.token is a simulator's token (it starts with `sim-`), but {setting} is Discord's ({url}); add \
         --sim http://127.0.0.1:PORT with the URL that `guildhall sim` prints, or set the bot's own token"
    )]
    OfSimulator {
        /// The setting with Discord's address.
        setting: &'static str,
        /// That address.
        url: String,
    },
}

/// What a program with the simulator can do without a token.
const WITHOUT_TOKEN: &str = if cfg!(feature = "simulator") { "; `guildhall demo` needs no token" } else { "" };

impl DiscordSettings {
    /// Returns the token, if it can be sent to the configured addresses.
    ///
    /// # Errors
    ///
    /// When it is not set, or is a simulator's and an address is Discord's.
    pub fn bot_token(&self) -> Result<SecretValue, BotTokenError> {
        let token = self.token.clone().ok_or(BotTokenError::Missing)?;
        if is_simulator_token(&token) {
            let addresses =
                [("discord.api_url", Some(&self.api_url)), ("discord.gateway_url", self.gateway_url.as_ref())];
            for (setting, url) in addresses {
                if let Some(url) = url.filter(|url| is_of_discord(url)) {
                    return Err(BotTokenError::OfSimulator { setting, url: url.clone() });
                }
            }
        }
        Ok(token)
    }
}

/// Reads a bot token; `None` for a text that cannot be one.
pub(crate) fn parse_bot_token(text: &str) -> Option<SecretValue> {
    kind::token(text).ok()
}

/// Whether a token is a simulator's, and none that Discord issued.
#[must_use]
pub fn is_simulator_token(token: &SecretValue) -> bool {
    token.expose().starts_with(SIMULATOR_TOKEN_PREFIX)
}

fn is_of_discord(url: &str) -> bool {
    let host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_lowercase));
    host.is_some_and(|host| {
        let host = host.trim_end_matches('.');
        DISCORD_DOMAINS
            .iter()
            .any(|domain| host.strip_suffix(domain).is_some_and(|sub| sub.is_empty() || sub.ends_with('.')))
    })
}

/// Paths of files.
const FILES: List<Vec<PathBuf>> = List {
    parse: |paths| Ok(paths.iter().map(PathBuf::from).collect()),
    display: |paths| paths.iter().map(|path| path.display().to_string()).collect(),
    allowed: "a list of paths of files",
};
const ROUTES: List<Vec<String>> = List {
    parse: routes,
    display: Clone::clone,
    allowed: "paths of routes (separated by commas in the environment), such as /channels/{id}, /guilds/{id}/roles",
};

fn routes(texts: &[&str]) -> Result<Vec<String>, ValueError> {
    let is_path = |text: &str| text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if texts.len() > MAX_ROUTES || !texts.iter().all(|text| is_path(text)) {
        return Err(ValueError::NotAllowed);
    }
    Ok(texts.iter().map(|text| (*text).to_owned()).collect())
}

/// Maximum number of routes in a list.
const MAX_ROUTES: usize = 256;

const GATEWAY_URL: Text<String> =
    Text::new(|text| kind::url(text, ["wss", "ws"]), "a ws or wss URL without user name, password, query or fragment");

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(token: &str, api_url: &str, gateway_url: Option<&str>) -> DiscordSettings {
        let (token, gateway_url) = (Some(SecretValue::new(token)), gateway_url.map(str::to_owned));
        DiscordSettings { token, api_url: api_url.to_owned(), gateway_url }
    }

    const DISCORD: &str = "https://discord.com/api/v10";
    const SIMULATOR: &str = "http://127.0.0.1:9000/api/v10";

    #[test]
    fn simulator_token_is_not_sent_to_discord() {
        for url in [DISCORD, "https://canary.discord.com/api/v10", "https://DISCORDAPP.com./api/v10"] {
            let expected = BotTokenError::OfSimulator { setting: "discord.api_url", url: url.to_owned() };
            assert_eq!(settings(SIMULATOR_TOKEN, url, None).bot_token().unwrap_err(), expected);
        }
        let gateway = settings("sim-2", SIMULATOR, Some("wss://gateway.discord.gg")).bot_token().unwrap_err();
        assert!(matches!(gateway, BotTokenError::OfSimulator { setting: "discord.gateway_url", .. }), "{gateway}");
    }

    #[test]
    fn other_tokens_and_addresses_may_be_used() {
        for (token, api_url) in [
            (SIMULATOR_TOKEN, SIMULATOR),
            (SIMULATOR_TOKEN, "https://notdiscord.com/api/v10"),
            (SIMULATOR_TOKEN, "https://discord.com.proxy.example/api/v10"),
            ("MTIzNDU2.x.y", DISCORD),
            ("MTIzNDU2.x.y", SIMULATOR),
        ] {
            assert!(settings(token, api_url, None).bot_token().is_ok(), "{token} {api_url}");
        }
        let nothing = DiscordSettings { token: None, ..settings("", SIMULATOR, None) };
        assert_eq!(nothing.bot_token().unwrap_err(), BotTokenError::Missing);
    }
}
