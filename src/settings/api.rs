//! Typed settings of the listener for health, metrics and the API, and the constraints between them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::policy::Rate;

use super::{
    SecretValue, error::SettingsProblem, network::IpNetwork, of, resolve::Effective, secret, take, value::Value,
};

/// The listener for health, metrics and the API.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Address that it listens on; port 0 selects a free port.
    pub bind: SocketAddr,
    /// The admin key.
    pub admin_key: Option<SecretValue>,
    /// TLS files; `None` means no TLS.
    pub tls: Option<TlsSettings>,
    /// Proxies whose forwarding header is trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Header in which they send the client's address.
    pub forwarded_header: ForwardedHeader,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// How long the headers of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long a client may read nothing of its response.
    pub write_timeout: Duration,
    /// How long an idle connection stays open for the next request.
    pub keep_alive: Duration,
    /// Maximum size of the body of a submission.
    pub max_body_bytes: usize,
    /// Maximum number of open operation streams.
    pub max_streams: usize,
    /// How long the client of a stream may take to read pending data.
    pub stream_stall: Duration,
    /// Maximum number of requests that wait for their operations.
    pub max_waiters: usize,
    /// Rate limits of callers.
    pub policies: PolicySettings,
}

/// TLS files of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate and its intermediate certificates.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// Header in which a proxy sends the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded`, as defined in RFC 7239.
    Forwarded,
}

/// Rate limits of callers; without a rate, there is no limit.
#[derive(Clone, Copy, Debug)]
pub struct PolicySettings {
    /// Submissions and bulk actions.
    pub heavy: Option<Rate>,
    /// Maximum time that an operation beyond the rate is postponed.
    pub heavy_max_wait: Duration,
    /// All other requests.
    pub light: Option<Rate>,
    /// Requests with no key or an invalid one.
    pub failed: Option<Rate>,
    /// Maximum number of callers that are counted individually.
    pub max_tracked: usize,
    /// Whether processes that share a Redis count together.
    pub shared: bool,
}

pub(super) fn typed(effective: &[Effective]) -> ApiSettings {
    let narrow = "invariant: the schema's bounds fit the type";
    let ms = Duration::from_millis;
    let files = (take!(effective, "api.tls.cert_file", Path), take!(effective, "api.tls.key_file", Path));
    let rate =
        |per_second: u64, burst: u64| Rate::new(per_second.try_into().expect(narrow), burst.try_into().expect(narrow));
    ApiSettings {
        bind: take!(effective, "api.bind", Address),
        admin_key: secret(effective, "api.admin_key"),
        tls: match files {
            (Some(cert_file), Some(key_file)) => Some(TlsSettings { cert_file, key_file }),
            _ => None,
        },
        trusted_proxies: take!(effective, "api.trusted_proxies", Networks),
        forwarded_header: match take!(effective, "api.forwarded_header", Text).as_str() {
            "forwarded" => ForwardedHeader::Forwarded,
            _ => ForwardedHeader::XForwardedFor,
        },
        max_connections: take!(effective, "api.max_connections", Integer).try_into().expect(narrow),
        header_timeout: ms(take!(effective, "api.header_timeout_ms", Integer)),
        body_timeout: ms(take!(effective, "api.body_timeout_ms", Integer)),
        write_timeout: ms(take!(effective, "api.write_timeout_ms", Integer)),
        keep_alive: ms(take!(effective, "api.keep_alive_ms", Integer)),
        max_body_bytes: take!(effective, "api.max_body_bytes", Integer).try_into().expect(narrow),
        max_streams: take!(effective, "api.max_streams", Integer).try_into().expect(narrow),
        stream_stall: ms(take!(effective, "api.stream_stall_ms", Integer)),
        max_waiters: take!(effective, "api.max_waiters", Integer).try_into().expect(narrow),
        policies: PolicySettings {
            heavy: rate(
                take!(effective, "api.policies.heavy_per_second", Integer),
                take!(effective, "api.policies.heavy_burst", Integer),
            ),
            heavy_max_wait: ms(take!(effective, "api.policies.heavy_max_wait_ms", Integer)),
            light: rate(
                take!(effective, "api.policies.light_per_second", Integer),
                take!(effective, "api.policies.light_burst", Integer),
            ),
            failed: rate(
                take!(effective, "api.policies.failed_per_second", Integer),
                take!(effective, "api.policies.failed_burst", Integer),
            ),
            max_tracked: take!(effective, "api.policies.max_tracked", Integer).try_into().expect(narrow),
            shared: take!(effective, "api.policies.shared", Bool),
        },
    }
}

