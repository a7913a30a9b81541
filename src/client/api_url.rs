//! Base URL of a daemon's API.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use http::Uri;
use url::{Host, Url};

/// Base URL of a daemon: an http or https URL that all API paths are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiUrl {
    url: Url,
}

/// A text is not a valid daemon URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiUrlError {
    /// It is not an http or https URL.
    #[error("is not a daemon URL; use http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:8080")]
    Form,
    /// It contains a user or a password.
    #[error("must not contain a user or a password; set the key with --key-file or GUILDHALL_KEY")]
    Login,
    /// It contains a query or a fragment.
    #[error("must end with its path; remove the ? or # and what follows")]
    Query,
    /// The port is 0, so only the daemon's log shows the actual port.
    #[error("api.bind has port 0, so only the daemon's log shows the actual port; set it with --api http://HOST:PORT")]
    AnyPort,
}

impl FromStr for ApiUrl {
    type Err = ApiUrlError;

    fn from_str(text: &str) -> Result<Self, ApiUrlError> {
        let mut url = Url::parse(text.trim()).map_err(|_| ApiUrlError::Form)?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || url.port() == Some(0) {
            return Err(ApiUrlError::Form);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(ApiUrlError::Login);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(ApiUrlError::Query);
        }
        // Accepts the URL of an endpoint, too.
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self { url })
    }
}

impl ApiUrl {
    /// Returns the URL of a daemon that listens on `bind`. For one that listens on all addresses, this is the loopback
    /// address.
    ///
    /// # Errors
    ///
    /// If the port is 0.
    pub fn from_bind(bind: SocketAddr, tls: bool) -> Result<Self, ApiUrlError> {
        if bind.port() == 0 {
            return Err(ApiUrlError::AnyPort);
        }
        let ip = match bind.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("{}://{}", if tls { "https" } else { "http" }, SocketAddr::new(ip, bind.port())).parse()
    }

    /// Whether the host is always this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self.url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.to_canonical().is_loopback(),
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            None => false,
        }
    }

    /// Whether the connection is unencrypted and leaves this machine.
    #[must_use]
    pub fn is_remote_plaintext(&self) -> bool {
        self.url.scheme() == "http" && !self.is_local()
    }

    /// Returns the URI of a path, which starts with a slash.
    pub(super) fn uri(&self, path: &str) -> Option<Uri> {
        format!("{self}{path}").parse().ok()
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api_url(text: &str) -> ApiUrl {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn path_prefix_and_v1_suffix_are_accepted() {
        for text in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", " http://h:1 "] {
            assert_eq!(api_url(text).to_string(), "http://h:1", "{text}");
        }
        let below = api_url("https://h/guildhall/v1");
        assert_eq!(below.uri("/v1/keys?a=b").unwrap(), "https://h/guildhall/v1/keys?a=b");
    }

    #[test]
    fn invalid_urls_are_rejected() {
        let error_of = |text: &str| text.parse::<ApiUrl>().expect_err(text);
        for text in
            ["", "127.0.0.1:8080", "localhost:8080", "ftp://h", "ws://h", "http://", "http://h:0", "http://h:99999"]
        {
            assert_eq!(error_of(text), ApiUrlError::Form, "{text}");
        }
        assert_eq!(error_of("http://me:pw@h"), ApiUrlError::Login);
        assert_eq!(error_of("http://h/?a=b"), ApiUrlError::Query);
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert_eq!(ApiUrl::from_bind(any, false), Err(ApiUrlError::AnyPort));
    }

    #[test]
    fn unspecified_address_becomes_loopback() {
        let of = |text: &str| ApiUrl::from_bind(text.parse().unwrap(), false).unwrap().to_string();
        assert_eq!(of("0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(of("[::]:8080"), "http://[::1]:8080");
        assert_eq!(of("10.0.0.7:8080"), "http://10.0.0.7:8080");
        let tls = ApiUrl::from_bind("0.0.0.0:8443".parse().unwrap(), true).unwrap();
        assert_eq!(tls.to_string(), "https://127.0.0.1:8443");
    }

    #[test]
    fn local_and_plaintext_urls_are_detected() {
        for here in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "http://[::ffff:127.0.0.1]:1"] {
            assert!(api_url(here).is_local() && !api_url(here).is_remote_plaintext(), "{here}");
        }
        assert!(
            api_url("http://10.0.0.1:1").is_remote_plaintext() && !api_url("https://10.0.0.1:1").is_remote_plaintext()
        );
        assert!(!api_url("http://localhost.example:1").is_local());
    }
}
