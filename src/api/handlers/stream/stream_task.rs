//! The task that feeds one stream.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use actix_web::web::{Bytes, Data};
use guildhall_actors::ports::{ChangeFeed, ChangePage, OperationFilter};
use guildhall_core::{access::KeyId, operation::ChangeCursor};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    StreamsConfig,
    frame::{self, GapReason},
    stream_limit::StreamPermit,
};
use crate::api::abort::ConnectionAbort;
use crate::api::app_state::AppState;

/// Approximate size of a chunk.
const CHUNK_SIZE: usize = 32 * 1024;
/// Delay before a key is checked again, if the check failed.
const KEY_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEndReason {
    /// The client has disconnected.
    Gone,
    /// The client does not read.
    Stalled,
    /// The key is no longer valid.
    Revoked,
    /// The process is shutting down.
    Draining,
}

impl StreamEndReason {
    fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Stalled => "stalled",
            Self::Revoked => "revoked",
            Self::Draining => "draining",
        }
    }
}

/// Whether more changes can be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageRemainder {
    More,
    Nothing,
}

/// The address that look-ups of streams are counted for: their keys exist.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The state of one stream.
pub(crate) struct StreamTask {
    pub(crate) app: Data<AppState>,
    pub(crate) changes: Arc<dyn ChangeFeed>,
    pub(crate) config: StreamsConfig,
    /// The key of the stream, unless it cannot be revoked.
    pub(crate) key: Option<KeyId>,
    pub(crate) filter: OperationFilter,
    pub(crate) cursor: ChangeCursor,
    /// The last removed change that the client was informed of by a gap.
    pub(crate) reported_gap: Option<u64>,
    pub(crate) draining: watch::Receiver<bool>,
    pub(crate) out: mpsc::Sender<Bytes>,
    pub(crate) permit: StreamPermit,
    /// When something was last sent to the client.
    pub(crate) last_sent: Instant,
}

impl StreamTask {
    /// Feeds the stream until it ends. `gone` is closed when the response is sent, or given up.
    pub(crate) async fn run(mut self, gone: oneshot::Receiver<Infallible>, abort: Option<ConnectionAbort>) {
        let Err(ending) = self.run_loop().await;
        self.permit.reason = ending.name();
        let comment = match ending {
            StreamEndReason::Gone | StreamEndReason::Stalled => None,
            StreamEndReason::Revoked => Some("the key is no longer valid"),
            StreamEndReason::Draining => Some("this process is shutting down; reconnect"),
        };
        if let Some(comment) = comment {
            // A client without room for it does not read anyway.
            let _ = self.out.try_send(Bytes::from(frame::closing_comment(comment)));
        }
        if let (Some(abort), StreamEndReason::Stalled) = (&abort, ending) {
            abort.abort();
        }
        let Self { out, permit, config, .. } = self;
        drop((out, permit));
        // A response that is not read to its end would occupy its connection for ever.
        let is_finished = match ending {
            StreamEndReason::Gone | StreamEndReason::Stalled => true,
            StreamEndReason::Revoked | StreamEndReason::Draining => timeout(config.stall_timeout, gone).await.is_ok(),
        };
        if let Some(abort) = abort.filter(|_| !is_finished) {
            abort.abort();
        }
    }

    async fn run_loop(&mut self) -> Result<Infallible, StreamEndReason> {
        let StreamsConfig { keep_alive, key_check_interval: check_key_every, poll_interval: look_every, .. } =
            self.config;
        let mut ticks = self.changes.ticks();
        let mut checked = Instant::now();
        self.send(frame::greeting(&self.cursor)).await?;
        loop {
            if checked.elapsed() >= check_key_every {
                let started_at = Instant::now();
                if !self.check_key().await? {
                    // Nothing is sent while it is unknown whether the key is still valid.
                    sleep(KEY_RETRY_DELAY).await;
                    continue;
                }
                checked = started_at;
            }
            // Later changes are read in the next round.
            ticks.borrow_and_update();
            if self.step().await? == PageRemainder::More {
                continue;
            }
            if self.last_sent.elapsed() >= keep_alive {
                self.send(frame::heartbeat(&self.cursor)).await?;
            }
            // The more streams there are, the less often each of them queries.
            sleep(self.pace()).await;
            tokio::select! {
                ticked = ticks.changed() => if ticked.is_err() { return Err(StreamEndReason::Draining) },
                () = sleep(look_every) => {}
                () = sleep_until(checked + check_key_every) => {}
                () = sleep_until(self.last_sent + keep_alive) => {}
                _ = self.draining.wait_for(|draining| *draining) => return Err(StreamEndReason::Draining),
                () = self.out.closed() => return Err(StreamEndReason::Gone),
            }
        }
    }

    fn pace(&self) -> Duration {
        let streams = u32::try_from(self.app.control.streams.count()).unwrap_or(u32::MAX);
        self.config.pace.saturating_mul(streams).max(self.config.min_pace)
    }

    /// Whether the key is known to be valid; an error if it is known to be invalid.
    async fn check_key(&self) -> Result<bool, StreamEndReason> {
        let Some(key) = self.key else { return Ok(true) };
        match self.app.look_up(key, NO_ADDRESS).await {
            Ok(Some(found)) if found.is_valid(self.app.now()) => Ok(true),
            Ok(_) => Err(StreamEndReason::Revoked),
            Err(_) => Ok(false),
        }
    }

    /// Sends the next changes, at most one page.
    async fn step(&mut self) -> Result<PageRemainder, StreamEndReason> {
        let page = self.changes.follow(self.cursor.clone(), self.filter.clone(), self.config.page_size);
        // The store reports its own errors; the client still gets keep-alives.
        let Ok(followed) = page.await else { return Ok(PageRemainder::Nothing) };
        let ChangePage { visible: seen, max_deleted: forgotten, changed, has_more: more } = followed;
        let mut text = String::new();
        if self.cursor.is_ahead(&seen) {
            self.cursor = ChangeCursor::default();
            self.reported_gap = forgotten;
            frame::gap(&mut text, &self.cursor, GapReason::Ahead);
            self.send(text).await?;
            return Ok(PageRemainder::More);
        }
        if forgotten > self.reported_gap && forgotten.is_some_and(|forgotten| self.cursor.is_behind(forgotten)) {
            self.reported_gap = forgotten;
            frame::gap(&mut text, &self.cursor, GapReason::Forgotten);
        }
        let mut remaining = changed.len();
        if remaining == 0 {
            self.cursor.on_end(&seen);
        }
        for one in &changed {
            remaining -= 1;
            self.cursor.on_delivered(&seen, one.change, one.details.stored.operation.id.uuid());
            if remaining == 0 && !more {
                self.cursor.on_end(&seen);
            }
            frame::operation(&mut text, &self.cursor, &one.details);
            if text.len() >= CHUNK_SIZE {
                self.send(std::mem::take(&mut text)).await?;
            }
        }
        if !text.is_empty() {
            self.send(text).await?;
        }
        Ok(if more { PageRemainder::More } else { PageRemainder::Nothing })
    }

    /// Sends a chunk to the client, which must read it in time.
    async fn send(&mut self, text: String) -> Result<(), StreamEndReason> {
        tokio::select! {
            sent = self.out.send(Bytes::from(text)) => sent.map_err(|_| StreamEndReason::Gone)?,
            () = sleep(self.config.stall_timeout) => return Err(StreamEndReason::Stalled),
            _ = self.draining.wait_for(|draining| *draining) => return Err(StreamEndReason::Draining),
        }
        self.last_sent = Instant::now();
        Ok(())
    }
}
