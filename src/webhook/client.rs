//! HTTP client for one webhook.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guildhall_actors::ports::{WebhookBody, WebhookResponse};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::event::handler::ResponsePolicy;
use guildhall_core::trace::TraceContext;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use rustls::ClientConfig;
use tokio::time::Instant;
use tower_service::Service as _;
use url::Host;

use super::connect::{AddressPolicy, ConnectError, TimeoutConnector, WebhookConnector};
use super::error::WebhookRequestError;
use super::response::{self, DefaultTtl};
use super::signature::{SignatureHeaders, sign, verify};
use super::trust::{self, Transport};
use super::{Resolver, Secret, SystemResolver, WebhookConfig, WebhookTarget};
use crate::error_chain::chain;
use crate::net::{self, BodyError, Pool};

/// Value of the `User-Agent` header.
const USER_AGENT: &str = concat!("Guildhall/", env!("CARGO_PKG_VERSION"));

type TargetConnector = TimeoutConnector<HttpsConnector<WebhookConnector>>;

type PooledHttpClient = legacy::Client<TargetConnector, Full<Bytes>>;

/// Sends events to one webhook. It follows no redirects and sends nothing twice.
pub(super) struct TargetClient {
    http: PooledHttpClient,
    uri: Uri,
    secrets: Vec<Secret>,
    response_policy: ResponsePolicy,
    clock: WallClock,
    max_response_bytes: usize,
    max_retry_after: Duration,
    default_ttl: DefaultTtl,
}

impl TargetClient {
    /// Creates a client. It connects with its first request. Returns `None` if the target has problems.
    pub(super) fn new(
        target: &WebhookTarget,
        config: &WebhookConfig,
        tls: &ClientConfig,
        resolver: Arc<dyn Resolver>,
    ) -> Option<Self> {
        let connector = connector(target, config, tls, resolver)?;
        let pool = Pool { idle_timeout: config.pool_idle, max_idle: config.max_in_flight };
        Some(Self {
            http: net::pooled_client(connector, pool),
            uri: target.uri()?,
            secrets: target.secrets.clone(),
            response_policy: target.response_policy,
            clock: config.clock.clone(),
            max_response_bytes: config.max_response_bytes,
            max_retry_after: config.max_retry_after,
            default_ttl: config.default_ttl,
        })
    }

    /// Sends an event, and reads the response.
    pub(super) async fn exchange(
        &self,
        body: &WebhookBody,
        trace: TraceContext,
    ) -> Result<WebhookResponse, WebhookRequestError> {
        let json = Bytes::copy_from_slice(body.json.as_bytes());
        let signed = sign(&self.secrets, &body.id, &json, self.clock.now());
        let request = self.request(&body.id, json, &signed, trace)?;
        let response = self.http.request(request).await.map_err(|error| to_request_error(&error))?;
        let (head, incoming) = response.into_parts();
        let wait = net::retry_after::seconds_or_date(&head.headers, self.clock.now())
            .map(|wait| wait.min(self.max_retry_after));
        if let Some(error) = WebhookRequestError::from_status(head.status, wait) {
            return Err(error);
        }
        if head.status == StatusCode::NO_CONTENT {
            return Ok(WebhookResponse::default());
        }
        let transport = Transport::of(self.uri.scheme() == Some(&Scheme::HTTPS), &head.extensions);
        let bytes = self.read(&head.headers, incoming).await?;
        let parsed = response::parse(&bytes, self.default_ttl).map_err(WebhookRequestError::Unusable)?;
        // A response without an effect is accepted from any sender.
        if parsed != WebhookResponse::default() {
            trust::check(self.response_policy, transport, || {
                verify(&self.secrets, &body.id, &signed.timestamp, &head.headers, &bytes, self.clock.now())
            })?;
        }
        Ok(parsed)
    }

