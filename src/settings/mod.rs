//! Settings: read once, checked together, passed down as small typed structs.
//!
//! ```text
//! defaults  <  config/guildhall.toml  <  GUILDHALL__SECTION__NAME  <  flags
//!     └──────────────┴───── one schema table ─────┴──────────────────────┘
//!                              │ every error at once, each with its origin
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

/// Where the settings file is looked for when nobody names one. It may be missing.
pub const DEFAULT_FILE: &str = "config/guildhall.toml";

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to reach Discord, and as whom.
    pub discord: DiscordSettings,
    /// What the gateway connection asks for.
    pub gateway: GatewaySettings,
    /// How REST calls are sent.
    pub rest: RestSettings,
    /// Rate limits, breakers and the budget of invalid requests.
    pub gate: GateSettings,
    /// How processes that share one bot meet.
    pub redis: RedisSettings,
    /// How operations are carried out.
    pub operations: OperationSettings,
    /// What is done with events.
    pub handlers: HandlerSettings,
    /// What becomes of interactions.
    pub interactions: InteractionSettings,
    /// Named budgets of other upstreams.
    pub budgets: BudgetSettings,
    /// What processes that reach Discord from one address share.
    pub egress: EgressSettings,
    /// Where everything is kept.
    pub store: StoreSettings,
    /// The listener for health, metrics and the API.
    pub api: ApiSettings,
    /// What is logged, and how.
    pub log: LogSettings,
    /// Where traces go.
    pub telemetry: TelemetrySettings,
    /// How the process ends.
    pub shutdown: ShutdownSettings,
}

impl Settings {
    /// Everything that no log line may hold.
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

/// How to reach Discord, and as whom.
#[derive(Clone, Debug)]
pub struct DiscordSettings {
    /// The bot's token; only what talks to Discord needs one.
    pub token: Option<SecretValue>,
    /// The REST API, without a slash at its end.
    pub api_url: String,
    /// The gateway, without a slash at its end; `None` means Discord's own.
    pub gateway_url: Option<String>,
}

/// How REST calls are sent.
#[derive(Clone, Debug)]
pub struct RestSettings {
    /// How long a call may wait for a connection, TLS included.
    pub connect_timeout: Duration,
    /// How long a call may take in all.
    pub request_timeout: Duration,
    /// The largest answer that is read.
    pub max_response_bytes: usize,
    /// How long an unused connection is kept.
    pub pool_idle: Duration,
    /// Whether calls carry `traceparent`.
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

/// What processes that reach Discord from one address share.
#[derive(Clone, Debug)]
pub struct EgressSettings {
    /// The name of that address: letters, digits, `.`, `_` and `-`.
    pub ip_group: String,
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// How lines look.
    pub format: LogFormat,
    /// Which lines are written: `tracing` directives, known to parse.
    pub filter: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON anywhere else.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// How the process ends.
#[derive(Clone, Debug)]
pub struct ShutdownSettings {
    /// How long everything together may take to end.
    pub timeout: Duration,
    /// How long the API still takes new requests.
    pub delay: Duration,
}

/// Where values may come from.
#[derive(Debug, Default)]
pub struct SettingsSources {
    /// The file somebody named. It must exist.
    pub file: Option<PathBuf>,
    /// The environment, as `std::env::vars_os` gives it.
    pub environment: Vec<(OsString, OsString)>,
    /// What stood on the command line.
    pub flags: Vec<Flag>,
}

/// A setting that has another value than before.
#[derive(Clone, Debug)]
pub struct SettingChange {
    /// The setting, as a dotted path.
    pub key: &'static str,
    /// What it was, as `config check` shows it.
    pub old: serde_json::Value,
    /// What it is.
    pub new: serde_json::Value,
    /// Whether a reload applies it.
    pub reloads: bool,
}

/// The settings together with where each came from.
#[derive(Clone)]
pub struct LoadedSettings {
    /// What the parts of the daemon take.
    pub settings: Settings,
    effective: Vec<Effective>,
}

/// One line of what `config check` shows.
#[derive(Clone, Debug)]
pub struct EffectiveSetting {
    /// The setting, as a dotted path.
    pub key: &'static str,
    /// Its value; `null` when it has none, a placeholder when it is a secret.
    pub value: serde_json::Value,
    /// Where the value came from.
    pub origin: String,
}

impl LoadedSettings {
    /// Whether a setting has its default because nobody set it. `key` is a dotted path.
    pub fn is_default(&self, key: &str) -> bool {
        self.effective.iter().any(|setting| setting.key.path == key && setting.origin == SettingOrigin::Default)
    }

    /// The settings that a reload applies, as dotted paths.
    pub fn reloadable() -> impl Iterator<Item = &'static str> {
        schema::SCHEMA.iter().filter(|key| key.reloads()).map(|key| key.path)
    }

    /// Every setting that has another value in `new`.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Vec<SettingChange> {
        let shown = |value: &Option<Value>| value.as_ref().map_or(serde_json::Value::Null, Value::shown);
        let pairs = self.effective.iter().map(|old| (old, of(&new.effective, old.key.path)));
        let changed = pairs.filter(|(old, new)| match (&old.value, &new.value) {
            (Some(old), Some(new)) => !old.is_same(new),
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
        });
        let change = |(old, new): (&Effective, &Effective)| SettingChange {
            key: old.key.path,
            old: shown(&old.value),
            new: shown(&new.value),
            reloads: old.key.reloads(),
        };
        changed.map(change).collect()
    }

    /// Every setting in force, secrets redacted.
    pub fn shown(&self) -> Vec<EffectiveSetting> {
        self.effective
            .iter()
            .map(|setting| EffectiveSetting {
                key: setting.key.path,
                value: setting.value.as_ref().map_or(serde_json::Value::Null, Value::shown),
                origin: match &setting.secret_file {
                    Some(path) => format!("{}, read from {path}", setting.origin),
                    None => setting.origin.to_string(),
                },
            })
            .collect()
    }
}

/// Reads, layers and checks all settings.
///
/// # Errors
///
/// Everything that is wrong, at once. No message holds a secret.
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
                says: format!("cannot be read: {error}"),
            }],
            ..Layer::default()
        },
    }
}

fn of<'a>(effective: &'a [Effective], path: &str) -> &'a Effective {
    effective
        .iter()
        .find(|setting| setting.key.path == path)
        .expect("invariant: resolving gives every setting of the schema")
}

/// Takes each value out of the table as the type its kind gives.
macro_rules! take {
    ($effective:expr, $path:literal, $variant:ident) => {
        match &of($effective, $path).value {
            Some(Value::$variant(value)) => value.clone(),
            other => unreachable!("invariant: {} is of the kind the schema says, not {other:?}", $path),
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
