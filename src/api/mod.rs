//! The listener on `api.bind`: health, readiness, metrics and the API; and the one for interactions.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! events ◀───── interactions ◀──────────── POST ─────────────── Discord
//! supervisor ◀── desk ◀── control ◀──────── /v1 ──────────────── whoever has the key
//!                           └──▶ openapi ◀─ /openapi.json /docs ─ whoever wants to know
//! ```
//!
//! Every connection passes the edge first: how many there are, how slow they may be, and TLS.

pub mod admin_key;
mod body;
mod control;
mod edge;
mod events;
mod health;
mod interactions;
mod key_lookup;
mod keyring;
mod line;
mod listener;
mod openapi;
mod operator_key;
mod origin;
mod policies;
mod problem;
mod readiness;
mod request_name;

pub use self::{
    admin_key::{AdminKey, AdminKeyError},
    control::{
        Control, ControlConfig, GateDesk, Reload, ReloadError, ReloadReport, ReloadedItem, Reloading, ShardDesk, Shelf,
        StreamsConfig, WAYS, Way,
    },
    edge::{Certificates, CertificatesError, CheckedCertificate, EdgeConfig},
    events::{AdminKeyElsewhere, AdminKeyInFile},
    interactions::Endpoint,
    listener::{API_BIND, BindError, Bound, Closer, INTERACTIONS_BIND, Listener, bind, bind_for},
    openapi::description,
    origin::Proxies,
    policies::PoliciesConfig,
    readiness::{PartHandle, Readiness},
};
