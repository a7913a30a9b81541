//! Sets aside events that ended processes.

use std::sync::Arc;

use guildhall_core::event::Event;

use super::EventRouter;
use crate::crash::CrashedInput;
use crate::guild::events::routed_event::{CreditReturn, GatewaySession};
use crate::supervision::{Part, spawn_finite};
use crate::telemetry::crash::EventSetAside;
use crate::telemetry::emit;

impl EventRouter {
    /// Stores an event as dead events instead of routing it, and confirms it once that is committed.
    pub(super) fn set_aside(&mut self, event: &Event, crashed: CrashedInput, session: &Arc<GatewaySession>) {
        emit(EventSetAside { crashed: &crashed });
        let done = self.sessions.handled_before(&event.origin.session, event.origin.seq);
        let dead = self.context.crashed.dead_events(event, &crashed, &done);
        let mut credit = CreditReturn::default();
        credit.add(event);
        let (context, session, seq) = (Arc::clone(&self.context), Arc::clone(session), event.origin.seq);
        // If this task failed, the session would never be confirmed past the event.
        spawn_finite(Part::EventRouter, async move {
            context.committer.commit(dead).await;
            session.complete(std::iter::once(seq), credit);
            context.crashed.forget(&crashed.input).await;
        });
    }
}
