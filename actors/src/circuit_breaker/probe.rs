//! Probes that a breaker sends itself.

use std::sync::Arc;

use guildhall_core::breaker::BreakerKey;
use guildhall_core::response::Credential;

use super::Pass;

/// Sends probes. Called by the actor: must not block.
pub type Prober = Arc<dyn Fn(ProbeRequest) + Send + Sync>;

/// A probe to send now, through the gate like any call, but already admitted.
#[derive(Debug)]
pub struct ProbeRequest {
    /// The breaker that sends the probe.
    pub key: BreakerKey,
    /// Credential of the call.
    pub credential: Credential,
    /// Pass of the call. Report it like any other.
    pub pass: Pass,
}

impl ProbeRequest {
    /// Path to GET.
    #[must_use]
    pub const fn path(&self) -> &'static str {
        path(self.credential)
    }
}

/// A read without side effects. Without a token only `/gateway` is allowed.
pub(super) const fn path(credential: Credential) -> &'static str {
    match credential {
        Credential::Application(_) => "/gateway/bot",
        Credential::Anonymous | Credential::Token(_) => "/gateway",
    }
}
