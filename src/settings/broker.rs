//! Settings of RabbitMQ.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;
use url::Url;

use super::{
    declare::settings,
    kind::{self, Bool, Integer, NAME, Optional, Text, ValueError},
    secret::SecretValue,
};

settings! {
    /// The RabbitMQ that handlers publish events to.
    #[derive(Clone, Debug)]
    pub struct BrokerSettings in "broker" {
        /// URL of the RabbitMQ that handlers with `broker = true` publish to. If it contains a password, do not store it in
        /// the settings file: use the environment or `broker.url_file`.
        pub url: Option<BrokerUrl> = BROKER_URL;
        /// PEM file of the certificate authorities that are trusted for an amqps:// server. Empty: the public ones.
        pub ca_file: Option<PathBuf> = kind::path("the path of a file"), "";
        /// How long a connection attempt, or one request to RabbitMQ other than a publish, may take, in milliseconds.
        pub connect_timeout as "connect_timeout_ms": Duration = Integer(100..=120_000), 10000;
        /// Interval of heartbeats of the connection, in seconds. Without one for two intervals, the connection is lost.
        pub heartbeat as "heartbeat_s": u16 = Integer(1..=600), 10;
        /// How long RabbitMQ may take to confirm an event, in milliseconds. After that, the event is published again.
        pub publish_timeout as "publish_timeout_ms": Duration = Integer(100..=600_000), 10000;
        /// Maximum number of events that are published and not confirmed yet, over all guilds. Each has a channel.
        pub window: usize = Integer(1..=1_000), 128;
        /// Whether exchanges and queues are declared. If not, they must exist, and are only checked.
        pub declare: bool = Bool, true;
        /// Start of the names of exchanges and queues that are not set themselves.
        pub prefix: String = NAME, "guildhall";
        /// Name of the topic exchange that all events are published to. Empty: the prefix and `.events`.
        pub exchange: Option<String> = Optional(NAME), "";
        /// Name of the queue of interactions. Empty: the prefix and `.interactions`.
        pub interactions_queue: Option<String> = Optional(NAME), "";
        /// Name of the queues of other events, without `.p00`, `.p01` and so on. Empty: the prefix and `.events`.
        pub partition_queue: Option<String> = Optional(NAME), "";
        /// Name of the exchange of dead letters. Empty: the prefix and `.dlx`.
        pub dead_letter_exchange: Option<String> = Optional(NAME), "";
        /// Name of the queue of dead letters. Empty: the prefix and `.dlq`.
        pub dead_letter_queue: Option<String> = Optional(NAME), "";
        /// Number of queues that guilds are divided among. Changing it moves guilds to other queues: let consumers empty
        /// the queues first.
        pub partitions: u16 = Integer(1..=256), 32;
        /// Maximum number of messages in a queue. RabbitMQ rejects events for a full queue, and they wait in the daemon.
        pub queue_max_messages: u32 = Integer(1..=100_000_000), 100000;
        /// Maximum size of the messages in a queue, in bytes.
        pub queue_max_bytes: u64 = Integer(1_048_576..=1_099_511_627_776), 268435456;
        /// How often a message may be delivered to consumers that do not acknowledge it, before it is a dead letter.
        pub delivery_limit: u32 = Integer(1..=1_000_000), 20;
        /// How long an interaction waits for a consumer, in milliseconds, before it is a dead letter.
        pub interaction_ttl as "interaction_ttl_ms": Duration = Integer(1_000..=900_000), 60000;
        /// How long dead letters are kept, in milliseconds.
        pub dead_letter_ttl as "dead_letter_ttl_ms": Duration = Integer(60_000..=31_536_000_000), 604800000;
    }
}

/// URL of RabbitMQ. It may contain a password, so it is a secret.
const BROKER_URL: Text<BrokerUrl> = Text {
    secrets: Some(|url| vec![url.password.clone()]),
    ..Text::new(
        |text| if text.is_empty() { Err(ValueError::Message("is empty".to_owned())) } else { kind::from_text(text) },
        "amqp://[user:password@]host[:port][/vhost], or the same with amqps:// (TLS)",
    )
};

