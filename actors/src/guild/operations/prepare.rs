//! Prepares an operation for execution: reads its payload, and replaces references by ids.

use guildhall_core::guild::{DelayScope, WaitPhase};
use guildhall_core::operation::{Failure, FailureClass, Reference};

use super::GuildSpec;
use super::cached_operation::own_key;
use super::disposition::Disposition;
use super::persist::merge_update;
use super::queue_state::Readiness;
use super::run_loop::{Fenced, Worker};
use crate::ports::{Execution, OperationPage, OperationUpdate, ResolvedReference, UnresolvedReference};

impl Worker {
    /// The execution, with ids only. `None` if it cannot run now.
    pub(super) async fn prepare(
        &self,
        seq: u64,
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Result<Option<Execution>, Fenced> {
        let GuildSpec { store, queue, config, clock, .. } = &self.spec;
        let mut tried = 0;
        loop {
            let readiness = self.state.borrow_mut().readiness(seq, clock.now());
            match readiness {
                Readiness::Ready(execution) => return Ok(Some(*execution)),
                Readiness::Invalid(failure) => {
                    let disposition = if self.may_have_happened(seq) { Disposition::Review } else { Disposition::Dead };
                    merge_update(
                        unsaved,
                        self.state.borrow_mut().apply_disposition(seq, disposition(failure), None, clock.now()),
                    );
                    return Ok(None);
                }
                Readiness::Unread => {
                    self.save(unsaved).await?;
                    match self.call_store(store.load(*queue, seq - 1, config.page_size)).await {
                        Ok(OperationPage { unreadable, .. })
                            if unreadable.first().is_some_and(|one| one.seq == seq) =>
                        {
                            let unreadable = &unreadable[0];
                            self.state.borrow_mut().forget(unreadable.id);
                            merge_update(unsaved, Some(self.set_aside(unreadable)));
                            return Ok(None);
                        }
                        Ok(page) if page.operations.first().is_none_or(|stored| stored.seq != seq) => {
                            // It was cancelled.
                            let id = self.state.borrow().id(seq);
                            id.into_iter().for_each(|id| self.state.borrow_mut().forget(id));
                            return Ok(None);
                        }
                        Ok(page) => self.state.borrow_mut().restore_payloads(page.operations, seq),
                        Err(error) => {
                            tried += 1;
                            self.back_off("load", &error, tried).await;
                        }
                    }
                }
                Readiness::Unresolved(references) => {
                    // It may refer to an object that is not saved yet.
                    self.save(unsaved).await?;
                    let guild = self.state.borrow().guild(seq);
                    match self.call_store(store.resolve(guild, references.clone())).await {
                        Ok(resolved) => return Ok(self.resolve_payload(seq, &references, &resolved, unsaved)),
                        Err(error) => {
                            tried += 1;
                            self.back_off("resolve", &error, tried).await;
                        }
                    }
                }
            }
            if self.must_stop() {
                return Ok(None);
            }
        }
    }

    pub(super) fn may_have_happened(&self, seq: u64) -> bool {
        self.is_checked(seq) || self.state.borrow().is_outcome_unknown(seq)
    }

    /// Whether its outcome is being checked.
    fn is_checked(&self, seq: u64) -> bool {
        let state = self.state.borrow();
        state.order_view().entry(seq).is_some_and(|entry| matches!(entry.phase, WaitPhase::Reconciling))
    }

    /// Replaces the references in a payload by ids, or decides what becomes of an operation with a missing reference.
    pub(super) fn resolve_payload(
        &self,
        seq: u64,
        requested: &[UnresolvedReference],
        found: &[ResolvedReference],
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Option<Execution> {
        let may_have_happened = self.may_have_happened(seq);
        let is_checked = self.is_checked(seq);
        let mut state = self.state.borrow_mut();
        let payload = state.payload(seq)?;
        let find = |unresolved: &UnresolvedReference| {
            requested.iter().position(|requested| requested == unresolved).and_then(|at| found.get(at).copied())
        };
        let own_reference = own_key(payload).map(|(kind, key)| UnresolvedReference::Key(kind, key.to_owned()));
        let existing = own_reference.as_ref().and_then(find).and_then(|resolved| match resolved {
            ResolvedReference::Object { id, channel } => Some((id, channel)),
            ResolvedReference::Pending | ResolvedReference::Missing(_) => None,
        });
        let mut pending = None;
        let resolved = payload.resolve(|kind, reference| {
            let unresolved = match reference {
                Reference::Id(id) => return Some(*id),
                Reference::Key(key) => UnresolvedReference::Key(kind, key.clone()),
                Reference::Operation(id) => UnresolvedReference::Operation(*id),
            };
            match find(&unresolved)? {
                ResolvedReference::Object { id, .. } => Some(id),
                ResolvedReference::Pending => {
                    pending = Some(unresolved);
                    None
                }
                ResolvedReference::Missing(_) => None,
            }
        });
        let disposition = match (resolved, pending) {
            (Ok(payload), _) => return state.execution(seq, payload, existing, self.spec.clock.now()),
            (Err(_), Some(pending)) => {
                let reason = format!("it waits for {}, which is not finished", describe_reference(&pending));
                let wait = self.spec.config.reference_backoff.delay(state.delays(seq) + 1, fastrand::f64());
                let error = Failure::new(FailureClass::RateLimited, reason);
                if is_checked {
                    Disposition::Reconciling { wait, error }
                } else {
                    Disposition::Delayed { wait, scope: DelayScope::Alone, reason: "reference", error }
                }
            }
            (Err(missing), None) => {
                let missing: Vec<String> = missing.iter().map(describe_missing).collect();
                let message =
                    format!("it refers to {}, which does not exist; check whether it was created", missing.join(", "));
                let failure = Failure::new(FailureClass::NotFound, message);
                if may_have_happened { Disposition::Review(failure) } else { Disposition::Dead(failure) }
            }
        };
        merge_update(unsaved, state.apply_disposition(seq, disposition, None, self.spec.clock.now()));
        None
    }
}

fn describe_reference(reference: &UnresolvedReference) -> String {
    match reference {
        UnresolvedReference::Key(kind, key) => format!("the {} with key `{key}`", kind.name()),
        UnresolvedReference::Operation(id) => format!("operation {id}"),
    }
}

fn describe_missing(reference: &Reference) -> String {
    match reference {
        Reference::Id(id) => id.to_string(),
        Reference::Key(key) => format!("key `{key}`"),
        Reference::Operation(id) => format!("operation {id}"),
    }
}
