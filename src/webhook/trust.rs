//! Decides which responses may have an effect.
//!
//! A response acts with the operator's rights. Over plain http anyone on the network path can write one, so it is
//! accepted only if its sender is certain:
//!
//! ```text
//!  https ──────────────▶ accepted
//!  loopback address ───▶ accepted
//!  plain http ─────────▶ signed with the handler's secret, for this request? ─ yes ─▶ accepted
//!                                                                            └ no ──▶ rejected, counted
//! ```

use std::net::IpAddr;

use guildhall_core::event::handler::ResponsePolicy;
use http::Extensions;
use hyper_util::client::legacy::connect::HttpInfo;
use url::{Host, Url};

use super::signature::SignatureError;

/// Transport of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Over TLS, from a server with a valid certificate.
    Tls,
    /// Over plain http, from this address.
    Plain(Option<IpAddr>),
}

impl Transport {
    /// Returns the transport of a response: by the address of its connection, not by the name in the URL.
    pub(super) fn of(is_https: bool, extensions: &Extensions) -> Self {
        if is_https {
            return Self::Tls;
        }
        Self::Plain(extensions.get::<HttpInfo>().map(|info| info.remote_addr().ip()))
    }
}

/// A response that may not have an effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UntrustedResponse {
    #[error(
        "it came over plain http from {}, and {signature}; use https, sign responses \
         (docs/webhooks.md#signed-answers), or set answers = \"any\" for this handler",
        address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
    )]
    Plain { address: Option<IpAddr>, signature: SignatureError },
    #[error("answers = \"signed\" is set for this handler, and {0}; see docs/webhooks.md#signed-answers")]
    Unsigned(SignatureError),
}

/// Decides whether a response may have an effect. The signature is verified only if it decides.
pub(super) fn check(
    policy: ResponsePolicy,
    transport: Transport,
    verify: impl FnOnce() -> Result<(), SignatureError>,
) -> Result<(), UntrustedResponse> {
    match policy {
        ResponsePolicy::Any => Ok(()),
        ResponsePolicy::Signed => verify().map_err(UntrustedResponse::Unsigned),
        ResponsePolicy::Secure => match transport {
            Transport::Tls => Ok(()),
            Transport::Plain(Some(address)) if address.to_canonical().is_loopback() => Ok(()),
            Transport::Plain(address) => verify().map_err(|signature| UntrustedResponse::Plain { address, signature }),
        },
    }
}

/// Whether responses from a URL may come over plain http from an address that is not loopback. Names are not looked up.
pub(crate) fn may_be_plain(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(Host::Ipv6(address)) => {
            let address = address.to_canonical();
            address.is_loopback() || address.is_unspecified()
        }
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        None => false,
    };
    url.scheme() == "http" && !is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(address: &str) -> Transport {
        Transport::Plain(Some(address.parse().unwrap()))
    }

    #[test]
    fn every_policy_decides_by_transport_and_signature() {
        use ResponsePolicy::{Any, Secure, Signed};
        let signatures = [Ok(()), Err(SignatureError::Missing)];
        for (transport, is_secure) in [
            (Transport::Tls, true),
            (plain("127.0.0.1"), true),
            (plain("127.9.9.9"), true),
            (plain("::1"), true),
            (plain("::ffff:127.0.0.1"), true),
            (plain("10.0.0.1"), false),
            (plain("192.168.0.1"), false),
            (plain("169.254.0.1"), false),
            (plain("8.8.8.8"), false),
            (plain("fd00::1"), false),
            (plain("::ffff:10.0.0.1"), false),
            (Transport::Plain(None), false),
        ] {
            for (policy, signed, accepted) in [
                (Any, 0, true),
                (Any, 1, true),
                (Signed, 0, true),
                (Signed, 1, false),
                (Secure, 0, true),
                (Secure, 1, is_secure),
            ] {
                let checked = check(policy, transport, || signatures[signed].clone());
                assert_eq!(checked.is_ok(), accepted, "{policy:?} {transport:?} {:?}", signatures[signed]);
            }
        }
    }

    #[test]
    fn only_plain_http_to_other_hosts_may_be_plain() {
        for (url, expected) in [
            ("https://brain.example/", false),
            ("http://127.0.0.1:9100/", false),
            ("http://2130706433/", false),
            ("http://[::1]/", false),
            ("http://[::ffff:127.0.0.1]/", false),
            ("http://0.0.0.0/", false),
            ("http://localhost/", false),
            ("http://brain.localhost./", false),
            ("http://brain.example/", true),
            ("http://10.0.0.1/", true),
            ("http://[fd00::1]/", true),
            ("http://localhost.example/", true),
        ] {
            assert_eq!(may_be_plain(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
