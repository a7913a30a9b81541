//! Receives notifications of the other processes.

use std::{sync::Arc, time::Duration};

use guildhall_actors::failpoint;
use guildhall_actors::supervision::Part;
use sea_orm::sqlx::{Error, Pool, Postgres, postgres::PgListener};
use tokio::time::{sleep, timeout};

use super::{ClusterEvent, ClusterMember, Notification};
use crate::{
    events::emit,
    store::{events::ListenerConnected, failures::StoreAccess},
};

/// Delay before the next attempt to listen. Until then the slow poll finds changes.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Listens until it is aborted. After each connect it assumes that anything may have changed, since notifications were
/// missed.
pub(in crate::store) async fn listen(
    members: Arc<ClusterMember>,
    pool: Pool<Postgres>,
    channel: String,
    time_limit: Duration,
) {
    loop {
        let error = match timeout(time_limit, connect(&pool, &channel)).await {
            Ok(Ok(mut listener)) => {
                emit(ListenerConnected);
                members.failures().on_success(StoreAccess::Listen);
                members.send_event(ClusterEvent::Members);
                members.send_event(ClusterEvent::Anything);
                members.tick();
                forward_notifications(&members, &mut listener).await
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no response within the timeout".to_owned(),
        };
        let message = format!("no notifications of the other processes ({error}); changes are found by polling");
        members.failures().on_outage(StoreAccess::Listen, "lost", &message);
        sleep(RETRY_DELAY).await;
    }
}

async fn connect(pool: &Pool<Postgres>, channel: &str) -> Result<PgListener, Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

/// Forwards notifications until the connection is lost. Returns the error.
async fn forward_notifications(members: &ClusterMember, listener: &mut PgListener) -> String {
    loop {
        match listener.try_recv().await {
            Ok(Some(notification)) => {
                failpoint::message(Part::StoreListener);
                if Notification::has_changes(notification.payload()) {
                    members.tick();
                }
                for event in Notification::events(notification.payload()) {
                    if event == ClusterEvent::Members {
                        // The heartbeat task finds out which processes joined or left, and reports it.
                        members.heartbeat_now.notify_one();
                    } else {
                        members.send_event(event);
                    }
                }
            }
            Ok(None) => return "connection lost".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}
