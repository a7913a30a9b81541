//! Validates all settings together: merges the layers, checks each value, and then the constraints between values.

use std::{fs::File, io::Read, net::SocketAddr, path::Path};

use super::{
    error::SettingsProblem,
    gateway::ShardRange,
    kind::Checked,
    schema::{Named, SCHEMA, Setting},
    secret::SecretValue,
    source::{Entry, Layer, Raw, SettingOrigin, from_file},
    values::{EffectiveSetting, Values},
};

/// Maximum size of a secret file, in bytes. A larger file is something else.
const SECRET_FILE_MAX: u64 = 64 * 1024;

/// Maximum delay of a process that shares its limit, in addition to the configured times, in milliseconds.
const SHARE_SLACK_MS: u64 = 30_000;

/// Constraints between settings that are each valid. A setting that is invalid is missing: its problem is reported
/// already, and the constraint is not checked.
const CONSTRAINTS: &[fn(&Values) -> Option<SettingsProblem>] = &[
    open_bind_has_key,
    |values| tls_has_both_files(values, "api.tls.cert_file", "api.tls.key_file"),
    |values| tls_has_both_files(values, "egress.tls.cert_file", "egress.tls.key_file"),
    open_bind_has_tls,
    egress_has_an_address_of_its_own,
    open_egress_has_key,
    open_egress_has_tls,
    shutdown_is_longer_than_its_delay,
    shard_range_is_within_shards,
    reconnect_base_is_at_most_its_cap,
    lost_heartbeat_detaches_no_process,
    share_returns_after_its_use,
    newcomer_waits_for_a_heartbeat,
    lease_is_renewed_in_time,
    direct_url_is_of_the_same_store,
    named_budgets_fit,
    |values| collector_can_be_used(values, cfg!(feature = "otel")),
    settling_covers_a_request,
];

/// Merges the layers over the defaults, lowest first.
///
/// # Errors
///
/// Returns all problems of all layers, and those of the values together.
pub(crate) fn validate(layers: Vec<Layer>) -> Result<Values, Vec<SettingsProblem>> {
    let (values, mut problems) = merge(layers);
    problems.extend(CONSTRAINTS.iter().filter_map(|constraint| constraint(&values)));
    if problems.is_empty() { Ok(values) } else { Err(problems) }
}

/// Returns every setting that is valid, and the problems of the others.
fn merge(mut layers: Vec<Layer>) -> (Values, Vec<SettingsProblem>) {
    let mut problems = Vec::new();
    for layer in &mut layers {
        problems.append(&mut layer.problems);
        problems.extend(duplicate_secret_forms(layer));
    }
    let mut effective = Vec::with_capacity(SCHEMA.len());
    for setting in SCHEMA.iter() {
        // An invalid value is an error even if a higher layer overrides it: it would surface when that is removed.
        let mut winner = Winner::Default;
        for entry in layers.iter().flat_map(|layer| &layer.entries) {
            match entry.named {
                Named::Value(named) if named.path == setting.path => match setting.kind.check(&entry.raw) {
                    Ok(checked) => winner = Winner::Value(entry, checked),
                    Err(message) => problems.push(problem(setting.path, entry, message)),
                },
                Named::SecretFile(named) if named.path == setting.path => winner = Winner::SecretFile(entry),
                Named::Value(_) | Named::SecretFile(_) => {}
            }
        }
        match winner {
            Winner::Default => effective.push(default_of(setting)),
            Winner::Value(Entry { raw, origin, .. }, checked) => {
                effective.push(EffectiveSetting::new(setting, raw.clone(), checked, origin.clone()));
            }
            Winner::SecretFile(entry) => match read_secret(setting, entry) {
                Ok(read) => effective.push(read),
                Err(message) => problems.push(problem(&setting.file_form().unwrap_or_default(), entry, message)),
            },
        }
    }
    (Values::new(effective), problems)
}