/// The URL of RabbitMQ, with its login: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://` for TLS.
///
/// Its `Display` and `Debug` output never contains the password.
#[derive(Clone, Debug)]
pub struct BrokerUrl {
    /// Whether connections use TLS.
    pub tls: bool,
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user.
    pub username: String,
    /// The password.
    pub password: SecretValue,
    /// The virtual host.
    pub vhost: String,
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port, username, vhost, .. } = self;
        let scheme = if *tls { "amqps" } else { "amqp" };
        let vhost = vhost.replace('/', "%2F");
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        write!(f, "{scheme}://{username}:(redacted)@{host}:{port}/{vhost}")
    }
}

/// Error in a URL of RabbitMQ. It never contains a part of the URL, since any part may belong to the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerUrlError {
    /// The scheme is unknown.
    #[error("does not start with amqp:// or amqps://")]
    Scheme,
    /// The host or the port is invalid.
    #[error(
        "has an invalid host or port; in a user or password, write / as %2F, @ as %40, : as %3A, ? as %3F, # as %23 \
         and % as %25"
    )]
    Host,
    /// It has a user, but no password.
    #[error("has a user without a password; write user:password@")]
    NoPassword,
    /// A part is not valid UTF-8.
    #[error("has a user, password or vhost that is not UTF-8 after its %XX are decoded")]
    NotText,
    /// The vhost contains a slash.
    #[error("has more than one / in its path; write the vhost with / as %2F: the default vhost is %2F or empty")]
    Vhost,
    /// It has parameters.
    #[error("has parameters after ? or #; use the settings of [broker] instead")]
    Parameters,
}

impl FromStr for BrokerUrl {
    type Err = BrokerUrlError;

    fn from_str(text: &str) -> Result<Self, BrokerUrlError> {
        let tls = match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("amqp") => false,
            Some("amqps") => true,
            Some(_) | None => return Err(BrokerUrlError::Scheme),
        };
        let url = Url::parse(text).map_err(|_| BrokerUrlError::Host)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(BrokerUrlError::Parameters);
        }
        let decode =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| BrokerUrlError::NotText);
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(BrokerUrlError::Host)?;
        let host = decode(host.trim_start_matches('[').trim_end_matches(']'))?;
        let (username, password) = match (url.username(), url.password()) {
            ("", None) => ("guest".to_owned(), "guest".to_owned()),
            (_, None) => return Err(BrokerUrlError::NoPassword),
            (username, Some(password)) => (decode(username)?, decode(password)?),
        };
        let vhost = match url.path().strip_prefix('/').unwrap_or_default() {
            "" => "/".to_owned(),
            path if path.contains('/') => return Err(BrokerUrlError::Vhost),
            path => decode(path)?,
        };
        let port = url.port().unwrap_or(if tls { 5671 } else { 5672 });
        Ok(Self { tls, host, port, username, password: SecretValue::new(password), vhost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_parsed_with_its_defaults() {
        for (text, shown) in [
            ("amqp://mq.example", "amqp://guest:(redacted)@mq.example:5672/%2F"),
            ("amqp://mq.example/", "amqp://guest:(redacted)@mq.example:5672/%2F"),
            ("amqps://bot:p%40ss@mq.example/bots", "amqps://bot:(redacted)@mq.example:5671/bots"),
            ("amqp://a:b@[::1]:7/%2Fx", "amqp://a:(redacted)@[::1]:7/%2Fx"),
        ] {
            let url: BrokerUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
        }
        let url: BrokerUrl = "amqps://bot:p%40ss@mq.example/bots".parse().unwrap();
        assert_eq!((url.password.expose(), url.vhost.as_str()), ("p@ss", "bots"));
        assert!(!format!("{url:?}").contains("p@ss"));
    }

    #[test]
    fn invalid_url_is_explained_without_its_parts() {
        for (text, error) in [
            ("http://mq.example", BrokerUrlError::Scheme),
            ("mq.example", BrokerUrlError::Scheme),
            ("amqp://", BrokerUrlError::Host),
            ("amqp://bot@mq.example", BrokerUrlError::NoPassword),
            ("amqp://a:b@mq.example/x/y", BrokerUrlError::Vhost),
            ("amqp://a:b@mq.example/x?heartbeat=1", BrokerUrlError::Parameters),
            ("amqp://a:b%FF@mq.example", BrokerUrlError::NotText),
            ("amqp://a:b@mq.example:port", BrokerUrlError::Host),
        ] {
            assert_eq!(text.parse::<BrokerUrl>().unwrap_err(), error, "{text}");
        }
    }
}
