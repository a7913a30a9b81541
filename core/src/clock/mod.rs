//! Clocks that differ: the offset between two clocks, and the time by which durable records are written and expire.
//!
//! ```text
//!  Date of Discord's responses ──▶ OffsetEstimator ──┐
//!  wall clock or database     ──────────────────────▶ StoreTime ──▶ now, expiry_now
//!                                                    └▶ AheadLog ──▶ how far searches go back
//! ```
//!
//! Everything is measured against a monotonic clock that is never set, so a step of the wall clock changes no estimate.

mod ahead_log;
mod offset;
mod store_time;

pub use ahead_log::AheadLog;
pub use offset::{Offset, OffsetEstimator};
pub use store_time::{Authority, ClockStep, ExpiryLag, SavedTime, StoreTime, TOLERANCE};
