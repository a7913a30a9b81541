//! The port to where several processes count the requests of one caller together.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use guildhall_core::policy::Rate;

/// What there is to find out.
pub type SharedPolicyFuture<'a> = Pin<Box<dyn Future<Output = Option<Duration>> + Send + 'a>>;

/// Requests that processes count together.
pub trait SharedPolicies: Send + Sync {
    /// Takes `cost` tokens of a caller's bucket for a request that may wait for so long, unless that would be too long; see
    /// [`Rate::verdict`]. Gives how long the bucket needed to be full before that; nothing, if nobody knows, and whoever asks
    /// has to count alone.
    fn take<'a>(
        &'a self,
        policy: &'static str,
        who: &'a str,
        rate: Rate,
        cost: u32,
        max_wait: Duration,
    ) -> SharedPolicyFuture<'a>;
}
