//! Keeps a connection open for as long as there is a client.

use std::{sync::Arc, time::Duration};

use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::backoff::{Backoff, BackoffSequence};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    connection::RedisConnection,
    connection_slot::ConnectionSlot,
    connector::Connector,
    error::{RedisErrorReason, RedisFailure},
    events::{RedisConnected, RedisDisconnected, RedisUnreachable},
};
use crate::events::{FailureLog, emit};

/// Delays between attempts to connect: 10 to 20 ms at first, later 250 to 500 ms.
const BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(15), cap: Duration::from_millis(375), jitter: 1.0 / 3.0 };

/// The task that keeps the connection open. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReconnectTask(AbortHandle);

impl ReconnectTask {
    pub(super) fn start(slot: Arc<ConnectionSlot>, connector: Connector, call_timeout: Duration) -> Self {
        let task = keep_connected(slot, connector, call_timeout);
        let task = failpoint::with_ticks(Part::RedisConnection, Box::pin(task));
        Self(supervision::spawn(Part::RedisConnection, task).abort_handle())
    }
}

impl Drop for ReconnectTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_connected(slot: Arc<ConnectionSlot>, mut connector: Connector, call_timeout: Duration) {
    let mut backoff = BackoffSequence::new(BACKOFF);
    // The node of the last cluster redirect. It is used until that node is gone.
    let mut moved_to = None;
    let (lost, unreachable) = (FailureLog::new("connection to Redis"), FailureLog::new("connection to Redis"));
    loop {
        match connector.connect(&slot, moved_to.clone()).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let recovery = unreachable.take_recovery();
                emit(RedisConnected { node: &connection.node, run_id: &connection.run_id, recovery });
                slot.set_up(Arc::clone(&connection));
                let failure = stay_subscribed(&slot, &connection, call_timeout).await;
                if connection.was_used() {
                    backoff.reset();
                }
                let summary = lost.on_isolated_failure();
                emit(RedisDisconnected { reason: failure.reason, message: &failure.message, summary });
                if failure.redirect.is_some() {
                    moved_to.clone_from(&failure.redirect);
                }
            }
            Err(failure) => {
                let summary = unreachable.on_failure();
                emit(RedisUnreachable { reason: failure.reason, message: &failure.message, summary });
                // The next attempt goes to the node of the redirect, and callers may wait for it.
                if failure.redirect.is_none() {
                    slot.set_down(failure.reason);
                }
                moved_to = failure.redirect;
            }
        }
        sleep(backoff.next_delay(fastrand::f64())).await;
    }
}

/// Subscribes to requested channels until the connection is dropped.
async fn stay_subscribed(
    slot: &ConnectionSlot,
    connection: &RedisConnection,
    call_timeout: Duration,
) -> Arc<RedisFailure> {
    let ended = slot.wait_for_end(connection.generation);
    let subscribing = async {
        loop {
            slot.subscribe_requested.notified().await;
            let subscribed = timeout(call_timeout, connection.subscribe(&slot.router.take_pending())).await;
            let failure = match subscribed {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure,
                Err(_) => RedisFailure::new(RedisErrorReason::Timeout, "SUBSCRIBE timed out"),
            };
            slot.drop_connection(connection.generation, failure);
        }
    };
    tokio::select! {
        failure = ended => failure,
        () = subscribing => unreachable!("invariant: it never ends"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_20_to_500_ms_and_are_shortened_by_at_most_half() {
        for (chance, expected) in [(1.0, [20, 40, 80, 160, 320, 500, 500]), (0.0, [10, 20, 40, 80, 160, 250, 250])] {
            let mut delays = BackoffSequence::new(BACKOFF);
            let waits = expected.map(|_| delays.next_delay(chance).as_secs_f64() * 1_000.0);
            assert_eq!(waits.map(|millis| millis.round() as u64), expected);
        }
    }
}
