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

use std::{error::Error, path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

pub use self::{
    api_url::{ApiUrl, ApiUrlError},
    error::{ClientError, ProblemDetails},
    key::{ClientKey, ClientKeyError},
    operation_stream::{OperationStream, StreamItem},
    pagination::{ListPage, ListRequest},
    request::{ApiRequest, path_segment},
};
use crate::{
    error_chain::chain,
    net::{self, BodyError, HttpClient, Pool},
};

/// Value of the `User-Agent` header.
const USER_AGENT: &str = concat!("guildhall-cli/", env!("CARGO_PKG_VERSION"));
/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// How long a request is retried while the daemon is temporarily unavailable.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum delay before a retry.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Unused connections: a command makes one call after the other, and `--watch` every few seconds.
const POOL: Pool = Pool { idle_timeout: Duration::from_secs(90), max_idle: 16 };

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Address of the daemon.
    pub api_url: ApiUrl,
    /// Key to send. Without one, only requests that need no key succeed.
    pub key: Option<ClientKey>,
    /// Timeout of one request.
    pub timeout: Duration,
    /// PEM file of certificate authorities to trust in addition to the public ones.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate of this machine's own daemon, if that is called: then only this certificate is
    /// trusted, for any host name.
    pub pinned_cert_file: Option<PathBuf>,
}

/// A certificate file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}; {setting} must name a PEM file of certificates", path.display())]
pub struct CaFileError {
    path: PathBuf,
    reason: String,
    setting: &'static str,
}

/// Sends requests to one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: HttpClient,
    api_url: ApiUrl,
    key: Option<ClientKey>,
    timeout: Duration,
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
        let ClientConfig { api_url, key, timeout, ca_file, pinned_cert_file: own } = config;
        let (tls, path, named_by) = match own {
            Some(own) => (net::tls::pinned_certificate(&own), own, "api.tls.cert_file"),
            None => (net::tls::authorities(ca_file.as_deref()), ca_file.unwrap_or_default(), "--ca-file"),
        };
        let tls = tls.map_err(|reason| CaFileError { path, reason, setting: named_by })?;
        let connector = net::https_connector(tls, net::tcp_connector(CONNECT_TIMEOUT.min(timeout)));
        Ok(Self { http: net::pooled_client(connector, POOL), api_url, key, timeout })
    }

    /// Address of the daemon.
    #[must_use]
    pub const fn api_url(&self) -> &ApiUrl {
        &self.api_url
    }

    /// Timeout of one request.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a request and waits for the response. Retries a request that may be repeated while the daemon is
    /// temporarily unavailable.
    ///
    /// # Errors
    ///
    /// If there is no response, or it is not a success.
    pub async fn send(&self, api_request: &ApiRequest) -> Result<ApiResponse, ClientError> {
        let retry_until = Instant::now() + RETRY_TIMEOUT.min(self.timeout);
        loop {
            let error = match self.exchange(api_request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let wait = error.retry_after().filter(|_| api_request.may_repeat()).map(|wait| wait.max(MIN_RETRY_DELAY));
            match wait {
                Some(wait) if Instant::now() + wait < retry_until => sleep(wait).await,
                Some(_) | None => return Err(error),
            }
        }
    }

    /// Sends a request once.
    async fn exchange(&self, api_request: &ApiRequest) -> Result<ApiResponse, ClientError> {
        // The time that the daemon was requested to wait is added.
        let timeout = self.timeout + api_request.extra_wait();
        let deadline = Instant::now() + timeout;
        let late = |_| ClientError::TimedOut {
            api_url: self.api_url.clone(),
            timeout,
            may_have_applied: api_request.is_mutation(),
        };
        let response = timeout_at(deadline, self.start_request(api_request, &[])).await.map_err(late)??;
        let (head, body) = response.into_parts();
        let read = timeout_at(deadline, net::read_body(body, MAX_RESPONSE_BYTES)).await.map_err(late)?;
        let body = read.map_err(|error| self.body_error(&error, api_request))?;
        if !head.status.is_success() {
            return Err(self.response_error(api_request, head.status, &head.headers, &body));
        }
        let body = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
        let body = body
            .map_err(|_| ClientError::NotGuildhall { api_url: self.api_url.clone(), status: head.status.as_u16() })?;
        Ok(ApiResponse { status: head.status, headers: head.headers, body })
    }

    /// Sends a request, and returns the response as soon as its headers have arrived.
    async fn start_request(
        &self,
        api_request: &ApiRequest,
        extra_headers: &[(&'static str, String)],
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.build_request(api_request, extra_headers)?;
        self.http.request(request).await.map_err(|error| {
            // The client's own message only says which step failed.
            let reason = error.source().map_or_else(|| error.to_string(), chain);
            if error.is_connect() {
                ClientError::Unreachable { api_url: self.api_url.clone(), reason }
            } else {
                ClientError::ConnectionFailed {
                    api_url: self.api_url.clone(),
                    reason,
                    may_have_applied: api_request.is_mutation(),
                }
            }
        })
    }

    fn build_request(
        &self,
        api_request: &ApiRequest,
        extra_headers: &[(&'static str, String)],
    ) -> Result<http::Request<Full<Bytes>>, ClientError> {
        let malformed = || ClientError::Malformed { path: api_request.path().to_owned() };
        let body = api_request.body().map_or_else(Bytes::new, |body| body.to_string().into());
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = api_request.method().clone();
        *request.uri_mut() = self.api_url.uri(api_request.path()).ok_or_else(malformed)?;
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if api_request.body().is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.header());
        }
        for (name, value) in api_request.headers().iter().chain(extra_headers) {
            headers.insert(*name, HeaderValue::from_str(value).map_err(|_| malformed())?);
        }
        Ok(request)
    }

    /// Maps a response that is not a success to an error.
    fn response_error(
        &self,
        api_request: &ApiRequest,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> ClientError {
        match ProblemDetails::parse(status, headers, body) {
            Some(_) if api_request.is_unsupported(status) => ClientError::Unsupported {
                api_url: self.api_url.clone(),
                feature: api_request.feature().unwrap_or(api_request.path()).to_owned(),
            },
            Some(mut problem) => {
                problem.api_url = Some(self.api_url.clone());
                problem.key = self.key.clone();
                ClientError::Rejected(Box::new(problem))
            }
            None => ClientError::NotGuildhall { api_url: self.api_url.clone(), status: status.as_u16() },
        }
    }

    fn body_error(&self, error: &BodyError, api_request: &ApiRequest) -> ClientError {
        ClientError::ConnectionFailed {
            api_url: self.api_url.clone(),
            reason: error.to_string(),
            may_have_applied: api_request.is_mutation(),
        }
    }

    /// Gets a path whose response may be something else than a success. Returns the status and the body.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn get_any_status(&self, path: &str) -> Result<(u16, Value), ClientError> {
        let (status, body) = self.get_raw(path).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Gets a path in the same way, for a body that is not JSON.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn get_raw(&self, path: &str) -> Result<(u16, Bytes), ClientError> {
        let api_request = ApiRequest::new(Method::GET, path);
        let late =
            |_| ClientError::TimedOut { api_url: self.api_url.clone(), timeout: self.timeout, may_have_applied: false };
        let response = async {
            let (head, body) = self.start_request(&api_request, &[]).await?.into_parts();
            let body = net::read_body(body, MAX_RESPONSE_BYTES).await;
            let body = body.map_err(|error| self.body_error(&error, &api_request))?;
            Ok((head.status.as_u16(), body))
        };
        timeout_at(Instant::now() + self.timeout, response).await.map_err(late)?
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
