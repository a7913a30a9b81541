//! The window that processes share, in a real Redis.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "redis_window/members.rs"]
mod members;
#[path = "redis_window/mirror.rs"]
mod mirror;
#[path = "redis_window/pair.rs"]
mod pair;
#[path = "redis_window/random.rs"]
mod random;
#[path = "support/redis.rs"]
mod support;
