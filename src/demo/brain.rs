//! The demo's brain: a webhook that accepts only the daemon's signature, answers a command, and records the messages
//! that it receives.

use std::{
    collections::HashSet,
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use guildhall_actors::supervision::spawn_work;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::operation::{COMMAND_RESPONSE, NEWCOMER_ROLE};
use crate::net;

/// Maximum size of an event.
const MAX_EVENT_BYTES: usize = 1024 * 1024;
/// Size of its secret in bytes.
const SECRET_BYTES: usize = 32;

/// The running brain. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct DemoBrain {
    address: SocketAddr,
    secret: String,
    received: Arc<Mutex<ReceivedMessages>>,
    server_task: JoinHandle<()>,
}

/// Messages that it received.
#[derive(Debug, Default)]
struct ReceivedMessages {
    /// Messages by their id, which is the same for every delivery.
    messages: HashSet<String>,
    /// Number of repeated deliveries.
    repeated: u64,
}

impl DemoBrain {
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(SECRET_BYTES).collect();
        let secret = format!("whsec_{}", STANDARD.encode(&bytes));
        let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
        let received = Arc::<Mutex<ReceivedMessages>>::default();
        let server_task = spawn_work(serve(listener, key, Arc::clone(&received)));
        Ok(Self { address, secret, received, server_task })
    }

    /// Handlers that send commands and messages to the brain, and a rule that needs no brain.
    pub(crate) fn handlers(&self) -> String {
        let Self { address, secret, .. } = self;
        format!(
            r#"[[handlers]]
name = "{NEWCOMER_ROLE}"
on = "member.join"
do = [
    {{ kind = "ensure_role", payload = {{ key = "{NEWCOMER_ROLE}", name = "{NEWCOMER_ROLE}" }} }},
    {{ kind = "assign_role", payload = {{ user_id = "{{user_id}}", role_id = {{ key = "{NEWCOMER_ROLE}" }} }} }},
]

[[handlers]]
name = "brain"
on = ["interaction.command.*", "message.create"]
when = {{ bot = false }}
webhook = {{ url = "http://{address}/events", secrets = ["{secret}"], allow_private = true }}
"#
        )
    }

    /// Number of messages that it received, and of repeated deliveries.
    pub(crate) fn received(&self) -> (u64, u64) {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        (received.messages.len() as u64, received.repeated)
    }
}

impl Drop for DemoBrain {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

async fn serve(listener: TcpListener, key: Arc<hmac::Key>, received: Arc<Mutex<ReceivedMessages>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (key, received) = (Arc::clone(&key), Arc::clone(&received));
        let service = service_fn(move |request| {
            let (key, received) = (Arc::clone(&key), Arc::clone(&received));
            async move { Ok::<_, Infallible>(handle_request(request, &key, &received).await) }
        });
        // A daemon that is killed closes the connection, which the demo shows on purpose.
        spawn_work(async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) });
    }
}

async fn handle_request(
    request: Request<Incoming>,
    key: &hmac::Key,
    received: &Mutex<ReceivedMessages>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = net::read_body(body, MAX_EVENT_BYTES).await else {
        return respond(StatusCode::BAD_REQUEST, None);
    };
    let Some(id) = signed_id(&head.headers, &body, key) else { return respond(StatusCode::UNAUTHORIZED, None) };
    let event: Value = serde_json::from_slice(&body).unwrap_or_default();
    match event["event_type"].as_str() {
        Some("message.create") => {
            let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
            if !received.messages.insert(id) {
                received.repeated += 1;
            }
            respond(StatusCode::NO_CONTENT, None)
        }
        Some(_) => respond(StatusCode::OK, Some(&json!({ "reply": { "content": COMMAND_RESPONSE } }))),
        None => respond(StatusCode::BAD_REQUEST, None),
    }
}

/// The event's id, if the daemon's signature is valid. The timestamp is not checked: the daemon is on this machine.
fn signed_id(headers: &HeaderMap, body: &[u8], key: &hmac::Key) -> Option<String> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let (id, at) = (header("webhook-id")?, header("webhook-timestamp")?);
    let signed = [format!("{id}.{at}.").as_bytes(), body].concat();
    let is_valid = |signature: &str| {
        let tag = signature.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(key, &signed, &tag).is_ok())
    };
    header("webhook-signature")?.split(' ').any(is_valid).then(|| id.to_owned())
}

fn respond(status: StatusCode, body: Option<&Value>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.map(Value::to_string).unwrap_or_default().into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signed_events_are_accepted() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let tag = STANDARD.encode(hmac::sign(&key, b"a.7.{}"));
        let headers = |id: &str, signature: String| -> HeaderMap {
            let all = [
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", "7".to_owned()),
                ("webhook-signature", signature),
            ];
            all.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
        };
        assert_eq!(signed_id(&headers("a", format!("v1,x v1,{tag}")), b"{}", &key).as_deref(), Some("a"));
        assert_eq!(signed_id(&headers("b", format!("v1,{tag}")), b"{}", &key), None);
        assert_eq!(signed_id(&headers("a", format!("v1,{tag}")), b"[]", &key), None);
        assert_eq!(signed_id(&HeaderMap::new(), b"{}", &key), None);
    }
}
