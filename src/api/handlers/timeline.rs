//! The timeline of an operation, derived from what is stored.

use guildhall_actors::ports::{Attempt, OperationDetails};
use guildhall_core::{
    operation::{FailureClass, OperationState, Repeatability},
    time::UnixMs,
};

use crate::api::dto::TimelineRecord;

/// An entry of the timeline.
#[derive(Debug, PartialEq, Eq)]
struct TimelineEntry<'a> {
    at: UnixMs,
    what: &'static str,
    attempt: Option<u32>,
    detail: Option<&'a str>,
}

pub(crate) fn timeline(details: &OperationDetails) -> Vec<TimelineRecord> {
    let to_record = |entry: TimelineEntry<'_>| TimelineRecord {
        at: entry.at.into(),
        what: entry.what.into(),
        attempt: entry.attempt,
        detail: entry.detail.map(str::to_owned),
    };
    entries(details).into_iter().map(to_record).collect()
}

fn entries(details: &OperationDetails) -> Vec<TimelineEntry<'_>> {
    let (stored, operation) = (&details.stored, &details.stored.operation);
    let mut entries = vec![TimelineEntry { at: operation.created_at, what: "accepted", attempt: None, detail: None }];
    let mut tries: Vec<&Attempt> = details.attempts.iter().collect();
    tries.sort_by_key(|attempt| (attempt.started_at, attempt.n));
    for attempt in tries {
        let (n, detail) = (Some(attempt.n), attempt.detail.as_deref());
        let at_the_end = |what| TimelineEntry { at: attempt.ended_at, what, attempt: n, detail };
        if attempt.class == FailureClass::RateLimited.name() {
            // No attempt was made.
            entries.push(TimelineEntry { attempt: None, ..at_the_end("delayed") });
            continue;
        }
        entries.push(TimelineEntry { at: attempt.started_at, what: "started", attempt: n, detail: None });
        // The operation itself may have ended with its last attempt.
        let is_last = details.finished_at.is_some_and(|finished| finished <= attempt.ended_at);
        if let Some(what) = state_after(&attempt.class, operation.kind.repeatability()).filter(|_| !is_last) {
            entries.push(at_the_end(what));
        }
    }
    let detail = stored.error.as_ref().map(|error| error.message.as_str());
    let now = TimelineEntry { at: details.updated_at, what: stored.state.name(), attempt: None, detail };
    let ends_with = |what: &str| entries.last().is_some_and(|last| last.what == what);
    let last = match stored.state {
        OperationState::Queued => None,
        OperationState::Scheduled => Some(now),
        OperationState::Running => {
            Some(TimelineEntry { what: "started", attempt: Some(stored.attempts), detail: None, ..now })
        }
        OperationState::Delayed | OperationState::Retrying | OperationState::Reconciling => {
            (!ends_with(now.what)).then_some(now)
        }
        OperationState::Succeeded | OperationState::Dead | OperationState::Cancelled | OperationState::NeedsReview => {
            Some(TimelineEntry {
                at: details.finished_at.unwrap_or(details.updated_at),
                attempt: (stored.attempts > 0).then_some(stored.attempts),
                ..now
            })
        }
    };
    entries.extend(last);
    entries
}

