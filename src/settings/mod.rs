//! Settings: read once, validated together, passed on as small typed structs.
//!
//! ```text
//! defaults  <  config/guildhall.toml  <  GUILDHALL__SECTION__NAME  <  flags
//!     └──────────────┴───── one schema table ─────┴──────────────────────┘
//!                              │ all errors at once, each with its origin
//!                              ▼
//!                          Settings
//! ```

mod api;
mod budgets;
mod error;
mod gateway;
mod handlers;
mod network;
mod operations;
mod public_key;
mod redis;
mod redis_url;
mod resolve;
mod schema;
mod secret;
mod source;
mod store;
mod store_url;
mod telemetry;
mod template;
#[cfg(test)]
mod tests;
mod value;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use guildhall_core::{breaker::BreakerConfig, invalid::InvalidConfig, limit::LimitConfig};
use url::Url;

pub use self::{
    api::{ApiSettings, ForwardedHeader, PolicySettings, TlsSettings},
    budgets::{BudgetSettings, NamedBudget, NamedBudgetError},
    error::{SettingsError, SettingsProblem},
    gateway::{GatewaySettings, ShardRange, ShardRangeError},
    handlers::{HandlerSettings, InteractionSettings},
    network::{IpNetwork, IpNetworkError},
    operations::{OperationSettings, RetentionSettings},
    public_key::{PublicKey, PublicKeyError},
    redis::RedisSettings,
    redis_url::{RedisNode, RedisTarget, RedisUrl, RedisUrlError},
    secret::SecretValue,
    source::{Flag, SettingOrigin},
    store::{LeaseSettings, RowSecurityMode, RowSecuritySettings, StoreSettings},
    store_url::{StoreUrl, StoreUrlError},
    telemetry::TelemetrySettings,
    template::template,
};
pub(crate) use self::{public_key::from_hex, schema::env_name as environment_name};
use self::{resolve::Effective, source::Layer, value::Value};

/// Path of the settings file if none is given. It may be missing.
pub const DEFAULT_FILE: &str = "config/guildhall.toml";

/// All settings, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connection to Discord, and the bot's token.
    pub discord: DiscordSettings,
    /// Settings of the gateway.
    pub gateway: GatewaySettings,
    /// Settings of REST calls.
    pub rest: RestSettings,
    /// Rate limits, breakers and the budget of invalid requests.
    pub gate: GateSettings,
    /// The Redis that the processes of one bot share.
    pub redis: RedisSettings,
    /// Execution and retention of operations.
    pub operations: OperationSettings,
    /// Event handlers.
    pub handlers: HandlerSettings,
    /// Interactions.
    pub interactions: InteractionSettings,
    /// Named budgets of other upstreams.
    pub budgets: BudgetSettings,
    /// Settings that processes with the same address share.
    pub egress: EgressSettings,
    /// The store.
    pub store: StoreSettings,
    /// The listener for health, metrics and the API.
    pub api: ApiSettings,
    /// Logging.
    pub log: LogSettings,
    /// Export of traces.
    pub telemetry: TelemetrySettings,
    /// Shutdown of the process.
    pub shutdown: ShutdownSettings,
}

impl Settings {
    /// Returns everything that no log line may contain.
    #[must_use]
    pub fn secrets(&self) -> Vec<SecretValue> {
        let redis = self.redis.url.iter().flat_map(|url| [&url.username, &url.password]);
        let own = self.discord.token.iter().chain(&self.api.admin_key);
        redis
            .flatten()
            .chain(own)
            .cloned()
            .chain(self.store.url.secrets())
            .chain(self.store.direct_url.iter().flat_map(StoreUrl::secrets))
            .chain(telemetry::secrets(&self.telemetry.otlp_headers))
            .collect()
    }
}

/// Connection to Discord, and the bot's token.
#[derive(Clone, Debug)]
pub struct DiscordSettings {
    /// The bot's token; needed only to connect to Discord.
    pub token: Option<SecretValue>,
    /// URL of the REST API, without a trailing slash.
    pub api_url: String,
    /// URL of the gateway, without a trailing slash; `None` means Discord's own.
    pub gateway_url: Option<String>,
}

/// Settings of REST calls.
#[derive(Clone, Debug)]
pub struct RestSettings {
    /// How long a call may wait for a connection, including TLS.
    pub connect_timeout: Duration,
    /// How long a call may take in total.
    pub request_timeout: Duration,
    /// Maximum size of a response.
    pub max_response_bytes: usize,
    /// How long an unused connection stays open.
    pub pool_idle: Duration,
    /// Whether calls have the header `traceparent`.
    pub traceparent: bool,
}

/// Rate limits, breakers and the budget of invalid requests.
#[derive(Clone, Debug)]
pub struct GateSettings {
    /// Rate limits.
    pub limits: LimitConfig,
    /// Circuit breakers.
    pub breakers: BreakerConfig,
    /// The budget of invalid requests.
    pub invalid: InvalidConfig,
}

