//! The HTTP transport: sends one call over one connection, at most once.
//!
//! HTTP/1.1, unless the settings say otherwise. A lost connection then makes the outcome of one call unknown, not of all
//! the calls that share it. A call that times out closes its connection; with HTTP/2, its stream.

use std::{
    error::Error,
    fmt,
    pin::{Pin, pin},
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use guildhall_actors::gate::{
    ApiVersion, ClearedRequest, RawResponse, RequestBody, ResponseMode, RestRequest, Transport, TransportError,
};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::Credential;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::{
    Client,
    connect::{CaptureConnection, HttpConnector, capture_connection},
};
use rustls::ClientConfig;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    classify::{Classification, api_date, classify},
    leased_connector::LeasedConnector,
};
use crate::{
    clock::Clocks,
    error_chain::chain,
    net::{self, BodyError, HttpVersions, Pace, PacedBody, Pool, PrefixedBody},
    settings::{SecretValue, Settings},
};

/// User agent, in the format that Discord requires.
const USER_AGENT: &str = concat!("DiscordBot (", env!("CARGO_PKG_REPOSITORY"), ", ", env!("CARGO_PKG_VERSION"), ")");

/// Maximum number of idle connections. The gate permits about 50 calls a second, so more are never needed.
const MAX_IDLE: usize = 64;

/// Maximum duration of an upload, however fast its sender is: Discord may stop to read.
const MAX_UPLOAD: Duration = Duration::from_secs(600);

/// Headers that belong to a connection or that the transport sets itself. Values from a caller are removed. They
/// include `Accept-Encoding`, because responses are read here.
const RESERVED_HEADERS: [header::HeaderName; 14] = [
    header::ACCEPT_ENCODING,
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    TRACEPARENT,
    header::HeaderName::from_static("tracestate"),
];

/// Trace context of a call.
const TRACEPARENT: header::HeaderName = header::HeaderName::from_static("traceparent");

type BoxError = Box<dyn Error + Send + Sync>;
type OutgoingBody = UnsyncBoxBody<Bytes, BoxError>;

/// Configuration of the transport.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// URL of the REST API, without a trailing slash.
    pub api_url: String,
    /// The bot's token.
    pub token: SecretValue,
    /// Maximum time to wait for a connection, including TLS.
    pub connect_timeout: Duration,
    /// Maximum duration of a call in total.
    pub request_timeout: Duration,
    /// Maximum size of a response.
    pub max_response_bytes: usize,
    /// How long an idle connection stays open.
    pub pool_idle: Duration,
    /// Whether calls carry a `traceparent` header to Discord.
    pub traceparent: bool,
    /// Whether calls use HTTP/2, if the server offers it.
    pub http2: bool,
}

impl TransportConfig {
    /// Creates the configuration from the settings.
    #[must_use]
    pub fn new(settings: &Settings, token: SecretValue) -> Self {
        Self {
            api_url: settings.discord.api_url.clone(),
            token,
            connect_timeout: settings.rest.connect_timeout,
            request_timeout: settings.rest.request_timeout,
            max_response_bytes: settings.rest.max_response_bytes,
            pool_idle: settings.rest.pool_idle,
            traceparent: settings.rest.traceparent,
            http2: settings.rest.http2,
        }
    }
}

/// Invalid configuration of the transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportConfigError {
    /// The URL of the API is invalid.
    #[error("{0:?} is not a valid REST API URL; use an http or https URL such as https://discord.com/api/v10")]
    Url(String),
    /// The token has characters that a header cannot contain.
    #[error("the bot token contains invalid characters; copy it again from the Discord developer portal")]
    Token,
}

/// The token that calls carry. Clones share it.
#[derive(Clone)]
pub struct Authorization(Arc<RwLock<HeaderValue>>);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

impl Authorization {
    fn new(token: &SecretValue) -> Result<Self, TransportConfigError> {
        Ok(Self(Arc::new(RwLock::new(Self::header_value(token)?))))
    }

    fn header_value(token: &SecretValue) -> Result<HeaderValue, TransportConfigError> {
        let parsed = HeaderValue::from_str(&format!("Bot {}", token.expose()));
        let mut header = parsed.map_err(|_| TransportConfigError::Token)?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// Sets the token. It applies from the next call on.
    ///
    /// # Errors
    ///
    /// When the token cannot be an HTTP header value. The token is then unchanged.
    pub fn set(&self, token: &SecretValue) -> Result<(), TransportConfigError> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Self::header_value(token)?;
        Ok(())
    }

