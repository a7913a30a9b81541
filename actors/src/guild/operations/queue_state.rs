//! The operations of a queue in memory: their order, and the payloads of those that run soon.

use std::collections::BTreeMap;
use std::time::Duration;

use guildhall_core::guild::{OperationOrder, QueueEntry, WaitPhase};
use guildhall_core::lane::Lane;
use guildhall_core::operation::payload::Objects;
use guildhall_core::operation::{
    Failure, FailureClass, OperationId, OperationKind, OperationState, Payload, ProgressStep, Queue, Repeatability,
};
use guildhall_core::time::UnixMs;

use super::cached_operation::{CachedOperation, CachedPayload, unresolved_references};
use super::disposition::{
    AttemptState, Disposition, MAX_RECORDED_DELAYS, delay_record, end_or_check, not_sent_after_restore,
    out_of_attempts, poisoned,
};
use crate::lease_guard::LeaseGuard;
use crate::ports::{
    Attempt, Execution, Fence, IntentUpdate, NewOperation, OperationUpdate, RestoredOperation, StoredOperation,
    UnknownOutcome, UnresolvedReference,
};
use crate::supervisor::operations::wakeups::ReleasedConditions;
use crate::supervisor::restart_policy::Poison;
use crate::supervisor::{OperationsConfig, QueueSignal};
use crate::telemetry::emit;
use crate::telemetry::operations::{
    OperationAmbiguous, OperationDelayed, OperationRef, OperationRetried, OperationsReleased,
};

/// Whether a payload stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PayloadRetention {
    IfRoom,
    Always,
}

/// A payload, and what is known of it even if it does not stay in memory.
struct ParsedPayload {
    payload: CachedPayload,
    objects: Objects,
    repeatability: Repeatability,
    /// Whether it has no effect in Discord.
    only_reads: bool,
}

/// What an operation needs before it can run.
#[derive(Debug)]
pub(super) enum Readiness {
    /// Nothing.
    Ready(Box<Execution>),
    /// Its payload.
    Unread,
    /// These references resolved.
    Unresolved(Vec<UnresolvedReference>),
    /// It can never run.
    Invalid(Failure),
}

/// The operations of a queue in memory.
#[derive(Debug)]
pub(super) struct QueueState {
    queue: Queue,
    fence: Fence,
    lease: LeaseGuard,
    order: OperationOrder<Objects>,
    operations: BTreeMap<u64, CachedOperation>,
    /// Size of the payloads in memory.
    bytes: usize,
    /// Changes of the gate since the running operation started. A refusal that arrives later may be older.
    released_since_start: ReleasedConditions,
    config: OperationsConfig,
}

impl QueueState {
    pub(super) fn new(queue: Queue, fence: Fence, lease: LeaseGuard, config: &OperationsConfig) -> Self {
        Self {
            queue,
            fence,
            lease,
            order: OperationOrder::new(config.order),
            operations: BTreeMap::new(),
            bytes: 0,
            released_since_start: ReleasedConditions::default(),
            config: config.clone(),
        }
    }

    /// Whether this process may act for the queue.
    pub(super) fn may_act(&self) -> bool {
        self.lease.holds()
    }

    pub(super) const fn order(&mut self) -> &mut OperationOrder<Objects> {
        &mut self.order
    }

    pub(super) const fn order_view(&self) -> &OperationOrder<Objects> {
        &self.order
    }

    pub(super) fn id(&self, seq: u64) -> Option<OperationId> {
        self.operations.get(&seq).map(|cached| cached.id)
    }

    pub(super) fn guild(&self, seq: u64) -> Option<u64> {
        self.operations.get(&seq).and_then(|cached| cached.guild)
    }

    /// The operation, for telemetry.
    pub(super) fn subject(&self, seq: u64) -> Option<OperationRef> {
        self.operations.get(&seq).map(CachedOperation::subject)
    }

    pub(super) fn delays(&self, seq: u64) -> u32 {
        self.operations.get(&seq).map_or(0, |cached| cached.delays)
    }

    pub(super) fn is_interactive(&self, seq: u64) -> bool {
        self.operations.get(&seq).is_some_and(|cached| cached.lane == Lane::Interactive)
    }

