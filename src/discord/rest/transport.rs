//! The way out: one call over one connection, at most once.
//!
//! HTTP/1.1 only, on purpose. A lost connection then makes the outcome of one call unknown, and not of all that happened
//! to share it; and a call that timed out takes its connection with it.

use std::{
    error::Error,
    fmt,
    pin::{Pin, pin},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use guildhall_actors::gate::{ClearedRequest, RawResponse, RequestBody, RestRequest, Transport, TransportError};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::Credential;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{CaptureConnection, HttpConnector, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    classify::{Classification, api_date, classify},
    leased_connector::LeasedConnector,
};
use crate::{
    clock::Clocks,
    error_chain::chain,
    settings::{SecretValue, Settings},
};

/// Who we are, in the form that Discord asks for.
const USER_AGENT: &str = concat!("DiscordBot (", env!("CARGO_PKG_REPOSITORY"), ", ", env!("CARGO_PKG_VERSION"), ")");

/// Unused connections that are kept. The gate lets some 50 calls a second go, so more are never of use.
const MAX_IDLE: usize = 64;

/// What belongs to a connection or is the transport's own to say. A caller's word on it is dropped. `Accept-Encoding`
/// is among them, since answers are read here.
const OWN_HEADERS: [header::HeaderName; 15] = [
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
    header::USER_AGENT,
    TRACEPARENT,
    header::HeaderName::from_static("tracestate"),
];

/// Which trace a call is a part of.
const TRACEPARENT: header::HeaderName = header::HeaderName::from_static("traceparent");

type BoxError = Box<dyn Error + Send + Sync>;
type OutgoingBody = UnsyncBoxBody<Bytes, BoxError>;

/// What the transport needs to know.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// The REST API, without a slash at its end.
    pub api_url: String,
    /// The bot's token.
    pub token: SecretValue,
    /// How long a call may wait for a connection, TLS included.
    pub connect_timeout: Duration,
    /// How long a call may take in all.
    pub request_timeout: Duration,
    /// The largest answer that is read.
    pub max_response_bytes: usize,
    /// How long an unused connection is kept.
    pub pool_idle: Duration,
    /// Whether Discord is told which trace a call is a part of.
    pub traceparent: bool,
}

impl TransportConfig {
    /// As the settings have it.
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
        }
    }
}

/// What the transport cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportConfigError {
    /// The API's address is none.
    #[error(
        "{0:?} cannot be the address of a REST API; give an http or https URL, such as https://discord.com/api/v10"
    )]
    Url(String),
    /// The token cannot stand in a header.
    #[error("the bot's token holds characters that no token has; copy it anew from Discord's developer portal")]
    Token,
}

/// The token that calls carry. Clones are the same one.
#[derive(Clone)]
pub struct Authorization(Arc<RwLock<HeaderValue>>);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

impl Authorization {
    fn new(token: &SecretValue) -> Result<Self, TransportConfigError> {
        Ok(Self(Arc::new(RwLock::new(Self::written(token)?))))
    }

    fn written(token: &SecretValue) -> Result<HeaderValue, TransportConfigError> {
        let written = HeaderValue::from_str(&format!("Bot {}", token.expose()));
        let mut header = written.map_err(|_| TransportConfigError::Token)?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// Uses this token from the next call on.
    ///
    /// # Errors
    ///
    /// When it can be no part of an HTTP request; nothing has changed then.
    pub fn set(&self, token: &SecretValue) -> Result<(), TransportConfigError> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Self::written(token)?;
        Ok(())
    }

