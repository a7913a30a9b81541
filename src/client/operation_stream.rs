//! A stream of operations that is taken up again where it broke.
//!
//! ```text
//!  open ──▶ events ──break──▶ wait a little ──▶ open with Last-Event-ID ──▶ what was missed, and on
//!                                                └─ nothing to go on from, or too old ──▶ gap
//! ```

use std::{collections::VecDeque, time::Duration};

use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    ANSWER_MOST, ApiRequest, Client, ClientError,
    request::query,
    sse::{SseEvent, SseParser},
};

/// What the stream is called where a daemon has none.
const FEATURE: &str = "the stream of operations";
/// Where it is.
const PATH: &str = "/v1/operations/stream";
/// A stream that says nothing for so long, not even that it is there, is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// How long to wait after the first break; each further one in a row waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest of these waits, and the longest that the daemon may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How many breaks in a row there may be without a word between them.
const BREAKS_MOST: u32 = 10;

/// What a stream tells.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// An operation is in another state, or was accepted: as lists have it.
    Operation(Value),
    /// Something may have been missed: whoever must know everything has to look.
    Gap,
}

/// A stream of operations.
#[derive(Debug)]
pub struct OperationStream {
    client: Client,
    path: String,
    /// After which event it goes on.
    last: Option<String>,
    open: Option<(Incoming, SseParser)>,
    told: VecDeque<StreamItem>,
    /// When it last said anything.
    heard: Instant,
    breaks: u32,
    retry: Option<Duration>,
}

impl OperationStream {
    /// Opens the stream of what these parameters name; after this event, if one is named.
    ///
    /// # Errors
    ///
    /// When there is none, or it is refused. A daemon without streams is a [`ClientError::Unknown`].
    pub async fn open(
        client: &Client,
        given: &[(&str, Option<String>)],
        after: Option<String>,
    ) -> Result<Self, ClientError> {
        let mut feed = Self {
            client: client.clone(),
            path: query(PATH, given),
            last: after,
            open: None,
            told: VecDeque::new(),
            heard: Instant::now(),
            breaks: 0,
            retry: None,
        };
        feed.connect().await?;
        Ok(feed)
    }

    /// After which event it would go on.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// What comes next. May be dropped at any time; nothing is lost by that.
    ///
    /// # Errors
    ///
    /// When it is broken for good, or refused.
    pub async fn next(&mut self) -> Result<StreamItem, ClientError> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Ok(told);
            }
            let Some((body, _)) = &mut self.open else {
                self.again().await?;
                continue;
            };
            let frame = timeout_at(self.heard + SILENCE, body.frame()).await;
            self.heard = Instant::now();
            match frame {
                Ok(Some(Ok(frame))) => self.take(frame.data_ref().map_or(&[][..], |data| data)),
                // The end, an error, or nothing for too long: all the same.
                Ok(Some(Err(_)) | None) | Err(_) => self.open = None,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some((_, parser)) = &mut self.open else { return };
        self.breaks = 0;
        let Ok(events) = parser.push(bytes) else {
            // Nobody knows where the next event begins.
            self.open = None;
            self.told.push_back(StreamItem::Gap);
            return;
        };
        if let Some(last) = parser.last() {
            self.last = Some(last.to_owned());
        }
        self.retry = parser.retry().or(self.retry);
        self.told.extend(events.iter().filter_map(told));
    }

    /// Opens it again, after a while.
    async fn again(&mut self) -> Result<(), ClientError> {
        let backoff = FIRST_WAIT.saturating_mul(1 << self.breaks.min(10)).min(LONGEST_WAIT);
        let mut wait =
            self.retry.unwrap_or_default().min(LONGEST_WAIT).max(backoff).mul_f64(fastrand::f64() / 2.0 + 0.75);
        loop {
            sleep(wait).await;
            self.breaks += 1;
            let knew_nothing = self.last.is_none();
            match self.connect().await {
                Ok(()) => {
                    // What happened in between can be asked for by nobody.
                    if knew_nothing {
                        self.told.push_back(StreamItem::Gap);
                    }
                    return Ok(());
                }
                Err(fault) => {
                    let Some(after) = worth_another(&fault).filter(|_| self.breaks < BREAKS_MOST) else {
                        return Err(fault);
                    };
                    let backoff = FIRST_WAIT.saturating_mul(1 << self.breaks.min(10));
                    wait = after.max(backoff).min(LONGEST_WAIT);
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let ask = ApiRequest::new(Method::GET, self.path.clone()).about(FEATURE);
        let mut more = vec![(header::ACCEPT.as_str(), "text/event-stream".to_owned())];
        more.extend(self.last.clone().map(|last| ("last-event-id", last)));
        let (client, within) = (&self.client, self.client.within());
        let late = |_| ClientError::TimedOut { place: client.place().clone(), within, left: false };
        let response = timeout(within, client.begin(&ask, &more)).await.map_err(late)??;
        let (head, body) = response.into_parts();
        let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if head.status == StatusCode::OK && kind.starts_with("text/event-stream") {
            self.open = Some((body, SseParser::default()));
            self.heard = Instant::now();
            return Ok(());
        }
        let whole = http_body_util::Limited::new(body, ANSWER_MOST).collect();
        let body =
            timeout(within, whole).await.map_err(late)?.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let fault = client.refused(&ask, head.status, &head.headers, &body);
        // An older daemon takes the stream's path for an operation's.
        let is_taken_for_an_id = fault.refusal().is_some_and(|refusal| {
            refusal.status == StatusCode::BAD_REQUEST && refusal.errors.iter().any(|(field, _)| field == "id")
        });
        if is_taken_for_an_id {
            return Err(ClientError::Unknown { place: client.place().clone(), what: FEATURE.to_owned() });
        }
        Err(fault)
    }
}

/// When a stream may be had again, if that is to be hoped for.
fn worth_another(fault: &ClientError) -> Option<Duration> {
    match fault {
        ClientError::Unreachable { .. }
        | ClientError::TimedOut { .. }
        | ClientError::Broken { .. }
        | ClientError::NotOurs { .. } => Some(Duration::ZERO),
        ClientError::Refused(_) => fault.again_after(),
        ClientError::Unknown { .. } | ClientError::Malformed { .. } => None,
    }
}

fn told(event: &SseEvent) -> Option<StreamItem> {
    match event.kind.as_str() {
        "operation" => serde_json::from_str(&event.data).ok().map(StreamItem::Operation),
        "gap" => Some(StreamItem::Gap),
        // Something that is not known yet.
        _ => None,
    }
}
