//! The environment variables of nirn-proxy, for those who switch from it (`egress.compat = "nirn"`).
//!
//! They override the settings file, and variables of Guildhall override them. A variable without a counterpart is ignored;
//! `docs/coming-from-nirn.md` lists all.

use std::{collections::BTreeMap, ffi::OsString};

use super::{
    error::SettingsProblem,
    schema::{self, Named},
    secret::SecretValue,
    source::{Entry, Layer, Raw, SettingOrigin},
};

/// Addresses of nirn-proxy that consist of two variables: the setting, the variable with the port, and its default. Both
/// have the IP address in `BIND_IP`.
const ADDRESSES: [(&str, &str, Option<&str>); 2] =
    [("egress.bind", "PORT", Some("8080")), ("api.bind", "METRICS_PORT", None)];

/// IP address if `BIND_IP` is not set. nirn-proxy listens on all addresses; Guildhall does so only if it is told to.
const DEFAULT_IP: &str = "127.0.0.1";

/// How the value of a variable is written in a setting, or why it cannot be.
type Convert = fn(&str) -> Result<String, String>;

/// Variables whose value a setting takes.
const VARIABLES: [(&str, &str, Convert); 4] = [
    ("REQUEST_TIMEOUT", "rest.request_timeout_ms", |value| Ok(value.to_owned())),
    ("BOT_RATELIMIT_OVERRIDES", "limits.global", global_limit),
    ("DISABLE_HTTP_2", "rest.http2", negated),
    ("LOG_LEVEL", "log.filter", |value| Ok(log_level(value))),
];

/// Adds a layer with nirn-proxy's variables after the first layer, the settings file, if the settings ask for it.
pub(super) fn with_variables(mut layers: Vec<Layer>, environment: &[(OsString, OsString)]) -> Vec<Layer> {
    let entries = layers.iter().flat_map(|layer| &layer.entries);
    let mut compat =
        entries.filter(|entry| matches!(entry.named, Named::Value(setting) if setting.path == "egress.compat"));
    if compat.next_back().and_then(|entry| entry.raw.text()) == Some("nirn") {
        layers.insert(1, variables(environment));
    }
    layers
}

fn variables(environment: &[(OsString, OsString)]) -> Layer {
    let texts = environment.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    let set: BTreeMap<&str, &str> = texts.filter(|(_, value)| !value.is_empty()).collect();
    let mut layer = Layer::default();
    let ip = set.get("BIND_IP").copied();
    for (setting, variable, default) in ADDRESSES {
        let (port, origin) = match (set.get(variable), ip.and(default)) {
            (Some(port), _) => (*port, variable),
            (None, Some(default)) => (default, "BIND_IP"),
            (None, None) => continue,
        };
        push(&mut layer, setting, address(ip.unwrap_or(DEFAULT_IP), port), origin);
    }
    for (variable, setting, convert) in VARIABLES {
        let Some(value) = set.get(variable) else { continue };
        match convert(value) {
            Ok(value) => push(&mut layer, setting, value, variable),
            Err(message) => layer.problems.push(SettingsProblem {
                key: setting.to_owned(),
                origin: Some(SettingOrigin::Environment(variable.to_owned())),
                message,
            }),
        }
    }
    layer
}

fn push(layer: &mut Layer, setting: &str, value: String, variable: &str) {
    let named = schema::find(setting).expect("invariant: the tables name settings");
    let origin = SettingOrigin::Environment(variable.to_owned());
    layer.entries.push(Entry { named, raw: Raw::Text(SecretValue::new(value)), origin });
}

fn negated(value: &str) -> Result<String, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok("false".to_owned()),
        "false" | "0" => Ok("true".to_owned()),
        _ => Err("must be true or false".to_owned()),
    }
}

