//! The URL of Redis. It is parsed here, so that errors in it are reported together with all others.

use std::{fmt, str::FromStr};

use percent_encoding::percent_decode_str;

use super::secret::SecretValue;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// The URL of Redis, with its login: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, or
/// `redis+sentinel://[user:password@]host[:port],…/service[/db]` (`rediss+sentinel://` for TLS) where sentinels know
/// the primary.
///
/// Its `Display` and `Debug` output never contains the user or the password.
#[derive(Clone, Debug)]
pub struct RedisUrl {
    /// Server or sentinels to connect to.
    pub target: RedisTarget,
    /// Whether all connections use TLS.
    pub tls: bool,
    /// The user, if it is not the default one.
    pub username: Option<SecretValue>,
    /// The password.
    pub password: Option<SecretValue>,
    /// The number of the database.
    pub db: i64,
}

/// Server or sentinels to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTarget {
    /// The server itself. In a cluster, any of its nodes.
    Server(RedisNode),
    /// Sentinels, which know the primary of a service.
    Sentinels {
        /// Their addresses; at least one.
        nodes: Vec<RedisNode>,
        /// Name of the service.
        service: String,
    },
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisNode {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { "s" } else { "" };
        let login = if self.password.is_some() { "(redacted)@" } else { "" };
        match &self.target {
            RedisTarget::Server(node) => write!(f, "redis{tls}://{login}{node}/{}", self.db),
            RedisTarget::Sentinels { nodes, service } => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                write!(f, "redis{tls}+sentinel://{login}{}/{service}/{}", nodes.join(","), self.db)
            }
        }
    }
}

/// Error in a Redis URL. It never contains a part of the URL, since any part may belong to the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisUrlError {
    /// The scheme is unknown.
    #[error("does not start with redis://, rediss://, redis+sentinel:// or rediss+sentinel://")]
    Scheme,
    /// It has a user, but no password; usually that is a password in the position of the user.
    #[error("has a user without a password; write user:password@, or :password@ for the default user")]
    NoPassword,
    /// The user or the password is not valid UTF-8.
    #[error("has a user or password that is not UTF-8 after its %XX are decoded")]
    NotText,
    /// A host or a port is invalid.
    #[error(
        "has an invalid host or port; in a user or password, write / as %2F, @ as %40, : as %3A, ? as %3F, # as %23 \
         and % as %25"
    )]
    Node,
    /// It has several hosts, but is not for sentinels.
    #[error("has more than one host, which only redis+sentinel:// permits; for a cluster, name any one node")]
    SeveralHosts,
    /// The service is missing in a URL for sentinels.
    #[error("does not name the service of the sentinels; write redis+sentinel://host:26379/service")]
    NoService,
    /// The database is not a number.
    #[error("has a database that is not a whole number; write redis://host:6379/0")]
    Database,
    /// It has a query or a fragment.
    #[error("has a ? or #, which is not permitted here; in a user or password, write them as %3F and %23")]
    Query,
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, RedisUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(RedisUrlError::Scheme)?;
        let (tls, sentinels) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            "rediss+sentinel" => (true, true),
            _ => return Err(RedisUrlError::Scheme),
        };
        if rest.contains(['?', '#']) {
            return Err(RedisUrlError::Query);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (username, password) = login.map_or(Ok((None, None)), read_login)?;
        let (place, db) = if sentinels {
            let nodes =
                hosts.split(',').map(|host| read_node(host, DEFAULT_SENTINEL_PORT)).collect::<Result<_, _>>()?;
            let (service, db) = path.split_once('/').unwrap_or((path, ""));
            if service.is_empty() {
                return Err(RedisUrlError::NoService);
            }
            (RedisTarget::Sentinels { nodes, service: decode(service)? }, db)
        } else {
            if hosts.contains(',') {
                return Err(RedisUrlError::SeveralHosts);
            }
            (RedisTarget::Server(read_node(hosts, DEFAULT_PORT)?), path)
        };
        Ok(Self { target: place, tls, username, password, db: read_db(db)? })
    }
}

type Login = (Option<SecretValue>, Option<SecretValue>);

