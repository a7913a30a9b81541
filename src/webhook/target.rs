//! URL, secrets and options of a handler's webhook.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use guildhall_core::event::handler::ResponsePolicy;
use http::Uri;
use url::{Host, Url};

use super::Secret;
use super::address::not_public;

/// Maximum number of secrets: the current one, future ones and old ones.
const MAX_SECRETS: usize = 4;

/// A handler's webhook.
#[derive(Clone)]
pub struct WebhookTarget {
    /// Name of the handler.
    pub handler: Arc<str>,
    /// URL that events are sent to.
    pub url: Url,
    /// Secrets that requests are signed with: each adds a signature.
    pub secrets: Vec<Secret>,
    /// Whether addresses that are not public are permitted.
    pub allow_private: bool,
    /// Which of its responses may have an effect.
    pub response_policy: ResponsePolicy,
}

impl fmt::Debug for WebhookTarget {
    /// Without the path and the query, which may contain keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookTarget")
            .field("handler", &self.handler)
            .field("at", &self.url.host_str())
            .field("secrets", &self.secrets.len())
            .field("allow_private", &self.allow_private)
            .field("answers", &self.response_policy)
            .finish()
    }
}

/// Error in a webhook's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetProblem {
    /// The scheme of its URL is not http or https.
    #[error(
        "handler {handler}: a webhook's url must start with http:// or https://, but this one starts with \
        {scheme}:"
    )]
    Scheme {
        /// Name of the handler.
        handler: Arc<str>,
        /// Scheme of its URL.
        scheme: String,
    },
    /// Its URL contains a user or a password.
    #[error(
        "handler {0}: a webhook's url must not contain a user or a password; requests are authenticated by their \
        signature"
    )]
    Credentials(Arc<str>),
    /// Its URL has a fragment.
    #[error("handler {0}: a webhook's url must not contain a fragment (#…), which is never sent")]
    Fragment(Arc<str>),
    /// Its URL cannot be used in a request.
    #[error("handler {0}: the webhook's url cannot be used in a request; write it as a browser displays it")]
    Unusable(Arc<str>),
    /// Its address is not public, and `allow_private` is not set.
    #[error(
        "handler {handler}: {host} is {description}, which is not permitted; set allow_private for this handler to permit it"
    )]
    NotPublic {
        /// Name of the handler.
        handler: Arc<str>,
        /// Host in its URL.
        host: String,
        /// Description of the address.
        description: &'static str,
    },
    /// It has no secret, or too many.
    #[error("handler {handler}: a webhook must have 1 to {MAX_SECRETS} secrets, but has {count}")]
    Secrets {
        /// Name of the handler.
        handler: Arc<str>,
        /// Number of secrets.
        count: usize,
    },
    /// Two webhooks have the same handler name.
    #[error("handler {0}: two webhooks have this name; a handler can have only one")]
    Duplicate(Arc<str>),
    /// The file of certificate authorities is invalid.
    #[error("the file of certificate authorities {} {reason}; it must be a PEM file of certificates", path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// Error in the file.
        reason: String,
    },
}

/// All errors in the configuration of webhooks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct WebhookTargetError {
    /// The errors; one on each line of the message.
    pub problems: Vec<TargetProblem>,
}

impl WebhookTarget {
    /// Returns all errors that can be found without looking up the host name.
    #[must_use]
    pub fn problems(&self) -> Vec<TargetProblem> {
        let handler = || self.handler.clone();
        let mut problems = Vec::new();
        if !matches!(self.url.scheme(), "http" | "https") {
            problems.push(TargetProblem::Scheme { handler: handler(), scheme: self.url.scheme().to_owned() });
        } else if self.uri().is_none() {
            problems.push(TargetProblem::Unusable(handler()));
        }
        if !self.url.username().is_empty() || self.url.password().is_some() {
            problems.push(TargetProblem::Credentials(handler()));
        }
        if self.url.fragment().is_some() {
            problems.push(TargetProblem::Fragment(handler()));
        }
        if let Some(description) = self.not_public().filter(|_| !self.allow_private) {
            let host = self.url.host().map(|host| host.to_string()).unwrap_or_default();
            problems.push(TargetProblem::NotPublic { handler: handler(), host, description });
        }
        if !(1..=MAX_SECRETS).contains(&self.secrets.len()) {
            problems.push(TargetProblem::Secrets { handler: handler(), count: self.secrets.len() });
        }
        problems
    }

    /// Returns its URL without the fragment.
    pub(super) fn uri(&self) -> Option<Uri> {
        self.url.host()?;
        let mut url = self.url.clone();
        url.set_fragment(None);
        url.as_str().parse().ok()
    }

    /// Describes the address in its URL, if it is not public. Other spellings of IPv4 addresses (octal, hexadecimal, a
    /// single number) are normalized already.
    fn not_public(&self) -> Option<&'static str> {
        match self.url.host()? {
            Host::Ipv4(address) => not_public(IpAddr::V4(address)),
            Host::Ipv6(address) => not_public(IpAddr::V6(address)),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                (name == "localhost" || name.ends_with(".localhost")).then_some("this host")
            }
        }
    }
}

/// Returns all errors of these targets.
pub(super) fn problems(targets: &[WebhookTarget]) -> Vec<TargetProblem> {
    let mut names = HashSet::new();
    let mut problems = Vec::new();
    for target in targets {
        if !names.insert(&target.handler) {
            problems.push(TargetProblem::Duplicate(target.handler.clone()));
        }
        problems.extend(target.problems());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> WebhookTarget {
        let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz".parse().unwrap();
        WebhookTarget {
            handler: "greet".into(),
            url: url.parse().unwrap(),
            secrets: vec![secret],
            allow_private: false,
            response_policy: ResponsePolicy::default(),
        }
    }

    #[test]
    fn public_urls_have_no_problems() {
        for url in [
            "https://brain.example/hook?a=b%20c&d=`",
            "http://brain.example:8080",
            "https://8.8.8.8/",
            "https://[2606:4700::1]/x",
        ] {
            assert_eq!(target(url).problems(), [], "{url}");
        }
    }

    #[test]
    fn private_addresses_are_rejected_in_any_spelling() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://017700000001/",
            "http://127.0.0.1./",
            "http://①②⑦.0.0.1/",
            "http://%31%32%37.0.0.1/",
            "http://10.0.0.1/",
            "http://0xa9.0xfe.0xa9.0xfe/latest/meta-data",
            "http://2852039166/",
            "http://0/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[64:ff9b::a00:1]/",
            "http://[fd00::1]/",
            "http://localhost:8080/",
            "http://LOCALHOST./",
            "http://api.localhost/",
        ] {
            let problems = target(url).problems();
            assert!(matches!(&problems[..], [TargetProblem::NotPublic { .. }]), "{url}: {problems:?}");
            assert_eq!(WebhookTarget { allow_private: true, ..target(url) }.problems(), [], "{url}");
        }
    }

    #[test]
    fn all_problems_are_reported_without_secrets() {
        let invalid = WebhookTarget { secrets: Vec::new(), ..target("ftp://canary:canary@10.0.0.1/canary#canary") };
        let problems = problems(&[invalid.clone(), invalid.clone()]);
        assert_eq!(problems.len(), 2 * 5 + 1, "{problems:?}");
        let error = WebhookTargetError { problems };
        assert!(!format!("{error} {error:?} {invalid:?}").contains("canary"), "{error}");
        for part in ["start with http", "a user or a password", "a fragment", "has 0", "two webhooks"] {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
    }
}
