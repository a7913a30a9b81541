//! Prepares an operation for execution: reads its payload, and replaces references by ids.

use guildhall_core::guild::{DelayScope, WaitPhase};
use guildhall_core::operation::{Failure, FailureClass, Reference};

use super::GuildSpec;
use super::cached_operation::own_key;
use super::disposition::Disposition;
use super::persist::add;
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
        let GuildSpec { store, queue, config, clock, .. } = &self.seat;
        let mut tried = 0;
        loop {
            let readiness = self.book.borrow_mut().ready(seq, clock.now());
            match readiness {
                Readiness::Ready(work) => return Ok(Some(*work)),
                Readiness::Wrong(failure) => {
                    let verdict = if self.may_have_happened(seq) { Disposition::Review } else { Disposition::Dead };
                    add(unsaved, self.book.borrow_mut().conclude(seq, verdict(failure), None, clock.now()));
                    return Ok(None);
                }
                Readiness::Unread => {
                    self.save(unsaved).await?;
                    match self.ask(store.load(*queue, seq - 1, config.page)).await {
                        Ok(OperationPage { unreadable, .. })
                            if unreadable.first().is_some_and(|one| one.seq == seq) =>
                        {
                            let unreadable = &unreadable[0];
                            self.book.borrow_mut().forget(unreadable.id);
                            add(unsaved, Some(self.set_aside(unreadable)));
                            return Ok(None);
                        }
                        Ok(page) if page.operations.first().is_none_or(|stored| stored.seq != seq) => {
                            // It was cancelled.
                            let id = self.book.borrow().id(seq);
                            id.into_iter().for_each(|id| self.book.borrow_mut().forget(id));
                            return Ok(None);
                        }
                        Ok(page) => self.book.borrow_mut().reread(page.operations, seq),
                        Err(error) => {
                            tried += 1;
                            self.back_off("load", &error, tried).await;
                        }
                    }
                }
                Readiness::Refers(wanted) => {
                    // It may refer to an object that is not saved yet.
                    self.save(unsaved).await?;
                    let guild = self.book.borrow().guild(seq);
                    match self.ask(store.resolve(guild, wanted.clone())).await {
                        Ok(found) => return Ok(self.resolved(seq, &wanted, &found, unsaved)),
                        Err(error) => {
                            tried += 1;
                            self.back_off("resolve", &error, tried).await;
                        }
                    }
                }
            }
            if self.has_to_leave() {
                return Ok(None);
            }
        }
    }

    pub(super) fn may_have_happened(&self, seq: u64) -> bool {
        self.is_checked(seq) || self.book.borrow().is_outcome_unknown(seq)
    }

    /// Whether its outcome is being checked.
    fn is_checked(&self, seq: u64) -> bool {
        let book = self.book.borrow();
        book.shown().entry(seq).is_some_and(|entry| matches!(entry.phase, WaitPhase::Reconciling))
    }

    /// Replaces the references in a payload by ids, or decides what becomes of an operation with a missing reference.
    pub(super) fn resolved(
        &self,
        seq: u64,
        wanted: &[UnresolvedReference],
        found: &[ResolvedReference],
        unsaved: &mut Vec<OperationUpdate>,
    ) -> Option<Execution> {
        let may_have_happened = self.may_have_happened(seq);
        let is_checked = self.is_checked(seq);
        let mut book = self.book.borrow_mut();
        let payload = book.payload(seq)?;
        let look = |asked: &UnresolvedReference| {
            wanted.iter().position(|wanted| wanted == asked).and_then(|at| found.get(at).copied())
        };
        let own = own_key(payload).map(|(kind, key)| UnresolvedReference::Key(kind, key.to_owned()));
        let bound = own.as_ref().and_then(look).and_then(|resolved| match resolved {
            ResolvedReference::Object { id, channel } => Some((id, channel)),
            ResolvedReference::Pending | ResolvedReference::Nothing(_) => None,
        });
        let mut pending = None;
        let resolved = payload.resolve(|kind, reference| {
            let asked = match reference {
                Reference::Id(id) => return Some(*id),
                Reference::Key(key) => UnresolvedReference::Key(kind, key.clone()),
                Reference::Operation(id) => UnresolvedReference::Operation(*id),
            };
            match look(&asked)? {
                ResolvedReference::Object { id, .. } => Some(id),
                ResolvedReference::Pending => {
                    pending = Some(asked);
                    None
                }
                ResolvedReference::Nothing(_) => None,
            }
        });
        let verdict = match (resolved, pending) {
            (Ok(payload), _) => return book.work(seq, payload, bound, self.seat.clock.now()),
            (Err(_), Some(pending)) => {
                let why = format!("it waits for {}, which is not finished", named(&pending));
                let wait = self.seat.config.reference_backoff.delay(book.delays(seq) + 1, fastrand::f64());
                let error = Failure::new(FailureClass::RateLimited, why);
                if is_checked {
                    Disposition::Reconciling { wait, error }
                } else {
                    Disposition::Delayed { wait, held: DelayScope::Alone, reason: "reference", error }
                }
            }
            (Err(missing), None) => {
                let missing: Vec<String> = missing.iter().map(refers_to).collect();
                let message =
                    format!("it refers to {}, which does not exist; check whether it was created", missing.join(", "));
                let failure = Failure::new(FailureClass::NotFound, message);
                if may_have_happened { Disposition::Review(failure) } else { Disposition::Dead(failure) }
            }
        };
        add(unsaved, book.conclude(seq, verdict, None, self.seat.clock.now()));
        None
    }
}

fn named(wanted: &UnresolvedReference) -> String {
    match wanted {
        UnresolvedReference::Key(kind, key) => format!("the {} with key `{key}`", kind.name()),
        UnresolvedReference::Operation(id) => format!("operation {id}"),
    }
}

fn refers_to(reference: &Reference) -> String {
    match reference {
        Reference::Id(id) => id.to_string(),
        Reference::Key(key) => format!("key `{key}`"),
        Reference::Operation(id) => format!("operation {id}"),
    }
}
