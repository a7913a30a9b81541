//! Which parts of the daemon are ready, and why the others are not.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use guildhall_actors::supervision::PartEnd;

use super::dto::{ComponentState, ReadinessReport};
use crate::events::{ComponentNotReady, ComponentReady, emit};

/// The readiness of all parts. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    parts: BTreeMap<&'static str, ComponentState>,
    /// All parts have been ready at the same time at least once.
    started: bool,
    stopping: bool,
    /// A part has ended, and the process with it: later reports are ignored.
    ended: bool,
}

impl Readiness {
    /// Adds a part, which is not ready until it reports so. A name must be used once.
    pub fn register(&self, part: &'static str) -> ComponentHandle {
        let handle = ComponentHandle { part, readiness: self.clone() };
        handle.not_ready("starting");
        handle
    }

    /// Makes the process not ready for good, because it is shutting down.
    pub fn set_stopping(&self) {
        self.state().stopping = true;
    }

    /// Makes the process not ready for good, because this part has ended. The log reports it already.
    pub fn on_part_end(&self, end: &PartEnd) {
        let mut state = self.state();
        let reason = format!("{} {}", end.part.name(), end.cause.summary());
        state.parts.insert(end.part.component().name(), ComponentState::NotReady { reason });
        (state.stopping, state.ended) = (true, true);
    }

    pub(crate) fn report(&self) -> ReadinessReport {
        let state = self.state();
        ReadinessReport {
            ready: state.all_ready() && !state.stopping,
            stopping: state.stopping,
            parts: state.parts.iter().map(|(part, state)| ((*part).to_owned(), state.clone())).collect(),
        }
    }

    /// Names of all parts.
    pub(crate) fn parts(&self) -> Vec<&'static str> {
        self.state().parts.keys().copied().collect()
    }

    pub(crate) fn is_started(&self) -> bool {
        self.state().started
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, and a health check must not fail if some code did.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Without any part the process is not ready: the parts have not registered yet.
    fn all_ready(&self) -> bool {
        !self.parts.is_empty() && self.parts.values().all(|part| *part == ComponentState::Ready)
    }
}

/// Reports the readiness of one part.
#[derive(Debug)]
pub struct ComponentHandle {
    part: &'static str,
    readiness: Readiness,
}

impl ComponentHandle {
    /// Reports that the part works.
    pub fn ready(&self) {
        if self.set(ComponentState::Ready) {
            emit(ComponentReady { part: self.part });
        }
    }

    /// Reports that the part does not work, and the reason.
    pub fn not_ready(&self, reason: &str) {
        if self.set(ComponentState::NotReady { reason: reason.to_owned() }) {
            emit(ComponentNotReady { part: self.part, reason });
        }
    }

    /// Stores the state, and returns whether it changed: an unchanged state is not logged again.
    fn set(&self, new: ComponentState) -> bool {
        let mut state = self.readiness.state();
        if state.ended {
            return false;
        }
        let changed = state.parts.get(self.part) != Some(&new);
        state.parts.insert(self.part, new);
        state.started |= state.all_ready();
        changed
    }
}

#[cfg(test)]
mod tests {
    use guildhall_actors::supervision::{EndCause, PanicInfo, Part};

    use super::*;

    #[test]
    fn without_any_part_nothing_is_ready() {
        let readiness = Readiness::default();
        assert!(!readiness.report().ready);
        assert!(!readiness.is_started());
    }

    #[test]
    fn all_parts_must_be_ready_and_the_start_is_remembered() {
        let readiness = Readiness::default();
        let (gateway, store) = (readiness.register("gateway"), readiness.register("store"));
        gateway.ready();
        assert!(!readiness.report().ready && !readiness.is_started());
        store.ready();
        assert!(readiness.report().ready && readiness.is_started());
        gateway.not_ready("lost");
        assert!(!readiness.report().ready);
        assert!(readiness.is_started(), "a start happens once");
    }

    #[test]
    fn reports_after_the_end_of_a_part_are_ignored() {
        let readiness = Readiness::default();
        let (gate, store) = (readiness.register("gate"), readiness.register("store"));
        gate.ready();
        store.ready();
        let panic =
            PanicInfo { location: Some("a.rs:1:2".to_owned()), message: "the token is abc".to_owned(), input: None };
        readiness.on_part_end(&PartEnd { part: Part::TokenBucket, cause: EndCause::Panicked(panic) });
        gate.ready();
        let report = serde_json::to_value(readiness.report()).unwrap();
        let gate = serde_json::json!({"state": "not_ready", "reason": "token_bucket panicked at a.rs:1:2"});
        assert_eq!((&report["ready"], &report["parts"]["gate"]), (&false.into(), &gate));
    }

    #[test]
    fn stopping_is_not_ready_but_parts_keep_their_state() {
        let readiness = Readiness::default();
        readiness.register("gateway").ready();
        readiness.set_stopping();
        let report = serde_json::to_value(readiness.report()).unwrap();
        assert_eq!(
            report,
            serde_json::json!({"ready": false, "stopping": true, "parts": {"gateway": {"state": "ready"}}})
        );
    }
}
