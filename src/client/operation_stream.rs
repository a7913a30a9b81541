//! A stream of operations that resumes where it was interrupted.
//!
//! ```text
//!  open ──▶ events ──interrupted──▶ backoff ──▶ open with Last-Event-ID ──▶ missed events, then new ones
//!                                               └─ no last event, or it is too old ──▶ gap
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

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "the operation stream";
/// Path of the stream.
const PATH: &str = "/v1/operations/stream";
/// A stream that sends nothing for this long, not even a keep-alive, counts as interrupted.
const SILENCE: Duration = Duration::from_secs(60);
/// Delay after the first interruption; doubles with each further one in a row.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Maximum of these delays, and of the delay that the daemon may request.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of interruptions in a row without any data between them.
const BREAKS_MOST: u32 = 10;

/// An item of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// An operation was accepted or changed its state. It has the same form as in lists.
    Operation(Value),
    /// Changes may have been missed: a caller that needs all of them must query the operations.
    Gap,
}

/// A stream of operations.
#[derive(Debug)]
pub struct OperationStream {
    client: Client,
    path: String,
    /// Id of the last event, after which the stream resumes.
    last: Option<String>,
    open: Option<(Incoming, SseParser)>,
    told: VecDeque<StreamItem>,
    /// When data last arrived.
    heard: Instant,
    breaks: u32,
    retry: Option<Duration>,
}

impl OperationStream {
    /// Opens a stream with these parameters; after the event `after`, if given.
    ///
    /// # Errors
    ///
    /// If the stream cannot be opened or is rejected. A daemon without streams is reported as an unsupported feature.
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

    /// Id of the last event, after which the stream would resume.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Returns the next item. Cancel-safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// If the stream cannot be resumed, or is rejected.
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
                // The end, an error or a timeout: all are interruptions.
                Ok(Some(Err(_)) | None) | Err(_) => self.open = None,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some((_, parser)) = &mut self.open else { return };
        self.breaks = 0;
        let Ok(events) = parser.push(bytes) else {
            // The start of the next event is unknown.
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

    /// Opens the stream again, after a delay.
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
                    // Without a last event id, the events in between cannot be requested.
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
        // An older daemon parses the last segment of the stream's path as an operation id.
        let is_taken_for_an_id = fault.refusal().is_some_and(|refusal| {
            refusal.status == StatusCode::BAD_REQUEST && refusal.errors.iter().any(|(field, _)| field == "id")
        });
        if is_taken_for_an_id {
            return Err(ClientError::Unknown { place: client.place().clone(), what: FEATURE.to_owned() });
        }
        Err(fault)
    }
}

/// Returns the delay before the next attempt; `None` if the error is permanent.
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
        // An event type of a newer daemon.
        _ => None,
    }
}
