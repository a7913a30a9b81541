//! Whoever asks the daemon to do something, and does not give up.

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

/// How long an answer may take before the caller takes it to be lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the same is asked again.
const AGAIN: Duration = Duration::from_millis(10);
/// Long enough that only something broken takes longer; never what a test waits for.
pub(crate) const STUCK: Duration = Duration::from_secs(90);
/// Questions at once.
const AT_ONCE: usize = 8;

/// A client of HTTP.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

/// No answer came.
#[derive(Debug)]
pub(crate) struct Unanswered;

impl Http {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// Calls with headers and a body of JSON; the status, and the answer if it is JSON.
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

/// Whether the caller took an operation back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    No,
    /// The daemon agreed.
    Yes,
    /// It was too late, or the answer was lost: it may have been taken back all the same.
    Perhaps,
}

impl Accepted {
    pub(crate) fn new(errand: Errand, answer: &Value) -> Self {
        Self { errand, id: answer["id"].as_str().unwrap().to_owned(), taken_back: TakenBack::No }
    }
}

/// What the API says has become of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Became {
    pub(crate) state: String,
    pub(crate) error: String,
}

/// An operation that ends nowhere, with what the API said of it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nowhere(pub(crate) String);

impl Stage {
    /// Asks a daemon, in whichever life it is.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(u16, Value), Unanswered> {
        self.ask_at(self.anywhere().await, method, path, key, body).await
    }

    /// Asks the daemon that is there.
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

    /// Submits one operation, once.
    pub(crate) async fn submit_once(&self, errand: &Errand) -> Result<(u16, Value), Unanswered> {
        let path = match errand.guild {
            Some(guild) => format!("/v1/guilds/{guild}/operations"),
            None => "/v1/operations".to_owned(),
        };
        let body = json!({ "kind": errand.kind, "payload": errand.payload });
        self.ask(Method::POST, &path, Some(&errand.key), Some(&body)).await
    }

    /// Submits one operation: the same with the same key, until there is an answer.
    pub(crate) async fn submit(&self, errand: &Errand) -> Accepted {
        let until = Instant::now() + STUCK;
        loop {
            match self.submit_once(errand).await {
                Ok((200 | 202, answer)) => {
                    self.answers.fetch_add(1, Ordering::SeqCst);
                    return Accepted::new(errand.clone(), &answer);
                }
                // 408: it was halted while it read.
                Ok((408 | 503, _)) | Err(Unanswered) => {}
                Ok((status, answer)) => panic!("{}: {status} {answer}", errand.key),
            }
            assert!(Instant::now() < until, "{} is not accepted", errand.key);
            sleep(AGAIN).await;
        }
    }

    /// Takes an operation back, if the daemon agrees. Asks once.
    pub(crate) async fn take_back(&self, accepted: &mut Accepted) {
        let answer = self.ask(Method::POST, &format!("/v1/operations/{}/cancel", accepted.id), None, None).await;
        accepted.taken_back = match answer {
            Ok((200, _)) => TakenBack::Yes,
            Ok((408 | 409 | 503, _)) | Err(Unanswered) => TakenBack::Perhaps,
            Ok(other) => panic!("{}: {other:?}", accepted.errand.key),
        };
    }

    /// What has become of an operation, as soon as it has ended. One that does not end, or is not known, is lost.
    async fn became(&self, id: &str) -> Result<Became, Nowhere> {
        let until = Instant::now() + STUCK;
        let mut last = "no answer".to_owned();
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

    /// What has become of all of them.
    pub(crate) async fn all_became(&self, accepted: &[Accepted]) -> Vec<Result<Became, Nowhere>> {
        stream::iter(accepted).map(|accepted| self.became(&accepted.id)).buffered(AT_ONCE).collect().await
    }
}
