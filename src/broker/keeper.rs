//! Keeps a connection open, and the exchanges and queues in place.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::backoff::{Backoff, BackoffSequence};
use lapin::Event;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::{
    LinkState, Shared,
    connection::Link,
    error::{BrokerFailure, BrokerFailureKind},
    events::{
        BrokerBlocked, BrokerConnected, BrokerDisconnected, BrokerQueuesRead, BrokerQueuesRestored, BrokerUnblocked,
        BrokerUnusable,
    },
};
use crate::events::{FailureLog, emit};

/// Delays between attempts to connect.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(5), jitter: 0.3 };

/// After how many timeouts an attempt to connect is given up.
const CONNECT_TIMEOUTS: u32 = 6;

/// How often queues are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Minimum time between two attempts to restore queues.
const RESTORE_INTERVAL: Duration = Duration::from_millis(500);

/// The task that keeps the connection open. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct KeeperTask(AbortHandle);

impl KeeperTask {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let task = failpoint::with_ticks(Part::BrokerConnection, Box::pin(keep_connected(shared)));
        Self(supervision::spawn(Part::BrokerConnection, task).abort_handle())
    }
}

impl Drop for KeeperTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_connected(shared: Arc<Shared>) {
    let mut backoff = BackoffSequence::new(BACKOFF);
    let (lost, unusable) = (FailureLog::new("connection to RabbitMQ"), FailureLog::new("connection to RabbitMQ"));
    loop {
        match open(&shared, &unusable).await {
            Ok(link) => {
                let link = Arc::new(link);
                let recovery = unusable.take_recovery();
                let queues = shared.topology.queues.len();
                emit(BrokerConnected { url: shared.connector.url(), queues, recovery });
                // Before anything is published, so that no event is missed.
                let events = link.connection.events_listener();
                shared.set_state(LinkState::Up(Arc::clone(&link)));
                let failure = watch(&shared, &link, events).await;
                if link.processed() > 0 {
                    backoff.reset();
                }
                shared.set_state(LinkState::Down(format!("connection to RabbitMQ lost: {failure}").into()));
                emit(BrokerDisconnected { failure: &failure, summary: lost.on_isolated_failure() });
            }
            Err(failure) => {
                shared.set_state(LinkState::Down(failure.message.as_str().into()));
                emit(BrokerUnusable { failure: &failure, summary: unusable.on_failure() });
            }
        }
        sleep(backoff.next_delay(fastrand::f64())).await;
    }
}

async fn open(shared: &Shared, unusable: &FailureLog) -> Result<Link, BrokerFailure> {
    let on_late = |failure: &BrokerFailure| {
        shared.set_state(LinkState::Down(failure.message.as_str().into()));
        emit(BrokerUnusable { failure, summary: unusable.on_failure() });
    };
    let connection = shared.connector.connect_patiently(CONNECT_TIMEOUTS, on_late).await?;
    shared.topology.declare(&connection).await?;
    Ok(Link::new(connection))
}

/// Follows a connection until it ends.
async fn watch(shared: &Shared, link: &Arc<Link>, events: impl Stream<Item = Event>) -> BrokerFailure {
    let mut events = pin!(events);
    let mut checks = interval_at(Instant::now(), CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // When queues are restored, because messages were returned.
    let mut restore_at: Option<Instant> = None;
    loop {
        let was_returned = tokio::select! {
            event = events.next() => match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    emit(BrokerBlocked { reason: &reason });
                    link.set_blocked(true);
                    let reason = format!("RabbitMQ blocks publishing: {reason}");
                    shared.set_state(LinkState::Blocked(reason.into()));
                    continue;
                }
                Some(Event::ConnectionUnblocked) => {
                    emit(BrokerUnblocked);
                    link.set_blocked(false);
                    shared.set_state(LinkState::Up(Arc::clone(link)));
                    continue;
                }
                // An error of a channel belongs to what uses it.
                Some(Event::Error(error)) if !error.is_amqp_soft_error() => return BrokerFailure::of(&error),
                Some(_) => continue,
                None => return BrokerFailure::new(BrokerFailureKind::Connection, "the connection was closed"),
            },
            failure = link.failed(shared.publish_timeout) => return failure,
            () = shared.restore.notified(), if restore_at.is_none() => {
                // Many messages may be returned at once.
                restore_at = Some(Instant::now() + RESTORE_INTERVAL);
                continue;
            }
            () = sleep_until(restore_at.unwrap_or_else(Instant::now)), if restore_at.is_some() => {
                restore_at = None;
                true
            }
            _ = checks.tick() => false,
        };
        // A blocked connection sends nothing.
        if link.is_blocked() {
            continue;
        }
        match shared.topology.restore(&link.connection).await {
            Ok((queues, missing)) => {
                emit(BrokerQueuesRead { queues: &queues });
                if !missing.is_empty() {
                    emit(BrokerQueuesRestored { queues: &missing });
                }
            }
            Err(failure) => return failure,
        }
        // The queues may exist without the exchange or their bindings.
        if was_returned && let Err(failure) = shared.topology.declare(&link.connection).await {
            return failure;
        }
    }
}