    pub(super) fn attempt_state(&self, seq: u64) -> Option<AttemptState> {
        self.operations.get(&seq).map(|cached| AttemptState {
            repeatability: cached.repeatability,
            attempts: cached.attempts,
            max_attempts: cached.max_attempts,
            unknown_outcome: cached.unknown_outcome.clone(),
        })
    }

    /// Whether an attempt at it may have taken effect.
    pub(super) fn is_outcome_unknown(&self, seq: u64) -> bool {
        self.operations.get(&seq).is_some_and(|cached| cached.unknown_outcome.is_some())
    }

    /// Records that an attempt that started then may have taken effect.
    pub(super) fn record_unknown(&mut self, seq: u64, started_at: UnixMs) {
        if let Some(cached) = self.operations.get_mut(&seq) {
            cached.unknown_outcome.get_or_insert(UnknownOutcome::new(started_at));
        }
    }

    /// Whether the outcome is checked because the operation is not sent again, or was unfinished in a restored store.
    /// Decides the former now if it is out of attempts or past its deadline.
    pub(super) fn is_checked(&mut self, seq: u64, now: UnixMs) -> bool {
        let deadline = self.order.entry(seq).and_then(|entry| entry.deadline);
        let Some(cached) = self.operations.get_mut(&seq) else { return false };
        let failure = if cached.attempts >= cached.max_attempts {
            Some(out_of_attempts())
        } else {
            deadline.filter(|deadline| *deadline <= now).map(|_| cached.expired())
        };
        let unknown = cached.unknown_outcome.get_or_insert(UnknownOutcome::new(now));
        unknown.ends_with = unknown.ends_with.take().or(match unknown.restored {
            Some(RestoredOperation::Due) => Some(not_sent_after_restore()),
            Some(RestoredOperation::Scheduled) | None => failure,
        });
        unknown.ends_with.is_some() || unknown.restored.is_some()
    }

    /// Adds an operation of a page. Returns the update that must be saved at once.
    pub(super) fn add(
        &mut self,
        stored: StoredOperation,
        now: UnixMs,
    ) -> (QueueEntry<Objects>, Option<OperationUpdate>) {
        let StoredOperation { operation, seq, state, mut attempts, delays, parked, mut intent, progress, .. } = stored;
        let mut unknown_outcome = stored.unknown_outcome;
        let error = stored.error;
        let ParsedPayload { payload, objects, repeatability, only_reads } =
            self.parse_payload(&operation, PayloadRetention::IfRoom);
        let mut eligible_at = operation.eligible_at;
        if only_reads {
            // It had no effect, whenever it was executed.
            unknown_outcome = unknown_outcome.filter(|unknown| unknown.restored.is_none());
        }
        if matches!(state, OperationState::Running | OperationState::Reconciling) && !only_reads {
            unknown_outcome.get_or_insert(UnknownOutcome::new(intent.unwrap_or(eligible_at)));
        }
        let mut interrupted = None;
        let mut phase = match state {
            OperationState::Queued => WaitPhase::Queued,
            OperationState::Delayed => WaitPhase::Delayed { parked },
            OperationState::Retrying => WaitPhase::Retrying,
            OperationState::Reconciling => WaitPhase::Reconciling,
            OperationState::Running => {
                let started = intent.unwrap_or(eligible_at);
                // Its outcome is not checked, but it may have taken effect: it can no longer be cancelled.
                interrupted =
                    Some(if intent.is_none() { IntentUpdate::Open(started) } else { IntentUpdate::Unchanged });
                intent = Some(started);
                // An interrupted attempt does not count.
                attempts = attempts.saturating_sub(1);
                if operation.kind == OperationKind::DeferReply {
                    // Discord waits for it only for seconds, and a second or late one is harmless.
                    eligible_at = started.min(now);
                    WaitPhase::Queued
                } else {
                    // The previous owner may have sent it until its lease expired, which is past, and Discord may still
                    // be executing it. Later operations must not overtake it, whether there is an outcome to check or
                    // not.
                    eligible_at = now + self.config.request_timeout;
                    WaitPhase::Reconciling
                }
            }
            // The store returns none of these.
            OperationState::Scheduled
            | OperationState::Succeeded
            | OperationState::Dead
            | OperationState::Cancelled
            | OperationState::NeedsReview => WaitPhase::Queued,
        };
        let restored = unknown_outcome.as_ref().is_some_and(|unknown| unknown.restored.is_some());
        if restored && phase != WaitPhase::Reconciling {
            // It is due when no call of the process before the restore can be in flight any more.
            phase = WaitPhase::Reconciling;
            interrupted.get_or_insert(IntentUpdate::Unchanged);
        }
        let stored = (progress.steps().len(), progress.to_json().map_or(0, |json| json.len()));
        let wait_reason =
            error.filter(|_| matches!(phase, WaitPhase::Delayed { .. } | WaitPhase::Reconciling)).map(Box::new);
        if state != OperationState::Running
            && !restored
            && wait_reason.as_ref().is_some_and(|error| error.held_by.is_some())
        {
            // The gate may have changed while no process had this queue: check it again.
            eligible_at = eligible_at.min(now);
        }
        let cached = CachedOperation {
            id: operation.id,
            guild: operation.guild,
            tenant: operation.tenant,
            bounds: operation.bounds,
            caller: operation.caller,
            scopes: operation.scopes,
            kind: operation.kind,
            repeatability,
            lane: operation.lane,
            reason: operation.reason,
            trace: operation.trace,
            created_at: operation.created_at,
            attempts,
            max_attempts: operation.max_attempts,
            delays,
            intent,
            has_opened: false,
            progress,
            stored_progress: stored,
            unknown_outcome,
            wait_reason,
            payload,
        };
        let entry = QueueEntry {
            id: operation.id,
            seq,
            phase,
            eligible_at,
            deadline: operation.deadline_at,
            deployment: operation.deployment,
            objects,
        };
        let update = interrupted.map(|intent| {
            let update = cached.update(self.queue, self.fence, phase.state(), now);
            OperationUpdate { eligible_at, intent, unknown_outcome: cached.unknown_outcome.clone(), ..update }
        });
        self.operations.insert(seq, cached);
        (entry, update)
    }

