//! A client of the daemon that retries.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    fixture::{ADMIN_KEY, DaemonFixture},
    test_operation::TestOperation,
};

/// After this time without a response, the caller takes it to be lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the same request is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// A timeout that only a defect reaches; no test waits for it.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Concurrent requests.
const CONCURRENCY: usize = 8;

/// An HTTP client.
#[derive(Clone)]
pub struct HttpClient(Client<HttpConnector, Full<Bytes>>);

/// There was no response.
#[derive(Debug)]
pub struct NoResponse;

impl Default for HttpClient {
    fn default() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }
}

impl HttpClient {
    /// Sends a request with a JSON body. Returns the status, and the body if it is JSON.
    pub async fn call(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(u16, Value), NoResponse> {
        let mut request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = request.body(Full::new(body)).unwrap();
        let exchange = async {
            let response = self.0.request(request).await.map_err(|_| NoResponse)?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|_| NoResponse)?.to_bytes();
            Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
        };
        timeout(RESPONSE_TIMEOUT, exchange).await.unwrap_or(Err(NoResponse))
    }
}

/// An operation that was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedOperation {
    pub operation: TestOperation,
    pub id: String,
    pub cancellation: Cancellation,
}

/// Whether the caller cancelled an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    NotRequested,
    /// The daemon confirmed it.
    Confirmed,
    /// It was too late, or the response was lost: the operation may be cancelled or not.
    Unknown,
}

impl AcceptedOperation {
    pub fn new(operation: TestOperation, response: &Value) -> Self {
        Self { operation, id: response["id"].as_str().unwrap().to_owned(), cancellation: Cancellation::NotRequested }
    }
}

/// Final state of an operation, from the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationOutcome {
    pub state: String,
    pub error: String,
}

/// An operation that did not finish, with the last response of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinished(pub String);

impl DaemonFixture {
    /// Sends a request to any running daemon.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(u16, Value), NoResponse> {
        self.request_at(self.any_address().await, method, path, key, body).await
    }

    /// Sends a request to the daemon at this address.
    pub async fn request_at(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(u16, Value), NoResponse> {
        let bearer = format!("Bearer {ADMIN_KEY}");
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(key.map(|key| ("Idempotency-Key", key)));
        self.http.call(method, &format!("http://{address}{path}"), &headers, body).await
    }

    /// Submits an operation once.
    pub async fn submit_once(&self, operation: &TestOperation) -> Result<(u16, Value), NoResponse> {
        let path = match operation.guild {
            Some(guild) => format!("/v1/guilds/{guild}/operations"),
            None => "/v1/operations".to_owned(),
        };
        let body = json!({ "kind": operation.kind, "payload": operation.payload });
        self.request(Method::POST, &path, Some(&operation.key), Some(&body)).await
    }

    /// Submits an operation with the same key until it is accepted.
    pub async fn submit(&self, operation: &TestOperation) -> AcceptedOperation {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.submit_once(operation).await {
                Ok((200 | 202, answer)) => {
                    self.accepted_responses.fetch_add(1, Ordering::SeqCst);
                    return AcceptedOperation::new(operation.clone(), &answer);
                }
                // 408: the daemon was suspended while it read the request.
                Ok((408 | 503, _)) | Err(NoResponse) => {}
                Ok((status, answer)) => panic!("{}: {status} {answer}", operation.key),
            }
            assert!(Instant::now() < deadline, "{} was not accepted", operation.key);
            sleep(RETRY_DELAY).await;
        }
    }

    /// Requests once that an operation is cancelled.
    pub async fn cancel(&self, accepted: &mut AcceptedOperation) {
        let response = self.request(Method::POST, &format!("/v1/operations/{}/cancel", accepted.id), None, None).await;
        accepted.cancellation = match response {
            Ok((200, _)) => Cancellation::Confirmed,
            Ok((408 | 409 | 503, _)) | Err(NoResponse) => Cancellation::Unknown,
            Ok(other) => panic!("{}: {other:?}", accepted.operation.key),
        };
    }

    /// Waits until an operation is finished. One that does not finish, or is unknown, is lost.
    async fn wait_for_outcome(&self, id: &str) -> Result<OperationOutcome, NotFinished> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut last = "no response".to_owned();
        while Instant::now() < deadline {
            match self.request(Method::GET, &format!("/v1/operations/{id}"), None, None).await {
                Ok((200, shown)) => {
                    let state = shown["state"].as_str().unwrap();
                    if ["succeeded", "dead", "cancelled", "needs_review"].contains(&state) {
                        return Ok(OperationOutcome { state: state.to_owned(), error: shown["error"].to_string() });
                    }
                    last = shown.to_string();
                }
                Ok((404, _)) => return Err(NotFinished("404".to_owned())),
                Ok((status, answer)) => last = format!("{status} {answer}"),
                Err(NoResponse) => {}
            }
            sleep(RETRY_DELAY).await;
        }
        Err(NotFinished(last))
    }

    /// Waits until all operations are finished.
    pub async fn wait_for_outcomes(
        &self,
        accepted: &[AcceptedOperation],
    ) -> Vec<Result<OperationOutcome, NotFinished>> {
        stream::iter(accepted).map(|accepted| self.wait_for_outcome(&accepted.id)).buffered(CONCURRENCY).collect().await
    }
}
