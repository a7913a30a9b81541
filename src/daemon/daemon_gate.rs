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

use crate::client::{ApiRequest, ApiUrl, Client, ClientError, path_segment};

/// How long the daemon is requested to hold its response.
const WAIT: Duration = Duration::from_secs(20);
/// Interval between two reads of an operation that is not finished.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// The gate of a running daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonGate {
    client: Client,
}

impl DaemonGate {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) fn api_url(&self) -> &ApiUrl {
        self.client.api_url()
    }

    async fn execute(&self, operation: Result<Value, String>, max_wait: Duration) -> CallOutcome {
        let deadline = Instant::now() + max_wait.max(WAIT);
        let operation = match operation {
            Ok(operation) => operation,
            Err(message) => {
                return CallOutcome::NotSent(NotSent { retry_after: None, message, reason: "malformed", bucket: None });
            }
        };
        let submit = ApiRequest::post("/v1/operations")
            .with_body(operation)
            .with_header("Prefer", format!("wait={}", WAIT.as_secs()));
        let mut operation_view = match self.client.send(&submit.with_extra_wait(WAIT).with_feature("operations")).await
        {
            Ok(accepted) => accepted.body,
            Err(error) => return not_submitted(&error),
        };
        let Some(id) = operation_view["id"].as_str().map(str::to_owned) else {
            return CallOutcome::Unknown(NoResponse { message: "the daemon returned no operation id".to_owned() });
        };
        loop {
            // The response to a submission has fewer fields than an operation.
            match self.client.get(format!("/v1/operations/{}", path_segment(&id))).await {
                Ok(response) => operation_view = response.body,
                Err(error) => return CallOutcome::Unknown(NoResponse { message: error.to_string() }),
            }
            if let Some(outcome) = finished_outcome(&operation_view) {
                if operation_view["state"] == "dead" {
                    // The dead letter is not needed: the user of the command sees the error now.
                    let discard = ApiRequest::new(Method::DELETE, format!("/v1/dead-letters/{}", path_segment(&id)));
                    drop(self.client.send(&discard).await);
                }
                return outcome;
            }
            if Instant::now() >= deadline {
                return self.cancel(&id, &operation_view).await;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Cancels an operation that takes too long.
    async fn cancel(&self, id: &str, operation_view: &Value) -> CallOutcome {
        let waits_for = &operation_view["waits_for"];
        let message = waits_for["detail"].as_str().or(waits_for["reason"].as_str()).unwrap_or("it is still running");
        let message = format!("the daemon has not sent the call yet: {message}");
        match self.client.send(&ApiRequest::post(format!("/v1/operations/{}/cancel", path_segment(id)))).await {
            Ok(_) => CallOutcome::NotSent(NotSent { retry_after: None, message, reason: "daemon", bucket: None }),
            Err(_) => CallOutcome::Unknown(NoResponse { message }),
        }
    }
}

impl Rest for DaemonGate {
    fn call(&self, request: RestRequest) -> CallFuture<'_> {
        Box::pin(self.execute(operation(&request), request.max_wait))
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

fn not_submitted(error: &ClientError) -> CallOutcome {
    if error.is_outcome_unknown() {
        return CallOutcome::Unknown(NoResponse { message: error.to_string() });
    }
    CallOutcome::NotSent(NotSent {
        retry_after: error.retry_after(),
        message: error.to_string(),
        reason: "daemon",
        bucket: None,
    })
}

/// The outcome of an operation, if it is finished.
fn finished_outcome(operation_view: &Value) -> Option<CallOutcome> {
    let error = &operation_view["error"];
    let message = || error["message"].as_str().unwrap_or("the daemon gave no reason").to_owned();
    match operation_view["state"].as_str()? {
        "succeeded" => Some(response_outcome(StatusCode::OK, ResponseClass::Success, None, &operation_view["result"])),
        "dead" => {
            let status = error["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            let code = error["code"].as_u64().and_then(|code| u32::try_from(code).ok());
            Some(match status {
                Some(status) => {
                    response_outcome(status, class(status), code, &json!({"message": message(), "code": code}))
                }
                None => CallOutcome::NotSent(NotSent {
                    retry_after: None,
                    message: message(),
                    reason: "daemon",
                    bucket: None,
                }),
            })
        }
        "needs_review" => Some(CallOutcome::Unknown(NoResponse { message: message() })),
        "cancelled" => {
            let message = "the operation was cancelled".to_owned();
            Some(CallOutcome::NotSent(NotSent { retry_after: None, message, reason: "daemon", bucket: None }))
        }
        _ => None,
    }
}

fn response_outcome(status: StatusCode, class: ResponseClass, code: Option<u32>, body: &Value) -> CallOutcome {
    let body = Bytes::from(body.to_string());
    let (headers, elapsed) = (HeaderMap::new(), Duration::ZERO);
    CallOutcome::Answered(RestResponse { status, headers, body, stream: None, class, code, elapsed })
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
    use guildhall_actors::lease_guard::LeaseGuard;
    use guildhall_core::response::Credential;

    use super::*;

    #[test]
    fn a_call_becomes_an_operation() {
        let read = RestRequest::new(Method::GET, "/users/@me", Credential::Anonymous, LeaseGuard::always());
        assert_eq!(operation(&read).unwrap(), json!({"kind": "read", "payload": {"path": "/users/@me"}}));
        let mut put =
            RestRequest::new(Method::PUT, "/applications/1/commands", Credential::Anonymous, LeaseGuard::always());
        put.body = RequestBody::Whole(Bytes::from_static(b"[1]"));
        let payload = json!({"method": "PUT", "path": "/applications/1/commands", "body": [1]});
        assert_eq!(operation(&put).unwrap(), json!({"kind": "request", "payload": payload}));
    }

    #[test]
    fn finished_operation_becomes_a_response() {
        let done = json!({"state": "succeeded", "result": {"id": "5"}});
        let Some(CallOutcome::Answered(response)) = finished_outcome(&done) else { panic!("no response") };
        assert_eq!((response.class, response.body.as_ref()), (ResponseClass::Success, &br#"{"id":"5"}"#[..]));
        let error = json!({"status": 403, "code": 50001, "message": "Missing Access"});
        let dead = json!({"state": "dead", "error": error});
        let Some(CallOutcome::Answered(response)) = finished_outcome(&dead) else { panic!("no response") };
        assert_eq!((response.class, response.code), (ResponseClass::Forbidden, Some(50_001)));
        assert!(matches!(finished_outcome(&json!({"state": "needs_review"})), Some(CallOutcome::Unknown(_))));
        assert!(finished_outcome(&json!({"state": "delayed"})).is_none());
    }
}
