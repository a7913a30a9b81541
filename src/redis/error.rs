//! Errors of Redis: a short reason for the caller, and the full message for the log.

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::settings::RedisNode;

/// The rules that a Redis user needs, in the syntax of its access control lists.
pub const ACL_RULES: &str = "~guildhall:* &guildhall:* +@read +@write +@connection -@dangerous +info +evalsha +script|load \
                             +time +publish +subscribe";

/// Redis did not respond, or not as expected. The call may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Redis call failed: {}", reason.name())]
pub struct RedisCallError {
    /// Short reason.
    pub reason: RedisErrorReason,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedisErrorReason {
    /// No response in time.
    Timeout,
    /// The connection was lost.
    Disconnected,
    /// No connection can be made.
    Unreachable,
    /// The server rejects the login, or the user lacks a permission.
    Denied,
    /// The server is a replica.
    Replica,
    /// Another node of the cluster has the keys. The next connection goes there.
    Moved,
    /// The server is temporarily unable to respond: it loads its data, runs another script, or its cluster is being
    /// repaired.
    Busy,
    /// The server is out of memory.
    Full,
    /// Any other error response.
    Error,
}

impl RedisErrorReason {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::Replica => "replica",
            Self::Moved => "moved",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Error => "error",
        }
    }
}

/// A failure, with its log message.
#[derive(Clone, Debug)]
pub(super) struct RedisFailure {
    pub(super) reason: RedisErrorReason,
    /// Message without secrets.
    pub(super) message: String,
    /// Node to connect to instead, if the server named one.
    pub(super) redirect: Option<RedisNode>,
    /// Whether the connection can be used further.
    pub(super) action: ConnectionAction,
}

/// What a failure means for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// The connection is fine.
    Keep,
    /// The connection must be dropped.
    Drop,
}

impl RedisFailure {
    /// A failure after which the connection is dropped.
    pub(super) fn new(reason: RedisErrorReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), redirect: None, action: ConnectionAction::Drop }
    }

    pub(super) fn moved(to: RedisNode, message: impl Into<String>) -> Self {
        Self { redirect: Some(to), ..Self::new(RedisErrorReason::Moved, message) }
    }

    /// Converts the error of a call. `here` is the node that it was sent to.
    pub(super) fn of(error: &RedisError, here: &RedisNode) -> Self {
        let (reason, action) = classify(error);
        let redirect = match reason {
            RedisErrorReason::Moved => error.redirect_node().and_then(|(node, _)| parse_node(node, here)),
            _ => None,
        };
        let message = match advice(error, reason) {
            Some(advice) => format!("{error}; {advice}"),
            None => error.to_string(),
        };
        Self { reason, message, redirect, action }
    }
}

/// How to fix the error, where its message does not say so.
fn advice(error: &RedisError, reason: RedisErrorReason) -> Option<String> {
    match (error.kind(), reason) {
        (ErrorKind::Server(ServerErrorKind::NoPerm), _) => {
            Some(format!("the user of redis.url needs these rules: {ACL_RULES}"))
        }
        (_, RedisErrorReason::Denied) => Some("check the user and the password in redis.url".to_owned()),
        (ErrorKind::RESP3NotSupported, _) => Some("Redis 6.2 or newer is required".to_owned()),
        _ => None,
    }
}

fn classify(error: &RedisError) -> (RedisErrorReason, ConnectionAction) {
    use ConnectionAction::{Drop, Keep};
    match error.kind() {
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::Moved => (RedisErrorReason::Moved, Drop),
            // While a slot migrates, its keys are on either node; that is temporary.
            ServerErrorKind::Ask
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown => (RedisErrorReason::Busy, Keep),
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown => (RedisErrorReason::Replica, Drop),
            ServerErrorKind::NoPerm => (RedisErrorReason::Denied, Keep),
            _ => classify_code(wrapped_code(error).unwrap_or_default()),
        },
        ErrorKind::Extension => classify_code(error.code().unwrap_or_default()),
        ErrorKind::AuthenticationFailed => (RedisErrorReason::Denied, Drop),
        ErrorKind::Io if error.is_timeout() => (RedisErrorReason::Timeout, Drop),
        ErrorKind::Io => (RedisErrorReason::Disconnected, Drop),
        // A response that cannot be parsed: what follows on this connection cannot be trusted either.
        _ => (RedisErrorReason::Error, Drop),
    }
}

