//! A small HTTP client: the demo calls the daemon as a bot's brain would.

use std::{fmt, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::Full;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    net::{self, Pool},
    settings::SecretValue,
};

/// Timeout of a request, long enough for a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response: all of the simulator's guilds, or a page of operations.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
const POOL: Pool = Pool { idle_timeout: Duration::from_secs(90), max_idle: 16 };

/// No response was received, or it cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the request to {url} failed: {reason}")]
pub struct DemoHttpError {
    url: String,
    reason: String,
}

/// A client of one server.
pub(crate) struct DemoHttpClient {
    address: SocketAddr,
    key: Option<SecretValue>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl fmt::Debug for DemoHttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DemoHttpClient").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct DemoResponse {
    url: String,
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl DemoResponse {
    /// Reads the JSON body.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, DemoHttpError> {
        serde_json::from_str(&self.text).map_err(|error| DemoHttpError {
            url: self.url.clone(),
            reason: format!("status {}, and the body cannot be read: {error}", self.status.as_u16()),
        })
    }
}

impl DemoHttpClient {
    pub(crate) fn new(address: SocketAddr, key: Option<SecretValue>) -> Self {
        Self { address, key, client: net::pooled_client(net::tcp_connector(REQUEST_TIMEOUT), POOL) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn get(&self, path: &str) -> Result<DemoResponse, DemoHttpError> {
        self.exchange(Method::GET, path, None, Bytes::new()).await
    }

    /// Posts JSON, with an idempotency key for the whole request if given.
    pub(crate) async fn post(
        &self,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<DemoResponse, DemoHttpError> {
        self.exchange(Method::POST, path, key, body.to_string().into()).await
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        idempotency: Option<&str>,
        body: Bytes,
    ) -> Result<DemoResponse, DemoHttpError> {
        let url = format!("http://{}{path}", self.address);
        let failed = |reason: String| DemoHttpError { url: url.clone(), reason };
        let mut request = Request::builder().method(method).uri(&url).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.expose()));
        }
        if let Some(key) = idempotency {
            request = request.header("Idempotency-Key", key);
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(error.to_string()))?;
        let response = async {
            let response = self.client.request(request).await.map_err(|error| failed(error.to_string()))?;
            let status = response.status();
            let body = net::read_body(response.into_body(), MAX_RESPONSE_BYTES).await;
            let body = body.map_err(|error| failed(error.to_string()))?;
            Ok(DemoResponse { url: url.clone(), status, text: String::from_utf8_lossy(&body).into_owned() })
        };
        let result = tokio::time::timeout(REQUEST_TIMEOUT, response).await;
        result.unwrap_or_else(|_| Err(failed(format!("timed out after {} s", REQUEST_TIMEOUT.as_secs()))))
    }
}
