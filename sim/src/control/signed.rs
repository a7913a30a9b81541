//! Interactions over HTTP: posted to a URL with an Ed25519 signature, as Discord does for an application's endpoint.

use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::ControlError;

/// How long an endpoint may take to respond.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest response that is read.
const MAX_RESPONSE: usize = 1024 * 1024;

/// The key that signs interactions, derived from the seed, so that it is the same after a restart.
pub(crate) fn signing_key(seed: u64) -> SigningKey {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    SigningKey::from_bytes(&bytes)
}

/// The public key in Discord's form: 64 hexadecimal digits.
pub(crate) fn public_key(key: &SigningKey) -> String {
    hex(key.verifying_key().as_bytes())
}

/// Posts an interaction and returns the endpoint's response. `forged` signs other data, as Discord does to see whether
/// an endpoint checks signatures.
pub(super) async fn post(
    url: &str,
    key: &SigningKey,
    timestamp: &str,
    body: Bytes,
    forged: bool,
) -> Result<(StatusCode, Bytes), ControlError> {
    let post_error = |reason: String| ControlError::Post { url: url.to_owned(), reason };
    let uri: Uri = url.parse().map_err(|_| post_error("not a URL".into()))?;
    let (Some("http"), Some(host)) = (uri.scheme_str(), uri.host()) else {
        return Err(post_error("must start with http:// (the simulator does not support TLS)".into()));
    };
    let mut signed = Vec::with_capacity(timestamp.len() + body.len());
    signed.extend_from_slice(if forged { b"0" } else { timestamp.as_bytes() });
    signed.extend_from_slice(&body);
    let request = Request::builder()
        .method(Method::POST)
        .uri(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, uri.authority().map_or(host, |authority| authority.as_str()))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, "Discord-Interactions/1.0 (+https://discord.com)")
        .header("x-signature-ed25519", hex(&key.sign(&signed).to_bytes()))
        .header("x-signature-timestamp", timestamp)
        .body(Full::new(body))
        .map_err(|error| post_error(error.to_string()))?;

    let exchange = async {
        let socket =
            TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await.map_err(|error| error.to_string())?;
        connection.abort();
        Ok((status, body.to_bytes()))
    };
    match tokio::time::timeout(TIMEOUT, exchange).await {
        Ok(answer) => answer.map_err(post_error),
        Err(_) => Err(post_error(format!("no response within {} s", TIMEOUT.as_secs()))),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
