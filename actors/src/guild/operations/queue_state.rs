//! A guild's operations as it knows them: their order, and what is needed to do those whose turn is near.

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

/// Whether a payload is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PayloadRetention {
    IfLeft,
    InAnyCase,
}

/// What an operation needs before it can be done.
#[derive(Debug)]
pub(super) enum Readiness {
    /// Nothing.
    Ready(Box<Execution>),
    /// Its payload.
    Unread,
    /// What these stand for.
    Refers(Vec<UnresolvedReference>),
    /// It can never be done.
    Wrong(Failure),
}

/// A guild's operations as it knows them.
#[derive(Debug)]
pub(super) struct QueueState {
    queue: Queue,
    fence: Fence,
    right: LeaseGuard,
    line: OperationOrder<Objects>,
    known: BTreeMap<u64, CachedOperation>,
    /// What the payloads that are kept take.
    bytes: usize,
    /// What of the gate has changed since the operation that runs began. A refusal that arrives later may be older.
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

    /// Which it is, for telling of it.
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

    /// An attempt that began then may have taken effect.
    pub(super) fn note_unknown(&mut self, seq: u64, began: UnixMs) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.unknown_outcome.get_or_insert(UnknownOutcome::new(began));
        }
    }

    /// Whether the outcome is checked because it is not sent again. Decides that now for one that is out of attempts or time.
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

    /// Takes over one operation of a page; what has to be kept of that at once.
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
                // It is not looked for, but it may have happened: nobody may take it back from now on.
                cut_short = Some(if intent.is_none() { IntentUpdate::Open(started) } else { IntentUpdate::Keep });
                intent = Some(started);
                // What was cut short is not held against it.
                attempts = attempts.saturating_sub(1);
                if operation.kind == OperationKind::DeferReply {
                    // Discord waits for it for seconds only, and it does no harm if it comes twice or late.
                    eligible_at = started.min(now);
                    WaitPhase::Queued
                } else {
                    // Whoever was about to send it may have done so until its lease ran out, which is over, and Discord
                    // may still be at it: what follows must not overtake it, be there something to look for or not.
                    eligible_at = now + self.config.request_timeout;
                    WaitPhase::Reconciling
                }
            }
            // The store gives none of these.
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

    /// How an operation that broke its guild ends, unless its outcome has to be checked first.
    pub(super) fn end_poison(&mut self, seq: u64, poison: Poison<OperationId>, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get(&seq)?;
        if poison.times > 1 && known.unknown_outcome.is_some() {
            // Looking for it broke the guild, too.
            let why =
                "it broke what executes operations, and so did looking for what came of it; see whether it happened";
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

    /// Takes the payloads of operations that it knows and has none of; that of the first in any case.
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

    /// Whether it can be done now. Takes the payload out if it can.
    pub(super) fn ready(&mut self, seq: u64, now: UnixMs) -> Readiness {
        let Some(known) = self.known.get_mut(&seq) else { return Readiness::Unread };
        match &known.payload {
            CachedPayload::No => Readiness::Unread,
            CachedPayload::Wrong(why) => {
                let message = format!("its payload is not what {} takes: {why}", known.kind.name());
                Readiness::Wrong(Failure::new(FailureClass::Validation, message))
            }
            CachedPayload::Yes { payload, .. } => {
                let wanted = wanted(payload);
                if !wanted.is_empty() {
                    return Readiness::Refers(wanted);
                }
                let payload = known.take_payload(&mut self.bytes).expect("invariant: it is kept");
                Readiness::Ready(Box::new(known.work(*payload, None, self.config.max_wait, now, self.right.clone())))
            }
        }
    }

    /// The payload, to put ids into it.
    pub(super) fn payload(&self, seq: u64) -> Option<&Payload> {
        match &self.known.get(&seq)?.payload {
            CachedPayload::Yes { payload, .. } => Some(payload),
            CachedPayload::No | CachedPayload::Wrong(_) => None,
        }
    }

    /// The work of an operation whose payload has ids only.
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

    /// It is being executed: its attempt counts. Nothing of it was sent, and nothing is stored; `false` if it is gone.
    pub(super) fn begin(&mut self, seq: u64) -> bool {
        let Some(known) = self.known.get_mut(&seq) else { return false };
        known.attempts += 1;
        known.has_opened = false;
        self.released_since_start = ReleasedConditions::default();
        self.line.on_started(seq);
        true
    }

    /// It is not executed after all. Nothing was sent since what is stored, so nothing has to be stored.
    pub(super) fn withdraw(&mut self, seq: u64) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.attempts = known.attempts.saturating_sub(1);
            self.line.on_not_started(seq);
        }
    }

    /// A call of it is about to be sent.
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

    /// Steps of it were done.
    pub(super) fn advance(&mut self, seq: u64, steps: Vec<ProgressStep>) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.advance(steps);
        }
    }

    /// Whether a step has to be stored before the next one is done.
    pub(super) fn has_unstored_object(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(CachedOperation::has_unstored_object)
    }

    /// Its next call has to wait, and none is in flight: what it has done so far is stored, and its attempt does not count
    /// until it goes on.
    pub(super) fn suspend(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get_mut(&seq)?;
        let intent = known.close_if_untouched();
        let change = known.change(self.queue, self.fence, OperationState::Queued, now);
        let attempts = known.attempts.saturating_sub(1);
        Some(known.with_progress(OperationUpdate { intent, attempts, ..change }))
    }

    /// A call of it was about to be sent, and was not.
    pub(super) fn unstart(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get_mut(&seq)?;
        known.attempts = known.attempts.saturating_sub(1);
        let intent = known.close_if_untouched();
        self.line.on_waiting(seq, WaitPhase::Queued, now);
        let change = known.change(self.queue, self.fence, OperationState::Queued, now);
        Some(known.with_progress(OperationUpdate { intent, ..change }))
    }

    /// Its time is up.
    pub(super) fn expire(&mut self, seq: u64, now: UnixMs) -> Option<OperationUpdate> {
        let known = self.known.get(&seq)?;
        let verdict = give_up(known.expired(), known.unknown_outcome.as_ref(), &self.config);
        self.conclude(seq, verdict, None, now)
    }

    /// Others may pass it from now on.
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

    /// The gate has changed: what it held back is due now. What has to be stored of that, so that a crash does not undo it.
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

    /// Drops an operation that has ended elsewhere.
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

    /// Carries a verdict out; what has to be kept of it.
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
                    // The gate changed while the refusal was on its way: the gate is asked again.
                    emit(OperationsReleased { queue, count: 1 });
                    Duration::ZERO
                } else {
                    wait
                };
                let (intent, until) = (known.close_if_untouched(), now + wait);
                // One that is held up for days is not written about for days.
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
                // It was not found, but it was sent: the intent stays open, and a later search starts from its first time.
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