    /// Ends an operation that crashed its guild, unless its outcome must be checked first.
    pub(super) fn end_poisoned(
        &mut self,
        seq: u64,
        poison: Poison<OperationId>,
        now: UnixMs,
    ) -> Option<OperationUpdate> {
        let cached = self.operations.get(&seq)?;
        if poison.times > 1 && cached.unknown_outcome.is_some() {
            // The check crashed the guild too.
            let reason =
                "it crashed its guild, and so did the check of its outcome; check in Discord whether it took effect";
            return self.apply_disposition(
                seq,
                Disposition::Review(Failure::new(FailureClass::Poison, reason)),
                None,
                now,
            );
        }
        let disposition = end_or_check(poisoned(), cached.unknown_outcome.as_ref(), &self.config);
        self.apply_disposition(seq, disposition, None, now)
    }

    fn parse_payload(&mut self, operation: &NewOperation, retention: PayloadRetention) -> ParsedPayload {
        let NewOperation { id, kind, guild, payload: json, .. } = operation;
        let (id, kind, guild) = (*id, *kind, *guild);
        let parsed = serde_json::from_str(json).map_err(|error| error.to_string());
        match parsed.and_then(|value| Payload::parse(kind, &value, guild).map_err(|invalid| invalid.to_string())) {
            Err(reason) => ParsedPayload {
                payload: CachedPayload::Invalid(reason),
                objects: Objects::default(),
                repeatability: kind.repeatability(),
                only_reads: false,
            },
            Ok(payload) => {
                let (objects, repeatability) = (payload.objects(id, guild), payload.repeatability());
                let (only_reads, bytes) = (payload.only_reads(), json.len());
                let has_room =
                    retention == PayloadRetention::Always || self.bytes + bytes <= self.config.max_payload_bytes;
                let payload = if has_room {
                    self.bytes += bytes;
                    CachedPayload::Loaded { payload: Box::new(payload), bytes }
                } else {
                    CachedPayload::NotLoaded
                };
                ParsedPayload { payload, objects, repeatability, only_reads }
            }
        }
    }