    fn request(
        &self,
        id: &str,
        json: Bytes,
        signed: &SignatureHeaders,
        trace: TraceContext,
    ) -> Result<Request<Full<Bytes>>, WebhookRequestError> {
        let plain = |text: &str| HeaderValue::from_str(text).map_err(|_| WebhookRequestError::Malformed);
        let mut request = Request::new(Full::new(json));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert("traceparent", plain(&trace.to_string())?);
        headers.insert("webhook-id", plain(id)?);
        headers.insert("webhook-timestamp", plain(&signed.timestamp)?);
        headers.insert("webhook-signature", plain(&signed.signatures)?);
        Ok(request)
    }

    async fn read(&self, headers: &HeaderMap, body: Incoming) -> Result<Bytes, WebhookRequestError> {
        if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            let displayed = String::from_utf8_lossy(encoding.as_bytes()).chars().take(64).collect();
            return Err(WebhookRequestError::Encoded(displayed));
        }
        net::read_body(body, self.max_response_bytes).await.map_err(|error| match error {
            BodyError::TooLarge(max_bytes) => WebhookRequestError::TooLarge(max_bytes),
            BodyError::ConnectionFailed(reason) => WebhookRequestError::ConnectionFailed(reason),
        })
    }
}

/// Connects to the host of a target. Returns `None` if the target has problems.
fn connector(
    target: &WebhookTarget,
    config: &WebhookConfig,
    tls: &ClientConfig,
    resolver: Arc<dyn Resolver>,
) -> Option<TargetConnector> {
    let host = match target.url.host()? {
        Host::Domain(name) => Host::Domain(name.to_owned()),
        Host::Ipv4(address) => Host::Ipv4(address),
        Host::Ipv6(address) => Host::Ipv6(address),
    };
    let address_policy = if target.allow_private { AddressPolicy::Anywhere } else { AddressPolicy::Public };
    let timeout = config.connect_timeout;
    // Slightly less than the whole timeout, so that the error names the address that did not respond.
    let port = target.url.port_or_known_default()?;
    let connector = WebhookConnector::new(host, port, address_policy, timeout.mul_f64(0.9), resolver);
    Some(TimeoutConnector { inner: net::https_connector(tls.clone(), connector), timeout })
}

/// A connection to a target that was made and closed, without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionProbe {
    /// Duration of the lookup of the name, of the connection, and of TLS.
    pub(crate) elapsed: Duration,
    /// Whether it is encrypted, to a server with a valid certificate.
    pub(crate) is_tls: bool,
}

/// Connects to a target as a request to it would, and closes the connection without sending a request.
///
/// # Errors
///
/// Why a request to it would fail to connect.
pub(crate) async fn probe_target(target: &WebhookTarget, config: &WebhookConfig) -> Result<ConnectionProbe, String> {
    let tls = net::tls::authorities(config.ca_file.as_deref())?;
    let resolver = Arc::new(SystemResolver) as Arc<dyn Resolver>;
    let unusable = || "its url cannot be used in a request".to_owned();
    let mut connector = connector(target, config, &tls, resolver).ok_or_else(unusable)?;
    let uri = target.uri().ok_or_else(unusable)?;
    let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
    let started = Instant::now();
    connector.call(uri).await.map_err(|error| chain(&*error))?;
    Ok(ConnectionProbe { elapsed: started.elapsed(), is_tls })
}

/// Maps a failed request to an error.
fn to_request_error(error: &legacy::Error) -> WebhookRequestError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(refused @ ConnectError::NotPublic { .. }) = error.downcast_ref::<ConnectError>() {
            return WebhookRequestError::NotPublic(refused.to_string());
        }
        cause = error.source();
    }
    // The client's own message only says which step failed, as the error variant does.
    let reason = error.source().map_or_else(|| error.to_string(), chain);
    if error.is_connect() {
        WebhookRequestError::Unreachable(reason)
    } else {
        WebhookRequestError::ConnectionFailed(reason)
    }
}
