//! The gateway, driven by whoever started the simulator.

use std::sync::Arc;

use super::faults::GatewayFault;
use super::score::GatewayScore;
use super::storm::{StormReport, StormSpec};
use crate::sim::SimHandle;

impl SimHandle {
    /// Brings a fault of the gateway about; says how many connections it struck.
    pub fn gateway_fault(&self, fault: GatewayFault) -> u64 {
        let now = self.shared.now();
        self.shared.lock().hub.fault(fault, now)
    }

    /// The faults of the gateway that stand until they are used up or cleared.
    #[must_use]
    pub fn gateway_faults(&self) -> Vec<GatewayFault> {
        let now = self.shared.now();
        self.shared.lock().hub.faults(now)
    }

    /// Ends all standing faults of the gateway: zombies wake, held connections are greeted.
    pub fn clear_gateway_faults(&self) {
        let now = self.shared.now();
        self.shared.lock().hub.clear_faults(now);
    }

    /// What the gateway saw and did.
    #[must_use]
    pub fn gateway_score(&self) -> GatewayScore {
        self.shared.lock().hub.score()
    }

    /// Sends a storm of events, and tells how it went.
    pub async fn storm(&self, spec: StormSpec) -> StormReport {
        super::storm(Arc::clone(&self.shared), spec).await
    }
}
