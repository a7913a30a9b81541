//! Probes that a breaker sends itself.

use std::sync::Arc;

use guildhall_core::breaker::BreakerKey;
use guildhall_core::response::Credential;

use super::Pass;

/// Sends probes. Must not block: it is called by the actor.
pub type Prober = Arc<dyn Fn(ProbeRequest) + Send + Sync>;

/// A probe that is to be sent now, through the gate like any call, but admitted already.
#[derive(Debug)]
pub struct ProbeRequest {
    /// The breaker that asks.
    pub key: BreakerKey,
    /// Who it is to be made as.
    pub credential: Credential,
    /// Its pass, to be reported like any other.
    pub pass: Pass,
}

impl ProbeRequest {
    /// What to GET.
    #[must_use]
    pub const fn path(&self) -> &'static str {
        path(self.credential)
    }
}

/// A read that costs nothing: who has no token may not ask for more than the gateway's address.
pub(super) const fn path(credential: Credential) -> &'static str {
    match credential {
        Credential::Application(_) => "/gateway/bot",
        Credential::Anonymous => "/gateway",
    }
}
