//! A stream of operations that resumes where it was interrupted.
//!
//! ```text
//!  open ──▶ events ──interrupted──▶ backoff ──▶ open with Last-Event-ID ──▶ missed events, then new ones
//!                                               └─ no last event, or it is too old ──▶ gap
//! ```

use std::{collections::VecDeque, time::Duration};

use guildhall_core::backoff::Backoff;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    ApiRequest, Client, ClientError, MAX_RESPONSE_BYTES,
    request::with_query,
    sse::{SseEvent, SseParser},
};
use crate::net;

/// Name of the feature in errors of daemons that do not support it.
const FEATURE: &str = "the operation stream";
/// Path of the stream.
const PATH: &str = "/v1/operations/stream";
/// A stream that sends nothing for this long, not even a keep-alive, counts as interrupted.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delays after interruptions in a row. The daemon may request a longer one, up to the same maximum.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(10), jitter: 0.25 };
/// Maximum number of interruptions in a row without any data between them.
const MAX_BREAKS: u32 = 10;

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
    items: VecDeque<StreamItem>,
    /// When data last arrived.
    last_received: Instant,
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
        parameters: &[(&str, Option<String>)],
        after: Option<String>,
    ) -> Result<Self, ClientError> {
        let mut stream = Self {
            client: client.clone(),
            path: with_query(PATH, parameters),
            last: after,
            open: None,
            items: VecDeque::new(),
            last_received: Instant::now(),
            breaks: 0,
            retry: None,
        };
        stream.connect().await?;
        Ok(stream)
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
            if let Some(item) = self.items.pop_front() {
                return Ok(item);
            }
            let Some((body, _)) = &mut self.open else {
                self.reconnect().await?;
                continue;
            };
            let frame = timeout_at(self.last_received + IDLE_TIMEOUT, body.frame()).await;
            self.last_received = Instant::now();
            match frame {
                Ok(Some(Ok(frame))) => self.on_bytes(frame.data_ref().map_or(&[][..], |data| data)),
                // The end, an error or a timeout: all are interruptions.
                Ok(Some(Err(_)) | None) | Err(_) => self.open = None,
            }
        }
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        let Some((_, parser)) = &mut self.open else { return };
        self.breaks = 0;
        let Ok(events) = parser.push(bytes) else {
            // The start of the next event is unknown.
            self.open = None;
            self.items.push_back(StreamItem::Gap);
            return;
        };
        if let Some(last) = parser.last() {
            self.last = Some(last.to_owned());
        }
        self.retry = parser.retry().or(self.retry);
        self.items.extend(events.iter().filter_map(parse_item));
    }

    /// Opens the stream again, after a delay.
    async fn reconnect(&mut self) -> Result<(), ClientError> {
        let requested = self.retry.unwrap_or_default().min(BACKOFF.cap);
        let delay = requested.max(BACKOFF.delay_without_jitter(self.breaks + 1));
        let mut wait = BACKOFF.with_jitter(delay, fastrand::f64());
        loop {
            sleep(wait).await;
            self.breaks += 1;
            let had_no_last_id = self.last.is_none();
            match self.connect().await {
                Ok(()) => {
                    // Without a last event id, the events in between cannot be requested.
                    if had_no_last_id {
                        self.items.push_back(StreamItem::Gap);
                    }
                    return Ok(());
                }
                Err(error) => {
                    let Some(after) = retry_delay(&error).filter(|_| self.breaks < MAX_BREAKS) else {
                        return Err(error);
                    };
                    wait = after.max(BACKOFF.delay_without_jitter(self.breaks + 1)).min(BACKOFF.cap);
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let api_request = ApiRequest::new(Method::GET, self.path.clone()).with_feature(FEATURE);
        let mut extra_headers = vec![(header::ACCEPT.as_str(), "text/event-stream".to_owned())];
        extra_headers.extend(self.last.clone().map(|last| ("last-event-id", last)));
        let (client, limit) = (&self.client, self.client.timeout());
        let late =
            |_| ClientError::TimedOut { api_url: client.api_url().clone(), timeout: limit, may_have_applied: false };
        let response = timeout(limit, client.start_request(&api_request, &extra_headers)).await.map_err(late)??;
        let (head, body) = response.into_parts();
        let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if head.status == StatusCode::OK && kind.starts_with("text/event-stream") {
            self.open = Some((body, SseParser::default()));
            self.last_received = Instant::now();
            return Ok(());
        }
        let read = timeout(limit, net::read_body(body, MAX_RESPONSE_BYTES)).await.map_err(late)?;
        let body = read.unwrap_or_default();
        let error = client.response_error(&api_request, head.status, &head.headers, &body);
        // An older daemon parses the last segment of the stream's path as an operation id.
        let is_taken_for_an_id = error.problem().is_some_and(|refusal| {
            refusal.status == StatusCode::BAD_REQUEST && refusal.errors.iter().any(|(field, _)| field == "id")
        });
        if is_taken_for_an_id {
            return Err(ClientError::Unsupported { api_url: client.api_url().clone(), feature: FEATURE.to_owned() });
        }
        Err(error)
    }
}

/// Returns the delay before the next attempt; `None` if the error is permanent.
fn retry_delay(error: &ClientError) -> Option<Duration> {
    match error {
        ClientError::Unreachable { .. }
        | ClientError::TimedOut { .. }
        | ClientError::ConnectionFailed { .. }
        | ClientError::NotGuildhall { .. } => Some(Duration::ZERO),
        ClientError::Rejected(_) => error.retry_after(),
        ClientError::Unsupported { .. } | ClientError::Malformed { .. } => None,
    }
}

fn parse_item(event: &SseEvent) -> Option<StreamItem> {
    match event.kind.as_str() {
        "operation" => serde_json::from_str(&event.data).ok().map(StreamItem::Operation),
        "gap" => Some(StreamItem::Gap),
        // An event type of a newer daemon.
        _ => None,
    }
}