    fn header(&self) -> HeaderValue {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type RestHttpClient = Client<LeasedConnector<HttpsConnector<HttpConnector>>, OutgoingBody>;

/// Sends calls to Discord over pooled connections. It retries nothing and follows nothing.
pub struct HyperTransport {
    /// For calls that may always be made.
    client: RestHttpClient,
    /// For calls by a right that may end.
    leased: RestHttpClient,
    /// Whether all calls are such.
    leases_all: bool,
    pool_idle: Duration,
    api_url: String,
    authorization: Authorization,
    connect_timeout: Duration,
    request_timeout: Duration,
    max_response_bytes: usize,
    traceparent: bool,
    /// Where the dates of answers are compared.
    clocks: Option<Clocks>,
}

impl fmt::Debug for HyperTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperTransport").field("api_url", &self.api_url).finish_non_exhaustive()
    }
}

impl HyperTransport {
    /// A transport with no connection yet.
    ///
    /// # Errors
    ///
    /// When the API's URL or the token can be no part of an HTTP request.
    pub fn new(config: TransportConfig) -> Result<Self, TransportConfigError> {
        let base: Uri = config.api_url.parse().map_err(|_| TransportConfigError::Url(config.api_url.clone()))?;
        let plain = base.path_and_query().is_none_or(|path| path.query().is_none());
        if !plain || base.host().is_none() || !matches!(base.scheme_str(), Some("http" | "https")) {
            return Err(TransportConfigError::Url(config.api_url));
        }
        let authorization = Authorization::new(&config.token)?;

        let client = pooled(config.connect_timeout, config.pool_idle, LeaseGuard::always());
        Ok(Self {
            leased: client.clone(),
            leases_all: false,
            client,
            pool_idle: config.pool_idle,
            api_url: config.api_url,
            authorization,
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            max_response_bytes: config.max_response_bytes,
            traceparent: config.traceparent,
            clocks: None,
        })
    }

    /// The same, but what is sent by a right that may end is written only while this process's lease holds.
    #[must_use]
    pub fn under(self, lease: LeaseGuard) -> Self {
        Self { leased: pooled(self.connect_timeout, self.pool_idle, lease), ..self }
    }

    /// What calls are made as. A token that is set there is used from the next call on.
    #[must_use]
    pub fn authorization(&self) -> Authorization {
        self.authorization.clone()
    }

    /// The same, but the `Date` of every answer of Discord's API is compared with these clocks.
    #[must_use]
    pub fn reporting_dates_to(self, clocks: Clocks) -> Self {
        Self { clocks: Some(clocks), ..self }
    }

    /// The same, but nothing at all is written unless this process may send.
    #[must_use]
    pub fn only_under(self, lease: LeaseGuard) -> Self {
        Self { leases_all: true, ..self.under(lease) }
    }

    /// Sends a call once, and reads the whole answer.
    pub(crate) async fn exchange(&self, request: RestRequest) -> Result<RawResponse, TransportError> {
        let started = Instant::now();
        let sent = self.clocks.as_ref().map(Clocks::monotonic);
        let credential = request.credential;
        let client = if self.leases_all || request.right.may_end() { &self.leased } else { &self.client };
        let mut request = self.prepare(request)?;
        let mut connection = capture_connection(&mut request);
        let mut answer = pin!(client.request(request));

        let deadline = started + self.request_timeout;
        let connect_by = (started + self.connect_timeout).min(deadline);
        let answered = tokio::select! {
            biased;
            answered = &mut answer => Some(answered),
            () = connected(&mut connection) => None,
            () = sleep_until(connect_by) => return Err(TransportError::Connect("no connection in time".to_owned())),
        };
        let answered = match answered {
            Some(answered) => answered,
            None => timeout_at(deadline, answer).await.map_err(|_| TransportError::TimedOut)?,
        };
        let (head, body) = answered.map_err(|error| failure(&error, &connection))?.into_parts();
        let arrived = self.clocks.as_ref().map(Clocks::monotonic);
        let body = timeout_at(deadline, self.read(body)).await.map_err(|_| TransportError::TimedOut)??;
        let Classification { class, code, rate } = classify(credential, head.status, &head.headers, &body);
        if let (Some(clocks), Some(sent), Some(arrived)) = (&self.clocks, sent, arrived)
            && let Some(date) = api_date(head.status, &head.headers, class)
        {
            clocks.observe_discord(date, sent, arrived);
        }
        Ok(RawResponse { status: head.status, headers: head.headers, body, class, code, rate })
    }

