//! Failures of RabbitMQ, with what to do about them.

use std::time::Duration;

use guildhall_core::time::millis;
use lapin::ErrorKind;

/// Code of a channel error: access is refused.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerFailureKind {
    /// It cannot be reached, or the connection was lost.
    Connection,
    /// There was no response in time.
    Timeout,
    /// The certificate of the server is not accepted.
    Certificate,
    /// The login is rejected, or the user lacks a permission.
    Denied,
    /// The virtual host does not exist, or the user may not use it.
    Vhost,
    /// An exchange or a queue does not exist.
    NotFound,
    /// An exchange or a queue exists, and is different.
    Mismatch,
    /// Any other error.
    Other,
}

/// A failure of RabbitMQ. Its message contains no secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct BrokerFailure {
    pub(crate) kind: BrokerFailureKind,
    pub(crate) message: String,
}

impl BrokerFailureKind {
    /// Name in logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Certificate => "certificate",
            Self::Denied => "denied",
            Self::Vhost => "vhost",
            Self::NotFound => "not_found",
            Self::Mismatch => "mismatch",
            Self::Other => "other",
        }
    }
}

impl BrokerFailure {
    pub(crate) fn new(kind: BrokerFailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn timeout(what: &str, limit: Duration) -> Self {
        let message = format!("{what} had no response within {} ms", millis(limit));
        Self::new(BrokerFailureKind::Timeout, message)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.kind == BrokerFailureKind::NotFound
    }

    /// Converts an error, and adds what to do about it.
    pub(crate) fn of(error: &lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(error) => Self::of_reply(error.get_id(), error.get_message().as_str()),
            ErrorKind::IOError(error) => Self::of_io(&error.to_string()),
            ErrorKind::MissingHeartbeatError => {
                Self::new(BrokerFailureKind::Connection, "no heartbeat of the server for two intervals")
            }
            ErrorKind::InvalidConnectionState(_) | ErrorKind::InvalidChannelState(..) => {
                Self::new(BrokerFailureKind::Connection, "the connection is closed")
            }
            _ => Self::new(BrokerFailureKind::Other, error.to_string()),
        }
    }

    fn of_io(message: &str) -> Self {
        if message.to_ascii_lowercase().contains("certificate") {
            let advice = "check the certificate of the server and its expiry; if it is from a private authority, set \
                broker.ca_file";
            return Self::new(BrokerFailureKind::Certificate, format!("{message}; {advice}"));
        }
        Self::new(BrokerFailureKind::Connection, message)
    }

    /// Converts the error that the server replied.
    fn of_reply(code: u16, text: &str) -> Self {
        let (kind, advice) = match code {
            ACCESS_REFUSED if text.contains("Login was refused") || !text.contains('\'') => {
                (BrokerFailureKind::Denied, "check the user and the password in broker.url".to_owned())
            }
            ACCESS_REFUSED => (
                BrokerFailureKind::Denied,
                "the user of broker.url needs permissions: rabbitmqctl set_permissions --vhost VHOST USER \
                 '^guildhall\\.' '^guildhall\\.' '^guildhall\\.'"
                    .to_owned(),
            ),
            NOT_ALLOWED => (
                BrokerFailureKind::Vhost,
                "check the vhost in broker.url: rabbitmqctl add_vhost creates it, and rabbitmqctl set_permissions \
                 gives the user access"
                    .to_owned(),
            ),
            NOT_FOUND => (BrokerFailureKind::NotFound, "guildhall broker declare creates what is missing".to_owned()),
            PRECONDITION_FAILED => (BrokerFailureKind::Mismatch, mismatch_advice(text)),
            _ => return Self::new(BrokerFailureKind::Other, text),
        };
        Self::new(kind, format!("{text}; {advice}"))
    }
}

/// How to fix a queue or an exchange that exists with other arguments.
fn mismatch_advice(text: &str) -> String {
    // PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '1' but current is '2'
    let quoted: Vec<&str> = text.split('\'').skip(1).step_by(2).collect();
    match quoted[..] {
        [_, queue, vhost, ..] if text.contains("for queue") => format!(
            "either set the setting of [broker] to what the queue has, or let consumers empty it and delete it, so that \
             it is declared again: rabbitmqctl --vhost '{vhost}' delete_queue '{queue}' --if-empty"
        ),
        [_, exchange, vhost, ..] if text.contains("for exchange") => format!(
            "either set another name in [broker], or delete the exchange, so that it is declared again: rabbitmqadmin \
             --vhost='{vhost}' delete exchange name='{exchange}'"
        ),
        _ => "delete what exists, or set another name in [broker]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_classified_with_what_to_do() {
        for (code, text, kind, advice) in [
            (403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.", "denied", "the password"),
            (403, "ACCESS_REFUSED - access to queue 'a.b' in vhost '/' refused", "denied", "set_permissions"),
            (530, "NOT_ALLOWED - vhost x not found", "vhost", "add_vhost"),
            (404, "NOT_FOUND - no queue 'q' in vhost '/'", "not_found", "broker declare"),
            (
                406,
                "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'g.p00' in vhost 'v': received '1' but",
                "mismatch",
                "rabbitmqctl --vhost 'v' delete_queue 'g.p00' --if-empty",
            ),
            (
                406,
                "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'g.e' in vhost '/': received 'topic' but",
                "mismatch",
                "delete exchange name='g.e'",
            ),
        ] {
            let failure = BrokerFailure::of_reply(code, text);
            assert_eq!(failure.kind.name(), kind, "{text}");
            assert!(failure.message.contains(advice), "{failure}");
        }
        let failure = BrokerFailure::of_io("invalid peer certificate: Expired");
        assert!(failure.message.contains("broker.ca_file"), "{failure}");
    }
}
