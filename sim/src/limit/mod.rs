//! Discord's rate limits: windows, the table, the gate that applies both, and the ban.

mod ban;
mod gate;
mod table;
mod window;

pub(crate) use ban::BanLedger;
pub use gate::Scope;
pub(crate) use gate::{BucketState, Credential, Gate, LimitRequest, ceil_millis};
pub use table::{Case, InvalidLimit, LimitConfig, RouteLimit};
pub use window::{Algorithm, Rate};