fn classify_code(code: &str) -> (RedisErrorReason, ConnectionAction) {
    match code {
        "BUSY" | "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" => (RedisErrorReason::Busy, ConnectionAction::Keep),
        "OOM" => (RedisErrorReason::Full, ConnectionAction::Keep),
        "READONLY" | "MASTERDOWN" => (RedisErrorReason::Replica, ConnectionAction::Drop),
        "NOAUTH" | "WRONGPASS" => (RedisErrorReason::Denied, ConnectionAction::Drop),
        "NOPERM" => (RedisErrorReason::Denied, ConnectionAction::Keep),
        _ => (RedisErrorReason::Error, ConnectionAction::Keep),
    }
}

/// The code of an error of a command inside a script. Before version 7, Redis puts its own `ERR` before it: `ERR Error
/// running script (…): @user_script:1: -READONLY You can't write …`.
fn wrapped_code(error: &RedisError) -> Option<&str> {
    let (_, inner) = error.detail()?.split_once(": -")?;
    let code = inner.split(' ').next()?;
    code.chars().all(|c| c.is_ascii_uppercase()).then_some(code)
}

/// Parses `host:port` in the format of a cluster. An empty host or `?` means the node that responded.
fn parse_node(text: &str, here: &RedisNode) -> Option<RedisNode> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = if host.is_empty() || host == "?" { &here.host } else { host };
    Some(RedisNode { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use ::redis::parse_redis_value;

    use super::*;

    fn failure(line: &str) -> RedisFailure {
        let response = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let here = RedisNode { host: "here".to_owned(), port: 1 };
        RedisFailure::of(&response.extract_error().unwrap_err(), &here)
    }

    #[test]
    fn error_response_gives_a_reason_and_a_connection_action() {
        use ConnectionAction::{Drop, Keep};
        for (line, reason, action) in [
            ("LOADING Redis is loading the dataset in memory", RedisErrorReason::Busy, Keep),
            ("BUSY Redis is busy running a script", RedisErrorReason::Busy, Keep),
            ("TRYAGAIN Multiple keys request during rehashing of slot", RedisErrorReason::Busy, Keep),
            ("CLUSTERDOWN Hash slot not served", RedisErrorReason::Busy, Keep),
            ("ASK 1 other:2", RedisErrorReason::Busy, Keep),
            ("OOM command not allowed when used memory > 'maxmemory'.", RedisErrorReason::Full, Keep),
            ("READONLY You can't write against a read only replica.", RedisErrorReason::Replica, Drop),
            ("MASTERDOWN Link with MASTER is down", RedisErrorReason::Replica, Drop),
            ("NOPERM this user has no permissions", RedisErrorReason::Denied, Keep),
            ("NOAUTH Authentication required.", RedisErrorReason::Denied, Drop),
            ("WRONGPASS invalid username-password pair", RedisErrorReason::Denied, Drop),
            (
                "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
                RedisErrorReason::Full,
                Keep,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't",
                RedisErrorReason::Replica,
                Drop,
            ),
            (
                "ERR user_script:1: Script attempted to access nonexistent global variable",
                RedisErrorReason::Error,
                Keep,
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", RedisErrorReason::Error, Keep),
        ] {
            let failure = failure(line);
            assert_eq!((failure.reason, failure.action), (reason, action), "{line}");
            assert_eq!(failure.redirect, None);
        }
    }

    #[test]
    fn documentation_contains_the_acl_rules() {
        assert!(include_str!("../../docs/configuration.md").contains(ACL_RULES));
    }

    #[test]
    fn moved_response_gives_the_redirect() {
        for (line, host) in
            [("MOVED 1 other:7", "other"), ("MOVED 1 :7", "here"), ("MOVED 1 ?:7", "here"), ("MOVED 1 ::1:7", "::1")]
        {
            let failure = failure(line);
            assert_eq!((failure.reason, failure.action), (RedisErrorReason::Moved, ConnectionAction::Drop), "{line}");
            assert_eq!(failure.redirect, Some(RedisNode { host: host.to_owned(), port: 7 }), "{line}");
        }
    }
}
