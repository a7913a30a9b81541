//! Readiness of the shared limits, as the gate reports it.

use std::{sync::Arc, time::Duration};

use guildhall_actors::gate::{Gate, GateView};
use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::{invalid::FleetSnapshot, limit::shared::SharingMode, response::Credential};
use tokio::task::JoinHandle;

use crate::api::ComponentHandle;

/// Intervals between two checks of the gate: until calls can be sent, and after that.
const STARTUP_INTERVAL: Duration = Duration::from_millis(20);
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports the state of the gate until it is dropped.
#[derive(Debug)]
pub(crate) struct RedisComponent(Option<JoinHandle<()>>);

impl RedisComponent {
    /// Waits until calls can be sent, and reports the state of the gate from now on. Does nothing without Redis.
    pub(crate) async fn start(gate: &Arc<Gate>, part: Option<ComponentHandle>) -> Self {
        let Some(part) = part else { return Self(None) };
        report(gate, &part, STARTUP_INTERVAL, Until::Ready).await;
        let gate = Arc::clone(gate);
        let task = async move { report(&gate, &part, INTERVAL, Until::TheEnd).await };
        Self(Some(supervision::spawn(Part::RedisHealth, task)))
    }
}

impl Drop for RedisComponent {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Ready,
    TheEnd,
}

/// Reports the state of the gate repeatedly.
async fn report(gate: &Gate, part: &ComponentHandle, period: Duration, until: Until) {
    let mut tick = tokio::time::interval(period);
    loop {
        tick.tick().await;
        if until == Until::TheEnd {
            failpoint::message(Part::RedisHealth);
        }
        // The gate ends only with the process.
        let Some(view) = gate.observe().await else { return };
        match not_ready_reason(&view) {
            Some(reason) => part.not_ready(reason),
            None => {
                part.ready();
                if until == Until::Ready {
                    return;
                }
            }
        }
    }
}

/// Why nothing can be sent; `None` if calls can be sent.
fn not_ready_reason(view: &GateView) -> Option<&'static str> {
    // Calls without the bot's token do not matter for readiness.
    let bots = view.limits.credentials.iter().filter(|limit| matches!(limit.credential, Credential::Application(_)));
    for mode in bots.filter_map(|limit| limit.shared.as_ref()).map(|shared| shared.mode) {
        match mode {
            SharingMode::Shared | SharingMode::Share | SharingMode::Open => {}
            SharingMode::Unreached => return Some("Redis has not been reached yet"),
            SharingMode::Joining => return Some("joining the processes that share the limits"),
            SharingMode::Waiting => {
                return Some("Redis is unavailable; waiting until this process can safely use its share of the limit");
            }
            SharingMode::Closed => return Some("Redis is unavailable, and nothing is sent without it"),
        }
    }
    let invalid = &view.breakers.invalid_requests;
    let is_short = |fleet: &FleetSnapshot| fleet.lent == 0 && invalid.in_flight == 0;
    invalid.shared.as_ref().is_some_and(is_short).then_some(
        "no part of the budget of invalid requests is lent to this \
        process yet",
    )
}
