//! Pooled HTTP clients, and bounded bodies.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;

use crate::error_chain::chain;

/// A client that connects by TCP, with TLS for https.
pub(crate) type HttpClient<B = Full<Bytes>> = Client<HttpsConnector<HttpConnector>, B>;

/// Bounds of the idle connections of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// How long an unused connection stays open.
    pub(crate) idle_timeout: Duration,
    /// Maximum number of unused connections to one host.
    pub(crate) max_idle: usize,
}

/// Connects by TCP. The timeout is divided among the addresses of a name, so that one dead address does not use all of
/// it.
pub(crate) fn tcp_connector(connect_timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // The outer connector checks the scheme.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp
}

/// The version of HTTP that connections may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersions {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 with TLS, if the server offers it.
    Http2IfOffered,
}

/// How long an HTTP/2 connection may be silent before the server is asked whether it is there, and how long that may take.
const HTTP2_PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Adds TLS for https to a connector.
pub(crate) fn https_connector<C>(tls: ClientConfig, inner: C) -> HttpsConnector<C> {
    https_connector_of(HttpVersions::Http1, tls, inner)
}

/// The same for these versions of HTTP.
pub(crate) fn https_connector_of<C>(versions: HttpVersions, tls: ClientConfig, inner: C) -> HttpsConnector<C> {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    match versions {
        HttpVersions::Http1 => builder.wrap_connector(inner),
        HttpVersions::Http2IfOffered => builder.enable_http2().wrap_connector(inner),
    }
}

/// Creates a client without connections. It follows no redirects.
///
/// It repeats only a request that a connection has returned unread: the connection's task had not yet taken the request
/// from its queue when the peer closed the connection, so no byte of the request was written.
pub(crate) fn pooled_client<C, B>(connector: C, pool: Pool) -> Client<C, B>
where
    C: Connect + Clone,
    B: Body<Data: Send> + Send,
{
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(HTTP2_PING.0)
        .http2_keep_alive_timeout(HTTP2_PING.1)
        .pool_idle_timeout(pool.idle_timeout)
        .pool_max_idle_per_host(pool.max_idle)
        .retry_canceled_requests(true)
        .build(connector)
}

/// A body could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is larger than this number of bytes.
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// The connection failed.
    #[error("{0}")]
    ConnectionFailed(String),
}

/// Reads a whole body of at most `max_bytes`. The caller sets the timeout.
///
/// # Errors
///
/// If it is larger, or the connection fails.
pub(crate) async fn read_body<B>(body: B, max_bytes: usize) -> Result<Bytes, BodyError>
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(BodyError::TooLarge(max_bytes));
    }
    match Limited::new(body, max_bytes).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(max_bytes)),
        Err(error) => Err(BodyError::ConnectionFailed(chain(error.as_ref()))),
    }
}
