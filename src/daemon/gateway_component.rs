//! Readiness of the gateway, as its shards report it.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{api::ComponentHandle, discord::ShardEvent};

/// Counts connected shards. The gateway is ready when all shards of this process are connected; it may have none, if
/// other processes have them.
pub(crate) struct GatewayComponent {
    part: ComponentHandle,
    state: Mutex<GatewayState>,
}

#[derive(Default)]
struct GatewayState {
    /// Number of shards that this process has, once it has claimed them.
    held: Option<usize>,
    connected: usize,
    /// Shards that cannot start a session today, and the time until one can be started.
    waiting: BTreeSet<u32>,
    retry_in: Duration,
}

impl GatewayComponent {
    pub(crate) fn new(part: ComponentHandle) -> Self {
        let gateway = Self { part, state: Mutex::default() };
        gateway.report(&GatewayState::default());
        gateway
    }

    /// Sets the number of shards of this process.
    pub(crate) fn set_shard_count(&self, count: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held = Some(count);
        self.report(&state);
    }

    pub(crate) fn observe(&self, event: &ShardEvent) {
        // The lock is held while reporting, so that the last report is the current one.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match *event {
            // A shard sends these two alternately.
            ShardEvent::Connected { shard, .. } => {
                state.connected += 1;
                state.waiting.remove(&shard);
            }
            ShardEvent::PermissionsChanged { .. } | ShardEvent::GuildChanged(_) | ShardEvent::GuildsListed(_) => {
                return;
            }
            ShardEvent::Disconnected { .. } => state.connected = state.connected.saturating_sub(1),
            ShardEvent::OutOfIdentifies { shard, retry_in } => {
                state.waiting.insert(shard);
                state.retry_in = retry_in;
            }
        }
        self.report(&state);
    }

    fn report(&self, state: &GatewayState) {
        let GatewayState { held, connected, waiting, retry_in } = state;
        let Some(held) = held else {
            self.part.not_ready("the shards of this process are not known yet");
            return;
        };
        if connected == held {
            self.part.ready();
            return;
        }
        let mut reason = format!("{connected} of {held} shards are connected");
        if !waiting.is_empty() {
            let minutes = retry_in.as_secs().div_ceil(60);
            reason = format!(
                "{reason}; {} wait for a new session: the day's session starts are used up, the next one is available \
                 in {} h {} min",
                waiting.len(),
                minutes / 60,
                minutes % 60
            );
        }
        self.part.not_ready(&reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::Readiness, discord::SessionKind};

    #[test]
    fn gateway_is_ready_when_all_shards_are_connected() {
        let readiness = Readiness::default();
        let part = GatewayComponent::new(readiness.register("gateway"));
        let report = || format!("{:?}", readiness.report());
        assert!(report().contains("not known yet"), "{}", report());
        part.set_shard_count(2);
        part.observe(&ShardEvent::Connected { shard: 0, session: SessionKind::New });
        assert!(report().contains("1 of 2 shards are connected"), "{}", report());
        part.observe(&ShardEvent::OutOfIdentifies { shard: 1, retry_in: Duration::from_secs(2 * 3600 + 61) });
        assert!(report().contains("1 wait for a new session") && report().contains("in 2 h 2 min"), "{}", report());
        part.observe(&ShardEvent::Connected { shard: 1, session: SessionKind::New });
        assert!(!report().contains("wait for"), "{}", report());
        part.observe(&ShardEvent::Disconnected { shard: 1 });
        assert!(report().contains("1 of 2 shards are connected"), "{}", report());
    }
}
