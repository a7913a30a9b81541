//! Readiness of the gate: whether any call can be sent to Discord.

use std::sync::Arc;

use guildhall_actors::circuit_breaker::SendBlock;
use guildhall_actors::gate::Gate;
use guildhall_actors::supervision::Part;
use guildhall_actors::{failpoint, supervision};
use tokio::{sync::watch, task::JoinHandle};

use crate::api::ComponentHandle;

/// Reports the state of the gate until it is dropped.
#[derive(Debug)]
pub(crate) struct GateComponent(Option<JoinHandle<()>>);

impl GateComponent {
    /// Waits until the gate has restored its state: nothing is sent before that. From then on it reports whether
    /// anything keeps all calls from being sent.
    pub(crate) async fn start(gate: &Arc<Gate>, part: ComponentHandle) -> Self {
        gate.ready().await;
        // The gate ends only with the process.
        let Some(mut block) = gate.watch_send_block().await else { return Self(None) };
        report(&mut block, &part);
        let task = async move {
            loop {
                failpoint::message(Part::GateHealth);
                report(&mut block, &part);
                if block.changed().await.is_err() {
                    return;
                }
            }
        };
        Self(Some(supervision::spawn(Part::GateHealth, task)))
    }
}

fn report(block: &mut watch::Receiver<Option<SendBlock>>, part: &ComponentHandle) {
    match &*block.borrow_and_update() {
        Some(block) => part.not_ready(&block.to_string()),
        None => part.ready(),
    }
}

impl Drop for GateComponent {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
