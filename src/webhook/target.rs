//! Where a handler's webhook is, and what it is signed with.

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

/// The most secrets at once: the one in use, those that come and those that go.
const SECRETS_MOST: usize = 4;

/// A handler's webhook.
#[derive(Clone)]
pub struct Target {
    /// The handler's name.
    pub handler: Arc<str>,
    /// Where events are sent.
    pub url: Url,
    /// What they are signed with: each of these gives a signature.
    pub secrets: Vec<Secret>,
    /// Whether it may be in a network of our own.
    pub allow_private: bool,
    /// Which of its answers may have an effect.
    pub answers: ResponsePolicy,
}

impl fmt::Debug for Target {
    /// Without the path and the query, in which people hide keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("handler", &self.handler)
            .field("at", &self.url.host_str())
            .field("secrets", &self.secrets.len())
            .field("allow_private", &self.allow_private)
            .field("answers", &self.answers)
            .finish()
    }
}

/// What is wrong with one webhook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetProblem {
    /// It is of another scheme.
    #[error("handler {handler}: a webhook's url begins with http:// or https://, and this one with {scheme}:")]
    Scheme {
        /// Whose it is.
        handler: Arc<str>,
        /// The one that it has.
        scheme: String,
    },
    /// It holds a user or a password.
    #[error("handler {0}: a webhook's url holds no user or password; requests are signed, which says who sent them")]
    Credentials(Arc<str>),
    /// It has a fragment.
    #[error("handler {0}: a webhook's url has no fragment (#…), since that is never sent")]
    Fragment(Arc<str>),
    /// No request can be sent there.
    #[error("handler {0}: nothing can be sent to this url; give it as a browser would show it")]
    Unusable(Arc<str>),
    /// It is in a network of our own, which was not allowed.
    #[error(
        "handler {handler}: {host} is {what}, and is not called; set allow_private for this handler if that is meant"
    )]
    NotPublic {
        /// Whose it is.
        handler: Arc<str>,
        /// Where it is.
        host: String,
        /// What that is.
        what: &'static str,
    },
    /// There is nothing to sign with, or too much.
    #[error("handler {handler}: a webhook has 1 to {SECRETS_MOST} secrets, and this one has {count}")]
    Secrets {
        /// Whose they are.
        handler: Arc<str>,
        /// How many there are.
        count: usize,
    },
    /// Two have one name.
    #[error("handler {0}: there are two webhooks of that name; a handler has one")]
    Twice(Arc<str>),
    /// The file of authorities is none.
    #[error("the file of authorities {} {why}; name one with certificates in PEM, or none", path.display())]
    Authorities {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// All that is wrong with the webhooks that there should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct TargetError {
    /// One after the other.
    pub problems: Vec<TargetProblem>,
}

impl Target {
    /// All that is wrong with it, as far as that can be seen without looking up its name.
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
        if let Some(what) = self.not_public().filter(|_| !self.allow_private) {
            let host = self.url.host().map(|host| host.to_string()).unwrap_or_default();
            problems.push(TargetProblem::NotPublic { handler: handler(), host, what });
        }
        if !(1..=SECRETS_MOST).contains(&self.secrets.len()) {
            problems.push(TargetProblem::Secrets { handler: handler(), count: self.secrets.len() });
        }
        problems
    }

    /// Its URL as HTTP has it.
    pub(super) fn uri(&self) -> Option<Uri> {
        self.url.host()?;
        let mut url = self.url.clone();
        url.set_fragment(None);
        url.as_str().parse().ok()
    }

    /// What its address is, if it is written out and not public. Numbers in any other spelling (octal, hexadecimal, a single
    /// one) have been read as what they are by then.
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

/// All that is wrong with them, each by itself and together.
pub(super) fn problems(targets: &[Target]) -> Vec<TargetProblem> {
    let mut names = HashSet::new();
    let mut problems = Vec::new();
    for target in targets {
        if !names.insert(&target.handler) {
            problems.push(TargetProblem::Twice(target.handler.clone()));
        }
        problems.extend(target.problems());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz".parse().unwrap();
        Target {
            handler: "greet".into(),
            url: url.parse().unwrap(),
            secrets: vec![secret],
            allow_private: false,
            answers: ResponsePolicy::default(),
        }
    }

    #[test]
    fn plain_addresses_of_the_web_are_fine() {
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
    fn whatever_way_a_private_address_is_spelt_it_is_refused_unless_allowed() {
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
            assert_eq!(Target { allow_private: true, ..target(url) }.problems(), [], "{url}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_and_no_secret_with_it() {
        let wrong = Target { secrets: Vec::new(), ..target("ftp://canary:canary@10.0.0.1/canary#canary") };
        let problems = problems(&[wrong.clone(), wrong.clone()]);
        assert_eq!(problems.len(), 2 * 5 + 1, "{problems:?}");
        let error = TargetError { problems };
        assert!(!format!("{error} {error:?} {wrong:?}").contains("canary"), "{error}");
        for part in ["begins with http", "no user or password", "no fragment", "has 0", "two webhooks"] {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
    }
}
