//! Calls Discord through the gate of a running daemon: each call is an operation that is submitted, waited for, and
//! read.

use std::time::Duration;

use bytes::Bytes;
use guildhall_actors::gate::{
    CallFuture, CallOutcome, NoResponse, NotSent, RequestBody, Rest, RestRequest, RestResponse,
};
use guildhall_core::response::ResponseClass;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{ApiRequest, ApiUrl, Client, ClientError, part};

/// How long the daemon is requested to hold its response.
const WAIT: Duration = Duration::from_secs(20);
/// Interval between two reads of an operation that is not finished.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// The gate of a running daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonGate {
    client: Client,
}

impl DaemonGate {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) fn place(&self) -> &ApiUrl {
        self.client.place()
    }

    async fn carry_out(&self, operation: Result<Value, String>, max_wait: Duration) -> CallOutcome {
        let give_up = Instant::now() + max_wait.max(WAIT);
        let operation = match operation {
            Ok(operation) => operation,
            Err(why) => return CallOutcome::NotSent(NotSent { retry_after: None, why, reason: "malformed" }),
        };
        let submit =
            ApiRequest::post("/v1/operations").with(operation).header("Prefer", format!("wait={}", WAIT.as_secs()));
        let mut shown = match self.client.send(&submit.waiting(WAIT).about("operations")).await {
            Ok(accepted) => accepted.body,
            Err(fault) => return not_submitted(&fault),
        };
        let Some(id) = shown["id"].as_str().map(str::to_owned) else {
            return CallOutcome::Unknown(NoResponse { why: "the daemon returned no operation id".to_owned() });
        };
        loop {
            // The response to a submission has fewer fields than an operation.
            match self.client.get(format!("/v1/operations/{}", part(&id))).await {
                Ok(answered) => shown = answered.body,
                Err(fault) => return CallOutcome::Unknown(NoResponse { why: fault.to_string() }),
            }
            if let Some(outcome) = finished(&shown) {
                if shown["state"] == "dead" {
                    // The dead letter is not needed: the user of the command sees the error now.
                    let discard = ApiRequest::new(Method::DELETE, format!("/v1/dead-letters/{}", part(&id)));
                    drop(self.client.send(&discard).await);
                }
                return outcome;
            }
            if Instant::now() >= give_up {
                return self.take_back(&id, &shown).await;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Cancels an operation that takes too long.
    async fn take_back(&self, id: &str, shown: &Value) -> CallOutcome {
        let waits = &shown["waits_for"];
        let why = waits["detail"].as_str().or(waits["reason"].as_str()).unwrap_or("it is still running");
        let why = format!("the daemon has not sent the call yet: {why}");
        match self.client.send(&ApiRequest::post(format!("/v1/operations/{}/cancel", part(id)))).await {
            Ok(_) => CallOutcome::NotSent(NotSent { retry_after: None, why, reason: "daemon" }),
            Err(_) => CallOutcome::Unknown(NoResponse { why }),
        }
    }
}

impl Rest for DaemonGate {
    fn call(&self, request: RestRequest) -> CallFuture<'_> {
        Box::pin(self.carry_out(operation(&request), request.max_wait))
    }
}

/// The operation that makes a call.
fn operation(request: &RestRequest) -> Result<Value, String> {
    let body = match &request.body {
        RequestBody::Empty => None,
        RequestBody::Whole(bytes) => Some(serde_json::from_slice::<Value>(bytes).map_err(|error| error.to_string())?),
        RequestBody::Stream(_) => return Err("a stream cannot be part of an operation".to_owned()),
    };
    Ok(match (&request.method, body) {
        (&Method::GET, _) => json!({"kind": "read", "payload": {"path": request.path}}),
        (method, None) => json!({"kind": "request", "payload": {"method": method.as_str(), "path": request.path}}),
        (method, Some(body)) => {
            json!({"kind": "request", "payload": {"method": method.as_str(), "path": request.path, "body": body}})
        }
    })
}

fn not_submitted(fault: &ClientError) -> CallOutcome {
    if fault.is_unclear() {
        return CallOutcome::Unknown(NoResponse { why: fault.to_string() });
    }
    CallOutcome::NotSent(NotSent { retry_after: fault.again_after(), why: fault.to_string(), reason: "daemon" })
}

/// The outcome of an operation, if it is finished.
fn finished(shown: &Value) -> Option<CallOutcome> {
    let error = &shown["error"];
    let why = || error["message"].as_str().unwrap_or("the daemon gave no reason").to_owned();
    match shown["state"].as_str()? {
        "succeeded" => Some(answered(StatusCode::OK, ResponseClass::Success, None, &shown["result"])),
        "dead" => {
            let status = error["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            let code = error["code"].as_u64().and_then(|code| u32::try_from(code).ok());
            Some(match status {
                Some(status) => answered(status, class(status), code, &json!({"message": why(), "code": code})),
                None => CallOutcome::NotSent(NotSent { retry_after: None, why: why(), reason: "daemon" }),
            })
        }
        "needs_review" => Some(CallOutcome::Unknown(NoResponse { why: why() })),
        "cancelled" => {
            let why = "the operation was cancelled".to_owned();
            Some(CallOutcome::NotSent(NotSent { retry_after: None, why, reason: "daemon" }))
        }
        _ => None,
    }
}

fn answered(status: StatusCode, class: ResponseClass, code: Option<u32>, body: &Value) -> CallOutcome {
    let body = Bytes::from(body.to_string());
    CallOutcome::Answered(RestResponse { status, headers: HeaderMap::new(), body, class, code })
}

/// The class of the status with which an operation failed. The daemon waits for rate limits itself.
fn class(status: StatusCode) -> ResponseClass {
    match status {
        StatusCode::UNAUTHORIZED => ResponseClass::Unauthorized,
        StatusCode::FORBIDDEN => ResponseClass::Forbidden,
        StatusCode::NOT_FOUND => ResponseClass::NotFound,
        status if status.is_server_error() => ResponseClass::ServerError,
        _ => ResponseClass::Rejected,
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::response::Credential;

    use super::*;

    #[test]
    fn a_call_becomes_an_operation() {
        let read = RestRequest::new(Method::GET, "/users/@me", Credential::Anonymous);
        assert_eq!(operation(&read).unwrap(), json!({"kind": "read", "payload": {"path": "/users/@me"}}));
        let mut put = RestRequest::new(Method::PUT, "/applications/1/commands", Credential::Anonymous);
        put.body = RequestBody::Whole(Bytes::from_static(b"[1]"));
        let payload = json!({"method": "PUT", "path": "/applications/1/commands", "body": [1]});
        assert_eq!(operation(&put).unwrap(), json!({"kind": "request", "payload": payload}));
    }

    #[test]
    fn an_operation_becomes_the_answer_that_it_had() {
        let done = json!({"state": "succeeded", "result": {"id": "5"}});
        let Some(CallOutcome::Answered(answer)) = finished(&done) else { panic!("no response") };
        assert_eq!((answer.class, answer.body.as_ref()), (ResponseClass::Success, &br#"{"id":"5"}"#[..]));
        let error = json!({"status": 403, "code": 50001, "message": "Missing Access"});
        let dead = json!({"state": "dead", "error": error});
        let Some(CallOutcome::Answered(answer)) = finished(&dead) else { panic!("no response") };
        assert_eq!((answer.class, answer.code), (ResponseClass::Forbidden, Some(50_001)));
        assert!(matches!(finished(&json!({"state": "needs_review"})), Some(CallOutcome::Unknown(_))));
        assert!(finished(&json!({"state": "delayed"})).is_none());
    }
}
