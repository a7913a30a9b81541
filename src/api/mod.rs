//! HTTP listeners: `api.bind` serves health, readiness, metrics and the API; another one receives interactions.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! events ◀───── interactions ◀──────────── POST ─────────────── Discord
//! supervisor ◀ service ◀─ control ◀──────── /v1 ──────────────── API clients
//!                           └──▶ openapi ◀─ /openapi.json /docs ─ developers
//! ```
//!
//! Every connection passes the edge first, which applies the connection limit, the timeouts and TLS.

mod abort;
pub mod admin_key;
mod body;
mod client_address;
mod control;
mod edge;
mod events;
mod health;
mod interactions;
mod key_lookup;
mod keyring;
mod listener;
mod openapi;
mod operator_key;
mod policies;
mod problem;
mod readiness;
mod request_id;

pub use self::{
    admin_key::{AdminKey, AdminKeyError},
    client_address::TrustedProxies,
    control::{
        Control, ControlConfig, GateService, Reload, ReloadError, ReloadFuture, ReloadReport, ReloadedItem, Route,
        ShardService, StateService, StreamsConfig, WAYS,
    },
    edge::{Certificates, CertificatesError, CheckedCertificate, EdgeConfig},
    events::{AdminKeyFile, AdminKeyFromOtherProcess},
    interactions::InteractionsEndpoint,
    listener::{API_BIND, BindError, BoundListener, INTERACTIONS_BIND, Listener, ListenerHandle, bind, bind_for},
    openapi::description,
    policies::PoliciesConfig,
    readiness::{ComponentHandle, Readiness},
};
