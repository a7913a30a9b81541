//! Upgrades an HTTP request to a gateway connection.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_websockets::{Limits, ServerBuilder};

use super::server::{HttpResponse, json};
use crate::gateway;
use crate::state::Shared;

/// RFC 6455: the text that a server appends to the client's key.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Largest frame that is read. Discord's clients may send 4,096 bytes; larger frames up to this size get a proper close
/// code.
const MAX_FRAME: usize = 64 * 1024;

/// A gateway connection whose upgrade was accepted.
pub(super) struct Pending {
    upgrade: OnUpgrade,
    query: String,
}

pub(super) fn is_requested<B>(request: &Request<B>) -> bool {
    contains(request.headers(), header::UPGRADE, "websocket")
}

/// Responds to the handshake; [`run`] does the rest.
pub(super) fn accept(mut request: Request<Incoming>, upgraded: &mpsc::Sender<Pending>) -> HttpResponse {
    let headers = request.headers();
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let (Some(b"13"), Some(key), true) = (version, key, contains(headers, header::CONNECTION, "upgrade")) else {
        return json(
            StatusCode::BAD_REQUEST,
            r#"{"message":"400: a gateway connection needs a WebSocket handshake of version 13","code":0}"#,
        );
    };
    let mut digest = sha1_smol::Sha1::from(key);
    digest.update(KEY_SUFFIX.as_bytes());
    let accepted = HeaderValue::from_str(&STANDARD.encode(digest.digest().bytes()))
        .expect("invariant: base64 is a legal header value");

    let query = request.uri().query().unwrap_or_default().to_owned();
    // The channel has capacity for the single upgrade of a connection.
    let _ = upgraded.try_send(Pending { upgrade: hyper::upgrade::on(&mut request), query });

    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    answer
}

/// Runs the gateway connection until it ends.
pub(super) async fn run(pending: Pending, shared: Arc<Shared>) {
    match pending.upgrade.await {
        Ok(io) => {
            let socket =
                ServerBuilder::new().limits(Limits::default().max_payload_len(Some(MAX_FRAME))).serve(TokioIo::new(io));
            gateway::serve(shared, socket, &pending.query).await;
        }
        Err(error) => tracing::debug!(%error, "gateway handshake failed"),
    }
}

fn contains(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}
