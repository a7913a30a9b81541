//! Rate limits.

mod bucket;
mod config;
mod global;
mod turn;

pub use bucket::BucketView;
pub use config::LimitConfig;