/// The state of an operation after an attempt, unless the operation ended with it.
fn state_after(class: &str, sends: Repeatability) -> Option<&'static str> {
    let is = |other: FailureClass| class == other.name();
    if is(FailureClass::Transient) || (is(FailureClass::Ambiguous) && sends == Repeatability::Idempotent) {
        Some("retrying")
    } else if is(FailureClass::Ambiguous) {
        Some("reconciling")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use guildhall_actors::ports::{DelayedBy, NewOperation, StoredOperation};
    use guildhall_core::{
        access::{Bounds, Grant, ScopeSet},
        lane::Lane,
        operation::{Failure, OperationId, OperationKind, Progress, QueueKey},
    };

    use super::*;

    fn operation(state: OperationState, attempts: Vec<Attempt>) -> OperationDetails {
        let operation = NewOperation {
            id: OperationId::new(1, [0; 10]),
            tenant: Arc::from("default"),
            queue: QueueKey::Guild(1),
            guild: Some(1),
            caller: Arc::from("admin"),
            bounds: Bounds::Anywhere,
            scopes: ScopeSet::of(&Grant::everything()),
            kind: OperationKind::CreateRole,
            payload: String::new(),
            payload_hash: [0; 32],
            lane: Lane::Operation,
            max_attempts: 3,
            eligible_at: UnixMs::new(0),
            delayed_by: DelayedBy::Caller,
            deadline_at: None,
            deployment: None,
            trace: None,
            reason: None,
            idempotency: None,
            refers_to: Vec::new(),
            redrive_of: None,
            created_at: UnixMs::new(0),
        };
        let used = attempts.last().map_or(0, |attempt| attempt.n);
        let (updated_at, error) = (UnixMs::new(900), Some(Failure::new(FailureClass::Transient, "why")));
        let stored = StoredOperation {
            operation,
            seq: 1,
            state,
            attempts: used,
            delays: 0,
            parked: false,
            intent: None,
            progress: Progress::default(),
            error,
            unknown_outcome: None,
        };
        let finished_at = state.is_final().then_some(updated_at);
        OperationDetails { stored, result: None, updated_at, finished_at, attempts, waits_for: None }
    }

    fn attempt(n: u32, started: u64, ended: u64, class: &str) -> Attempt {
        let (started_at, ended_at) = (UnixMs::new(started), UnixMs::new(ended));
        Attempt { n, started_at, ended_at, status: None, class: class.to_owned(), detail: Some(class.to_owned()) }
    }

    fn summary(details: &OperationDetails) -> Vec<(u64, &'static str, Option<u32>)> {
        entries(details).iter().map(|entry| (entry.at.millis(), entry.what, entry.attempt)).collect()
    }

    #[test]
    fn timeline_is_in_order() {
        let tries = vec![
            attempt(0, 5, 5, "rate_limited"),
            attempt(1, 10, 20, "transient"),
            attempt(2, 100, 200, "ambiguous"),
            attempt(3, 800, 900, "succeeded"),
        ];
        let all = [
            (0, "accepted", None),
            (5, "delayed", None),
            (10, "started", Some(1)),
            (20, "retrying", Some(1)),
            (100, "started", Some(2)),
            (200, "reconciling", Some(2)),
            (800, "started", Some(3)),
            (900, "succeeded", Some(3)),
        ];
        assert_eq!(summary(&operation(OperationState::Succeeded, tries)), all);
    }

    #[test]
    fn no_retry_follows_the_last_attempt_of_a_dead_operation() {
        let dead = operation(OperationState::Dead, vec![attempt(1, 10, 900, "transient")]);
        assert_eq!(summary(&dead), [(0, "accepted", None), (10, "started", Some(1)), (900, "dead", Some(1))]);
        assert_eq!(entries(&dead)[2].detail, Some("why"));
        let cancelled = operation(OperationState::Cancelled, Vec::new());
        assert_eq!(summary(&cancelled), [(0, "accepted", None), (900, "cancelled", None)]);
    }

    #[test]
    fn unfinished_operations_end_with_their_current_state() {
        assert_eq!(summary(&operation(OperationState::Queued, Vec::new())), [(0, "accepted", None)]);
        let running = operation(OperationState::Running, vec![attempt(1, 10, 20, "transient")]);
        assert_eq!(summary(&running).last(), Some(&(900, "started", Some(1))));
        // It was reconciled after a crash: none of its attempts has ended.
        assert_eq!(
            summary(&operation(OperationState::Reconciling, Vec::new())).last(),
            Some(&(900, "reconciling", None))
        );
        let retrying = operation(OperationState::Retrying, vec![attempt(1, 10, 20, "transient")]);
        assert_eq!(summary(&retrying).iter().filter(|(_, what, _)| *what == "retrying").count(), 1);
    }
}
