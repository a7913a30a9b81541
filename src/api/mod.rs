//! HTTP listeners: `api.bind` serves health, readiness, metrics and the API; another one receives interactions.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! events ◀───── interactions ◀──────────── POST ─────────────── Discord
//! supervisor ◀ service ◀─ control ◀──────── /v1 ──────────────── API clients
//!                           └──▶ openapi ◀─ /openapi.json /docs ─ developers
//!                             runbooks ◀─ /docs/runbooks ─────── operators
//! ```
//!
//! Every connection passes the edge first, which applies the connection limit, the timeouts and TLS.

mod abort;
pub mod admin_key;
pub(crate) mod app_state;
mod body;
mod client_address;
mod cursor;
pub(crate) mod dto;
mod egress_usage;
mod errors;
mod events;
mod extract;
mod fields;
mod handlers;
mod health;
mod interactions;
mod key_lookup;
pub(crate) mod keyring;
mod listener;
mod middleware;
mod openapi;
mod operator_key;
mod policies;
mod prefer;
mod prefer_wait;
pub(crate) mod problem;
mod readiness;
pub(crate) mod request_id;
mod routes;
mod runbooks;
mod services;
mod static_file;

pub use self::admin_key::{AdminKey, AdminKeyError};
pub use self::app_state::{Control, ControlConfig};
pub use self::client_address::TrustedProxies;
pub use self::egress_usage::EgressUsageService;
pub use self::events::{AdminKeyFile, AdminKeyFromOtherProcess};
pub use self::handlers::reload::{Reload, ReloadError, ReloadFuture, ReloadReport, ReloadedItem};
pub use self::handlers::state::StateService;
pub use self::handlers::stream::StreamsConfig;
pub use self::interactions::InteractionsEndpoint;
pub use self::listener::certificates::{Certificates, CertificatesError, CheckedCertificate};
pub use self::listener::edge_config::EdgeConfig;
pub use self::listener::{
    API_BIND, BindError, BoundListener, EGRESS_BIND, INTERACTIONS_BIND, Listener, ListenerHandle, bind, bind_for,
};
pub use self::openapi::description;
pub use self::policies::PoliciesConfig;
pub use self::readiness::{ComponentHandle, Readiness};
pub use self::routes::{ROUTES, Route, find_route};
pub use self::services::{GateService, GatewayServices, Services, ShardService};
