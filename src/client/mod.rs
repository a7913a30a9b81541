//! API client that the command line uses to call a running daemon.
//!
//! ```text
//!  command ──ApiRequest──▶ Client ──http(s), with a timeout──▶ daemon
//!     ▲                      │
//!     ├── ApiResponse ◀──────┤ 2xx
//!     ├── ClientError ◀──────┤ a problem, or no connection: with a message that says what to do
//!     └── StreamItem ◀── OperationStream: resumes where it was interrupted
//! ```
//!
//! Every request has a timeout and every response a maximum size. A request that may be repeated is retried for a short
//! time when the daemon is temporarily unavailable; other requests are not.

mod api_url;
mod error;
mod key;
mod operation_stream;
mod pagination;
mod request;
mod sse;
mod tls;

use std::{error::Error, path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use self::tls::anybody;
pub use self::{
    api_url::{ApiUrl, ApiUrlError},
    error::{ClientError, ProblemDetails},
    key::{ClientKey, ClientKeyError},
    operation_stream::{OperationStream, StreamItem},
    pagination::{ListPage, ListRequest},
    request::{ApiRequest, part},
};
use crate::{error_chain::chain, webhook};

/// Value of the `User-Agent` header.
const USER_AGENT: &str = concat!("guildhall-cli/", env!("CARGO_PKG_VERSION"));
/// Connect timeout.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of a response.
const ANSWER_MOST: usize = 64 * 1024 * 1024;
/// How long a request is retried while the daemon is temporarily unavailable.
const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum delay before a retry.
const AGAIN: Duration = Duration::from_millis(500);

type PooledClient = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Address of the daemon.
    pub place: ApiUrl,
    /// Key to send. Without one, only requests that need no key succeed.
    pub key: Option<ClientKey>,
    /// Timeout of one request.
    pub within: Duration,
    /// PEM file of certificate authorities to trust in addition to the public ones.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate of this machine's own daemon, if that is called: then only this certificate is
    /// trusted, for any host name.
    pub own: Option<PathBuf>,
}

/// A certificate file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}; {named_by} must name a PEM file of certificates", path.display())]
pub struct CaFileError {
    path: PathBuf,
    why: String,
    named_by: &'static str,
}

/// Sends requests to one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: PooledClient,
    place: ApiUrl,
    key: Option<ClientKey>,
    within: Duration,
}

/// A successful response of the daemon.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// The status: 2xx.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; `null` if it is empty.
    pub body: Value,
}

impl Client {
    /// Creates a client. It connects with its first request.
    ///
    /// # Errors
    ///
    /// If the file of certificate authorities is invalid.
    pub fn new(config: ClientConfig) -> Result<Self, CaFileError> {
        let ClientConfig { place, key, within, ca_file, own } = config;
        let (tls, path, named_by) = match own {
            Some(own) => (tls::only(&own), own, "api.tls.cert_file"),
            None => (webhook::trusting(ca_file.as_deref()), ca_file.unwrap_or_default(), "--ca-file"),
        };
        let tls = tls.map_err(|why| CaFileError { path, why, named_by })?;
        let mut tcp = HttpConnector::new();
        // The outer connector checks the scheme.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_WITHIN.min(within)));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { http, place, key, within })
    }

    /// Address of the daemon.
    #[must_use]
    pub const fn place(&self) -> &ApiUrl {
        &self.place
    }

    /// Timeout of one request.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Sends a request and waits for the response. Retries a request that may be repeated while the daemon is
    /// temporarily unavailable.
    ///
    /// # Errors
    ///
    /// If there is no response, or it is not a success.
    pub async fn send(&self, ask: &ApiRequest) -> Result<ApiResponse, ClientError> {
        let patient_until = Instant::now() + PATIENCE.min(self.within);
        loop {
            let fault = match self.exchange(ask).await {
                Ok(answered) => return Ok(answered),
                Err(fault) => fault,
            };
            let wait = fault.again_after().filter(|_| ask.may_repeat()).map(|wait| wait.max(AGAIN));
            match wait {
                Some(wait) if Instant::now() + wait < patient_until => sleep(wait).await,
                Some(_) | None => return Err(fault),
            }
        }
    }

