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
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::operation::{ANSWER, GREETER};

/// Maximum size of an event.
const EVENT_MOST: usize = 1024 * 1024;
/// Size of its secret in bytes.
const SECRET: usize = 32;

/// The running brain. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct DemoBrain {
    address: SocketAddr,
    secret: String,
    heard: Arc<Mutex<ReceivedMessages>>,
    serving: JoinHandle<()>,
}

/// Messages that it received.
#[derive(Debug, Default)]
struct ReceivedMessages {
    /// Messages by their id, which is the same for every delivery.
    messages: HashSet<String>,
    /// Number of repeated deliveries.
    again: u64,
}

impl DemoBrain {
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(SECRET).collect();
        let secret = format!("whsec_{}", STANDARD.encode(&bytes));
        let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
        let heard = Arc::<Mutex<ReceivedMessages>>::default();
        let serving = spawn_work(serve(listener, key, Arc::clone(&heard)));
        Ok(Self { address, secret, heard, serving })
    }

    /// Handlers that send commands and messages to the brain, and a rule that needs no brain.
    pub(crate) fn handlers(&self) -> String {
        let Self { address, secret, .. } = self;
        format!(
            r#"[[handlers]]
name = "{GREETER}"
on = "member.join"
do = [
    {{ kind = "ensure_role", payload = {{ key = "{GREETER}", name = "{GREETER}" }} }},
    {{ kind = "assign_role", payload = {{ user_id = "{{user_id}}", role_id = {{ key = "{GREETER}" }} }} }},
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
    pub(crate) fn heard(&self) -> (u64, u64) {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        (heard.messages.len() as u64, heard.again)
    }
}

impl Drop for DemoBrain {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, key: Arc<hmac::Key>, heard: Arc<Mutex<ReceivedMessages>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (key, heard) = (Arc::clone(&key), Arc::clone(&heard));
        let service = service_fn(move |request| {
            let (key, heard) = (Arc::clone(&key), Arc::clone(&heard));
            async move { Ok::<_, Infallible>(answer(request, &key, &heard).await) }
        });
        // A daemon that is killed closes the connection, which the demo shows on purpose.
        spawn_work(async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) });
    }
}

async fn answer(request: Request<Incoming>, key: &hmac::Key, heard: &Mutex<ReceivedMessages>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, EVENT_MOST).collect().await else { return says(StatusCode::BAD_REQUEST, None) };
    let body = body.to_bytes();
    let Some(id) = signed_id(&head.headers, &body, key) else { return says(StatusCode::UNAUTHORIZED, None) };
    let event: Value = serde_json::from_slice(&body).unwrap_or_default();
    match event["event_type"].as_str() {
        Some("message.create") => {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            if !heard.messages.insert(id) {
                heard.again += 1;
            }
            says(StatusCode::NO_CONTENT, None)
        }
        Some(_) => says(StatusCode::OK, Some(&json!({ "reply": { "content": ANSWER } }))),
        None => says(StatusCode::BAD_REQUEST, None),
    }
}

/// The event's id, if the daemon's signature is valid. The timestamp is not checked: the daemon is on this machine.
fn signed_id(headers: &HeaderMap, body: &[u8], key: &hmac::Key) -> Option<String> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let (id, at) = (header("webhook-id")?, header("webhook-timestamp")?);
    let signed = [format!("{id}.{at}.").as_bytes(), body].concat();
    let fits = |one: &str| {
        let tag = one.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(key, &signed, &tag).is_ok())
    };
    header("webhook-signature")?.split(' ').any(fits).then(|| id.to_owned())
}

fn says(status: StatusCode, body: Option<&Value>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.map(Value::to_string).unwrap_or_default().into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_signed_with_its_secret_is_heard() {
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
