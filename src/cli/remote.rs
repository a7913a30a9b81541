//! Options of every command that calls a running daemon: its URL, the key, and the output format.

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{anyhow, bail};
use clap::Args;

use super::{
    duration,
    output::{Format, Output},
    setting_flags::{self, SettingFlags},
};
use crate::client::{ApiUrl, Client, ClientConfig, ClientKey};
use crate::daemon::admin_key;
use crate::settings::{SecretValue, Settings};

/// Environment variable with the URL of the daemon.
const API_VARIABLE: &str = "GUILDHALL_API";
/// Environment variable with the key.
const KEY_VARIABLE: &str = "GUILDHALL_KEY";

/// Connection to the daemon, and output format.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Daemon and output")]
pub(super) struct RemoteArgs {
    /// URL of the daemon [default: GUILDHALL_API, else api.bind of the settings]
    #[arg(long, global = true, value_name = "URL")]
    api: Option<String>,
    /// API key. Other users of this machine can see it: prefer --key-file or GUILDHALL_KEY [default: api.admin_key of
    /// the settings, else the key file that `serve` creates beside the store]
    #[arg(long, global = true, value_name = "KEY", value_parser = secret, conflicts_with = "key_file")]
    key: Option<SecretValue>,
    /// File that contains the API key
    #[arg(long, global = true, value_name = "PATH")]
    key_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust in addition to the public ones, for https URLs
    #[arg(long, global = true, value_name = "PATH")]
    ca_file: Option<PathBuf>,
    /// Timeout of one request
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn secret(text: &str) -> Result<SecretValue, std::convert::Infallible> {
    Ok(SecretValue::new(text))
}

fn timeout(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text)?;
    if (Duration::from_millis(10)..=Duration::from_secs(600)).contains(&span) {
        Ok(span)
    } else {
        Err("must be from 10ms to 10m".to_owned())
    }
}

impl RemoteArgs {
    /// Returns the output for results.
    pub(super) fn output(&self) -> Output {
        Output::new(self.output)
    }

    /// Selects JSON as the output format.
    pub(super) fn with_json(mut self) -> Self {
        self.output = Format::Json;
        self
    }

    /// Creates a client from the options and the settings.
    pub(super) fn client(&self, file: Option<PathBuf>) -> anyhow::Result<Client> {
        self.client_with(|| Ok(setting_flags::load(file, SettingFlags::default())?.settings))
    }

    /// Creates a client from the options and these settings, which are loaded only if needed.
    pub(super) fn client_with(&self, settings: impl FnOnce() -> anyhow::Result<Settings>) -> anyhow::Result<Client> {
        let given = match (&self.api, env_var(API_VARIABLE)?) {
            (Some(api), _) => Some((api.clone(), "--api")),
            (None, Some(api)) => Some((api, API_VARIABLE)),
            (None, None) => None,
        };
        let own_key = self.given_key()?;
        let (api_url, key, cert_file) = match (given, own_key) {
            (Some((text, name)), key) => {
                let api_url: ApiUrl = text.parse().map_err(|error| anyhow!("{name} {text:?} {error}"))?;
                let key = match key {
                    Some(key) => Some(key),
                    // The key of this machine's own daemon must not be sent to another one.
                    None if !api_url.is_local() => bail!(
                        "no API key for {api_url}. Pass one with --key-file PATH or {KEY_VARIABLE}; the key of the local daemon \
                         is not sent to other hosts"
                    ),
                    None => settings().ok().map(|settings| local_key(&settings)).transpose()?.flatten(),
                };
                (api_url, key, None)
            }
            (None, key) => {
                let settings = settings()?;
                let key = key.map_or_else(|| local_key(&settings), |key| Ok(Some(key)))?;
                let cert_file = settings.api.tls.map(|files| files.cert_file);
                (ApiUrl::from_bind(settings.api.bind, cert_file.is_some())?, key, cert_file)
            }
        };
        if api_url.is_remote_plaintext() && key.is_some() {
            eprintln!("note: the key is sent to {api_url} unencrypted; use https");
        }
        Ok(Client::new(ClientConfig {
            api_url,
            key,
            timeout: self.timeout,
            ca_file: self.ca_file.clone(),
            pinned_cert_file: cert_file,
        })?)
    }

    /// Returns the key from the options or the environment.
    fn given_key(&self) -> anyhow::Result<Option<ClientKey>> {
        if let Some(key) = &self.key {
            return Ok(Some(ClientKey::new(key, "--key")?));
        }
        if let Some(file) = &self.key_file {
            return Ok(Some(ClientKey::from_file(file)?));
        }
        let key = env_var(KEY_VARIABLE)?.map(|key| ClientKey::new(&SecretValue::new(key), KEY_VARIABLE));
        Ok(key.transpose()?)
    }

    /// Runs an async function that calls the daemon.
    pub(super) fn run(
        &self,
        file: Option<PathBuf>,
        command: impl AsyncFnOnce(&Client, &Output) -> anyhow::Result<ExitCode>,
    ) -> anyhow::Result<ExitCode> {
        let client = self.client(file)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(command(&client, &self.output()))
    }
}

fn env_var(name: &str) -> anyhow::Result<Option<String>> {
    match env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => bail!("the environment variable {name} is not valid UTF-8"),
    }
}

/// Returns the key of a daemon with these settings, if it exists. It is never created here.
fn local_key(settings: &Settings) -> anyhow::Result<Option<ClientKey>> {
    if let Some(key) = &settings.api.admin_key {
        return Ok(Some(ClientKey::new(key, "api.admin_key of the settings")?));
    }
    let file = admin_key::file(&settings.store.url);
    match file.try_exists() {
        Ok(false) => Ok(None),
        Ok(true) | Err(_) => Ok(Some(ClientKey::from_file(&file)?)),
    }
}