enum Winner<'a> {
    Default,
    Value(&'a Entry, Checked),
    SecretFile(&'a Entry),
}

fn problem(path: &str, entry: &Entry, message: String) -> SettingsProblem {
    SettingsProblem { key: path.to_owned(), origin: Some(entry.origin.clone()), message }
}

/// Reports a secret that is set in both forms in one layer: it is unclear which one was meant.
fn duplicate_secret_forms(layer: &Layer) -> Vec<SettingsProblem> {
    let file_forms = layer.entries.iter().filter_map(|entry| match entry.named {
        Named::SecretFile(setting) => Some((setting.path, entry)),
        Named::Value(_) => None,
    });
    let is_set = |path: &str| layer.entries.iter().any(|e| matches!(e.named, Named::Value(key) if key.path == path));
    file_forms
        .filter(|(path, _)| is_set(path))
        .map(|(path, entry)| problem(path, entry, format!("is set twice, as itself and as {path}_file; keep one")))
        .collect()
}

/// Parses defaults in the same way as the file, so that a default cannot be a value that users may not set.
fn default_of(setting: &'static Setting) -> EffectiveSetting {
    let Some(text) = setting.default else { return EffectiveSetting::unset(setting) };
    let (section, name) = setting.section_and_name();
    let mut layer = from_file(Path::new("default"), &format!("[{section}]\n{name} = {text}\n"));
    let raw = layer.entries.pop().expect("invariant: a default is TOML").raw;
    let checked = setting.kind.check(&raw).expect("invariant: a default is allowed");
    EffectiveSetting::new(setting, raw, checked, SettingOrigin::Default)
}

fn read_secret(setting: &'static Setting, entry: &Entry) -> Result<EffectiveSetting, String> {
    let path = entry.raw.text().ok_or("must be the path of a file, as a string")?;
    if path.is_empty() {
        return Err("is empty; allowed: the path of a file that contains only the secret".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(SECRET_FILE_MAX).read_to_string(&mut text));
    if let Err(error) = read {
        return Err(format!("names {path:?}, which cannot be read: {error}"));
    }
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() {
        return Err(format!("names {path:?}, which is empty"));
    }
    let raw = Raw::Text(SecretValue::new(secret));
    let checked = setting.kind.check(&raw).map_err(|message| format!("names {path:?}, whose content {message}"))?;
    let mut read = EffectiveSetting::new(setting, raw, checked, entry.origin.clone());
    read.secret_file = Some(path.to_owned());
    Ok(read)
}

/// Returns the address of the API, if other machines can reach it.
fn open_bind(values: &Values) -> Option<SocketAddr> {
    values.parsed("api.bind").filter(|address: &SocketAddr| !address.ip().to_canonical().is_loopback())
}

/// A generated key is only useful on this machine; for an address that others can reach, a key must be set.
fn open_bind_has_key(values: &Values) -> Option<SettingsProblem> {
    let address = open_bind(values)?;
    let message = format!(
        "is {address}, which other machines can reach, but api.admin_key is not set; set \
         GUILDHALL__API__ADMIN_KEY, or GUILDHALL__API__ADMIN_KEY_FILE to a file that contains it, or bind a \
         loopback address such as 127.0.0.1:8080"
    );
    values.find("api.admin_key")?.value.is_null().then(|| values.problem(&["api.bind"], message))
}

/// Keys must not cross a network unencrypted, unless the operator permits it.
fn open_bind_has_tls(values: &Values) -> Option<SettingsProblem> {
    let address = open_bind(values)?;
    let is_allowed = values.find("api.allow_plaintext")?.value == true;
    let has_tls = ["api.tls.cert_file", "api.tls.key_file"].iter().any(|path| values.text(path).is_some());
    let message = format!(
        "is {address}, which other machines can reach, and without TLS they could read the keys of callers; \
         set api.tls.cert_file and api.tls.key_file, or bind a loopback address such as 127.0.0.1:8080, or, \
         if a proxy in front of it terminates TLS, set api.allow_plaintext = true \
         (GUILDHALL__API__ALLOW_PLAINTEXT=true)"
    );
    (!is_allowed && !has_tls).then(|| values.problem(&["api.bind"], message))
}

/// Returns the address of the REST proxy, if it is enabled and other machines can reach it.
fn open_egress(values: &Values) -> Option<SocketAddr> {
    let is_enabled = values.find("egress.enabled")?.value == true;
    values.parsed("egress.bind").filter(|address: &SocketAddr| is_enabled && !address.ip().to_canonical().is_loopback())
}

/// Two listeners cannot have one address.
fn egress_has_an_address_of_its_own(values: &Values) -> Option<SettingsProblem> {
    let is_enabled = values.find("egress.enabled")?.value == true;
    let [egress, api]: [SocketAddr; 2] = [values.parsed("egress.bind")?, values.parsed("api.bind")?];
    let shares_ip = egress.ip() == api.ip() || egress.ip().is_unspecified() || api.ip().is_unspecified();
    let is_same = is_enabled && shares_ip && egress.port() == api.port() && egress.port() != 0;
    let message = format!(
        "is {egress}, but api.bind ({api}) has this port already; choose another port for one of them (egress.bind, api.bind)"
    );
    is_same.then(|| values.problem(&["egress.bind", "api.bind"], message))
}

/// The keys of callers are created with the admin key, which must then be one that the operator has set.
fn open_egress_has_key(values: &Values) -> Option<SettingsProblem> {
    let address = open_egress(values)?;
    let message = format!(
        "is {address}, which other machines can reach, but api.admin_key is not set, with which the keys of callers are \
         created; set GUILDHALL__API__ADMIN_KEY, or GUILDHALL__API__ADMIN_KEY_FILE to a file that contains it, or bind a \
         loopback address such as 127.0.0.1:8081"
    );
    values.find("api.admin_key")?.value.is_null().then(|| values.problem(&["egress.bind"], message))
}

/// Keys and tokens must not cross a network unencrypted, unless the operator permits it.
fn open_egress_has_tls(values: &Values) -> Option<SettingsProblem> {
    let address = open_egress(values)?;
    let is_allowed = values.find("egress.allow_plaintext")?.value == true;
    let has_tls = ["egress.tls.cert_file", "egress.tls.key_file"].iter().any(|path| values.text(path).is_some());
    let message = format!(
        "is {address}, which other machines can reach, and without TLS they could read the keys and tokens of callers; \
         set egress.tls.cert_file and egress.tls.key_file, or bind a loopback address such as 127.0.0.1:8081, or, if a \
         proxy in front of it terminates TLS, set egress.allow_plaintext = true (GUILDHALL__EGRESS__ALLOW_PLAINTEXT=true)"
    );
    (!is_allowed && !has_tls).then(|| values.problem(&["egress.bind"], message))
}

fn tls_has_both_files(values: &Values, cert: &'static str, key: &'static str) -> Option<SettingsProblem> {
    let (given, other) = match (values.text(cert), values.text(key)) {
        (Some(_), None) => (cert, key),
        (None, Some(_)) => (key, cert),
        (Some(_), Some(_)) | (None, None) => return None,
    };
    let message = format!("is set, but {other} is not; TLS needs both a certificate and its key");
    Some(values.problem(&[given], message))
}

fn shutdown_is_longer_than_its_delay(values: &Values) -> Option<SettingsProblem> {
    let [delay, timeout] = values.numbers(["shutdown.delay_ms", "shutdown.timeout_ms"])?;
    let message = format!(
        "is {delay}, which leaves nothing of shutdown.timeout_ms ({timeout}) for the shutdown itself; lower \
         it, or raise shutdown.timeout_ms"
    );
    (delay > 0 && delay >= timeout).then(|| values.problem(&["shutdown.delay_ms"], message))
}

fn shard_range_is_within_shards(values: &Values) -> Option<SettingsProblem> {
    let range: ShardRange = values.parsed("gateway.shard_range")?;
    let [shards] = values.numbers(["gateway.shards"])?;
    let message = if shards == 0 {
        format!(
            "is {range}, a part of the shards, but the total number is not set; set gateway.shards to the same number \
             in every process"
        )
    } else if u64::from(range.range().end) > shards {
        format!(
            "is {range}, but with gateway.shards = {shards} the last shard is {}; raise gateway.shards in every \
             process, or end the range earlier",
            shards - 1
        )
    } else {
        return None;
    };
    Some(values.problem(&["gateway.shard_range"], message))
}

fn reconnect_base_is_at_most_its_cap(values: &Values) -> Option<SettingsProblem> {
    let paths = ["gateway.reconnect_base_ms", "gateway.reconnect_cap_ms"];
    let [base, cap] = values.numbers(paths)?;
    let message = format!(
        "is {base}, which is more than gateway.reconnect_cap_ms ({cap}), the maximum delay; lower \
         gateway.reconnect_base_ms or raise gateway.reconnect_cap_ms"
    );
    (base > cap).then(|| values.problem(&paths, message))
}

/// If one heartbeat is lost, the next one must still arrive in time.
fn lost_heartbeat_detaches_no_process(values: &Values) -> Option<SettingsProblem> {
    let paths = ["redis.heartbeat_ms", "redis.silence_ms"];
    let [heartbeat, silence] = values.numbers(paths)?;
    let message = format!(
        "is {heartbeat}, which is not less than half of redis.silence_ms ({silence}): a single lost heartbeat \
         would detach a process; lower redis.heartbeat_ms or raise redis.silence_ms"
    );
    (heartbeat.saturating_mul(2) >= silence).then(|| values.problem(&paths, message))
}

/// A share must not return to the others while its process may still use it.
fn share_returns_after_its_use(values: &Values) -> Option<SettingsProblem> {
    let paths = ["redis.forget_ms", "redis.share_for_ms", "redis.silence_ms"];
    let [forget, share_for, silence] = values.numbers(paths)?;
    let message = format!(
        "is {forget}, which is not more than redis.share_for_ms ({share_for}), redis.silence_ms ({silence}) \
         and {} s together: a share would return to the others while a process without Redis still uses it; \
         raise redis.forget_ms or lower redis.share_for_ms",
        SHARE_SLACK_MS / 1_000
    );
    (share_for.saturating_add(silence).saturating_add(SHARE_SLACK_MS) >= forget)
        .then(|| values.problem(&paths, message))
}

/// Existing processes must have had the time to send a heartbeat.
fn newcomer_waits_for_a_heartbeat(values: &Values) -> Option<SettingsProblem> {
    let paths = ["redis.newcomer_ms", "redis.heartbeat_ms", "redis.timeout_ms"];
    let [newcomer, heartbeat, timeout] = values.numbers(paths)?;
    let message = format!(
        "is {newcomer}, which is not more than redis.heartbeat_ms ({heartbeat}) and redis.timeout_ms \
         ({timeout}) together: new processes could take the whole limit before existing ones send a \
         heartbeat; raise redis.newcomer_ms"
    );
    (newcomer <= heartbeat.saturating_add(timeout)).then(|| values.problem(&paths, message))
}

/// A heartbeat must renew the lease in time.
fn lease_is_renewed_in_time(values: &Values) -> Option<SettingsProblem> {
    let paths = ["operations.lease_ms", "operations.heartbeat_ms", "operations.lease_margin_ms"];
    let [lease, heartbeat, margin] = values.numbers(paths)?;
    let message = format!(
        "is {lease}, which is not more than operations.heartbeat_ms ({heartbeat}) and \
         operations.lease_margin_ms ({margin}) together: the lease would expire between two heartbeats; raise \
         operations.lease_ms"
    );
    (heartbeat.saturating_add(margin) >= lease).then(|| values.problem(&paths, message))
}

fn direct_url_is_of_the_same_store(values: &Values) -> Option<SettingsProblem> {
    let is_sqlite = |path| values.text(path).map(|url| url.starts_with("sqlite:"));
    let message = match (is_sqlite("store.direct_url")?, is_sqlite("store.url")?) {
        (false, false) => return None,
        (true, _) => "is an SQLite file; name the PostgreSQL behind store.url, or remove this setting",
        (false, true) => "is set, but store.url is an SQLite file; remove this setting",
    };
    Some(values.problem(&["store.direct_url"], message.to_owned()))
}

fn named_budgets_fit(values: &Values) -> Option<SettingsProblem> {
    let named = values.find("budgets.named")?.value.as_array()?.len();
    let [max] = values.numbers(["budgets.most"])?;
    let message = format!("has {named} budgets, which is more than budgets.most ({max}); raise that");
    (named as u64 > max).then(|| values.problem(&["budgets.named"], message))
}

/// Rejects a collector if this program cannot export to one.
fn collector_can_be_used(values: &Values, is_built: bool) -> Option<SettingsProblem> {
    values.text("telemetry.otlp_endpoint")?;
    let message = "is set, but this program was built without OpenTelemetry; build it with `cargo build --release \
        --features otel`, or remove this setting";
    (!is_built).then(|| values.problem(&["telemetry.otlp_endpoint"], message.to_owned()))
}

/// No call of an operation may be in flight when Discord is checked for it.
fn settling_covers_a_request(values: &Values) -> Option<SettingsProblem> {
    let [settle, timeout] = values.numbers(["operations.settle_ms", "rest.request_timeout_ms"])?;
    let message = format!(
        "is {settle}, less than rest.request_timeout_ms ({timeout}): a call could still take effect after its \
         outcome was checked. Set it to at least {timeout}, or to 0 to use the request timeout"
    );
    (1..timeout).contains(&settle).then(|| values.problem(&["operations.settle_ms"], message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::source;

    #[test]
    fn endpoint_without_the_otel_feature_is_an_error() {
        let values = |endpoint: &str| {
            let set = ("GUILDHALL__TELEMETRY__OTLP_ENDPOINT".into(), endpoint.into());
            merge(vec![source::from_environment([set])]).0
        };
        let problem = collector_can_be_used(&values("http://127.0.0.1:4318"), false).unwrap();
        assert!(problem.message.contains("--features otel"), "{problem:?}");
        assert!(collector_can_be_used(&values("http://127.0.0.1:4318"), true).is_none());
        assert!(collector_can_be_used(&values(""), false).is_none());
    }
}
