//! Calls that no other kind of operation makes.

use guildhall_actors::gate::RestResponse;
use guildhall_actors::ports::ExecutionOutput;
use guildhall_core::operation::FailureClass;
use guildhall_core::operation::payload::{Method, Read, Request};
use serde_json::{Value, json};

use super::execution_context::ExecutionContext;
use super::execution_error::{ExecutionError, RepeatSafety};

/// Reads from any path, and stores the response.
pub(crate) async fn read(errand: &ExecutionContext<'_>, payload: &Read) -> Result<ExecutionOutput, ExecutionError> {
    let request = errand.json(http::Method::GET, &payload.path, None::<&()>)?;
    let answered = errand.send(request, RepeatSafety::Harmless).await?;
    kept(errand, &answered)
}

/// Makes any call. Only a POST must not be repeated when its outcome is unknown. The `id` of the response, if any, is
/// the created object.
pub(crate) async fn request(
    errand: &ExecutionContext<'_>,
    payload: &Request,
) -> Result<ExecutionOutput, ExecutionError> {
    let (method, again) = match payload.method {
        Method::Get => (http::Method::GET, RepeatSafety::Harmless),
        Method::Put => (http::Method::PUT, RepeatSafety::Harmless),
        Method::Patch => (http::Method::PATCH, RepeatSafety::Harmless),
        Method::Delete => (http::Method::DELETE, RepeatSafety::Harmless),
        Method::Post => (http::Method::POST, RepeatSafety::Doubles),
    };
    let request = errand.json(method, &payload.path, payload.body.as_ref())?;
    let answered = match (errand.send_marked(request, again).await, payload.method) {
        (Err(stop), Method::Delete) if stop.is_gone() => {
            return Ok(ExecutionOutput { result: Value::Null, status: Some(404), ..ExecutionOutput::default() });
        }
        (answered, Method::Get | Method::Put | Method::Patch | Method::Delete | Method::Post) => answered?,
    };
    match payload.method {
        Method::Get => kept(errand, &answered),
        Method::Put | Method::Patch | Method::Delete => Ok(shortened(errand, &answered)),
        Method::Post => {
            let mut done = shortened(errand, &answered);
            let id = serde_json::from_slice::<Value>(&answered.body).ok();
            done.made = id.and_then(|body| body["id"].as_str()?.parse().ok());
            Ok(done)
        }
    }
}

/// Converts the response to a result, unless it is too large to store.
fn kept(errand: &ExecutionContext<'_>, answered: &RestResponse) -> Result<ExecutionOutput, ExecutionError> {
    let most = errand.config().most_result;
    if answered.body.len() > most {
        let size = answered.body.len();
        let message = format!(
            "the response has {size} bytes, but a result can have at most {most}; request less data with \
                `limit`"
        );
        return Err(ExecutionError::failed(FailureClass::Validation, message));
    }
    Ok(ExecutionOutput {
        result: value(answered),
        status: Some(answered.status.as_u16()),
        ..ExecutionOutput::default()
    })
}

/// Converts the response to a result. The call has taken effect, so a response that is too large is omitted.
fn shortened(errand: &ExecutionContext<'_>, answered: &RestResponse) -> ExecutionOutput {
    let size = answered.body.len();
    let result = if size > errand.config().most_result { json!({ "left_out_bytes": size }) } else { value(answered) };
    ExecutionOutput { result, status: Some(answered.status.as_u16()), ..ExecutionOutput::default() }
}

fn value(answered: &RestResponse) -> Value {
    let text = || Value::from(String::from_utf8_lossy(&answered.body).into_owned());
    match answered.body.as_ref() {
        [] => Value::Null,
        body => serde_json::from_slice(body).unwrap_or_else(|_| text()),
    }
}
