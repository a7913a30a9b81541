//! Settings of the listener for health, metrics and the API.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::policy::Rate;

use super::{
    declare::settings,
    kind::{self, Bool, Choice, Integer, List, ValueError},
    network::IpNetwork,
    secret::SecretValue,
};

settings! {
    /// The listener for health, metrics and the API.
    #[derive(Clone, Debug)]
    pub struct ApiSettings in "api" {
        /// IP address and port of health, metrics and the API. Port 0 selects a free port, which the log names.
        pub bind: SocketAddr = kind::address("an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080"),
            "127.0.0.1:8080";
        /// The admin key of the API under /v1 (docs/api.md). If it is not set, `serve` generates one and stores it in a
        /// file, but only if `api.bind` is a loopback address; for any other address it must be set. Do not store it in
        /// the settings file: use the environment or `api.admin_key_file`.
        pub admin_key: Option<SecretValue> =
            kind::secret(admin_key, "16 or more letters, digits, `.`, `_` and `-`");
        /// Whether `api.bind` may be an address that other machines can reach without TLS (`api.tls`). Keys can then be
        /// read in transit: use it only behind a proxy that terminates TLS, or in a network without other users.
        pub allow_plaintext: bool = Bool, false;
        /// Trusted proxies, whose header with the client's address is used, so that callers without a valid key are told
        /// apart behind them. Empty: the address of the connection is used.
        pub trusted_proxies: Vec<IpNetwork> = NETWORKS, [];
        /// The header in which those proxies send the client's address. It is read from the right, up to the first
        /// address that is not a trusted proxy.
        pub forwarded_header: ForwardedHeader = Choice(FORWARDED_HEADERS), "x-forwarded-for";
        /// Maximum number of connections. More are rejected with a response and closed; a few more may request health and
        /// metrics.
        pub max_connections: usize = Integer(1..=100_000), 1024;
        /// How long the headers of a request may take to arrive, and a TLS handshake, in milliseconds.
        pub header_timeout as "header_timeout_ms": Duration = Integer(1..=600_000), 5000;
        /// How long a request's body may take to arrive, in milliseconds.
        pub body_timeout as "body_timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// How long a client may read nothing of its response, in milliseconds, before the connection is closed.
        pub write_timeout as "write_timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// How long an idle connection stays open for the next request, in milliseconds.
        pub keep_alive as "keep_alive_ms": Duration = Integer(1..=3_600_000), 15000;
        /// Maximum size of the body of a submission, in bytes. For other bodies it applies as well, but at most 1048576.
        pub max_body_bytes: usize = Integer(1_024..=67_108_864), 8388608;
        /// Maximum number of open operation streams (docs/api.md#following-operations). A key may have at most a quarter
        /// of them.
        pub max_streams: usize = Integer(1..=10_000), 64;
        /// How long the client of a stream may take to read pending data, in milliseconds, before the stream is closed.
        pub stream_stall as "stream_stall_ms": Duration = Integer(100..=600_000), 10000;
        /// Maximum number of requests that wait for the end of their operations (`Prefer: wait`). Others get their
        /// response without waiting.
        pub max_waiters: usize = Integer(1..=10_000), 256;
        use TlsFiles;
        /// TLS files; `None` means no TLS.
        pub tls: Option<TlsSettings> => |values| {
            let TlsFiles { cert_file, key_file } = TlsFiles::read(values);
            cert_file.zip(key_file).map(|(cert_file, key_file)| TlsSettings { section: "api.tls", cert_file, key_file })
        };
        /// Rate limits of callers.
        pub policies: PolicySettings;
    }

    struct TlsFiles in "api.tls" {
        /// PEM file of the API's certificate and its intermediate certificates. With `api.tls.key_file`, the API uses
        /// TLS. Both files are checked every few seconds and reloaded when they change. Empty: no TLS.
        #[reloadable]
        pub cert_file: Option<PathBuf> = kind::path("the path of a file"), "";
        /// PEM file of the certificate's private key, not encrypted.
        #[reloadable]
        pub key_file: Option<PathBuf> = kind::path("the path of a file"), "";
    }

    /// Rate limits of callers; without a rate, there is no limit.
    #[derive(Clone, Copy, Debug)]
    pub struct PolicySettings in "api.policies" {
        /// Operations a second that each key may submit on average. A request costs one for each operation, and at least
        /// one for each 8 KiB of its body. Bulk redrives and discards of dead letters count here, too. 0: no limit.
        #[reloadable]
        let heavy_per_second: u32 = Integer(0..=100_000), 200;
        /// Operations that a key may submit in a burst. A request that exceeds the rest is accepted; later requests wait
        /// longer.
        #[reloadable]
        let heavy_burst: u32 = Integer(1..=1_000_000), 2000;
        /// Submissions and bulk actions.
        pub heavy: Option<Rate> => Rate::new(heavy_per_second, heavy_burst);
        /// Operations submitted beyond that are accepted and postponed until they are within the rate. If that takes
        /// longer than this, in milliseconds, they are rejected.
        pub heavy_max_wait as "heavy_max_wait_ms": Duration = Integer(0..=3_600_000), 60000;
        /// Other requests a second that each key may make on average. More are rejected. 0: no limit.
        #[reloadable]
        let light_per_second: u32 = Integer(0..=100_000), 100;
        /// Other requests that a key may make in a burst.
        #[reloadable]
        let light_burst: u32 = Integer(1..=1_000_000), 300;
        /// All other requests.
        pub light: Option<Rate> => Rate::new(light_per_second, light_burst);
        /// Requests a second with no key or an invalid one that each address may make on average. 0: no limit.
        #[reloadable]
        let failed_per_second: u32 = Integer(0..=100_000), 10;
        /// Such requests that an address may make in a burst.
        #[reloadable]
        let failed_burst: u32 = Integer(1..=1_000_000), 200;
        /// Requests with no key or an invalid one.
        pub failed: Option<Rate> => Rate::new(failed_per_second, failed_burst);
        /// Maximum number of keys, and of addresses, that are counted individually. Further ones share one count.
        pub max_tracked: usize = Integer(1..=10_000_000), 10000;
        /// Whether processes that share a Redis (`redis.url`) count a key's requests together. Without Redis, or while it
        /// is unreachable, each process counts alone.
        pub shared: bool = Bool, true;
    }
}

/// TLS files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The section of the settings that names them.
    pub section: &'static str,
    /// The certificate and its intermediate certificates.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

fn admin_key(text: &str) -> Result<SecretValue, ValueError> {
    let key = kind::token(text)?;
    let length = key.expose().len();
    if length < MIN_KEY_CHARS {
        return Err(ValueError::Message(format!("has {length} characters, which is too easy to guess")));
    }
    Ok(key)
}

/// Minimum length of a key that cannot be guessed.
const MIN_KEY_CHARS: usize = 16;

const NETWORKS: List<Vec<IpNetwork>> = List {
    parse: |texts| texts.iter().map(|text| kind::from_text(text.trim())).collect(),
    display: |networks| networks.iter().map(ToString::to_string).collect(),
    allowed: "addresses and networks (separated by commas in the environment), such as 10.0.0.0/8, ::1",
};

/// Header in which a proxy sends the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded`, as defined in RFC 7239.
    Forwarded,
}

const FORWARDED_HEADERS: &[(&str, ForwardedHeader)] =
    &[("x-forwarded-for", ForwardedHeader::XForwardedFor), ("forwarded", ForwardedHeader::Forwarded)];
