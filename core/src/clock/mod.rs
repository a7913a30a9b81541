//! Clocks that do not agree: how far apart two of them are, and which time durable records are written and expired by.
//!
//! ```text
//!  Date of Discord's answers ──▶ OffsetEstimator ──┐
//!  wall clock or database   ──────────────────────▶ StoreTime ──▶ now, expiry_now
//!                                                  └▶ AheadLog ──▶ how far searches reach back
//! ```
//!
//! Everything is measured against a monotonic clock that is never set, so that a step of the wall clock changes no estimate.

mod ahead_log;
mod offset;
mod store_time;

pub use ahead_log::AheadLog;
pub use offset::{Offset, OffsetEstimator};
pub use store_time::{Authority, ClockStep, ExpiryLag, SavedTime, StoreTime, TOLERANCE};
