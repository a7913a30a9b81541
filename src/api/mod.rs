//! The listener on `api.bind`: health, readiness, metrics and the API.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! supervisor ◀── desk ◀── control ◀──────── /v1 ──────────────── whoever has the key
//! ```

mod admin_key;
mod body;
mod control;
mod events;
mod health;
mod listener;
mod problem;
mod readiness;

pub use self::{
    admin_key::{AdminKey, AdminKeyError, find_or_make},
    control::{Control, ControlConfig},
    events::AdminKeyInFile,
    listener::{BindError, Bound, Listener, bind},
    readiness::{PartHandle, Readiness},
};
