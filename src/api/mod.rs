//! The listener on `api.bind`: health, readiness and metrics.
//!
//! ```text
//! parts ──ready / not ready──▶ Readiness ◀── /readyz /startupz ── probes, operators
//! events ──counters──▶ recorder ◀────────── /metrics ─────────── Prometheus
//! ```

mod health;
mod listener;
mod problem;
mod readiness;

pub use self::{
    listener::{BindError, Bound, Listener, bind},
    readiness::{PartHandle, Readiness},
};
