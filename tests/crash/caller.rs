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

use crate::{
    errand::Errand,
    stage::{ADMIN_KEY, Stage},
};

/// After this time without a response, the caller takes it to be lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Delay before the same request is sent again.
const AGAIN: Duration = Duration::from_millis(10);
/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const STUCK: Duration = Duration::from_secs(90);
/// Concurrent requests.
const AT_ONCE: usize = 8;

/// An HTTP client.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

/// There was no response.
#[derive(Debug)]
pub(crate) struct Unanswered;

impl Http {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// Sends a request with a JSON body. Returns the status, and the body if it is JSON.
    pub(crate) async fn call(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(u16, Value), Unanswered> {
        let mut request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = request.body(Full::new(body)).unwrap();
        let answered = async {
            let answer = self.0.request(request).await.map_err(|_| Unanswered)?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.map_err(|_| Unanswered)?.to_bytes();
            Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
        };
        timeout(PATIENCE, answered).await.unwrap_or(Err(Unanswered))
    }
}

/// An operation that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    pub(crate) errand: Errand,
    pub(crate) id: String,
    pub(crate) taken_back: TakenBack,
}

/// Whether the caller cancelled an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    No,
    /// The daemon confirmed it.
    Yes,
    /// It was too late, or the response was lost: the operation may be cancelled or not.
    Perhaps,
}

impl Accepted {
    pub(crate) fn new(errand: Errand, answer: &Value) -> Self {
        Self { errand, id: answer["id"].as_str().unwrap().to_owned(), taken_back: TakenBack::No }
    }
}

/// Final state of an operation, from the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Became {
    pub(crate) state: String,
    pub(crate) error: String,
}

/// An operation that did not finish, with the last response of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nowhere(pub(crate) String);

impl Stage {
    /// Sends a request to any running daemon.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(u16, Value), Unanswered> {
        self.ask_at(self.anywhere().await, method, path, key, body).await
    }

    /// Sends a request to the daemon at this address.
    pub(crate) async fn ask_at(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(u16, Value), Unanswered> {
        let bearer = format!("Bearer {ADMIN_KEY}");
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(key.map(|key| ("Idempotency-Key", key)));
        self.http.call(method, &format!("http://{address}{path}"), &headers, body).await
    }

    /// Submits an operation once.
    pub(crate) async fn submit_once(&self, errand: &Errand) -> Result<(u16, Value), Unanswered> {
        let path = match errand.guild {
            Some(guild) => format!("/v1/guilds/{guild}/operations"),
            None => "/v1/operations".to_owned(),
        };
        let body = json!({ "kind": errand.kind, "payload": errand.payload });
        self.ask(Method::POST, &path, Some(&errand.key), Some(&body)).await
    }

    /// Submits an operation with the same key until it is accepted.
    pub(crate) async fn submit(&self, errand: &Errand) -> Accepted {
        let until = Instant::now() + STUCK;
        loop {
            match self.submit_once(errand).await {
                Ok((200 | 202, answer)) => {
                    self.answers.fetch_add(1, Ordering::SeqCst);
                    return Accepted::new(errand.clone(), &answer);
                }
                // 408: the daemon was suspended while it read the request.
                Ok((408 | 503, _)) | Err(Unanswered) => {}
                Ok((status, answer)) => panic!("{}: {status} {answer}", errand.key),
            }
            assert!(Instant::now() < until, "{} was not accepted", errand.key);
            sleep(AGAIN).await;
        }
    }

    /// Requests once that an operation is cancelled.
    pub(crate) async fn take_back(&self, accepted: &mut Accepted) {
        let answer = self.ask(Method::POST, &format!("/v1/operations/{}/cancel", accepted.id), None, None).await;
        accepted.taken_back = match answer {
            Ok((200, _)) => TakenBack::Yes,
            Ok((408 | 409 | 503, _)) | Err(Unanswered) => TakenBack::Perhaps,
            Ok(other) => panic!("{}: {other:?}", accepted.errand.key),
        };
    }

    /// Waits until an operation is finished. One that does not finish, or is unknown, is lost.
    async fn became(&self, id: &str) -> Result<Became, Nowhere> {
        let until = Instant::now() + STUCK;
        let mut last = "no response".to_owned();
        while Instant::now() < until {
            match self.ask(Method::GET, &format!("/v1/operations/{id}"), None, None).await {
                Ok((200, shown)) => {
                    let state = shown["state"].as_str().unwrap();
                    if ["succeeded", "dead", "cancelled", "needs_review"].contains(&state) {
                        return Ok(Became { state: state.to_owned(), error: shown["error"].to_string() });
                    }
                    last = shown.to_string();
                }
                Ok((404, _)) => return Err(Nowhere("404".to_owned())),
                Ok((status, answer)) => last = format!("{status} {answer}"),
                Err(Unanswered) => {}
            }
            sleep(AGAIN).await;
        }
        Err(Nowhere(last))
    }

    /// Waits until all operations are finished.
    pub(crate) async fn all_became(&self, accepted: &[Accepted]) -> Vec<Result<Became, Nowhere>> {
        stream::iter(accepted).map(|accepted| self.became(&accepted.id)).buffered(AT_ONCE).collect().await
    }
}
