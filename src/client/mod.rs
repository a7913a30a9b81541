//! A client of the API: what the command line asks a running daemon with.
//!
//! ```text
//!  command ──Ask──▶ Client ──http(s), in time──▶ daemon
//!     ▲                │
//!     ├── Answered ◀───┤ 2xx
//!     ├── Fault ◀──────┤ a problem, or nobody there: in words that say what to do
//!     └── Told ◀─ Feed ┘ a stream of operations, taken up again where it broke
//! ```
//!
//! Every exchange has a time limit and every answer a largest size. What may be asked twice is asked again for a moment when
//! the daemon says that it cannot right now; nothing else is.

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

/// Who we are.
const USER_AGENT: &str = concat!("guildhall-cli/", env!("CARGO_PKG_VERSION"));
/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const ANSWER_MOST: usize = 64 * 1024 * 1024;
/// How long what the daemon cannot do right now is asked for again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before that, if the daemon does not say.
const AGAIN: Duration = Duration::from_millis(500);

type PooledClient = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the daemon is.
    pub place: ApiUrl,
    /// What to show; without one only what asks for none can be asked.
    pub key: Option<ClientKey>,
    /// How long one exchange may take.
    pub within: Duration,
    /// Authorities to trust beside the public ones, as PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate of this machine's own daemon, as PEM, if that is asked: then no other is believed, and this one under
    /// any name.
    pub own: Option<PathBuf>,
}

/// A file of certificates is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}; {named_by} names a file of certificates in PEM", path.display())]
pub struct CaFileError {
    path: PathBuf,
    why: String,
    named_by: &'static str,
}

/// Asks one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: PooledClient,
    place: ApiUrl,
    key: Option<ClientKey>,
    within: Duration,
}

/// What the daemon answered, having done what it was asked for.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// The status: 2xx.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; `null` if there is none.
    pub body: Value,
}

impl Client {
    /// A client with no connection yet.
    ///
    /// # Errors
    ///
    /// When the file of authorities is none.
    pub fn new(config: ClientConfig) -> Result<Self, CaFileError> {
        let ClientConfig { place, key, within, ca_file, own } = config;
        let (tls, path, named_by) = match own {
            Some(own) => (tls::only(&own), own, "api.tls.cert_file"),
            None => (webhook::trusting(ca_file.as_deref()), ca_file.unwrap_or_default(), "--ca-file"),
        };
        let tls = tls.map_err(|why| CaFileError { path, why, named_by })?;
        let mut tcp = HttpConnector::new();
        // The connector around it sees to the scheme.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_WITHIN.min(within)));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { http, place, key, within })
    }

    /// Where the daemon is.
    #[must_use]
    pub const fn place(&self) -> &ApiUrl {
        &self.place
    }

    /// How long one exchange may take.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Asks, and waits for the answer. What may be asked twice is asked again while the daemon cannot answer just now.
    ///
    /// # Errors
    ///
    /// When there is no answer, or it is a refusal.
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

    /// Asks once.
    async fn exchange(&self, ask: &ApiRequest) -> Result<ApiResponse, ClientError> {
        // What the daemon was asked to wait for comes on top.
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

    /// Asks, and gives the answer as soon as its head is there.
    async fn begin(
        &self,
        ask: &ApiRequest,
        more: &[(&'static str, String)],
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(ask, more)?;
        self.http.request(request).await.map_err(|error| {
            // The client's own words only say at what it failed.
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

    /// What a status that is no success means.
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
            format!("the answer is larger than {ANSWER_MOST} bytes")
        } else {
            chain(error)
        };
        ClientError::Broken { place: self.place.clone(), why, left: ask.changes() }
    }

    /// What is at a path that may answer something else than a success, and its status.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn look(&self, path: &str) -> Result<(u16, Value), ClientError> {
        let (status, body) = self.look_raw(path).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// The same for what is no JSON.
    ///
    /// # Errors
    ///
    /// When there is no answer.
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

    /// What is at this path.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn get(&self, path: impl Into<String>) -> Result<ApiResponse, ClientError> {
        self.send(&ApiRequest::new(Method::GET, path)).await
    }
}
