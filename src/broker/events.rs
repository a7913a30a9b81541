//! Logs and metrics of RabbitMQ.

use std::time::Duration;

use guildhall_core::failure_streak::{FailureSummary, Recovery};
use guildhall_core::time::millis;
use tracing::{info, warn};

use super::{error::BrokerFailure, topology::QueueState};
use crate::{
    events::{counter, event, gauge, histogram},
    metrics::{
        BROKER_BLOCKED, BROKER_CONNECTIONS, BROKER_PUBLISH_SECONDS, BROKER_PUBLISHES, BROKER_QUEUE_MESSAGES,
        BROKER_UNCONFIRMED, BROKER_UP,
    },
    settings::BrokerUrl,
};

event! {
    /// Connected, and all exchanges and queues exist.
    pub(super) struct BrokerConnected<'a> {
        url: &'a BrokerUrl,
        queues: usize,
        /// The failures before, if they were logged.
        recovery: Option<Recovery>,
    }
    let failures = recovery.map(|recovery| recovery.failures);
    let failed_for_s = recovery.map(|recovery| recovery.failed_for.as_secs());
    info!(%url, queues, failures, failed_for_s, "connected to RabbitMQ");
    gauge!(BROKER_UP).set(1);
    gauge!(BROKER_BLOCKED).set(0);
    counter!(BROKER_CONNECTIONS).increment(1);
}

event! {
    /// The connection has ended. Attempts to reconnect follow.
    pub(super) struct BrokerDisconnected<'a> {
        failure: &'a BrokerFailure,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let ((failures, failing_for_s), why) = (summary.repeated(), failure.kind.name());
        warn!(why, error = %failure, failures, failing_for_s, "connection to RabbitMQ lost");
    }
    gauge!(BROKER_UP).set(0);
    gauge!(BROKER_BLOCKED).set(0);
}

event! {
    /// There is no connection, or exchanges and queues cannot be declared. More attempts follow.
    pub(super) struct BrokerUnusable<'a> {
        failure: &'a BrokerFailure,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let ((failures, failing_for_s), why) = (summary.repeated(), failure.kind.name());
        warn!(why, error = %failure, failures, failing_for_s, "cannot use RabbitMQ");
    }
    gauge!(BROKER_UP).set(0);
}

event! {
    /// The server accepts no messages: it is short of disk space or memory.
    pub(super) struct BrokerBlocked<'a> { reason: &'a str }
    warn!(
        why = reason,
        "RabbitMQ blocks publishing; events wait. Free disk space or memory on its server: rabbitmqctl status shows the alarms"
    );
    gauge!(BROKER_BLOCKED).set(1);
}

event! {
    /// The server accepts messages again.
    pub(super) struct BrokerUnblocked;
    info!("RabbitMQ accepts events again");
    gauge!(BROKER_BLOCKED).set(0);
}

event! {
    /// Queues that had existed were missing, and were declared again. Messages in them are lost.
    pub(super) struct BrokerQueuesRestored<'a> { queues: &'a [String] }
    let queues = queues.join(", ");
    warn!(queues, "queues were deleted by others, and declared again; events that were in them are lost");
}

event! {
    /// Queues were looked at.
    pub(super) struct BrokerQueuesRead<'a> { queues: &'a [QueueState] }
    for queue in queues {
        gauge!(BROKER_QUEUE_MESSAGES, "queue" => queue.name.clone()).set(f64::from(queue.messages));
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishOutcome {
    /// Confirmed.
    Confirmed,
    /// No queue is bound for it.
    Returned,
    /// A queue is full.
    Nacked,
    /// Not confirmed in time.
    Timeout,
    /// The connection or the channel was lost.
    Lost,
}

impl PublishOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Returned => "returned",
            Self::Nacked => "nacked",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
        }
    }
}

event! {
    /// A message was published.
    pub(super) struct EventPublished<'a> {
        routing_key: &'a str,
        outcome: PublishOutcome,
        /// Why it is not confirmed.
        reason: Option<&'a str>,
        elapsed: Duration,
        unconfirmed: usize,
        /// What to log if it is not confirmed, and a line is due.
        summary: Option<FailureSummary>,
    }
    let result = outcome.name();
    if let Some(summary) = summary {
        let ((failures, failing_for_s), duration_ms) = (summary.repeated(), millis(elapsed));
        warn!(
            routing_key, result, why = reason, duration_ms, failures, failing_for_s,
            "RabbitMQ did not confirm an event; it is published again"
        );
    }
    counter!(BROKER_PUBLISHES, "result" => result).increment(1);
    histogram!(BROKER_PUBLISH_SECONDS).record(elapsed);
    gauge!(BROKER_UNCONFIRMED).set(unconfirmed as f64);
}
