//! Streams the changes of operations: `GET /v1/operations/stream`.
//!
//! ```text
//!  store ──tick──▶ task ──what is after the cursor?──▶ store
//!                   │ bounded channel, on the daemon's runtime
//!                   ▼
//!                 body ──chunks──▶ client ──Last-Event-ID──▶ the next task, here or in another process
//! ```
//!
//! No state is stored for a client: it sends back its position, and the store knows what came after. So a stream may be
//! aborted anywhere, and no change is lost except what the store itself has removed meanwhile, which is reported as a
//! gap.

mod frame;
mod stream_limit;
mod stream_task;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    HttpRequest, HttpResponse,
    body::{BodySize, MessageBody},
    http::{Method, header},
    web::Bytes,
};
use guildhall_actors::access::Caller;
use guildhall_actors::ports::OperationFilter;
use guildhall_actors::supervision::spawn_work_on;
use guildhall_core::operation::{ChangeCursor, OperationKind, OperationState};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

pub(crate) use self::stream_limit::StreamLimit;
use self::{stream_limit::StreamLimitReached, stream_task::StreamTask};
use super::operations::operation_example;
use crate::api::{
    abort::ConnectionAbort,
    errors,
    extract::{App, HandlerResult, Query},
    fields::{self, Field as _, field_error, fields},
    openapi::{
        route_doc::{RouteDoc, Tag},
        schema::text,
    },
    problem::{ProblemResponse, ProblemType},
};

/// Limits of streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamsConfig {
    /// Maximum number of open streams.
    pub max: usize,
    /// Maximum number of open streams of one key.
    pub max_per_key: usize,
    /// How many operations one query reads for a stream.
    pub page_size: usize,
    /// How long a stream is silent before a keep-alive is sent.
    pub keep_alive: Duration,
    /// How long a client may take to read the next chunk.
    pub stall_timeout: Duration,
    /// Interval of checks whether the key is still valid.
    pub key_check_interval: Duration,
    /// Interval of queries when no change is signalled.
    pub poll_interval: Duration,
    /// Minimum time between two queries of a stream, multiplied by the number of streams.
    pub pace: Duration,
    /// Minimum time between two queries of a stream, however few streams there are.
    pub min_pace: Duration,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        Self {
            max: 64,
            max_per_key: 16,
            page_size: 200,
            keep_alive: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(10),
            key_check_interval: Duration::from_millis(1_500),
            poll_interval: Duration::from_secs(5),
            pace: Duration::from_millis(5),
            min_pace: Duration::from_millis(20),
        }
    }
}

/// Chunks that wait for a client to read them.
const MAX_WAITING_CHUNKS: usize = 4;

const LAST_EVENT_ID: &str = "Last-Event-ID";

fields! {
    struct StreamQuery {
        /// Filter by guild.
        guild_id: Option<u64> = fields::guild().optional(),
        /// Filter by kind.
        kind: Option<OperationKind> = fields::kind().optional(),
        /// Only operations that enter this state.
        state: Option<OperationState> = fields::state().optional(),
        /// The same as the header `Last-Event-ID`, for clients that cannot send it.
        last_event_id: Option<ChangeCursor> = fields::scalar(
            || "one of the `id` of an event of this stream".to_owned(),
            text,
            frame::decode_cursor,
        ).optional(),
    }
}

pub(crate) fn open_doc() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "stream_operations", "Stream changes of operations")
        .description(
            "Server-sent events. The `data` of each `event: operation` is an operation as in lists, and its `id` is a \
             position. A client that reconnects with it as `Last-Event-ID` misses nothing that is still stored; \
             `event: gap` reports that something is not. Comments keep the connection alive. A client that does not \
             read is disconnected.",
        )
        .header(LAST_EVENT_ID, text(), "The `id` of the last event that was read; the stream continues after it.")
        .response_as(
            "text/event-stream",
            200,
            "Events, until one side closes the connection.",
            text(),
            [("an event", format!("id: 17\nevent: operation\ndata: {}\n\n", operation_example()).into())],
        )
}

pub(crate) async fn open(
    request: HttpRequest,
    Query(query): Query<StreamQuery>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    let filter = OperationFilter {
        tenant: caller.tenant.clone(),
        guilds: caller.visible_guilds(query.guild_id),
        kind: query.kind,
        state: query.state,
        ..OperationFilter::default()
    };
    // A client that reconnects sends the header; the query is for clients that cannot set a header at first.
    let from = last_event_id(&request)?.or(query.last_event_id);
    let mut response = HttpResponse::Ok();
    response
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        // Proxies must not buffer the response.
        .insert_header(("X-Accel-Buffering", "no"))
        .force_close();
    if request.method() == Method::HEAD {
        return Ok(response.finish());
    }
    let changes = app.changes_for(&caller)?;
    if *app.control.draining.borrow() {
        return Err(ProblemType::Starting.with_detail(
            "The process is shutting down. Retry with another process, or with this one in \
                a moment.",
        ));
    }
    let permit = app.control.streams.acquire(&caller.key).map_err(|full| match full {
        StreamLimitReached::All(max) => ProblemType::Busy
            .with_detail(format!("{max} streams are open, which is the maximum (api.max_streams). Retry in a moment.")),
        StreamLimitReached::Key(max) => ProblemType::Busy.with_detail(format!(
            "This key has {max} streams open, which is the maximum for one key. Close \
                one, then retry."
        )),
    })?;
    let cursor = match from {
        Some(from) => from,
        None => {
            let changes = Arc::clone(&changes);
            let seen = app.run(|| async move { changes.visible().await }).await?;
            ChangeCursor::at(seen.map_err(|error| errors::store_problem(&error))?)
        }
    };
    let (out, chunks) = mpsc::channel(MAX_WAITING_CHUNKS);
    let (alive, gone) = oneshot::channel();
    let task = StreamTask {
        changes,
        config: app.control.config.streams,
        key: caller.key.parse().ok(),
        filter,
        cursor,
        reported_gap: None,
        draining: app.control.draining.subscribe(),
        out,
        permit,
        last_sent: Instant::now(),
        app: app.clone(),
    };
    // A stream that fails ends, and its client opens another.
    spawn_work_on(&app.runtime, task.run(gone, request.conn_data::<ConnectionAbort>().cloned()));
    Ok(response.body(StreamBody { chunks, _alive: alive }))
}

fn last_event_id(request: &HttpRequest) -> Result<Option<ChangeCursor>, ProblemResponse> {
    let Some(given) = request.headers().get(LAST_EVENT_ID) else { return Ok(None) };
    let read = given.to_str().ok().and_then(frame::decode_cursor);
    read.map(Some).ok_or_else(|| field_error(LAST_EVENT_ID, "must be the `id` of an event of this stream"))
}

/// The output of a stream task, as the body of a response.
struct StreamBody {
    chunks: mpsc::Receiver<Bytes>,
    /// Nothing is ever sent: the drop itself is the signal.
    _alive: oneshot::Sender<Infallible>,
}

impl MessageBody for StreamBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        self.chunks.poll_recv(cx).map(|chunk| chunk.map(Ok))
    }
}