/// Checks constraints between settings that are each valid. Errors of single settings are reported elsewhere.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    let checks = [refuse_open_bind, refuse_short_key, refuse_half_of_tls, refuse_plaintext, refuse_long_delay];
    checks.into_iter().filter_map(|check| check(effective)).collect()
}

fn find<'a>(effective: &'a [Effective], path: &str) -> Option<&'a Effective> {
    effective.iter().find(|setting| setting.key.path == path)
}

/// Returns the address of the API, if other machines can reach it.
fn open_bind(effective: &[Effective]) -> Option<(&Effective, SocketAddr)> {
    let bind = find(effective, "api.bind")?;
    match bind.value {
        Some(Value::Address(address)) if !address.ip().to_canonical().is_loopback() => Some((bind, address)),
        _ => None,
    }
}

/// A generated key is only useful on this machine; for an address that others can reach, a key must be set.
fn refuse_open_bind(effective: &[Effective]) -> Option<SettingsProblem> {
    let (bind, address) = open_bind(effective)?;
    find(effective, "api.admin_key")?.value.is_none().then(|| SettingsProblem {
        key: "api.bind".to_owned(),
        origin: Some(bind.origin.clone()),
        message: format!(
            "is {address}, which other machines can reach, but api.admin_key is not set; set \
             GUILDHALL__API__ADMIN_KEY, or GUILDHALL__API__ADMIN_KEY_FILE to a file that contains it, or bind a \
             loopback address such as 127.0.0.1:8080"
        ),
    })
}

/// Keys must not cross a network unencrypted, unless the operator permits it.
fn refuse_plaintext(effective: &[Effective]) -> Option<SettingsProblem> {
    let (bind, address) = open_bind(effective)?;
    let is_set = |path| find(effective, path).is_some_and(|file| !matches!(file.value, Some(Value::Path(None))));
    let is_allowed = matches!(find(effective, "api.allow_plaintext")?.value, None | Some(Value::Bool(true)));
    let has_tls = is_set("api.tls.cert_file") || is_set("api.tls.key_file");
    (!is_allowed && !has_tls).then(|| SettingsProblem {
        key: "api.bind".to_owned(),
        origin: Some(bind.origin.clone()),
        message: format!(
            "is {address}, which other machines can reach, and without TLS they could read the keys of callers; set \
             api.tls.cert_file and api.tls.key_file, or bind a loopback address such as 127.0.0.1:8080, or, if a proxy \
             in front of it terminates TLS, set api.allow_plaintext = true (GUILDHALL__API__ALLOW_PLAINTEXT=true)"
        ),
    })
}

fn refuse_half_of_tls(effective: &[Effective]) -> Option<SettingsProblem> {
    let files = [find(effective, "api.tls.cert_file")?, find(effective, "api.tls.key_file")?];
    let (given, other) = match files.map(|file| &file.value) {
        [Some(Value::Path(Some(_))), Some(Value::Path(None))] => (files[0], files[1]),
        [Some(Value::Path(None)), Some(Value::Path(Some(_)))] => (files[1], files[0]),
        _ => return None,
    };
    let (given_path, other_path) = (given.key.path, other.key.path);
    Some(SettingsProblem {
        key: given_path.to_owned(),
        origin: Some(given.origin.clone()),
        message: format!("is set, but {other_path} is not; TLS needs both a certificate and its key"),
    })
}

/// Minimum length of a key that cannot be guessed.
const MIN_KEY_CHARS: usize = 16;

fn refuse_short_key(effective: &[Effective]) -> Option<SettingsProblem> {
    let key = find(effective, "api.admin_key")?;
    let Some(Value::Secret(secret)) = &key.value else { return None };
    let length = secret.expose().len();
    (length < MIN_KEY_CHARS).then(|| SettingsProblem {
        key: "api.admin_key".to_owned(),
        origin: Some(key.origin.clone()),
        message: format!("has {length} characters, which is too easy to guess; allowed: {}", key.key.allowed),
    })
}

fn refuse_long_delay(effective: &[Effective]) -> Option<SettingsProblem> {
    let (delay, timeout) = (find(effective, "shutdown.delay_ms")?, find(effective, "shutdown.timeout_ms")?);
    let (Some(Value::Integer(wait)), Some(Value::Integer(max_ms))) = (&delay.value, &timeout.value) else {
        return None;
    };
    (*wait > 0 && wait >= max_ms).then(|| SettingsProblem {
        key: "shutdown.delay_ms".to_owned(),
        origin: Some(delay.origin.clone()),
        message: format!(
            "is {wait}, which leaves nothing of shutdown.timeout_ms ({max_ms}) for the shutdown itself; lower it, or \
             raise shutdown.timeout_ms"
        ),
    })
}
