//! What every request passes before anything is done for it.

use std::time::Instant;

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::{
        Method,
        header::{AUTHORIZATION, HeaderMap},
    },
    middleware::Next,
    web::{Bytes, Data},
};

use super::Served;
use crate::{
    api::{
        admin_key::AdminKey,
        body::{self, announces_more_than, hold, last_words},
        events::ApiAnswered,
        problem::{Problem, Told},
    },
    events::emit,
};

/// A request's body, all of it.
#[derive(Clone)]
struct Body(Bytes);

/// Lets through who has the key, once the body is there.
pub(super) async fn admit(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = Instant::now();
    let mut unread = request.take_payload();
    let response = match check(&request, &mut unread).await {
        Ok(body) => {
            request.extensions_mut().insert(Body(body));
            next.call(request).await?.map_into_boxed_body()
        }
        Err(Refused { told, arrived: true }) => request.into_response(told.response()),
        Err(Refused { told, arrived: false }) => request.into_response(last_words(&told)),
    };
    emit(ApiAnswered {
        route: response.request().match_pattern().unwrap_or_else(|| "none".to_owned()),
        method: method_name(response.request().method()),
        status: response.status(),
        took: started.elapsed(),
    });
    Ok(hold(response, unread))
}

struct Refused {
    told: Told,
    /// Whether nothing of the body is still on its way that matters.
    arrived: bool,
}

async fn check(request: &ServiceRequest, unread: &mut actix_web::dev::Payload) -> Result<Bytes, Refused> {
    let Some(served) = request.app_data::<Data<Served>>() else {
        return Err(Refused { told: Problem::Internal.into(), arrived: true });
    };
    let config = served.control.config;
    // First, so that nobody without a key can make us read anything.
    if !has_key(request.headers(), served.control.key) {
        return Err(Refused { told: Problem::Unauthorized.into(), arrived: true });
    }
    if announces_more_than(config.body_most as u64, request.headers()) {
        let told = Problem::BodyTooLarge.says(format!("The body is larger than {} bytes.", config.body_most));
        return Err(Refused { told, arrived: false });
    }
    match *request.method() {
        Method::GET | Method::HEAD => Ok(Bytes::new()),
        _ => {
            let read = body::read(unread, config.body_most, config.body_within).await;
            read.map_err(|told| Refused { told, arrived: false })
        }
    }
}

fn has_key(headers: &HeaderMap, key: AdminKey) -> bool {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, shown)) = shown.and_then(|shown| shown.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && key.fits(shown.trim())
}

/// A method's name, out of a fixed set: it becomes a label.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// The body that came with a request.
pub(super) fn body_of(request: &HttpRequest) -> Bytes {
    request.extensions().get::<Body>().map(|Body(bytes)| bytes.clone()).unwrap_or_default()
}