    /// The call as it goes on the wire.
    fn prepare(&self, request: RestRequest) -> Result<http::Request<OutgoingBody>, TransportError> {
        let malformed = |why: &str| TransportError::Malformed(why.to_owned());
        if request.method == Method::CONNECT {
            return Err(malformed("CONNECT is no method of a REST API"));
        }
        if !request.path.starts_with('/') {
            return Err(malformed("the path does not start with a slash"));
        }
        let uri: Uri = format!("{}{}", self.api_url, request.path)
            .parse()
            .map_err(|_| malformed("the path is no part of a URL"))?;
        let mut out = http::Request::new(out_body(request.body));
        *out.headers_mut() = self.out_headers(request.headers, request.credential);
        if let Some(trace) = request.trace.filter(|_| self.traceparent) {
            let trace = HeaderValue::from_str(&trace.to_string()).map_err(|_| malformed("its trace is none"))?;
            out.headers_mut().insert(TRACEPARENT, trace);
        }
        // Left to itself, hyper says nothing about a body that is empty, and some servers then wait for one (411).
        if matches!(request.method, Method::POST | Method::PUT | Method::PATCH) && out.body().is_end_stream() {
            out.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        }
        *out.method_mut() = request.method;
        *out.uri_mut() = uri;
        Ok(out)
    }

    fn out_headers(&self, mut headers: HeaderMap, credential: Credential) -> HeaderMap {
        for name in OWN_HEADERS {
            headers.remove(name);
        }
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        match credential {
            Credential::Application(_) => {
                headers.insert(header::AUTHORIZATION, self.authorization.header());
            }
            Credential::Anonymous => {}
        }
        headers
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, TransportError> {
        match Limited::new(body, self.max_response_bytes).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let most = self.max_response_bytes;
                Err(TransportError::Broken(format!("the answer is larger than {most} bytes (rest.max_response_bytes)")))
            }
            Err(error) => Err(TransportError::Broken(chain(error.as_ref()))),
        }
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

/// Connections that are kept for a while.
fn pooled(connect_timeout: Duration, idle: Duration, right: LeaseGuard) -> RestHttpClient {
    let mut tcp = HttpConnector::new();
    // The connector around it sees to the scheme.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // Among several addresses it is divided, so that a dead one does not use up the time of the others.
    tcp.set_connect_timeout(Some(connect_timeout));
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))
        .expect("invariant: ring supports the default versions of TLS")
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle)
        .pool_max_idle_per_host(MAX_IDLE)
        // It tries again only what a connection has handed back unread: its task had not yet taken the call from the queue
        // when the other side hung up, so no byte of it was written.
        .retry_canceled_requests(true)
        .build(LeasedConnector { inner: connector, right })
}

fn out_body(body: RequestBody) -> OutgoingBody {
    match body {
        RequestBody::Empty => Full::default().map_err(|never| match never {}).boxed_unsync(),
        RequestBody::Whole(bytes) => Full::new(bytes).map_err(|never| match never {}).boxed_unsync(),
        RequestBody::Stream(stream) => stream,
    }
}

/// Waits until the call has a connection, and so may be on its way.
async fn connected(connection: &mut CaptureConnection) {
    drop(connection.wait_for_connection_metadata().await);
}

/// Whether a failed call may have left. It never did if it had no connection, or if the connection gave it back.
fn failure(error: &hyper_util::client::legacy::Error, connection: &CaptureConnection) -> TransportError {
    let cause = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    let given_back = cause.is_some_and(hyper::Error::is_canceled);
    if error.is_connect() || given_back || connection.connection_metadata().is_none() {
        TransportError::Connect(chain(error))
    } else {
        TransportError::Broken(chain(error))
    }
}

#[cfg(test)]
mod tests;
