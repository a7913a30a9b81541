//! Calls that a user waits for: each is retried until Discord responds, or the time is up.

use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, RequestBody, RestRequest, RestResponse};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::{backoff::Backoff, command::CommandScope, lane::Lane, response::ResponseClass};
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::sync_error::{DAILY_CREATES, SyncError, response_error};
use crate::daemon::command_gate::CommandGate;
use crate::discord::rest::raw;
use crate::events::{CommandSyncDelayed, emit};

/// Waits between attempts, until the time is up.
const BACKOFF: Backoff = Backoff::exact(Duration::from_millis(500), Duration::from_secs(3_600));

/// Waits up to this are not reported.
const UNREPORTED_WAIT: Duration = Duration::from_secs(1);

/// Calls for the commands of one scope, with one deadline for all of them.
pub(crate) struct RetryingClient<'a> {
    gate: &'a CommandGate,
    scope: CommandScope,
    deadline: Instant,
}

impl<'a> RetryingClient<'a> {
    pub(crate) fn new(gate: &'a CommandGate, scope: CommandScope, timeout: Duration) -> Self {
        Self { gate, scope, deadline: Instant::now() + timeout }
    }

    /// Makes an idempotent call, and returns Discord's response.
    pub(crate) async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, SyncError> {
        let response = self.send(method, path, body).await?;
        if response.class != ResponseClass::Success {
            return Err(response_error(&response, self.scope));
        }
        serde_json::from_slice(&response.body).map_err(|_| SyncError::Unreadable)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<RestResponse, SyncError> {
        let mut attempts = 0;
        loop {
            let (reason, retry_after) = match self.gate.call(self.request(method.clone(), path, body)).await {
                CallOutcome::Answered(response) => match response.class {
                    // A daily limit, whatever its status: it is not waited for.
                    _ if response.code == Some(DAILY_CREATES) => return Ok(response),
                    ResponseClass::RateLimited { retry_after, .. } => ("it returned 429".to_owned(), Some(retry_after)),
                    ResponseClass::Blocked { retry_after } => ("it blocks this IP address".to_owned(), retry_after),
                    ResponseClass::ServerError => (format!("it returned {}", response.status.as_u16()), None),
                    ResponseClass::Success
                    | ResponseClass::Unauthorized
                    | ResponseClass::InteractionEnded
                    | ResponseClass::Forbidden
                    | ResponseClass::NotFound
                    | ResponseClass::WebhookGone
                    | ResponseClass::Rejected => return Ok(response),
                },
                CallOutcome::NotSent(not_sent) => (not_sent.to_string(), not_sent.retry_after),
                CallOutcome::Unknown(unknown) => (unknown.to_string(), None),
            };
            attempts += 1;
            let pause = retry_after.unwrap_or(BACKOFF.delay_without_jitter(attempts));
            if Instant::now() + pause >= self.deadline {
                return Err(SyncError::NoResponse { reason, retry_after });
            }
            if pause > UNREPORTED_WAIT {
                emit(CommandSyncDelayed { reason: &reason, retry_after: pause });
            }
            sleep(pause).await;
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> RestRequest {
        let mut headers = HeaderMap::new();
        let body = body.map_or(RequestBody::Empty, |body| {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            RequestBody::Whole(body.to_string().into())
        });
        let request = raw(method, path, headers, body, self.gate.credential(), LeaseGuard::always());
        let mut request = request.expect("invariant: built from plain words and numbers");
        request.lane = Lane::Interactive;
        request.max_wait = self.deadline.saturating_duration_since(Instant::now());
        if let CommandScope::Guild(guild) = self.scope {
            request.guild = Some(guild);
        }
        request
    }
}