    /// Stores the payloads of operations that have none in memory; that of `first` even if there is no room.
    pub(super) fn restore_payloads(&mut self, page: Vec<StoredOperation>, first: u64) {
        for StoredOperation { operation, seq, .. } in page {
            if self.operations.get(&seq).is_some_and(|cached| matches!(cached.payload, CachedPayload::NotLoaded)) {
                let retention = if seq == first { PayloadRetention::Always } else { PayloadRetention::IfRoom };
                let ParsedPayload { payload, .. } = self.parse_payload(&operation, retention);
                if let Some(cached) = self.operations.get_mut(&seq) {
                    cached.payload = payload;
                }
            }
        }
    }

    /// Whether it can run now. Takes the payload if it can.
    pub(super) fn readiness(&mut self, seq: u64, now: UnixMs) -> Readiness {
        let Some(cached) = self.operations.get_mut(&seq) else { return Readiness::Unread };
        match &cached.payload {
            CachedPayload::NotLoaded => Readiness::Unread,
            CachedPayload::Invalid(reason) => {
                let message = format!("its payload is not valid for {}: {reason}", cached.kind.name());
                Readiness::Invalid(Failure::new(FailureClass::Validation, message))
            }
            CachedPayload::Loaded { payload, .. } => {
                let references = unresolved_references(payload);
                if !references.is_empty() {
                    return Readiness::Unresolved(references);
                }
                let payload = cached.take_payload(&mut self.bytes).expect("invariant: it is in memory");
                Readiness::Ready(Box::new(cached.execution(
                    *payload,
                    None,
                    self.config.max_wait,
                    now,
                    self.lease.clone(),
                )))
            }
        }
    }

    /// The payload, to resolve its references.
    pub(super) fn payload(&self, seq: u64) -> Option<&Payload> {
        match &self.operations.get(&seq)?.payload {
            CachedPayload::Loaded { payload, .. } => Some(payload),
            CachedPayload::NotLoaded | CachedPayload::Invalid(_) => None,
        }
    }

    /// The execution of an operation with a resolved payload.
    pub(super) fn execution(
        &mut self,
        seq: u64,
        resolved: Payload,
        existing: Option<(u64, Option<u64>)>,
        now: UnixMs,
    ) -> Option<Execution> {
        let cached = self.operations.get_mut(&seq)?;
        let _ = cached.take_payload(&mut self.bytes);
        Some(cached.execution(resolved, existing, self.config.max_wait, now, self.lease.clone()))
    }

    /// Starts an execution: its attempt counts. Nothing is sent or stored yet. Returns `false` if the operation is
    /// gone.
    pub(super) fn start_attempt(&mut self, seq: u64) -> bool {
        let Some(cached) = self.operations.get_mut(&seq) else { return false };
        cached.attempts += 1;
        cached.has_opened = false;
        self.released_since_start = ReleasedConditions::default();
        self.order.on_started(seq);
        true
    }

    /// Undoes the start of an execution. Nothing was sent since the last update, so nothing has to be saved.
    pub(super) fn withdraw(&mut self, seq: u64) {
        if let Some(cached) = self.operations.get_mut(&seq) {
            cached.attempts = cached.attempts.saturating_sub(1);
            self.order.on_not_started(seq);
        }
    }

    /// The update before a call is sent.
    pub(super) fn mark_running(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let cached = self.operations.get_mut(&seq)?;
        cached.wait_reason = None;
        let intent = match (cached.repeatability, cached.intent) {
            (Repeatability::Idempotent, _) | (_, Some(_)) => IntentUpdate::Unchanged,
            (Repeatability::Object | Repeatability::Message | Repeatability::Once, None) => {
                cached.intent = Some(now);
                cached.has_opened = true;
                IntentUpdate::Open(now)
            }
        };
        let update = cached.update(self.queue, self.fence, OperationState::Running, now);
        Some(cached.with_progress(OperationUpdate { intent, ..update }))
    }

    /// Adds completed steps.
    pub(super) fn advance(&mut self, seq: u64, steps: Vec<ProgressStep>) {
        if let Some(cached) = self.operations.get_mut(&seq) {
            cached.advance(steps);
        }
    }

    /// Whether a step must be saved before the next one.
    pub(super) fn has_unstored_object(&self, seq: u64) -> bool {
        self.operations.get(&seq).is_some_and(CachedOperation::has_unstored_object)
    }

