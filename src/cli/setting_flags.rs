//! Flags for common settings. The schema validates their values, so that all errors are reported together.

use std::path::PathBuf;

use clap::Args;

use crate::settings::{self, Flag, LoadedSettings, SettingsError, SettingsSources};

/// Settings on the command line; they override the file and the environment.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Settings")]
pub(super) struct SettingFlags {
    /// File that contains the bot's token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// URL of the gateway, if it is not Discord's
    #[arg(long, value_name = "URL")]
    gateway_url: Option<String>,
    /// Number of shards
    #[arg(long, value_name = "COUNT")]
    shards: Option<String>,
    /// Gateway intents, separated by commas
    #[arg(long, value_name = "INTENTS")]
    intents: Option<String>,
    /// File that defines the event handlers
    #[arg(long, value_name = "PATH")]
    handlers_file: Option<String>,
    /// URL of the Redis that the processes of one bot share; for a URL with a password, use GUILDHALL__REDIS__URL_FILE
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Address to serve the API, health checks and metrics on
    #[arg(long, value_name = "ADDRESS:PORT")]
    api_bind: Option<String>,
    /// File that contains the admin key of the API
    #[arg(long, value_name = "PATH")]
    api_admin_key_file: Option<String>,
    /// Log format: auto, pretty or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log filter, such as info or info,twilight_gateway=debug
    #[arg(long, value_name = "DIRECTIVES")]
    log_filter: Option<String>,
    /// Timeout of a graceful shutdown
    #[arg(long, value_name = "MS")]
    shutdown_timeout_ms: Option<String>,
}

impl SettingFlags {
    pub(super) fn into_flags(self) -> Vec<Flag> {
        [
            ("--token-file", "discord.token_file", self.token_file),
            ("--gateway-url", "discord.gateway_url", self.gateway_url),
            ("--shards", "gateway.shards", self.shards),
            ("--intents", "gateway.intents", self.intents),
            ("--handlers-file", "handlers.file", self.handlers_file),
            ("--redis", "redis.url", self.redis),
            ("--api-bind", "api.bind", self.api_bind),
            ("--api-admin-key-file", "api.admin_key_file", self.api_admin_key_file),
            ("--log-format", "log.format", self.log_format),
            ("--log-filter", "log.filter", self.log_filter),
            ("--shutdown-timeout-ms", "shutdown.timeout_ms", self.shutdown_timeout_ms),
        ]
        .into_iter()
        .filter_map(|(name, path, value)| Some(Flag { name, path, value: value? }))
        .collect()
    }
}

/// Loads the settings of this process.
pub(super) fn load(file: Option<PathBuf>, flags: SettingFlags) -> Result<LoadedSettings, SettingsError> {
    settings::load(SettingsSources { file, environment: std::env::vars_os().collect(), flags: flags.into_flags() })
}