    /// Sends a request once.
    async fn exchange(&self, ask: &ApiRequest) -> Result<ApiResponse, ClientError> {
        // The time that the daemon was requested to wait is added.
        let within = self.within + ask.waits();
        let deadline = Instant::now() + within;
        let late = |_| ClientError::TimedOut { place: self.place.clone(), within, left: ask.changes() };
        let response = timeout_at(deadline, self.begin(ask, &[])).await.map_err(late)??;
        let (head, body) = response.into_parts();
        let read = timeout_at(deadline, Limited::new(body, ANSWER_MOST).collect()).await.map_err(late)?;
        let body = read.map_err(|error| self.unreadable(error.as_ref(), ask))?.to_bytes();
        if !head.status.is_success() {
            return Err(self.refused(ask, head.status, &head.headers, &body));
        }
        let body = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
        let body =
            body.map_err(|_| ClientError::NotOurs { place: self.place.clone(), status: head.status.as_u16() })?;
        Ok(ApiResponse { status: head.status, headers: head.headers, body })
    }

    /// Sends a request, and returns the response as soon as its headers have arrived.
    async fn begin(
        &self,
        ask: &ApiRequest,
        more: &[(&'static str, String)],
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(ask, more)?;
        self.http.request(request).await.map_err(|error| {
            // The client's own message only says which step failed.
            let why = error.source().map_or_else(|| error.to_string(), chain);
            if error.is_connect() {
                ClientError::Unreachable { place: self.place.clone(), why }
            } else {
                ClientError::Broken { place: self.place.clone(), why, left: ask.changes() }
            }
        })
    }

    fn request(
        &self,
        ask: &ApiRequest,
        more: &[(&'static str, String)],
    ) -> Result<http::Request<Full<Bytes>>, ClientError> {
        let malformed = || ClientError::Malformed { what: ask.path().to_owned() };
        let body = ask.body().map_or_else(Bytes::new, |body| body.to_string().into());
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = ask.method().clone();
        *request.uri_mut() = self.place.at(ask.path()).ok_or_else(malformed)?;
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if ask.body().is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.header());
        }
        for (name, value) in ask.headers().iter().chain(more) {
            headers.insert(*name, HeaderValue::from_str(value).map_err(|_| malformed())?);
        }
        Ok(request)
    }

    /// Maps a response that is not a success to an error.
    fn refused(&self, ask: &ApiRequest, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClientError {
        match ProblemDetails::read(status, headers, body) {
            Some(_) if ask.is_unknown(status) => {
                ClientError::Unknown { place: self.place.clone(), what: ask.feature().unwrap_or(ask.path()).to_owned() }
            }
            Some(mut refusal) => {
                refusal.place = Some(self.place.clone());
                refusal.key = self.key.clone();
                ClientError::Refused(Box::new(refusal))
            }
            None => ClientError::NotOurs { place: self.place.clone(), status: status.as_u16() },
        }
    }

    fn unreadable(&self, error: &(dyn Error + 'static), ask: &ApiRequest) -> ClientError {
        let why = if error.is::<LengthLimitError>() {
            format!("the response is larger than {ANSWER_MOST} bytes")
        } else {
            chain(error)
        };
        ClientError::Broken { place: self.place.clone(), why, left: ask.changes() }
    }

    /// Gets a path whose response may be something else than a success. Returns the status and the body.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn look(&self, path: &str) -> Result<(u16, Value), ClientError> {
        let (status, body) = self.look_raw(path).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Gets a path in the same way, for a body that is not JSON.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn look_raw(&self, path: &str) -> Result<(u16, Bytes), ClientError> {
        let ask = ApiRequest::new(Method::GET, path);
        let late = |_| ClientError::TimedOut { place: self.place.clone(), within: self.within, left: false };
        let looked = async {
            let (head, body) = self.begin(&ask, &[]).await?.into_parts();
            let body = Limited::new(body, ANSWER_MOST).collect().await;
            let body = body.map_err(|error| self.unreadable(error.as_ref(), &ask))?.to_bytes();
            Ok((head.status.as_u16(), body))
        };
        timeout_at(Instant::now() + self.within, looked).await.map_err(late)?
    }

    /// Gets a path.
    ///
    /// # Errors
    ///
    /// See [`Self::send`].
    pub async fn get(&self, path: impl Into<String>) -> Result<ApiResponse, ClientError> {
        self.send(&ApiRequest::new(Method::GET, path)).await
    }
}
