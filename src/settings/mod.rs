//! Settings: read once, validated together, passed on as small typed structs.
//!
//! ```text
//! defaults  <  config/guildhall.toml  <  GUILDHALL__SECTION__NAME  <  flags
//!     └──────────────┴──── declared settings ─────┴──────────────────────┘
//!                              │ all errors at once, each with its origin
//!                              ▼
//!                          Settings
//! ```

mod api;
mod broker;
mod budgets;
mod declare;
mod discord;
mod error;
mod gateway;
mod handlers;
mod kind;
mod network;
mod nirn;
mod operations;
mod process;
mod public_key;
mod redis;
mod redis_url;
mod schema;
mod secret;
mod source;
mod store;
mod store_url;
mod template;
#[cfg(test)]
mod tests;
mod validate;
mod values;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

pub(crate) use self::discord::parse_bot_token;
pub(crate) use self::public_key::from_hex;
#[cfg(feature = "simulator")]
pub(crate) use self::schema::env_name as environment_name;
pub use self::{
    api::{ApiSettings, ForwardedHeader, PolicySettings, TlsSettings},
    broker::{BrokerSettings, BrokerUrl, BrokerUrlError},
    budgets::{BudgetSettings, NamedBudget, NamedBudgetError},
    discord::{
        BotTokenError, DiscordSettings, EgressCompat, EgressSettings, GateSettings, RestSettings, SIMULATOR_TOKEN,
        is_simulator_token,
    },
    error::{SettingsError, SettingsProblem},
    gateway::{GatewaySettings, ShardRange, ShardRangeError},
    handlers::{FallbackSettings, HandlerSettings, InteractionSettings},
    network::{IpNetwork, IpNetworkError},
    operations::{LeaseSettings, OperationSettings, RetentionSettings},
    process::{LogFormat, LogSettings, ShutdownSettings, TelemetrySettings},
    public_key::{PublicKey, PublicKeyError},
    redis::RedisSettings,
    redis_url::{RedisNode, RedisTarget, RedisUrl, RedisUrlError},
    secret::SecretValue,
    source::{Flag, SettingOrigin},
    store::{RowSecurityMode, RowSecuritySettings, StoreSettings},
    store_url::{StoreUrl, StoreUrlError},
    template::template,
    values::EffectiveSetting,
};
use self::{
    declare::{Section as _, settings},
    source::Layer,
    values::Values,
};

/// Path of the settings file if none is given. It may be missing.
pub const DEFAULT_FILE: &str = "config/guildhall.toml";

settings! {
    /// All settings, validated.
    #[derive(Clone, Debug)]
    pub struct Settings {
        /// Connection to Discord, and the bot's token.
        pub discord: DiscordSettings;
        /// Settings of the gateway.
        pub gateway: GatewaySettings;
        /// Settings of REST calls.
        pub rest: RestSettings;
        /// Rate limits, breakers and the budget of invalid requests.
        pub gate: GateSettings;
        /// The Redis that the processes of one bot share.
        pub redis: RedisSettings;
        /// The RabbitMQ that handlers publish events to.
        pub broker: BrokerSettings;
        /// Execution and retention of operations.
        pub operations: OperationSettings;
        /// Event handlers.
        pub handlers: HandlerSettings;
        /// Interactions.
        pub interactions: InteractionSettings;
        /// Named budgets of other upstreams.
        pub budgets: BudgetSettings;
        /// The REST proxy, and settings that processes with the same address share.
        pub egress: EgressSettings;
        /// The store.
        pub store: StoreSettings;
        /// The listener for health, metrics and the API.
        pub api: ApiSettings;
        /// Logging.
        pub log: LogSettings;
        /// Export of traces.
        pub telemetry: TelemetrySettings;
        /// Shutdown of the process.
        pub shutdown: ShutdownSettings;
        secrets: Vec<SecretValue> => |values| values.secrets();
    }
}

impl Settings {
    /// Returns everything that no log line may contain.
    #[must_use]
    pub fn secrets(&self) -> Vec<SecretValue> {
        self.secrets.clone()
    }

    /// Sets the admin key that was found or generated for this process.
    pub fn set_admin_key(&mut self, key: &SecretValue) {
        self.secrets.push(key.clone());
        self.api.admin_key = Some(key.clone());
    }
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
    values: Values,
}

impl LoadedSettings {
    /// Whether a setting has its default because it was not set. `key` is a dotted path.
    pub fn is_default(&self, key: &str) -> bool {
        self.values.find(key).is_some_and(|setting| setting.source == SettingOrigin::Default)
    }

    /// Returns the settings that a reload applies, as dotted paths.
    pub fn reloadable() -> impl Iterator<Item = &'static str> {
        schema::SCHEMA.iter().filter(|setting| setting.reloads()).map(|setting| setting.path)
    }

    /// Returns all settings that have another value in `new`.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Vec<SettingChange> {
        let changed = self.values.iter().zip(new.values.iter()).filter(|(old, new)| !old.equals(new));
        let change = |(old, new): (&EffectiveSetting, &EffectiveSetting)| SettingChange {
            key: old.key(),
            old: old.value.clone(),
            new: new.value.clone(),
            reloads: old.setting.reloads(),
        };
        changed.map(change).collect()
    }

    /// Returns the files that contain secrets: settings files, files of single secrets, the key of the certificate.
    #[must_use]
    pub fn files_with_secrets(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.values.iter().filter_map(EffectiveSetting::file_with_secret).collect();
        files.extend(self.settings.api.tls.as_ref().map(|tls| tls.key_file.clone()));
        files.sort();
        files.dedup();
        files
    }

    /// Returns all effective settings, with secrets redacted.
    pub fn effective_settings(&self) -> impl Iterator<Item = &EffectiveSetting> {
        self.values.iter()
    }
}

/// Reads, merges and validates all settings.
///
/// # Errors
///
/// Returns all errors at once. No message contains a secret.
pub fn load(sources: SettingsSources) -> Result<LoadedSettings, SettingsError> {
    let environment = sources.environment;
    let layers = vec![
        file_layer(sources.file.as_deref()),
        source::from_environment(environment.clone()),
        source::from_flags(sources.flags),
    ];
    let layers = nirn::with_variables(layers, &environment);
    let values = validate::validate(layers).map_err(|problems| SettingsError { problems })?;
    Ok(LoadedSettings { settings: Settings::read(&values), values })
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