    /// The value of the header `Authorization`, marked as sensitive.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type RestHttpClient = Client<LeasedConnector<HttpsConnector<HttpConnector>>, OutgoingBody>;

/// Sends calls to Discord over pooled connections. It does not retry calls and does not follow redirects.
pub struct HyperTransport {
    /// For calls that need no lease.
    client: RestHttpClient,
    /// For calls that need a valid lease.
    leased: RestHttpClient,
    /// Whether all calls need a valid lease.
    leases_all: bool,
    connector: ConnectorConfig,
    api_url: String,
    authorization: Authorization,
    connect_timeout: Duration,
    request_timeout: Duration,
    max_response_bytes: usize,
    traceparent: bool,
    /// Clocks that the dates of responses are compared with.
    clocks: Option<Clocks>,
}

impl fmt::Debug for HyperTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperTransport").field("api_url", &self.api_url).finish_non_exhaustive()
    }
}

impl HyperTransport {
    /// Creates a transport without connections.
    ///
    /// # Errors
    ///
    /// When the URL of the API or the token cannot be part of an HTTP request.
    pub fn new(config: TransportConfig) -> Result<Self, TransportConfigError> {
        Self::trusting(config, net::tls::public_authorities())
    }

    /// The same for servers that this configuration trusts.
    fn trusting(config: TransportConfig, tls: ClientConfig) -> Result<Self, TransportConfigError> {
        let base: Uri = config.api_url.parse().map_err(|_| TransportConfigError::Url(config.api_url.clone()))?;
        let plain = base.path_and_query().is_none_or(|path| path.query().is_none());
        if !plain || base.host().is_none() || !matches!(base.scheme_str(), Some("http" | "https")) {
            return Err(TransportConfigError::Url(config.api_url));
        }
        let authorization = Authorization::new(&config.token)?;

        let versions = if config.http2 { HttpVersions::Http2IfOffered } else { HttpVersions::Http1 };
        let connector =
            ConnectorConfig { versions, tls, connect_timeout: config.connect_timeout, pool_idle: config.pool_idle };
        let client = connector.client(LeaseGuard::always());
        Ok(Self {
            leased: client.clone(),
            leases_all: false,
            client,
            connect_timeout: config.connect_timeout,
            connector,
            api_url: config.api_url,
            authorization,
            request_timeout: config.request_timeout,
            max_response_bytes: config.max_response_bytes,
            traceparent: config.traceparent,
            clocks: None,
        })
    }

    /// Sets the lease of this process. Calls that depend on a lease are written only while it is valid.
    #[must_use]
    pub fn with_lease(self, lease: LeaseGuard) -> Self {
        Self { leased: self.connector.client(lease), ..self }
    }

    /// Returns the token that calls carry. A new token that is set there applies from the next call on.
    #[must_use]
    pub fn authorization(&self) -> Authorization {
        self.authorization.clone()
    }

    /// Compares the `Date` of every response of Discord's API with these clocks.
    #[must_use]
    pub fn with_clocks(self, clocks: Clocks) -> Self {
        Self { clocks: Some(clocks), ..self }
    }

    /// Sets the lease of this process. No call is written unless it is valid.
    #[must_use]
    pub fn with_lease_for_all_calls(self, lease: LeaseGuard) -> Self {
        Self { leases_all: true, ..self.with_lease(lease) }
    }