/// Settings that processes with the same address share.
#[derive(Clone, Debug)]
pub struct EgressSettings {
    /// The name of that address: letters, digits, `.`, `_` and `-`.
    pub ip_group: String,
}

/// Logging.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Format of log lines.
    pub format: LogFormat,
    /// Which lines are written: `tracing` directives, validated.
    pub filter: String,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    Auto,
    /// Human-readable.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Shutdown of the process.
#[derive(Clone, Debug)]
pub struct ShutdownSettings {
    /// Timeout of the whole shutdown.
    pub timeout: Duration,
    /// How long the API still accepts new requests.
    pub delay: Duration,
}

/// Sources of values.
#[derive(Debug, Default)]
pub struct SettingsSources {
    /// The file that was named. It must exist.
    pub file: Option<PathBuf>,
    /// The environment, as `std::env::vars_os` returns it.
    pub environment: Vec<(OsString, OsString)>,
    /// Settings from the command line.
    pub flags: Vec<Flag>,
}

/// A setting whose value has changed.
#[derive(Clone, Debug)]
pub struct SettingChange {
    /// The setting, as a dotted path.
    pub key: &'static str,
    /// The old value, as `config check` displays it.
    pub old: serde_json::Value,
    /// The new value.
    pub new: serde_json::Value,
    /// Whether a reload applies it.
    pub reloads: bool,
}

/// The settings, and where each came from.
#[derive(Clone)]
pub struct LoadedSettings {
    /// The typed settings.
    pub settings: Settings,
    effective: Vec<Effective>,
}

/// One line of the output of `config check`.
#[derive(Clone, Debug)]
pub struct EffectiveSetting {
    /// The setting, as a dotted path.
    pub key: &'static str,
    /// Its value; `null` if it has none, a placeholder if it is a secret.
    pub value: serde_json::Value,
    /// Where the value came from.
    pub origin: String,
}

impl LoadedSettings {
    /// Whether a setting has its default because it was not set. `key` is a dotted path.
    pub fn is_default(&self, key: &str) -> bool {
        self.effective.iter().any(|setting| setting.key.path == key && setting.origin == SettingOrigin::Default)
    }

    /// Returns the settings that a reload applies, as dotted paths.
    pub fn reloadable() -> impl Iterator<Item = &'static str> {
        schema::SCHEMA.iter().filter(|key| key.reloads()).map(|key| key.path)
    }

    /// Returns all settings that have another value in `new`.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Vec<SettingChange> {
        let redacted = |value: &Option<Value>| value.as_ref().map_or(serde_json::Value::Null, Value::to_redacted_json);
        let pairs = self.effective.iter().map(|old| (old, of(&new.effective, old.key.path)));
        let changed = pairs.filter(|(old, new)| match (&old.value, &new.value) {
            (Some(old), Some(new)) => !old.equals(new),
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
        });
        let change = |(old, new): (&Effective, &Effective)| SettingChange {
            key: old.key.path,
            old: redacted(&old.value),
            new: redacted(&new.value),
            reloads: old.key.reloads(),
        };
        changed.map(change).collect()
    }

    /// Returns all effective settings, with secrets redacted.
    pub fn effective_settings(&self) -> Vec<EffectiveSetting> {
        self.effective
            .iter()
            .map(|setting| EffectiveSetting {
                key: setting.key.path,
                value: setting.value.as_ref().map_or(serde_json::Value::Null, Value::to_redacted_json),
                origin: match &setting.secret_file {
                    Some(path) => format!("{}, read from {path}", setting.origin),
                    None => setting.origin.to_string(),
                },
            })
            .collect()
    }
}

/// Reads, merges and validates all settings.
///
/// # Errors
///
/// Returns all errors at once. No message contains a secret.
pub fn load(sources: SettingsSources) -> Result<LoadedSettings, SettingsError> {
    let layers = vec![
        file_layer(sources.file.as_deref()),
        source::from_environment(sources.environment),
        source::from_flags(sources.flags),
    ];
    let (effective, mut problems) = resolve::resolve(layers);
    problems.extend(api::check(&effective));
    problems.extend(gateway::check(&effective));
    problems.extend(redis::check(&effective));
    problems.extend(store::check(&effective));
    problems.extend(budgets::check(&effective));
    problems.extend(telemetry::check(&effective));
    problems.extend(operations::check(&effective));
    if problems.is_empty() {
        Ok(LoadedSettings { settings: typed(&effective), effective })
    } else {
        Err(SettingsError { problems })
    }
}

