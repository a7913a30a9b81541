//! Flags for common settings. The schema validates their values, so that all errors are reported together.

use std::path::PathBuf;

use clap::Args;

use url::Url;

use crate::settings::{
    self, Flag, LoadedSettings, SIMULATOR_TOKEN, SettingsError, SettingsSources, is_simulator_token,
};

/// Settings on the command line; they override the file and the environment.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Settings")]
pub(super) struct SettingFlags {
    /// File that contains the bot's token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// Use a simulator instead of Discord: the URL that `guildhall sim` prints. Sets discord.api_url, clears
    /// discord.gateway_url, and sets discord.token to sim-bot-token unless --token-file or a token that starts with sim-
    /// is given
    #[arg(long, value_name = "URL", conflicts_with = "gateway_url", value_parser = simulator_url)]
    sim: Option<String>,
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
    /// Whether a simulator is used.
    #[cfg(feature = "simulator")]
    pub(super) const fn has_simulator(&self) -> bool {
        self.sim.is_some()
    }

    pub(super) fn into_flags(self) -> Vec<Flag> {
        // The gateway's URL is the one that the simulator returns, with its number of shards.
        let gateway_url = self.sim.is_some().then(String::new);
        [
            ("--sim", "discord.api_url", self.sim.map(|origin| format!("{origin}/api/v10"))),
            ("--sim", "discord.gateway_url", gateway_url),
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

/// Parses the URL of a simulator; returns it without a path.
fn simulator_url(text: &str) -> Result<String, String> {
    const EXPECTED: &str = "must be the URL that `guildhall sim` prints, such as http://127.0.0.1:9000";
    let url = Url::parse(text).map_err(|_| EXPECTED)?;
    if url.scheme() == "https" {
        return Err(
            "must be an http URL: the daemon does not trust the certificate that a simulator generates; start \
                    the simulator without --tls"
                .to_owned(),
        );
    }
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if url.scheme() != "http" || !url.has_host() || url.path() != "/" || !is_plain || url.fragment().is_some() {
        return Err(EXPECTED.to_owned());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Loads the settings of this process.
pub(super) fn load(file: Option<PathBuf>, flags: SettingFlags) -> Result<LoadedSettings, SettingsError> {
    let needs_token = flags.sim.is_some() && flags.token_file.is_none();
    let mut flags = flags.into_flags();
    let load = |file, flags| {
        let environment = std::env::vars_os().collect();
        settings::load(SettingsSources { file, environment, flags })
    };
    let loaded = load(file.clone(), flags.clone())?;
    // A simulator does not get the token of a real bot.
    if !needs_token || loaded.settings.discord.token.as_ref().is_some_and(is_simulator_token) {
        return Ok(loaded);
    }
    flags.push(Flag { name: "--sim", path: "discord.token", value: SIMULATOR_TOKEN.to_owned() });
    load(file, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulator_url_has_no_path_and_no_tls() {
        for text in ["http://127.0.0.1:9000", "http://127.0.0.1:9000/"] {
            assert_eq!(simulator_url(text).unwrap(), "http://127.0.0.1:9000");
        }
        assert!(simulator_url("https://127.0.0.1:9000").unwrap_err().contains("without --tls"));
        for text in ["127.0.0.1:9000", "ws://127.0.0.1:9000", "http://127.0.0.1:9000/api/v10", "http://a@127.0.0.1", ""]
        {
            assert!(simulator_url(text).unwrap_err().contains("`guildhall sim` prints"), "{text}");
        }
    }
}
