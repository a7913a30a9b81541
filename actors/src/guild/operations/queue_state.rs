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

use super::cached_operation::{CachedOperation, CachedPayload, wanted};
use super::disposition::{AttemptState, DELAYS_TOLD, Disposition, give_up, held_up, out_of_attempts, poisoned};
use crate::lease_guard::LeaseGuard;
use crate::ports::{
    Attempt, Execution, Fence, IntentUpdate, NewOperation, OperationUpdate, StoredOperation, UnknownOutcome,
    UnresolvedReference,
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
    IfLeft,
    InAnyCase,
}

/// What an operation needs before it can run.
#[derive(Debug)]
pub(super) enum Readiness {
    /// Nothing.
    Ready(Box<Execution>),
    /// Its payload.
    Unread,
    /// These references resolved.
    Refers(Vec<UnresolvedReference>),
    /// It can never run.
    Wrong(Failure),
}

/// The operations of a queue in memory.
#[derive(Debug)]
pub(super) struct QueueState {
    queue: Queue,
    fence: Fence,
    right: LeaseGuard,
    line: OperationOrder<Objects>,
    known: BTreeMap<u64, CachedOperation>,
    /// Size of the payloads in memory.
    bytes: usize,
    /// Changes of the gate since the running operation started. A refusal that arrives later may be older.
    released_since_start: ReleasedConditions,
    config: OperationsConfig,
}

impl QueueState {
    pub(super) fn new(queue: Queue, fence: Fence, right: LeaseGuard, config: &OperationsConfig) -> Self {
        Self {
            queue,
            fence,
            right,
            line: OperationOrder::new(config.line),
            known: BTreeMap::new(),
            bytes: 0,
            released_since_start: ReleasedConditions::default(),
            config: config.clone(),
        }
    }

    /// Whether this process may act for the queue.
    pub(super) fn may_act(&self) -> bool {
        self.right.holds()
    }

    pub(super) const fn line(&mut self) -> &mut OperationOrder<Objects> {
        &mut self.line
    }

    pub(super) const fn shown(&self) -> &OperationOrder<Objects> {
        &self.line
    }

    pub(super) fn id(&self, seq: u64) -> Option<OperationId> {
        self.known.get(&seq).map(|known| known.id)
    }

    pub(super) fn guild(&self, seq: u64) -> Option<u64> {
        self.known.get(&seq).and_then(|known| known.guild)
    }

    /// The operation, for telemetry.
    pub(super) fn subject(&self, seq: u64) -> Option<OperationRef> {
        self.known.get(&seq).map(CachedOperation::subject)
    }

    pub(super) fn delays(&self, seq: u64) -> u32 {
        self.known.get(&seq).map_or(0, |known| known.delays)
    }

    pub(super) fn is_interactive(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(|known| known.lane == Lane::Interactive)
    }

    pub(super) fn case(&self, seq: u64) -> Option<AttemptState> {
        self.known.get(&seq).map(|known| AttemptState {
            sends: known.sends,
            attempts: known.attempts,
            max_attempts: known.max_attempts,
            unknown_outcome: known.unknown_outcome.clone(),
        })
    }

    /// Whether an attempt at it may have taken effect.
    pub(super) fn is_outcome_unknown(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(|known| known.unknown_outcome.is_some())
    }