fn read_login(login: &str) -> Result<Login, RedisUrlError> {
    let (username, password) = login.split_once(':').ok_or(RedisUrlError::NoPassword)?;
    let username = if username.is_empty() { None } else { Some(SecretValue::new(decode(username)?)) };
    Ok((username, Some(SecretValue::new(decode(password)?))))
}

fn read_node(text: &str, default_port: u16) -> Result<RedisNode, RedisUrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(RedisUrlError::Node)?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, ""));
            (host, Some(port))
        }
    };
    let port = match port.ok_or(RedisUrlError::Node)? {
        "" => default_port,
        port => port.parse().ok().filter(|port| *port != 0).ok_or(RedisUrlError::Node)?,
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(RedisUrlError::Node);
    }
    Ok(RedisNode { host: host.to_owned(), port })
}

fn read_db(text: &str) -> Result<i64, RedisUrlError> {
    match text {
        "" => Ok(0),
        number => number.parse().ok().filter(|number| *number >= 0).ok_or(RedisUrlError::Database),
    }
}

fn decode(text: &str) -> Result<String, RedisUrlError> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| RedisUrlError::NotText)?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> RedisNode {
        RedisNode { host: host.to_owned(), port }
    }

    #[test]
    fn server_url_has_optional_port_login_and_database() {
        let plain: RedisUrl = "redis://cache".parse().unwrap();
        assert_eq!(plain.target, RedisTarget::Server(node("cache", 6379)));
        assert!(!plain.tls && plain.username.is_none() && plain.password.is_none() && plain.db == 0);

        let full: RedisUrl = "rediss://me:p%40ss%3A%2F@[::1]:7000/3".parse().unwrap();
        assert_eq!(full.target, RedisTarget::Server(node("::1", 7000)));
        assert!(full.tls && full.db == 3);
        assert_eq!(full.username.unwrap().expose(), "me");
        assert_eq!(full.password.unwrap().expose(), "p@ss:/");

        let default_user: RedisUrl = "redis://:pass@cache/".parse().unwrap();
        assert!(default_user.username.is_none());
        assert_eq!(default_user.password.unwrap().expose(), "pass");
    }

    #[test]
    fn sentinels_have_hosts_a_service_and_a_database() {
        let url: RedisUrl = "rediss+sentinel://:pass@a:1,b/primary/2".parse().unwrap();
        let nodes = vec![node("a", 1), node("b", 26379)];
        assert_eq!(url.target, RedisTarget::Sentinels { nodes, service: "primary".to_owned() });
        assert!(url.tls && url.db == 2);
    }

    #[test]
    fn display_contains_neither_user_nor_password() {
        for text in ["redis://canary:canary@a:1/2", "redis+sentinel://canary:canary@a:1,[::1]:2/svc/0"] {
            let url: RedisUrl = text.parse().unwrap();
            assert!(!format!("{url} {url:?}").contains("canary"), "{url} {url:?}");
            assert_eq!(url.to_string(), text.replace("canary:canary", "(redacted)"));
        }
    }

    #[test]
    fn invalid_url_is_explained_but_not_quoted() {
        use RedisUrlError::*;
        for (text, expected) in [
            ("canary", Scheme),
            ("http://canary", Scheme),
            ("redis+unix:///canary", Scheme),
            ("redis://canary@host", NoPassword),
            ("redis://:%ff@canary", NotText),
            ("redis://", Node),
            ("redis://:can/ary@host", Node),
            ("redis://host:0", Node),
            ("redis://host:canary", Node),
            ("redis://[canary", Node),
            ("redis://[::1]canary", Node),
            ("redis://can ary", Node),
            ("redis://canary,other", SeveralHosts),
            ("redis+sentinel://canary", NoService),
            ("redis+sentinel://canary//1", NoService),
            ("redis+sentinel://canary,/service", Node),
            ("redis://host/canary", Database),
            ("redis://host/-1", Database),
            ("redis://:can#ary@host", Query),
            ("redis://host?canary=1", Query),
        ] {
            let error = text.parse::<RedisUrl>().expect_err(text);
            assert_eq!(error, expected, "{text}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }
}
