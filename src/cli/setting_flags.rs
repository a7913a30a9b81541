//! Flags for the settings that are changed most. The schema checks their values, so that all mistakes show together.

use std::path::PathBuf;

use clap::Args;

use crate::settings::{self, Flag, LoadedSettings, SettingsError, SettingsSources};

/// Settings on the command line; they win over the file and the environment.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Settings")]
pub(super) struct SettingFlags {
    /// A file that holds the bot's token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// Where the gateway is, when it is not Discord's own
    #[arg(long, value_name = "URL")]
    gateway_url: Option<String>,
    /// How many shards to split the guilds over
    #[arg(long, value_name = "COUNT")]
    shards: Option<String>,
    /// Which events Discord sends, with commas between them
    #[arg(long, value_name = "INTENTS")]
    intents: Option<String>,
    /// The file that says what is done with events
    #[arg(long, value_name = "PATH")]
    handlers_file: Option<String>,
    /// The Redis where the processes of one bot meet; with a password, rather set GUILDHALL__REDIS__URL_FILE
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Where health, metrics and the API are served
    #[arg(long, value_name = "ADDRESS:PORT")]
    api_bind: Option<String>,
    /// A file that holds the key that the API asks for
    #[arg(long, value_name = "PATH")]
    api_admin_key_file: Option<String>,
    /// How log lines look: auto, pretty or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Which log lines are written, such as info or info,twilight_gateway=debug
    #[arg(long, value_name = "DIRECTIVES")]
    log_filter: Option<String>,
    /// How long a shutdown may take
    #[arg(long, value_name = "MS")]
    shutdown_timeout_ms: Option<String>,
}

impl SettingFlags {
    pub(super) fn given(self) -> Vec<Flag> {
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
    settings::load(SettingsSources { file, environment: std::env::vars_os().collect(), flags: flags.given() })
}