    /// Sends a call once, and reads the whole response.
    pub(crate) async fn exchange(&self, mut request: RestRequest) -> Result<RawResponse, TransportError> {
        let started = Instant::now();
        let sent = self.clocks.as_ref().map(Clocks::monotonic);
        let (credential, mode) = (request.credential, request.response);
        let mut upload_end = track_upload(&mut request.body);
        let client = if self.leases_all || request.lease.may_end() { &self.leased } else { &self.client };
        let mut request = self.prepare(request)?;
        let mut connection = capture_connection(&mut request);
        let mut response = pin!(client.request(request));

        let mut deadline = started + self.request_timeout;
        let mut uploaded = None;
        let connect_by = (started + self.connect_timeout).min(deadline);
        let result = tokio::select! {
            biased;
            result = &mut response => Some(result),
            () = wait_until_connected(&mut connection) => None,
            () = sleep_until(connect_by) => return Err(TransportError::Connect("connection timed out".to_owned())),
        };
        let result = match result {
            Some(result) => Some(result),
            None => {
                // An upload takes as long as its sender needs; the time for the response begins at its end.
                if let Some(end) = &mut upload_end {
                    tokio::select! {
                        biased;
                        result = &mut response => Some(result),
                        _ = end => None,
                        () = sleep_until(started + MAX_UPLOAD) => return Err(TransportError::TimedOut),
                    }
                } else {
                    None
                }
            }
        };
        let result = match result {
            Some(result) => result,
            None => {
                if upload_end.is_some() {
                    uploaded = Some(Instant::now());
                    deadline = Instant::now() + self.request_timeout;
                }
                timeout_at(deadline, response).await.map_err(|_| TransportError::TimedOut)?
            }
        };
        let upload = uploaded.map_or(Duration::ZERO, |uploaded| uploaded - started);
        if upload_end.is_some() {
            deadline = deadline.max(Instant::now() + self.request_timeout);
        }
        let (head, body) = result.map_err(|error| classify_failure(&error, &connection))?.into_parts();
        let arrived = self.clocks.as_ref().map(Clocks::monotonic);
        // Each part of it must arrive in the time of a whole response.
        let pace = Pace { window: self.request_timeout, min_bytes: 1, max_bytes: u64::MAX };
        let (body, stream) = match mode {
            ResponseMode::Streamed if head.status.is_success() => {
                (Bytes::new(), Some(PacedBody::new(body, pace, 0).boxed_unsync()))
            }
            ResponseMode::Streamed => {
                let read = timeout_at(deadline, self.read_first(body)).await;
                match read.map_err(|_| TransportError::TimedOut)?? {
                    (body, None) => (body, None),
                    // Its status is known, and that is what counts.
                    (first, Some(rest)) => {
                        let already = first.len() as u64;
                        let stream = PrefixedBody::new(first, (), PacedBody::new(rest, pace, already));
                        (Bytes::new(), Some(stream.boxed_unsync()))
                    }
                }
            }
            ResponseMode::Whole => {
                let read = timeout_at(deadline, self.read(body)).await;
                (read.map_err(|_| TransportError::TimedOut)??, None)
            }
        };
        let Classification { class, code, rate } = classify(credential, head.status, &head.headers, &body);
        if let (Some(clocks), Some(sent), Some(arrived)) = (&self.clocks, sent, arrived)
            && let Some(date) = api_date(head.status, &head.headers, class)
        {
            clocks.observe_discord(date, sent, arrived);
        }
        Ok(RawResponse { status: head.status, headers: head.headers, body, stream, upload, class, code, rate })
    }

    /// Builds the HTTP request.
    fn prepare(&self, request: RestRequest) -> Result<http::Request<OutgoingBody>, TransportError> {
        let malformed = |reason: &str| TransportError::Malformed(reason.to_owned());
        if request.method == Method::CONNECT {
            return Err(malformed("CONNECT is not a valid method for a REST API"));
        }
        if !request.path.starts_with('/') {
            return Err(malformed("the path does not start with a slash"));
        }
        let root = unversioned(&self.api_url);
        let url = match request.version {
            ApiVersion::Configured => format!("{}{}", self.api_url, request.path),
            ApiVersion::Number(version) => format!("{root}/v{version}{}", request.path),
            ApiVersion::Unversioned => format!("{root}{}", request.path),
        };
        let uri: Uri = url.parse().map_err(|_| malformed("the path cannot be part of a URL"))?;
        let mut out = http::Request::new(out_body(request.body));
        let authorization = match request.credential {
            Credential::Application(_) => Some(self.authorization.header()),
            Credential::Anonymous => None,
            Credential::Token(_) => {
                Some(request.authorization.ok_or_else(|| malformed("a call with a caller's token has none"))?)
            }
        };
        *out.headers_mut() = out_headers(request.headers, authorization);
        if let Some(trace) = request.trace.filter(|_| self.traceparent) {
            let trace = HeaderValue::from_str(&trace.to_string()).map_err(|_| malformed("invalid trace context"))?;
            out.headers_mut().insert(TRACEPARENT, trace);
        }
        // By default, hyper sends no `Content-Length` for an empty body, and some servers then expect one (411).
        if matches!(request.method, Method::POST | Method::PUT | Method::PATCH) && out.body().is_end_stream() {
            out.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        }
        *out.method_mut() = request.method;
        *out.uri_mut() = uri;
        Ok(out)
    }

