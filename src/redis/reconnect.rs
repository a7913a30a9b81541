//! Keeps a connection open for as long as there is a client.

use std::{sync::Arc, time::Duration};

use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    backoff::Backoff,
    connection::RedisConnection,
    connection_slot::ConnectionSlot,
    connector::Connector,
    error::{RedisErrorReason, RedisFailure},
    events::{RedisConnected, RedisDisconnected, RedisUnreachable},
};
use crate::events::emit;

/// The task that keeps the connection open. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReconnectTask(AbortHandle);

impl ReconnectTask {
    pub(super) fn start(link: Arc<ConnectionSlot>, connector: Connector, call_timeout: Duration) -> Self {
        let task = keep_up(link, connector, call_timeout);
        let task = failpoint::with_ticks(Part::RedisConnection, Box::pin(task));
        Self(supervision::spawn(Part::RedisConnection, task).abort_handle())
    }
}

impl Drop for ReconnectTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_up(link: Arc<ConnectionSlot>, mut connector: Connector, call_timeout: Duration) {
    let mut backoff = Backoff::default();
    // The node of the last cluster redirect. It is used until that node is gone.
    let mut moved_to = None;
    // A server that stays unreachable is logged once, not at each attempt.
    let mut said = None;
    loop {
        match connector.connect(&link, moved_to.clone()).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                emit(RedisConnected { node: &connection.node, run_id: &connection.run_id });
                link.set_up(Arc::clone(&connection));
                let failure = stay_subscribed(&link, &connection, call_timeout).await;
                if connection.was_of_use() {
                    backoff.reset();
                }
                emit(RedisDisconnected { why: failure.why, says: &failure.says });
                said = None;
                if failure.elsewhere.is_some() {
                    moved_to.clone_from(&failure.elsewhere);
                }
            }
            Err(failure) => {
                if said.replace(failure.why) != Some(failure.why) {
                    emit(RedisUnreachable { why: failure.why, says: &failure.says });
                }
                // The next attempt goes to the node of the redirect, and callers may wait for it.
                if failure.elsewhere.is_none() {
                    link.set_down(failure.why);
                }
                moved_to = failure.elsewhere;
            }
        }
        sleep(backoff.next(fastrand::f64())).await;
    }
}

/// Subscribes to requested channels until the connection is dropped.
async fn stay_subscribed(
    link: &ConnectionSlot,
    connection: &RedisConnection,
    call_timeout: Duration,
) -> Arc<RedisFailure> {
    let ended = link.end_of(connection.generation);
    let subscribing = async {
        loop {
            link.wanted.notified().await;
            let subscribed = timeout(call_timeout, connection.subscribe(&link.router.wanted())).await;
            let failure = match subscribed {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure,
                Err(_) => RedisFailure::new(RedisErrorReason::Timeout, "SUBSCRIBE timed out"),
            };
            link.lose(connection.generation, failure);
        }
    };
    tokio::select! {
        failure = ended => failure,
        () = subscribing => unreachable!("invariant: it never ends"),
    }
}