    /// Its next call has to wait, and none is in flight: its steps are saved, and its attempt does not count until it
    /// continues.
    pub(super) fn suspend(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let cached = self.operations.get_mut(&seq)?;
        let intent = cached.close_intent_if_unused();
        let update = cached.update(self.queue, self.fence, OperationState::Queued, now);
        let attempts = cached.attempts.saturating_sub(1);
        Some(cached.with_progress(OperationUpdate { intent, attempts, ..update }))
    }

    /// Undoes the update before a call that was not sent.
    pub(super) fn unmark_running(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let cached = self.operations.get_mut(&seq)?;
        cached.attempts = cached.attempts.saturating_sub(1);
        let intent = cached.close_intent_if_unused();
        self.order.on_waiting(seq, WaitPhase::Queued, now);
        let update = cached.update(self.queue, self.fence, OperationState::Queued, now);
        Some(cached.with_progress(OperationUpdate { intent, ..update }))
    }

    /// Ends an operation whose deadline has passed.
    pub(super) fn expire(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let cached = self.operations.get(&seq)?;
        let disposition = end_or_check(cached.expired(), cached.unknown_outcome.as_ref(), &self.config);
        self.apply_disposition(seq, disposition, None, now)
    }

    /// Lets other operations pass it.
    pub(super) fn park(&self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let (cached, entry) = (self.operations.get(&seq)?, self.order.entry(seq)?);
        let update = cached.update(self.queue, self.fence, OperationState::Delayed, now);
        Some(OperationUpdate {
            parked: true,
            eligible_at: entry.eligible_at,
            error: cached.wait_reason.as_deref().cloned(),
            ..update
        })
    }

    /// The gate has changed: operations that it delayed are due now. Returns the updates that preserve that after a
    /// crash.
    pub(super) fn release(&mut self, released: &ReleasedConditions, now: UnixMs) -> Vec<OperationUpdate> {
        if self.order.running().is_some() {
            self.released_since_start.merge(released);
        }
        let mut updates = Vec::new();
        for (seq, cached) in self.operations.iter().filter(|(_, cached)| cached.is_held_by(released)) {
            let Some(entry) = self.order.entry(*seq) else { continue };
            if entry.eligible_at <= now || self.order.running() == Some(*seq) {
                continue;
            }
            let parked = entry.phase == WaitPhase::Delayed { parked: true };
            let error = cached.wait_reason.as_deref().cloned();
            let update = cached.update(self.queue, self.fence, entry.phase.state(), now);
            self.order.on_released(*seq, now);
            updates.push(OperationUpdate { parked, error, ..update });
        }
        updates
    }

    /// Removes an operation that another process has finished.
    pub(super) fn forget(&mut self, id: OperationId) {
        if let Some(seq) = self.order.find(id) {
            self.remove(seq);
        }
    }

    fn remove(&mut self, seq: u64) {
        self.order.on_finished(seq);
        if let Some(mut cached) = self.operations.remove(&seq) {
            let _ = cached.take_payload(&mut self.bytes);
        }
    }

    /// Applies a signal about an operation.
    pub(super) fn apply_signal(&mut self, signal: QueueSignal, now: UnixMs) {
        match signal {
            QueueSignal::Cancelled(id) => {
                if let Some(seq) = self.order.find(id)
                    && self.order.running() != Some(seq)
                {
                    self.remove(seq);
                }
            }
            QueueSignal::Expedited(id) => {
                if let Some(seq) = self.order.find(id) {
                    self.order.on_expedited(seq, now);
                }
            }
        }
    }

