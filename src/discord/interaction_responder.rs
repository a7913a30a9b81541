//! First responses to interactions. They bypass the store, because Discord waits only three seconds.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use guildhall_actors::gate::{CallOutcome, RequestBody, Rest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{InitialResponse, InteractionResponder, RespondFuture, ResponseResult};
use guildhall_core::{event::Interaction, lane::Lane, response::Credential, trace::TraceContext};
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::rest::raw;

/// Discord's code for an interaction that has its first response already.
const ALREADY_ACKNOWLEDGED: u32 = 40_060;

/// Discord's code for an interaction that has expired or that it does not know.
const UNKNOWN_INTERACTION: u32 = 10_062;

/// Delay before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Flag of a message that only one user sees.
const EPHEMERAL: u64 = 1 << 6;

/// Sends the first response to interactions.
pub struct RestInteractionResponder {
    rest: Arc<dyn Rest>,
    timeout: Duration,
}

impl std::fmt::Debug for RestInteractionResponder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestInteractionResponder").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl RestInteractionResponder {
    /// Creates a responder that sends through the gate, each response within this timeout.
    pub fn new(rest: Arc<dyn Rest>, timeout: Duration) -> Self {
        Self { rest, timeout }
    }
}

impl InteractionResponder for RestInteractionResponder {
    fn respond(&self, interaction: Arc<Interaction>, first: InitialResponse, trace: TraceContext) -> RespondFuture {
        let (rest, deadline) = (Arc::clone(&self.rest), Instant::now() + self.timeout);
        Box::pin(async move {
            let response = Bytes::from(response_json(first).to_string());
            let late = ResponseResult::Failed("timed out before Discord accepted the response".to_owned());
            let mut failure = late.clone();
            loop {
                match timeout_at(deadline, send_once(&*rest, &interaction, response.clone(), deadline, trace)).await {
                    Err(_) => return failure,
                    Ok(Err(result)) => return result,
                    Ok(Ok(reason)) => failure = ResponseResult::Failed(reason),
                }
                if timeout_at(deadline, sleep(RETRY_DELAY)).await.is_err() {
                    return failure;
                }
            }
        })
    }
}

/// Sends the response once. Returns the final result as an error, or the reason for a retry.
async fn send_once(
    rest: &dyn Rest,
    interaction: &Interaction,
    body: Bytes,
    deadline: Instant,
    trace: TraceContext,
) -> Result<String, ResponseResult> {
    let path = format!("/interactions/{}/{}/callback", interaction.id, interaction.token);
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let credential = Credential::Application(interaction.application);
    let request = raw(Method::POST, &path, headers, RequestBody::Whole(body), credential, LeaseGuard::always());
    // The error itself would contain the path, and with it the token.
    let mut request = request.map_err(|_| ResponseResult::Failed("invalid interaction token".to_owned()))?;
    request.lane = Lane::Interactive;
    request.trace = Some(trace);
    request.max_wait = deadline.saturating_duration_since(Instant::now());
    match rest.call(request).await {
        CallOutcome::Answered(response) if response.status.is_success() => Err(ResponseResult::Sent),
        CallOutcome::Answered(response) => match (response.status.as_u16(), response.code) {
            (400, Some(ALREADY_ACKNOWLEDGED)) => Err(ResponseResult::AlreadySent),
            (404, Some(UNKNOWN_INTERACTION)) => Err(ResponseResult::Expired),
            (status @ (429 | 500..), _) => Ok(format!("Discord returned {status}")),
            (status, None) => Err(ResponseResult::Failed(format!("Discord returned {status}"))),
            (status, Some(code)) => Err(ResponseResult::Failed(format!("Discord returned {status}, code {code}"))),
        },
        CallOutcome::NotSent(not_sent) => Ok(not_sent.to_string()),
        // Sending it twice is harmless: Discord reports that it already has a response.
        CallOutcome::Unknown(unknown) => Ok(unknown.to_string()),
    }
}

/// The response in Discord's format. A message mentions no one unless it lists allowed mentions.
pub fn response_json(first: InitialResponse) -> Value {
    match first {
        InitialResponse::Deferred { ephemeral: true } => json!({ "type": 5, "data": { "flags": EPHEMERAL } }),
        InitialResponse::Deferred { ephemeral: false } => json!({ "type": 5 }),
        InitialResponse::Immediate(mut whole) => {
            if matches!(whole["type"].as_u64(), Some(4 | 7))
                && let Some(data) = whole.get_mut("data").and_then(Value::as_object_mut)
            {
                data.entry("allowed_mentions").or_insert_with(|| json!({ "parse": [] }));
            }
            whole
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_mentions_no_one_by_default() {
        let plain =
            response_json(InitialResponse::Immediate(json!({ "type": 4, "data": { "content": "hi @everyone" } })));
        assert_eq!(plain["data"]["allowed_mentions"], json!({ "parse": [] }));
        let own = json!({ "type": 4, "data": { "allowed_mentions": { "parse": ["users"] } } });
        assert_eq!(response_json(InitialResponse::Immediate(own.clone())), own);
        let choices = json!({ "type": 8, "data": { "choices": [] } });
        assert_eq!(response_json(InitialResponse::Immediate(choices.clone())), choices);
        assert_eq!(response_json(InitialResponse::Deferred { ephemeral: true })["data"]["flags"], 64);
    }
}