    /// Reads a body. If it is larger than what is read whole, returns what was read of it, and the rest.
    async fn read_first(&self, mut body: Incoming) -> Result<(Bytes, Option<Incoming>), TransportError> {
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| TransportError::Broken(chain(&error)))?;
            if let Ok(data) = frame.into_data() {
                read.extend_from_slice(&data);
            }
            if read.len() > self.max_response_bytes {
                return Ok((read.freeze(), Some(body)));
            }
        }
        Ok((read.freeze(), None))
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, TransportError> {
        net::read_body(body, self.max_response_bytes).await.map_err(|error| match error {
            BodyError::TooLarge(_) => TransportError::Broken(format!("{error} (rest.max_response_bytes)")),
            BodyError::ConnectionFailed(reason) => TransportError::Broken(reason),
        })
    }
}

impl Transport for HyperTransport {
    fn send(
        &self,
        call: ClearedRequest,
    ) -> Pin<Box<dyn Future<Output = Result<RawResponse, TransportError>> + Send + '_>> {
        Box::pin(self.exchange(call.into_request()))
    }
}

/// How connections are created.
struct ConnectorConfig {
    versions: HttpVersions,
    tls: ClientConfig,
    connect_timeout: Duration,
    pool_idle: Duration,
}

impl ConnectorConfig {
    /// Creates a client with pooled connections.
    fn client(&self, lease: LeaseGuard) -> RestHttpClient {
        let tcp = net::tcp_connector(self.connect_timeout);
        let inner = net::https_connector_of(self.versions, self.tls.clone(), tcp);
        net::pooled_client(LeasedConnector { inner, lease }, Pool { idle_timeout: self.pool_idle, max_idle: MAX_IDLE })
    }
}

/// The headers of a call, with its credential and without those that the transport sets.
fn out_headers(mut headers: HeaderMap, authorization: Option<HeaderValue>) -> HeaderMap {
    for name in RESERVED_HEADERS {
        headers.remove(name);
    }
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
    if let Some(authorization) = authorization {
        headers.insert(header::AUTHORIZATION, authorization);
    }
    headers
}

/// The URL of the API without its version, if it ends with one.
fn unversioned(api_url: &str) -> &str {
    let is_version = |segment: &str| {
        segment
            .strip_prefix('v')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
    };
    match api_url.rsplit_once('/') {
        Some((root, last)) if is_version(last) => root,
        _ => api_url,
    }
}

fn out_body(body: RequestBody) -> OutgoingBody {
    match body {
        RequestBody::Empty => Full::default().map_err(|never| match never {}).boxed_unsync(),
        RequestBody::Whole(bytes) => Full::new(bytes).map_err(|never| match never {}).boxed_unsync(),
        RequestBody::Stream(stream) => stream,
    }
}

/// Replaces a streamed body by one that reports its end.
fn track_upload(body: &mut RequestBody) -> Option<oneshot::Receiver<()>> {
    let RequestBody::Stream(_) = body else { return None };
    let (ended, end) = oneshot::channel();
    if let RequestBody::Stream(inner) = std::mem::take(body) {
        *body = RequestBody::Stream(TrackedUpload { inner, _ended: ended }.boxed_unsync());
    }
    Some(end)
}

/// A body that is being sent. The receiver is notified when it is dropped: it was sent, or the call has failed.
struct TrackedUpload {
    inner: OutgoingBody,
    _ended: oneshot::Sender<()>,
}

impl Body for TrackedUpload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Waits until the call has a connection. From then on it may be in flight.
async fn wait_until_connected(connection: &mut CaptureConnection) {
    drop(connection.wait_for_connection_metadata().await);
}

/// Classifies a failed call by whether it may have been sent. It was never sent if it had no connection, or if the
/// connection returned it.
fn classify_failure(error: &hyper_util::client::legacy::Error, connection: &CaptureConnection) -> TransportError {
    let cause = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    let returned = cause.is_some_and(|cause| cause.is_canceled() || is_refused_stream(cause));
    if error.is_connect() || returned || connection.connection_metadata().is_none() {
        TransportError::Connect(chain(error))
    } else if cause.is_some_and(hyper::Error::is_user) {
        TransportError::Aborted(chain(error))
    } else {
        TransportError::Broken(chain(error))
    }
}

/// Whether an HTTP/2 server has said that it has not processed the call: it refused its stream, or closes the connection
/// and named an earlier stream as the last one.
fn is_refused_stream(error: &hyper::Error) -> bool {
    let Some(cause) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else { return false };
    let reason = cause.reason();
    cause.is_remote()
        && ((cause.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM))
            || (cause.is_go_away() && reason == Some(h2::Reason::NO_ERROR)))
}

#[cfg(test)]
mod tests;
