//! The state of a connection, for its requests.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use actix_web::{
    Error, HttpMessage as _,
    body::{BodySize, BoxBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    http::ConnectionType,
    middleware::Next,
    web::Bytes,
};

use super::connection_limit::ConnectionClass;
use crate::api::{body::hold_unread_body, health, problem::ProblemType, request_id};

/// The state of a connection, shared by its socket and its requests.
#[derive(Clone, Debug)]
pub(crate) struct HttpConnectionState(Rc<State>);

#[derive(Debug)]
struct State {
    kind: ConnectionClass,
    /// Requests that are being answered.
    under_way: Cell<u32>,
    /// All requests that have arrived.
    arrived: Cell<u64>,
}

impl HttpConnectionState {
    pub(crate) fn new(kind: ConnectionClass) -> Self {
        Self(Rc::new(State { kind, under_way: Cell::new(0), arrived: Cell::new(0) }))
    }

    pub(crate) fn kind(&self) -> ConnectionClass {
        self.0.kind
    }

    /// How many requests have arrived, and whether one is being answered.
    pub(crate) fn progress(&self) -> (u64, bool) {
        (self.0.arrived.get(), self.0.under_way.get() > 0)
    }

    /// Records that a request has arrived, up to its body.
    pub(crate) fn start_request(&self) -> RequestGuard {
        self.0.arrived.set(self.0.arrived.get() + 1);
        self.0.under_way.set(self.0.under_way.get() + 1);
        RequestGuard(self.clone())
    }
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard(HttpConnectionState);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.0.under_way.set(self.0.0.under_way.get().saturating_sub(1));
    }
}

/// The body of a response, which ends its request when it has been sent.
pub(crate) struct TrackedBody<B> {
    pub(crate) body: B,
    pub(crate) _request: Option<RequestGuard>,
}

impl<B: MessageBody + Unpin> MessageBody for TrackedBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

/// Restricts connections above the limit to one request for health or metrics.
pub(crate) async fn restrict_to_health(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_health_only =
        request.conn_data::<HttpConnectionState>().is_some_and(|visit| visit.kind() == ConnectionClass::HealthOnly);
    if !is_health_only {
        return Ok(next.call(request).await?.map_into_boxed_body());
    }
    let mut response = if health::PATHS.contains(&request.path()) {
        next.call(request).await?.map_into_boxed_body()
    } else {
        let (unread, id) = (request.take_payload(), request_id::from_headers(request.headers()));
        let mut refused = request.into_response(ProblemType::TooManyConnections.response());
        request_id::set_header(&id, refused.headers_mut());
        hold_unread_body(refused, unread).map_into_boxed_body()
    };
    response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    Ok(response)
}
