//! Sends messages in the simulated guilds continuously, whether a daemon is running or not.

use std::net::SocketAddr;

use guildhall_actors::supervision::spawn_work;
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use super::http::{DemoHttpError, HttpClient};

/// Messages per second, over all guilds.
const A_SECOND: u32 = 40;
/// Duration of a round of messages; the stream can stop after each round.
const ROUND_SECONDS: f64 = 0.25;

/// A running stream of messages. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct MessageStream {
    sent: watch::Receiver<u64>,
    enough: watch::Sender<bool>,
    writing: JoinHandle<Result<(), DemoHttpError>>,
}

impl MessageStream {
    /// Starts to send messages in the simulator at this address.
    pub(crate) fn start(sim: SocketAddr) -> Self {
        let ((tell, sent), (enough, told)) = (watch::channel(0), watch::channel(false));
        let writing = spawn_work(write(HttpClient::new(sim, None), tell, told));
        Self { sent, enough, writing }
    }

    /// Number of messages sent so far.
    pub(crate) fn sent(&self) -> u64 {
        *self.sent.borrow()
    }

    /// Waits until a round of messages is sent.
    pub(crate) async fn round(&self) {
        let before = self.sent();
        // If the stream has failed, `end` returns the error.
        let _ = self.sent.clone().wait_for(|sent| *sent > before).await;
    }

    /// Stops the stream, and returns the number of messages sent.
    pub(crate) async fn end(mut self) -> Result<u64, DemoHttpError> {
        self.enough.send_replace(true);
        // It is aborted only when the stream is dropped.
        (&mut self.writing).await.unwrap_or(Ok(()))?;
        Ok(self.sent())
    }
}

impl Drop for MessageStream {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

async fn write(
    world: HttpClient,
    tell: watch::Sender<u64>,
    enough: watch::Receiver<bool>,
) -> Result<(), DemoHttpError> {
    let round = json!({ "events_per_s": A_SECOND, "seconds": ROUND_SECONDS, "event": "MESSAGE_CREATE" });
    while !*enough.borrow() {
        let report = world.post("/sim/storm", None, &round).await?.json();
        tell.send_modify(|sent| *sent += report["sent"].as_u64().unwrap_or(0));
    }
    Ok(())
}
