//! Receives notifications of the other processes.

use std::{sync::Arc, time::Duration};

use guildhall_actors::failpoint;
use guildhall_actors::supervision::Part;
use sea_orm::sqlx::{Error, Pool, Postgres, postgres::PgListener};
use tokio::time::{sleep, timeout};

use super::{ClusterEvent, ClusterMember, Notification};
use crate::{
    events::emit,
    store::events::{ListenerConnected, ListenerDisconnected},
};

/// Delay before the next attempt to listen. Until then the slow poll finds changes.
const AGAIN: Duration = Duration::from_millis(500);

/// Listens until it is aborted. After each connect it assumes that anything may have changed, since notifications were
/// missed.
pub(in crate::store) async fn listen(
    members: Arc<ClusterMember>,
    pool: Pool<Postgres>,
    channel: String,
    within: Duration,
) {
    loop {
        let error = match timeout(within, tune_in(&pool, &channel)).await {
            Ok(Ok(mut listener)) => {
                emit(ListenerConnected);
                members.tell(ClusterEvent::Members);
                members.tell(ClusterEvent::Anything);
                members.tick();
                hear(&members, &mut listener).await
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no response within the timeout".to_owned(),
        };
        emit(ListenerDisconnected { error: &error });
        sleep(AGAIN).await;
    }
}

async fn tune_in(pool: &Pool<Postgres>, channel: &str) -> Result<PgListener, Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

/// Forwards notifications until the connection is lost. Returns the error.
async fn hear(members: &ClusterMember, listener: &mut PgListener) -> String {
    loop {
        match listener.try_recv().await {
            Ok(Some(heard)) => {
                failpoint::message(Part::StoreListener);
                if Notification::tells_of_changes(heard.payload()) {
                    members.tick();
                }
                for notice in Notification::heard(heard.payload()) {
                    if notice == ClusterEvent::Members {
                        // The heartbeat task finds out which processes joined or left, and reports it.
                        members.hurry.notify_one();
                    } else {
                        members.tell(notice);
                    }
                }
            }
            Ok(None) => return "connection lost".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}
