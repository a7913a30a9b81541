//! How ready the gateway is, as told by its shards.

use std::sync::{Mutex, PoisonError};

use crate::{api::PartHandle, discord::ShardEvent};

/// Counts connected shards. The gateway is ready when all of them are.
pub(super) struct GatewayPart {
    part: PartHandle,
    shards: u32,
    connected: Mutex<u32>,
}

impl GatewayPart {
    pub(super) fn new(part: PartHandle, shards: u32) -> Self {
        let gateway = Self { part, shards, connected: Mutex::new(0) };
        gateway.tell(0);
        gateway
    }

    pub(super) fn observe(&self, event: &ShardEvent<'_>) {
        // A shard says these two in turn. The lock is held while telling, so that the last word is the right one.
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            ShardEvent::Connected { .. } => *connected += 1,
            ShardEvent::Disconnected { .. } => *connected = connected.saturating_sub(1),
            ShardEvent::Dispatch { .. } => return,
        }
        self.tell(*connected);
    }

    fn tell(&self, connected: u32) {
        if connected == self.shards {
            self.part.ready();
        } else {
            self.part.not_ready(&format!("{connected} of {} shards are connected", self.shards));
        }
    }
}
