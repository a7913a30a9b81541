//! Methods of the simulator's handle that control the gateway.

use std::sync::Arc;

use super::faults::GatewayFault;
use super::score::GatewayScore;
use super::storm::{StormReport, StormSpec};
use crate::sim::SimHandle;

impl SimHandle {
    /// Applies a fault of the gateway; returns the number of connections affected.
    pub fn gateway_fault(&self, fault: GatewayFault) -> u64 {
        let now = self.shared.now();
        self.shared.lock().gateway.apply_fault(fault, now)
    }

    /// The faults of the gateway that stay active until they are used up or cleared.
    #[must_use]
    pub fn gateway_faults(&self) -> Vec<GatewayFault> {
        let now = self.shared.now();
        self.shared.lock().gateway.faults(now)
    }

    /// Ends all active faults of the gateway: zombies continue, held connections get their HELLO.
    pub fn clear_gateway_faults(&self) {
        let now = self.shared.now();
        self.shared.lock().gateway.clear_faults(now);
    }

    /// Counters of the gateway.
    #[must_use]
    pub fn gateway_score(&self) -> GatewayScore {
        self.shared.lock().gateway.score()
    }

    /// Sends a storm of events, and reports its result.
    pub async fn storm(&self, spec: StormSpec) -> StormReport {
        super::storm(Arc::clone(&self.shared), spec).await
    }
}