    /// Records that an attempt that started then may have taken effect.
    pub(super) fn note_unknown(&mut self, seq: u64, began: UnixMs) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.unknown_outcome.get_or_insert(UnknownOutcome::new(began));
        }
    }

    /// Whether the outcome is checked because the operation is not sent again. Decides that now if it is out of
    /// attempts or past its deadline.
    pub(super) fn is_checked(&mut self, seq: u64, now: UnixMs) -> bool {
        let deadline = self.line.entry(seq).and_then(|entry| entry.deadline);
        let Some(known) = self.known.get_mut(&seq) else { return false };
        let failure = if known.attempts >= known.max_attempts {
            Some(out_of_attempts())
        } else {
            deadline.filter(|deadline| *deadline <= now).map(|_| known.expired())
        };
        let unknown = known.unknown_outcome.get_or_insert(UnknownOutcome::new(now));
        unknown.ends_with = unknown.ends_with.take().or(failure);
        unknown.ends_with.is_some()
    }

    /// Adds an operation of a page. Returns the update that must be saved at once.
    pub(super) fn enter(
        &mut self,
        stored: StoredOperation,
        now: UnixMs,
    ) -> (QueueEntry<Objects>, Option<OperationUpdate>) {
        let StoredOperation { operation, seq, state, mut attempts, delays, parked, mut intent, progress, .. } = stored;
        let mut unknown_outcome = stored.unknown_outcome;
        let error = stored.error;
        let (payload, objects, sends) = self.read(&operation, PayloadRetention::IfLeft);
        let mut eligible_at = operation.eligible_at;
        let only_reads = matches!(&payload, CachedPayload::Yes { payload, .. } if payload.only_reads());
        if matches!(state, OperationState::Running | OperationState::Reconciling) && !only_reads {
            unknown_outcome.get_or_insert(UnknownOutcome::new(intent.unwrap_or(eligible_at)));
        }
        let mut cut_short = None;
        let phase = match state {
            OperationState::Queued => WaitPhase::Queued,
            OperationState::Delayed => WaitPhase::Delayed { parked },
            OperationState::Retrying => WaitPhase::Retrying,
            OperationState::Reconciling => WaitPhase::Reconciling,
            OperationState::Running => {
                let started = intent.unwrap_or(eligible_at);
                // Its outcome is not checked, but it may have taken effect: it can no longer be cancelled.
                cut_short = Some(if intent.is_none() { IntentUpdate::Open(started) } else { IntentUpdate::Keep });
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
        let stored = (progress.steps().len(), progress.to_json().map_or(0, |json| json.len()));
        let waits = error.filter(|_| matches!(phase, WaitPhase::Delayed { .. } | WaitPhase::Reconciling)).map(Box::new);
        if state != OperationState::Running && waits.as_ref().is_some_and(|error| error.held_by.is_some()) {
            // The gate may have changed while no process had this queue: it is asked again.
            eligible_at = eligible_at.min(now);
        }
        let known = CachedOperation {
            id: operation.id,
            guild: operation.guild,
            tenant: operation.tenant,
            bounds: operation.bounds,
            caller: operation.caller,
            scopes: operation.scopes,
            kind: operation.kind,
            sends,
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
            stored,
            unknown_outcome,
            waits,
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
        let change = cut_short.map(|intent| {
            let change = known.change(self.queue, self.fence, phase.state(), now);
            OperationUpdate { eligible_at, intent, unknown_outcome: known.unknown_outcome.clone(), ..change }
        });
        self.known.insert(seq, known);
        (entry, change)
    }

    /// Ends an operation that crashed its guild, unless its outcome must be checked first.
    pub(super) fn end_poison(&mut self, seq: u64, poison: Poison<OperationId>, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get(&seq)?;
        if poison.times > 1 && known.unknown_outcome.is_some() {
            // The check crashed the guild too.
            let why =
                "it crashed its guild, and so did the check of its outcome; check in Discord whether it took effect";
            return self.conclude(seq, Disposition::Review(Failure::new(FailureClass::Poison, why)), None, now);
        }
        let verdict = give_up(poisoned(), known.unknown_outcome.as_ref(), &self.config);
        self.conclude(seq, verdict, None, now)
    }

    fn read(&mut self, operation: &NewOperation, room: PayloadRetention) -> (CachedPayload, Objects, Repeatability) {
        let NewOperation { id, kind, guild, payload: json, .. } = operation;
        let (id, kind, guild) = (*id, *kind, *guild);
        let parsed = serde_json::from_str(json).map_err(|error| error.to_string());
        match parsed.and_then(|value| Payload::parse(kind, &value, guild).map_err(|invalid| invalid.to_string())) {
            Err(why) => (CachedPayload::Wrong(why), Objects::default(), kind.sends()),
            Ok(payload) => {
                let (objects, sends) = (payload.objects(id, guild), payload.sends());
                let bytes = json.len();
                if room == PayloadRetention::IfLeft && self.bytes + bytes > self.config.payload_bytes {
                    return (CachedPayload::No, objects, sends);
                }
                self.bytes += bytes;
                (CachedPayload::Yes { payload: Box::new(payload), bytes }, objects, sends)
            }
        }
    }

    /// Stores the payloads of operations that have none in memory; that of `first` even if there is no room.
    pub(super) fn reread(&mut self, page: Vec<StoredOperation>, first: u64) {
        for StoredOperation { operation, seq, .. } in page {
            if self.known.get(&seq).is_some_and(|known| matches!(known.payload, CachedPayload::No)) {
                let room = if seq == first { PayloadRetention::InAnyCase } else { PayloadRetention::IfLeft };
                let (payload, _, _) = self.read(&operation, room);
                if let Some(known) = self.known.get_mut(&seq) {
                    known.payload = payload;
                }
            }
        }
    }

    /// Whether it can run now. Takes the payload if it can.
    pub(super) fn ready(&mut self, seq: u64, now: UnixMs) -> Readiness {
        let Some(known) = self.known.get_mut(&seq) else { return Readiness::Unread };
        match &known.payload {
            CachedPayload::No => Readiness::Unread,
            CachedPayload::Wrong(why) => {
                let message = format!("its payload is not valid for {}: {why}", known.kind.name());
                Readiness::Wrong(Failure::new(FailureClass::Validation, message))
            }
            CachedPayload::Yes { payload, .. } => {
                let wanted = wanted(payload);
                if !wanted.is_empty() {
                    return Readiness::Refers(wanted);
                }
                let payload = known.take_payload(&mut self.bytes).expect("invariant: it is in memory");
                Readiness::Ready(Box::new(known.work(*payload, None, self.config.max_wait, now, self.right.clone())))
            }
        }
    }

    /// The payload, to resolve its references.
    pub(super) fn payload(&self, seq: u64) -> Option<&Payload> {
        match &self.known.get(&seq)?.payload {
            CachedPayload::Yes { payload, .. } => Some(payload),
            CachedPayload::No | CachedPayload::Wrong(_) => None,
        }
    }

    /// The execution of an operation with a resolved payload.
    pub(super) fn work(
        &mut self,
        seq: u64,
        resolved: Payload,
        bound: Option<(u64, Option<u64>)>,
        now: UnixMs,
    ) -> Option<Execution> {
        let known = self.known.get_mut(&seq)?;
        let _ = known.take_payload(&mut self.bytes);
        Some(known.work(resolved, bound, self.config.max_wait, now, self.right.clone()))
    }

    /// Starts an execution: its attempt counts. Nothing is sent or stored yet. Returns `false` if the operation is
    /// gone.
    pub(super) fn begin(&mut self, seq: u64) -> bool {
        let Some(known) = self.known.get_mut(&seq) else { return false };
        known.attempts += 1;
        known.has_opened = false;
        self.released_since_start = ReleasedConditions::default();
        self.line.on_started(seq);
        true
    }

    /// Undoes the start of an execution. Nothing was sent since the last update, so nothing has to be saved.
    pub(super) fn withdraw(&mut self, seq: u64) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.attempts = known.attempts.saturating_sub(1);
            self.line.on_not_started(seq);
        }
    }

    /// The update before a call is sent.
    pub(super) fn start(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get_mut(&seq)?;
        known.waits = None;
        let intent = match (known.sends, known.intent) {
            (Repeatability::Again, _) | (_, Some(_)) => IntentUpdate::Keep,
            (Repeatability::Object | Repeatability::Message | Repeatability::Once, None) => {
                known.intent = Some(now);
                known.has_opened = true;
                IntentUpdate::Open(now)
            }
        };
        let change = known.change(self.queue, self.fence, OperationState::Running, now);
        Some(known.with_progress(OperationUpdate { intent, ..change }))
    }

    /// Adds completed steps.
    pub(super) fn advance(&mut self, seq: u64, steps: Vec<ProgressStep>) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.advance(steps);
        }
    }

    /// Whether a step must be saved before the next one.
    pub(super) fn has_unstored_object(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(CachedOperation::has_unstored_object)
    }

    /// Its next call has to wait, and none is in flight: its steps are saved, and its attempt does not count until it
    /// continues.
    pub(super) fn suspend(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get_mut(&seq)?;
        let intent = known.close_if_untouched();
        let change = known.change(self.queue, self.fence, OperationState::Queued, now);
        let attempts = known.attempts.saturating_sub(1);
        Some(known.with_progress(OperationUpdate { intent, attempts, ..change }))
    }

    /// Undoes the update before a call that was not sent.
    pub(super) fn unstart(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get_mut(&seq)?;
        known.attempts = known.attempts.saturating_sub(1);
        let intent = known.close_if_untouched();
        self.line.on_waiting(seq, WaitPhase::Queued, now);
        let change = known.change(self.queue, self.fence, OperationState::Queued, now);
        Some(known.with_progress(OperationUpdate { intent, ..change }))
    }

    /// Ends an operation whose deadline has passed.
    pub(super) fn expire(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get(&seq)?;
        let verdict = give_up(known.expired(), known.unknown_outcome.as_ref(), &self.config);
        self.conclude(seq, verdict, None, now)
    }

    /// Lets other operations pass it.
    pub(super) fn park(&self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let (known, entry) = (self.known.get(&seq)?, self.line.entry(seq)?);
        let change = known.change(self.queue, self.fence, OperationState::Delayed, now);
        Some(OperationUpdate {
            parked: true,
            eligible_at: entry.eligible_at,
            error: known.waits.as_deref().cloned(),
            ..change
        })
    }

    /// The gate has changed: operations that it delayed are due now. Returns the updates that preserve that after a
    /// crash.
    pub(super) fn release(&mut self, released: &ReleasedConditions, now: UnixMs) -> Vec<OperationUpdate> {
        if self.line.running().is_some() {
            self.released_since_start.merge(released);
        }
        let mut changes = Vec::new();
        for (seq, known) in self.known.iter().filter(|(_, known)| known.is_held_by(released)) {
            let Some(entry) = self.line.entry(*seq) else { continue };
            if entry.eligible_at <= now || self.line.running() == Some(*seq) {
                continue;
            }
            let parked = entry.phase == WaitPhase::Delayed { parked: true };
            let error = known.waits.as_deref().cloned();
            let change = known.change(self.queue, self.fence, entry.phase.state(), now);
            self.line.on_released(*seq, now);
            changes.push(OperationUpdate { parked, error, ..change });
        }
        changes
    }

    /// Removes an operation that another process has finished.
    pub(super) fn forget(&mut self, id: OperationId) {
        if let Some(seq) = self.line.place(id) {
            self.drop_at(seq);
        }
    }

    fn drop_at(&mut self, seq: u64) {
        self.line.on_ended(seq);
        if let Some(mut known) = self.known.remove(&seq) {
            let _ = known.take_payload(&mut self.bytes);
        }
    }

    /// Applies a signal about an operation.
    pub(super) fn hear(&mut self, word: QueueSignal, now: UnixMs) {
        match word {
            QueueSignal::Cancelled(id) => {
                if let Some(seq) = self.line.place(id)
                    && self.line.running() != Some(seq)
                {
                    self.drop_at(seq);
                }
            }
            QueueSignal::Hastened(id) => {
                if let Some(seq) = self.line.place(id) {
                    self.line.on_hastened(seq, now);
                }
            }
        }
    }

    /// Applies a disposition. Returns the update to save.
    pub(super) fn conclude(
        &mut self,
        seq: u64,
        verdict: Disposition,
        attempt: Option<Attempt>,
        now: UnixMs,
    ) -> Option<OperationUpdate> {
        let (queue, fence) = (self.queue, self.fence);
        let known = self.known.get_mut(&seq)?;
        known.waits = None;
        let mut change = match verdict {
            Disposition::Succeeded(done) => {
                let intent = known.close();
                emit(known.ended(OperationState::Succeeded, None, now));
                OperationUpdate {
                    intent,
                    attempt,
                    result: (!done.result.is_null()).then(|| done.result.to_string()),
                    made: done.made,
                    bind: done.bind,
                    unbind: done.unbind,
                    ..known.change(queue, fence, OperationState::Succeeded, now)
                }
            }
            Disposition::Dead(failure) => {
                let (intent, failure) = (known.close(), known.with_steps(failure));
                emit(known.ended(OperationState::Dead, Some(&failure), now));
                let change = known.change(queue, fence, OperationState::Dead, now);
                known.with_progress(OperationUpdate { intent, attempt, error: Some(failure), ..change })
            }
            Disposition::Review(failure) => {
                let failure = known.with_steps(failure);
                emit(known.ended(OperationState::NeedsReview, Some(&failure), now));
                let change = known.change(queue, fence, OperationState::NeedsReview, now);
                known.with_progress(OperationUpdate { attempt, error: Some(failure), ..change })
            }
            Disposition::Delayed { wait, held, reason, error } => {
                if self.line.running() == Some(seq) {
                    known.attempts = known.attempts.saturating_sub(1);
                }
                known.delays = known.delays.saturating_add(1);
                known.waits = Some(Box::new(error.clone()));
                let wait = if known.is_held_by(&self.released_since_start) {
                    // The gate changed before the refusal arrived: the gate is asked again.
                    emit(OperationsReleased { queue, count: 1 });
                    Duration::ZERO
                } else {
                    wait
                };
                let (intent, until) = (known.close_if_untouched(), now + wait);
                // The attempts of an operation that is delayed for days must not grow without bound.
                let attempt = (known.delays <= DELAYS_TOLD).then(|| held_up(known.attempts, &error, now));
                let parked = self.line.on_delayed(seq, until, held, now);
                emit(OperationDelayed { of: known.subject(), reason, why: &error.message, wait, parked });
                let change = known.change(queue, fence, OperationState::Delayed, now);
                let change =
                    OperationUpdate { intent, attempt, eligible_at: until, parked, error: Some(error), ..change };
                known.with_progress(change)
            }
            Disposition::Retrying { wait, error } => {
                // Its calls may have had an effect: the intent stays open.
                let until = now + wait;
                self.line.on_waiting(seq, WaitPhase::Retrying, until);
                emit(OperationRetried { of: known.subject(), error: &error, wait });
                let change = known.change(queue, fence, OperationState::Retrying, now);
                known.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(error), ..change })
            }
            Disposition::Reconciling { wait, error } => {
                let until = now + wait;
                known.unknown_outcome.get_or_insert(UnknownOutcome::new(now)).checked_since.get_or_insert(now);
                known.waits = Some(Box::new(error.clone()));
                self.line.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &error.message, wait });
                let change = known.change(queue, fence, OperationState::Reconciling, now);
                known.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(error), ..change })
            }
            Disposition::Checking { wait, failure } => {
                let until = now + wait;
                let unknown = known.unknown_outcome.get_or_insert(UnknownOutcome::new(now));
                (unknown.ends_with, unknown.checked_since) = (Some(failure.clone()), Some(now));
                self.line.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &failure.message, wait });
                let change = known.change(queue, fence, OperationState::Reconciling, now);
                known.with_progress(OperationUpdate { attempt, eligible_at: until, error: Some(failure), ..change })
            }
            Disposition::Unchecked { wait, error } => {
                let until = now + wait;
                if let Some(unknown) = &mut known.unknown_outcome {
                    unknown.failed_checks += 1;
                }
                self.line.on_waiting(seq, WaitPhase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &error.message, wait });
                let change = known.change(queue, fence, OperationState::Reconciling, now);
                OperationUpdate { eligible_at: until, error: Some(error), ..change }
            }
            Disposition::Again => {
                // No effect was found, but it was sent: the intent stays open, and a later check starts from its first
                // time.
                if let Some(unknown) = &mut known.unknown_outcome {
                    (unknown.checked_since, unknown.failed_checks) = (None, 0);
                }
                self.line.on_waiting(seq, WaitPhase::Queued, now);
                known.change(queue, fence, OperationState::Queued, now)
            }
        };
        if change.state.is_final() {
            self.drop_at(seq);
        } else {
            change.unknown_outcome.clone_from(&known.unknown_outcome);
        }
        Some(change)
    }
}
