//! Port to the store in which several processes count the requests of one caller together.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use guildhall_core::policy::Rate;

/// Pending result of [`SharedPolicies::take`].
pub type SharedPolicyFuture<'a> = Pin<Box<dyn Future<Output = Option<Duration>> + Send + 'a>>;

/// Request counts that processes share.
pub trait SharedPolicies: Send + Sync {
    /// Takes `cost` tokens from a caller's bucket for a request that may wait for `max_wait`, unless it would have to
    /// wait longer; see [`Rate::decide`]. Returns how long the bucket needed to become full before that. `None` if
    /// that is unknown; then the caller must count locally.
    fn take<'a>(
        &'a self,
        policy: &'static str,
        caller: &'a str,
        rate: Rate,
        cost: u32,
        max_wait: Duration,
    ) -> SharedPolicyFuture<'a>;
}
