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
const CHUNK: usize = 32 * 1024;
/// Delay before a key is checked again, if the check failed.
const UNSURE: Duration = Duration::from_millis(500);

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
    pub(crate) served: Data<AppState>,
    pub(crate) changes: Arc<dyn ChangeFeed>,
    pub(crate) config: StreamsConfig,
    /// The key of the stream, unless it cannot be revoked.
    pub(crate) key: Option<KeyId>,
    pub(crate) filter: OperationFilter,
    pub(crate) frontier: ChangeCursor,
    /// The last removed change that the client was informed of by a gap.
    pub(crate) gap_told: Option<u64>,
    pub(crate) draining: watch::Receiver<bool>,
    pub(crate) out: mpsc::Sender<Bytes>,
    pub(crate) seat: StreamPermit,
    /// When something was last sent to the client.
    pub(crate) spoken: Instant,
}

impl StreamTask {
    /// Feeds the stream until it ends. `gone` is closed when the response is sent, or given up.
    pub(crate) async fn run(mut self, gone: oneshot::Receiver<Infallible>, line: Option<ConnectionAbort>) {
        let Err(ending) = self.flow().await;
        self.seat.why = ending.name();
        let last_words = match ending {
            StreamEndReason::Gone | StreamEndReason::Stalled => None,
            StreamEndReason::Revoked => Some("the key is no longer valid"),
            StreamEndReason::Draining => Some("this process is shutting down; reconnect"),
        };
        if let Some(words) = last_words {
            // A client without room for it does not read anyway.
            let _ = self.out.try_send(Bytes::from(frame::ending(words)));
        }
        if let (Some(line), StreamEndReason::Stalled) = (&line, ending) {
            line.cut();
        }
        let Self { out, seat, config, .. } = self;
        drop((out, seat));
        // A response that is not read to its end would occupy its connection for ever.
        let is_over = match ending {
            StreamEndReason::Gone | StreamEndReason::Stalled => true,
            StreamEndReason::Revoked | StreamEndReason::Draining => timeout(config.stall, gone).await.is_ok(),
        };
        if let Some(line) = line.filter(|_| !is_over) {
            line.cut();
        }
    }

    async fn flow(&mut self) -> Result<Infallible, StreamEndReason> {
        let StreamsConfig { keep_alive, check_key_every, look_every, .. } = self.config;
        let mut ticks = self.changes.ticks();
        let mut checked = Instant::now();
        self.put(frame::greeting(&self.frontier)).await?;
        loop {
            if checked.elapsed() >= check_key_every {
                let asked = Instant::now();
                if !self.check_key().await? {
                    // Nothing is sent while it is unknown whether the key is still valid.
                    sleep(UNSURE).await;
                    continue;
                }
                checked = asked;
            }
            // Later changes are read in the next round.
            ticks.borrow_and_update();
            if self.step().await? == PageRemainder::More {
                continue;
            }
            if self.spoken.elapsed() >= keep_alive {
                self.put(frame::alive(&self.frontier)).await?;
            }
            // The more streams there are, the less often each of them queries.
            sleep(self.pace()).await;
            tokio::select! {
                ticked = ticks.changed() => if ticked.is_err() { return Err(StreamEndReason::Draining) },
                () = sleep(look_every) => {}
                () = sleep_until(checked + check_key_every) => {}
                () = sleep_until(self.spoken + keep_alive) => {}
                _ = self.draining.wait_for(|draining| *draining) => return Err(StreamEndReason::Draining),
                () = self.out.closed() => return Err(StreamEndReason::Gone),
            }
        }
    }

    fn pace(&self) -> Duration {
        let streams = u32::try_from(self.served.control.streams.count()).unwrap_or(u32::MAX);
        self.config.pace.saturating_mul(streams).max(self.config.pace_least)
    }

    /// Whether the key is known to be valid; an error if it is known to be invalid.
    async fn check_key(&self) -> Result<bool, StreamEndReason> {
        let Some(key) = self.key else { return Ok(true) };
        match self.served.look_up(key, NO_ADDRESS).await {
            Ok(Some(known)) if known.is_good(self.served.now()) => Ok(true),
            Ok(_) => Err(StreamEndReason::Revoked),
            Err(_) => Ok(false),
        }
    }

    /// Sends the next changes, at most one page.
    async fn step(&mut self) -> Result<PageRemainder, StreamEndReason> {
        let page = self.changes.follow(self.frontier.clone(), self.filter.clone(), self.config.page);
        // The store reports its own errors; the client still gets keep-alives.
        let Ok(followed) = page.await else { return Ok(PageRemainder::Nothing) };
        let ChangePage { seen, forgotten, changed, more } = followed;
        let mut text = String::new();
        if self.frontier.is_ahead(&seen) {
            self.frontier = ChangeCursor::default();
            self.gap_told = forgotten;
            frame::gap(&mut text, &self.frontier, GapReason::Ahead);
            self.put(text).await?;
            return Ok(PageRemainder::More);
        }
        if forgotten > self.gap_told && forgotten.is_some_and(|forgotten| self.frontier.is_behind(forgotten)) {
            self.gap_told = forgotten;
            frame::gap(&mut text, &self.frontier, GapReason::Forgotten);
        }
        let mut left = changed.len();
        if left == 0 {
            self.frontier.on_end(&seen);
        }
        for one in &changed {
            left -= 1;
            self.frontier.on_told(&seen, one.change, one.shown.stored.operation.id.uuid());
            if left == 0 && !more {
                self.frontier.on_end(&seen);
            }
            frame::operation(&mut text, &self.frontier, &one.shown);
            if text.len() >= CHUNK {
                self.put(std::mem::take(&mut text)).await?;
            }
        }
        if !text.is_empty() {
            self.put(text).await?;
        }
        Ok(if more { PageRemainder::More } else { PageRemainder::Nothing })
    }

    /// Sends a chunk to the client, which must read it in time.
    async fn put(&mut self, text: String) -> Result<(), StreamEndReason> {
        tokio::select! {
            sent = self.out.send(Bytes::from(text)) => sent.map_err(|_| StreamEndReason::Gone)?,
            () = sleep(self.config.stall) => return Err(StreamEndReason::Stalled),
            _ = self.draining.wait_for(|draining| *draining) => return Err(StreamEndReason::Draining),
        }
        self.spoken = Instant::now();
        Ok(())
    }
}
