//! Outgoing HTTP: the one place that builds clients, their connections and TLS, and that bounds what they read.
//!
//! ```text
//!  discord::rest, webhook, otel, client, demo
//!      │ pooled_client(connector, pool)            │ read_body(body, max)
//!      ▼                                           ▼
//!  hyper-util pool ──▶ tcp_connector or an own one ──▶ https_connector ──▶ tls::…
//! ```

mod http_client;
mod paced_body;
mod prefixed_body;
pub(crate) mod retry_after;
pub(crate) mod tls;

pub(crate) use self::http_client::{
    BodyError, HttpClient, HttpVersions, Pool, https_connector, https_connector_of, pooled_client, read_body,
    tcp_connector,
};
pub(crate) use self::paced_body::{Pace, PaceError, PaceFailure, PacedBody};
pub(crate) use self::prefixed_body::PrefixedBody;