fn address(ip: &str, port: &str) -> String {
    if ip.contains(':') && !ip.starts_with('[') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// The limit in `id:limit,id:limit`. There is one limit for all bots.
fn global_limit(overrides: &str) -> Result<String, String> {
    let mut limits = overrides.split(',').map(|one| one.split_once(':').map(|(_, limit)| limit.trim()));
    match limits.next().flatten() {
        Some(first) if limits.clone().all(|limit| limit == Some(first)) => Ok(first.to_owned()),
        Some(_) if limits.all(|limit| limit.is_some()) => Err("has different limits in BOT_RATELIMIT_OVERRIDES, but all \
            bots of a daemon have one limit; remove that variable, and set limits.global to the lowest, or run a daemon \
            for each bot"
            .to_owned()),
        Some(_) | None => {
            Err("is not readable in BOT_RATELIMIT_OVERRIDES; allowed: user_id:limit, separated by commas".to_owned())
        }
    }
}

/// The level by its name here.
fn log_level(level: &str) -> String {
    match level.to_ascii_lowercase().as_str() {
        "panic" | "fatal" => "error".to_owned(),
        "warning" => "warn".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::{LoadedSettings, SettingsError, SettingsSources, load};

    fn load_with(environment: &[(&str, &str)]) -> Result<LoadedSettings, SettingsError> {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        load(SettingsSources { environment, ..SettingsSources::default() })
    }

    /// A setting and its origin, with the compatibility and these variables.
    fn effective(key: &str, environment: &[(&str, &str)]) -> (String, String) {
        let all = [&[("GUILDHALL__EGRESS__COMPAT", "nirn")], environment].concat();
        let loaded = load_with(&all).unwrap();
        let setting = loaded.effective_settings().find(|setting| setting.key() == key).unwrap();
        (setting.value.to_string().trim_matches('"').to_owned(), setting.origin())
    }

    fn error(environment: &[(&str, &str)]) -> String {
        load_with(&[&[("GUILDHALL__EGRESS__COMPAT", "nirn")], environment].concat()).err().unwrap().to_string()
    }

    #[test]
    fn variables_of_nirn_have_no_effect_unless_they_are_asked_for() {
        let loaded = load_with(&[("PORT", "3000"), ("LOG_LEVEL", "debug"), ("BOT_RATELIMIT_OVERRIDES", "nonsense")]);
        let settings = loaded.unwrap().settings;
        assert_eq!((settings.egress.bind.port(), settings.log.filter.as_str()), (8081, "info"));
    }

    #[test]
    fn variables_of_nirn_set_their_counterparts() {
        for (key, environment, value, origin) in [
            ("egress.bind", &[("PORT", "3000")][..], "127.0.0.1:3000", "environment PORT"),
            ("egress.bind", &[("BIND_IP", "127.0.0.2"), ("PORT", "3000")], "127.0.0.2:3000", "environment PORT"),
            ("egress.bind", &[("BIND_IP", "::1"), ("METRICS_PORT", "9000")], "[::1]:8080", "environment BIND_IP"),
            ("api.bind", &[("METRICS_PORT", "9000")], "127.0.0.1:9000", "environment METRICS_PORT"),
            ("api.bind", &[("PORT", "3000")], "127.0.0.1:8080", "default"),
            ("rest.request_timeout_ms", &[("REQUEST_TIMEOUT", "5000")], "5000", "environment REQUEST_TIMEOUT"),
            ("limits.global", &[("BOT_RATELIMIT_OVERRIDES", "392:100")], "100", "environment BOT_RATELIMIT_OVERRIDES"),
            ("limits.global", &[("BOT_RATELIMIT_OVERRIDES", "1:80,2:80")], "80", "environment BOT_RATELIMIT_OVERRIDES"),
            ("log.filter", &[("LOG_LEVEL", "Warning")], "warn", "environment LOG_LEVEL"),
            ("log.filter", &[("LOG_LEVEL", "")], "info", "default"),
            ("rest.http2", &[("DISABLE_HTTP_2", "false")], "true", "environment DISABLE_HTTP_2"),
            (
                "egress.bind",
                &[("PORT", "3000"), ("GUILDHALL__EGRESS__BIND", "127.0.0.1:4000")],
                "127.0.0.1:4000",
                "environment GUILDHALL__EGRESS__BIND",
            ),
        ] {
            let (found, from) = effective(key, environment);
            assert_eq!((found.as_str(), from.as_str()), (value, origin), "{key} {environment:?}");
        }
    }

    #[test]
    fn invalid_variables_of_nirn_are_named() {
        for (environment, part) in [
            (("REQUEST_TIMEOUT", "5s"), "REQUEST_TIMEOUT"),
            (("PORT", "http"), "environment PORT"),
            (("DISABLE_HTTP_2", "maybe"), "DISABLE_HTTP_2"),
            (("BOT_RATELIMIT_OVERRIDES", "1:80,2:90"), "different limits in BOT_RATELIMIT_OVERRIDES"),
            (("BOT_RATELIMIT_OVERRIDES", "80"), "user_id:limit"),
            (("BOT_RATELIMIT_OVERRIDES", "1:many"), "BOT_RATELIMIT_OVERRIDES"),
        ] {
            let message = error(&[environment]);
            assert!(message.contains(part), "{environment:?}: {message}");
        }
    }

    #[test]
    fn default_port_of_nirn_must_not_be_that_of_the_api() {
        let message = error(&[("PORT", "8080"), ("GUILDHALL__EGRESS__ENABLED", "true")]);
        assert!(message.contains("egress.bind") && message.contains("api.bind"), "{message}");
        assert!(
            load_with(&[
                ("GUILDHALL__EGRESS__COMPAT", "nirn"),
                ("GUILDHALL__EGRESS__ENABLED", "true"),
                ("PORT", "8080"),
                ("METRICS_PORT", "9000"),
            ])
            .is_ok()
        );
    }
}
