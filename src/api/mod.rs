//! The listener on `api.bind`: health, readiness, metrics and the API; and the one for interactions.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! events ◀───── interactions ◀──────────── POST ─────────────── Discord
//! supervisor ◀── desk ◀── control ◀──────── /v1 ──────────────── whoever has the key
//!                           └──▶ openapi ◀─ /openapi.json /docs ─ whoever wants to know
//! ```

mod admin_key;
mod body;
mod control;
mod events;
mod health;
mod interactions;
mod keyring;
mod line;
mod listener;
mod openapi;
mod problem;
mod readiness;

pub use self::{
    admin_key::{AdminKey, AdminKeyError, find_or_make},
    control::{Control, ControlConfig, GateDesk, ShardDesk, Shelf, StreamsConfig, WAYS, Way},
    events::AdminKeyInFile,
    interactions::Endpoint,
    listener::{API_BIND, BindError, Bound, INTERACTIONS_BIND, Listener, bind, bind_for},
    openapi::description,
    readiness::{PartHandle, Readiness},
};
