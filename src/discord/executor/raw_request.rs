//! Calls that no other kind of operation makes.

use guildhall_actors::gate::RestResponse;
use guildhall_actors::ports::ExecutionOutput;
use guildhall_core::operation::FailureClass;
use guildhall_core::operation::payload::{Method, Read, Request};
use serde_json::{Value, json};

use super::execution_context::ExecutionContext;
use super::execution_error::{ExecutionError, RepeatSafety};

/// Reads from any path, and stores the response.
pub(crate) async fn read(context: &ExecutionContext<'_>, payload: &Read) -> Result<ExecutionOutput, ExecutionError> {
    let request = context.json(http::Method::GET, &payload.path, None::<&()>)?;
    let response = context.send(request, RepeatSafety::Harmless).await?;
    full_output(context, &response)
}

/// Makes any call. Only a POST must not be repeated when its outcome is unknown. The `id` of the response, if any, is
/// the created object.
pub(crate) async fn request(
    context: &ExecutionContext<'_>,
    payload: &Request,
) -> Result<ExecutionOutput, ExecutionError> {
    let (method, repeat_safety) = match payload.method {
        Method::Get => (http::Method::GET, RepeatSafety::Harmless),
        Method::Put => (http::Method::PUT, RepeatSafety::Harmless),
        Method::Patch => (http::Method::PATCH, RepeatSafety::Harmless),
        Method::Delete => (http::Method::DELETE, RepeatSafety::Harmless),
        Method::Post => (http::Method::POST, RepeatSafety::Doubles),
    };
    let request = context.json(method, &payload.path, payload.body.as_ref())?;
    let response = match (context.send_marked(request, repeat_safety).await, payload.method) {
        (Err(error), Method::Delete) if error.is_gone() => {
            return Ok(ExecutionOutput { result: Value::Null, status: Some(404), ..ExecutionOutput::default() });
        }
        (response, Method::Get | Method::Put | Method::Patch | Method::Delete | Method::Post) => response?,
    };
    match payload.method {
        Method::Get => full_output(context, &response),
        Method::Put | Method::Patch | Method::Delete => Ok(truncated_output(context, &response)),
        Method::Post => {
            let mut done = truncated_output(context, &response);
            let id = serde_json::from_slice::<Value>(&response.body).ok();
            done.created = id.and_then(|body| body["id"].as_str()?.parse().ok());
            Ok(done)
        }
    }
}

/// Converts the response to a result, unless it is too large to store.
fn full_output(context: &ExecutionContext<'_>, response: &RestResponse) -> Result<ExecutionOutput, ExecutionError> {
    let max = context.config().max_result_bytes;
    if response.body.len() > max {
        let size = response.body.len();
        let message = format!(
            "the response has {size} bytes, but a result can have at most {max}; request less data with \
                `limit`"
        );
        return Err(ExecutionError::failed(FailureClass::Validation, message));
    }
    Ok(ExecutionOutput {
        result: body_value(response),
        status: Some(response.status.as_u16()),
        ..ExecutionOutput::default()
    })
}

/// Converts the response to a result. The call has taken effect, so a response that is too large is omitted.
fn truncated_output(context: &ExecutionContext<'_>, response: &RestResponse) -> ExecutionOutput {
    let size = response.body.len();
    let result =
        if size > context.config().max_result_bytes { json!({ "left_out_bytes": size }) } else { body_value(response) };
    ExecutionOutput { result, status: Some(response.status.as_u16()), ..ExecutionOutput::default() }
}

fn body_value(response: &RestResponse) -> Value {
    let text = || Value::from(String::from_utf8_lossy(&response.body).into_owned());
    match response.body.as_ref() {
        [] => Value::Null,
        body => serde_json::from_slice(body).unwrap_or_else(|_| text()),
    }
}
