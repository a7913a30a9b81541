//! Responds to a submission when all of its operations are finished.

use std::{collections::HashMap, sync::Arc, time::Duration};

use actix_web::{HttpResponse, http::header::LOCATION};
use guildhall_actors::ports::OperationDetails;
use guildhall_actors::submission::{AcceptedOperation, WaitSlot};
use guildhall_core::operation::OperationId;
use tokio::time::{Instant, sleep_until};

use super::errors::SubmissionShape;
use super::{
    dto::{self, WaitedMany, WaitedOperation},
    prefer,
};
use crate::api::app_state::AppState;
use crate::{api::events::WaitEnded, events::emit};

/// A caller's preference to wait, and the slot for it.
pub(crate) struct PreferWait {
    wait: Duration,
    deadline: Instant,
    slot: WaitSlot,
}

impl PreferWait {
    /// Accepts the preference of a caller, if there is a slot for it.
    pub(crate) fn new(app: &AppState, wait: Option<Duration>, operations: usize) -> Option<Self> {
        let wait = wait?;
        let until = Instant::now() + wait;
        let slot = app.follower().ok().and_then(|following| following.waiters.reserve(operations));
        if slot.is_none() {
            emit(WaitEnded { result: "refused" });
        }
        Some(Self { wait, deadline: until, slot: slot? })
    }

    /// The response header for the applied preference.
    pub(crate) fn applied(&self) -> (&'static str, String) {
        prefer::applied(self.wait)
    }

    /// Waits; returns a response if all operations are finished by then.
    pub(crate) async fn respond_when_finished(
        &self,
        app: &AppState,
        shape: SubmissionShape,
        accepted: &[AcceptedOperation],
    ) -> Option<HttpResponse> {
        let mut draining = app.control.draining.subscribe();
        let open = accepted.iter().filter(|accepted| !accepted.state.is_final()).map(|accepted| accepted.id);
        let result = tokio::select! {
            () = self.slot.until_finished(open) => "ended",
            () = sleep_until(self.deadline) => "late",
            _ = draining.wait_for(|draining| *draining) => "draining",
        };
        emit(WaitEnded { result });
        if result != "ended" {
            return None;
        }
        // If the operations cannot be read, the caller gets the usual response, with their location.
        let by_id = self.load(app, accepted).await?;
        Some(self.respond(shape, accepted, &by_id))
    }

    async fn load(
        &self,
        app: &AppState,
        accepted: &[AcceptedOperation],
    ) -> Option<HashMap<OperationId, OperationDetails>> {
        let changes = Arc::clone(&app.follower().ok()?.changes);
        let ids = accepted.iter().map(|accepted| accepted.id).collect();
        let found = app.run(|| async move { changes.get_all(ids).await }).await.ok()?.ok()?;
        Some(found.into_iter().map(|found| (found.stored.operation.id, found)).collect())
    }

    fn respond(
        &self,
        shape: SubmissionShape,
        accepted: &[AcceptedOperation],
        by_id: &HashMap<OperationId, OperationDetails>,
    ) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        response.insert_header(self.applied());
        if accepted.iter().all(|accepted| accepted.replayed) {
            response.insert_header(("Idempotency-Replayed", "true"));
        }
        let operation = |accepted: &AcceptedOperation| WaitedOperation::new(accepted, by_id.get(&accepted.id));
        match (shape, accepted) {
            (SubmissionShape::One, [only]) => {
                response.insert_header((LOCATION, dto::location(only.id)));
                response.json(operation(only))
            }
            (SubmissionShape::One | SubmissionShape::Many, all) => {
                response.json(WaitedMany { operations: all.iter().map(operation).collect() })
            }
        }
    }
}