fn file_layer(named: Option<&Path>) -> Layer {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => source::from_file(path, &text),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Layer::default(),
        Err(error) => Layer {
            problems: vec![SettingsProblem {
                key: path.display().to_string(),
                origin: None,
                message: format!("cannot be read: {error}"),
            }],
            ..Layer::default()
        },
    }
}

fn of<'a>(effective: &'a [Effective], path: &str) -> &'a Effective {
    effective
        .iter()
        .find(|setting| setting.key.path == path)
        .expect("invariant: resolving returns every setting of the schema")
}

/// Takes a value out of the table, with the type of its kind.
macro_rules! take {
    ($effective:expr, $path:literal, $variant:ident) => {
        match &of($effective, $path).value {
            Some(Value::$variant(value)) => value.clone(),
            other => unreachable!("invariant: {} has the kind that the schema declares, not {other:?}", $path),
        }
    };
}
use take;

fn secret(effective: &[Effective], path: &str) -> Option<SecretValue> {
    match &of(effective, path).value {
        Some(Value::Secret(secret)) => Some(secret.clone()),
        _ => None,
    }
}

fn typed(effective: &[Effective]) -> Settings {
    let url = |url: Option<Url>| url.map(|url| value::url_text(&url).to_owned());
    let narrow = "invariant: the schema's bounds fit the type";
    Settings {
        discord: DiscordSettings {
            token: secret(effective, "discord.token"),
            api_url: url(take!(effective, "discord.api_url", Url)).expect("invariant: this URL is not optional"),
            gateway_url: url(take!(effective, "discord.gateway_url", Url)),
        },
        gateway: gateway::typed(effective),
        rest: RestSettings {
            connect_timeout: Duration::from_millis(take!(effective, "rest.connect_timeout_ms", Integer)),
            request_timeout: Duration::from_millis(take!(effective, "rest.request_timeout_ms", Integer)),
            max_response_bytes: take!(effective, "rest.max_response_bytes", Integer).try_into().expect(narrow),
            pool_idle: Duration::from_millis(take!(effective, "rest.pool_idle_ms", Integer)),
            traceparent: take!(effective, "rest.traceparent", Bool),
        },
        gate: GateSettings {
            limits: LimitConfig {
                global: take!(effective, "limits.global", Integer).try_into().expect(narrow),
                margin: Duration::from_millis(take!(effective, "limits.margin_ms", Integer)),
                settling: Duration::from_millis(take!(effective, "limits.settling_ms", Integer)),
                interactions_exempt: take!(effective, "limits.interactions_exempt", Bool),
                max_waiters: take!(effective, "limits.max_waiting", Integer).try_into().expect(narrow),
                max_buckets: take!(effective, "limits.max_buckets", Integer).try_into().expect(narrow),
                request_timeout: Duration::from_millis(take!(effective, "rest.request_timeout_ms", Integer)),
                ..LimitConfig::default()
            },
            breakers: BreakerConfig {
                failures_in_row: take!(effective, "breaker.failures_in_row", Integer).try_into().expect(narrow),
                window: Duration::from_millis(take!(effective, "breaker.window_ms", Integer)),
                min_calls: take!(effective, "breaker.min_calls", Integer).try_into().expect(narrow),
                failure_percent: take!(effective, "breaker.failure_percent", Integer).try_into().expect(narrow),
                slow_call: Duration::from_millis(take!(effective, "breaker.slow_call_ms", Integer)),
                slow_percent: take!(effective, "breaker.slow_percent", Integer).try_into().expect(narrow),
                cooldown: Duration::from_millis(take!(effective, "breaker.cooldown_ms", Integer)),
                max_cooldown: Duration::from_millis(take!(effective, "breaker.max_cooldown_ms", Integer)),
                ..BreakerConfig::default()
            },
            invalid: InvalidConfig {
                limit: take!(effective, "invalid_requests.limit", Integer).try_into().expect(narrow),
                share_percent: take!(effective, "invalid_requests.share", Integer).try_into().expect(narrow),
                ..InvalidConfig::default()
            },
        },
        redis: redis::typed(effective),
        operations: operations::typed(effective),
        handlers: handlers::typed(effective),
        interactions: handlers::interactions(effective),
        budgets: budgets::typed(effective),
        egress: EgressSettings { ip_group: take!(effective, "egress.ip_group", Text) },
        api: api::typed(effective),
        store: store::typed(effective),
        log: LogSettings {
            format: match take!(effective, "log.format", Text).as_str() {
                "pretty" => LogFormat::Pretty,
                "json" => LogFormat::Json,
                _ => LogFormat::Auto,
            },
            filter: take!(effective, "log.filter", Text),
        },
        telemetry: telemetry::typed(effective),
        shutdown: ShutdownSettings {
            timeout: Duration::from_millis(take!(effective, "shutdown.timeout_ms", Integer)),
            delay: Duration::from_millis(take!(effective, "shutdown.delay_ms", Integer)),
        },
    }
}
