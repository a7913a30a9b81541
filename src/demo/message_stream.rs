//! Sends messages in the simulated guilds continuously, whether a daemon is running or not.

use std::net::SocketAddr;

use guildhall_actors::supervision::spawn_work;
use serde::Deserialize;
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use super::http::{DemoHttpClient, DemoHttpError};

/// Messages per second, over all guilds.
const MESSAGES_PER_SECOND: u32 = 40;
/// Duration of a round of messages; the stream can stop after each round.
const ROUND_SECONDS: f64 = 0.25;

/// A running stream of messages. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct MessageStream {
    sent: watch::Receiver<u64>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), DemoHttpError>>,
}

impl MessageStream {
    /// Starts to send messages in the simulator at this address.
    pub(crate) fn start(sim: SocketAddr) -> Self {
        let ((sent_sender, sent), (stop_sender, stop)) = (watch::channel(0), watch::channel(false));
        let task = spawn_work(send_messages(DemoHttpClient::new(sim, None), sent_sender, stop));
        Self { sent, stop: stop_sender, task }
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
        self.stop.send_replace(true);
        // It is aborted only when the stream is dropped.
        (&mut self.task).await.unwrap_or(Ok(()))?;
        Ok(self.sent())
    }
}

impl Drop for MessageStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The simulator's report of a round.
#[derive(Deserialize)]
struct StormReport {
    sent: u64,
}

async fn send_messages(
    sim_http: DemoHttpClient,
    sent_sender: watch::Sender<u64>,
    stop: watch::Receiver<bool>,
) -> Result<(), DemoHttpError> {
    let round = json!({ "events_per_s": MESSAGES_PER_SECOND, "seconds": ROUND_SECONDS, "event": "MESSAGE_CREATE" });
    while !*stop.borrow() {
        let report: StormReport = sim_http.post("/sim/storm", None, &round).await?.read()?;
        sent_sender.send_modify(|sent| *sent += report.sent);
    }
    Ok(())
}