    /// Applies a disposition. Returns the update to save.
    pub(super) fn apply_disposition(
        &mut self,
        seq: u64,
        disposition: Disposition,
        attempt: Option<Attempt>,
        now: UnixMs,
    ) -> Option<OperationUpdate> {
        let (queue, fence) = (self.queue, self.fence);
        let cached = self.operations.get_mut(&seq)?;
        cached.wait_reason = None;
        let mut update = match disposition {
            Disposition::Succeeded(output) => {
                let intent = cached.close_intent();
                emit(cached.ended_event(OperationState::Succeeded, None, now));
                OperationUpdate {
                    intent,
                    attempt,
                    result: (!output.result.is_null()).then(|| output.result.to_string()),
                    created: output.created,
                    bind: output.bind,
                    unbind: output.unbind,
                    ..cached.update(queue, fence, OperationState::Succeeded, now)
                }
            }
            Disposition::Dead(failure) => {
                let (intent, failure) = (cached.close_intent(), cached.with_steps(failure));
                emit(cached.ended_event(OperationState::Dead, Some(&failure), now));
                let update = cached.update(queue, fence, OperationState::Dead, now);
                cached.with_progress(OperationUpdate { intent, attempt, error: Some(failure), ..update })
            }
            Disposition::Review(failure) => {
                let failure = cached.with_steps(failure);
                emit(cached.ended_event(OperationState::NeedsReview, Some(&failure), now));
                let update = cached.update(queue, fence, OperationState::NeedsReview, now);
                cached.with_progress(OperationUpdate { attempt, error: Some(failure), ..update })
            }
            Disposition::Delayed { wait, scope, reason, error } => {
                if self.order.running() == Some(seq) {
                    cached.attempts = cached.attempts.saturating_sub(1);
                }
                cached.delays = cached.delays.saturating_add(1);
                cached.wait_reason = Some(Box::new(error.clone()));
                let wait = if cached.is_held_by(&self.released_since_start) {
                    // The gate changed before the refusal arrived: check it again.
                    emit(OperationsReleased { queue, count: 1 });
                    Duration::ZERO
                } else {
                    wait
                };
                let (intent, until) = (cached.close_intent_if_unused(), now + wait);
                // The attempts of an operation that is delayed for days must not grow without bound.
                let attempt =
                    (cached.delays <= MAX_RECORDED_DELAYS).then(|| delay_record(cached.attempts, &error, now));
                let parked = self.order.on_delayed(seq, until, scope, now);
                emit(OperationDelayed { of: cached.subject(), reason, message: &error.message, wait, parked });
                let update = cached.update(queue, fence, OperationState::Delayed, now);
                let update =
                    OperationUpdate { intent, attempt, eligible_at: until, parked, error: Some(error), ..update };
                cached.with_progress(update)
            }
            Disposition::Retrying { wait, error } => {
                // Its calls may have had an effect: the intent stays open.
                let until = now + wait;
                self.order.on_waiting(seq, WaitPhase::Retrying, until);
                emit(OperationRetried { of: cached.subject(), error: &error, wait });
                let update = cached.update(queue, fence, OperationState::Retrying, now);
                cached.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(error), ..update })
            }
            Disposition::Reconciling { wait, error } => {
                let until = now + wait;
                cached.unknown_outcome.get_or_insert(UnknownOutcome::new(now)).checked_since.get_or_insert(now);
                cached.wait_reason = Some(Box::new(error.clone()));
                self.order.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: cached.subject(), message: &error.message, wait });
                let update = cached.update(queue, fence, OperationState::Reconciling, now);
                cached.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(error), ..update })
            }
            Disposition::Checking { wait, failure } => {
                let until = now + wait;
                let unknown = cached.unknown_outcome.get_or_insert(UnknownOutcome::new(now));
                (unknown.ends_with, unknown.checked_since) = (Some(failure.clone()), Some(now));
                self.order.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: cached.subject(), message: &failure.message, wait });
                let update = cached.update(queue, fence, OperationState::Reconciling, now);
                cached.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(failure), ..update })
            }
            Disposition::CheckFailed { wait, error } => {
                let until = now + wait;
                if let Some(unknown) = &mut cached.unknown_outcome {
                    unknown.failed_checks += 1;
                }
                self.order.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: cached.subject(), message: &error.message, wait });
                let update = cached.update(queue, fence, OperationState::Reconciling, now);
                OperationUpdate { eligible_at: until, error: Some(error), ..update }
            }
            Disposition::Requeued => {
                // No effect was found, but it was sent: the intent stays open, and a later check starts from its first
                // time.
                if let Some(unknown) = &mut cached.unknown_outcome {
                    (unknown.checked_since, unknown.failed_checks, unknown.restored) = (None, 0, None);
                }
                self.order.on_waiting(seq, WaitPhase::Queued, now);
                cached.update(queue, fence, OperationState::Queued, now)
            }
        };
        if update.state.is_final() {
            self.remove(seq);
        } else {
            update.unknown_outcome.clone_from(&cached.unknown_outcome);
        }
        Some(update)
    }
}
