//! A guild's operations as it knows them: their order, and what is needed to do those whose turn is near.

use std::collections::BTreeMap;
use std::time::Duration;

use guildhall_core::guild::{Entry, Line, Phase};
use guildhall_core::lane::Lane;
use guildhall_core::operation::payload::Objects;
use guildhall_core::operation::{Failure, FailureClass, Kind, OperationId, Payload, ProgressStep, Queue, Sends, State};
use guildhall_core::time::UnixMs;

use super::known::{Kept, Known, wanted};
use super::verdict::{Case, DELAYS_TOLD, Verdict, give_up, held_up, out_of_attempts, poisoned};
use crate::operations::bell::Released;
use crate::operations::{
    Attempt, Change, Fence, Intent, NewOperation, OperationsConfig, Stored, UnknownOutcome, Wanted, Word, Work,
};
use crate::right::Right;
use crate::telemetry::emit;
use crate::telemetry::operations::{
    OperationAmbiguous, OperationDelayed, OperationRetried, OperationsReleased, Subject,
};

/// An operation that broke its guild.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    pub(crate) id: OperationId,
    /// How often.
    pub(crate) times: u32,
}

/// Whether a payload is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    IfLeft,
    InAnyCase,
}

/// What an operation needs before it can be done.
#[derive(Debug)]
pub(super) enum Readiness {
    /// Nothing.
    Ready(Box<Work>),
    /// Its payload.
    Unread,
    /// What these stand for.
    Refers(Vec<Wanted>),
    /// It can never be done.
    Wrong(Failure),
}

/// A guild's operations as it knows them.
#[derive(Debug)]
pub(super) struct Book {
    queue: Queue,
    fence: Fence,
    right: Right,
    line: Line<Objects>,
    known: BTreeMap<u64, Known>,
    /// What the payloads that are kept take.
    bytes: usize,
    /// What of the gate has changed since the operation that runs began. A refusal that arrives later may be older.
    released_since_start: Released,
    config: OperationsConfig,
}

impl Book {
    pub(super) fn new(queue: Queue, fence: Fence, right: Right, config: &OperationsConfig) -> Self {
        Self {
            queue,
            fence,
            right,
            line: Line::new(config.line),
            known: BTreeMap::new(),
            bytes: 0,
            released_since_start: Released::default(),
            config: config.clone(),
        }
    }

    /// Whether this process may act for the queue.
    pub(super) fn may_act(&self) -> bool {
        self.right.holds()
    }

    pub(super) const fn line(&mut self) -> &mut Line<Objects> {
        &mut self.line
    }

    pub(super) const fn shown(&self) -> &Line<Objects> {
        &self.line
    }

    pub(super) fn id(&self, seq: u64) -> Option<OperationId> {
        self.known.get(&seq).map(|known| known.id)
    }

    pub(super) fn guild(&self, seq: u64) -> Option<u64> {
        self.known.get(&seq).and_then(|known| known.guild)
    }

    /// Which it is, for telling of it.
    pub(super) fn subject(&self, seq: u64) -> Option<Subject> {
        self.known.get(&seq).map(Known::subject)
    }

    pub(super) fn delays(&self, seq: u64) -> u32 {
        self.known.get(&seq).map_or(0, |known| known.delays)
    }

    pub(super) fn is_interactive(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(|known| known.lane == Lane::Interactive)
    }

    pub(super) fn case(&self, seq: u64) -> Option<Case> {
        self.known.get(&seq).map(|known| Case {
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
    pub(super) fn enter(&mut self, stored: Stored, now: UnixMs) -> (Entry<Objects>, Option<Change>) {
        let Stored { operation, seq, state, mut attempts, delays, parked, mut intent, progress, .. } = stored;
        let mut unknown_outcome = stored.unknown_outcome;
        let error = stored.error;
        let (payload, objects, sends) = self.read(&operation, Room::IfLeft);
        let mut eligible_at = operation.eligible_at;
        let only_reads = matches!(&payload, Kept::Yes { payload, .. } if payload.only_reads());
        if matches!(state, State::Running | State::Reconciling) && !only_reads {
            unknown_outcome.get_or_insert(UnknownOutcome::new(intent.unwrap_or(eligible_at)));
        }
        let mut cut_short = None;
        let phase = match state {
            State::Queued => Phase::Queued,
            State::Delayed => Phase::Delayed { parked },
            State::Retrying => Phase::Retrying,
            State::Reconciling => Phase::Reconciling,
            State::Running => {
                let started = intent.unwrap_or(eligible_at);
                // It is not looked for, but it may have happened: nobody may take it back from now on.
                cut_short = Some(if intent.is_none() { Intent::Open(started) } else { Intent::Keep });
                intent = Some(started);
                // What was cut short is not held against it.
                attempts = attempts.saturating_sub(1);
                if operation.kind == Kind::DeferReply {
                    // Discord waits for it for seconds only, and it does no harm if it comes twice or late.
                    eligible_at = started.min(now);
                    Phase::Queued
                } else {
                    // Whoever was about to send it may have done so until its lease ran out, which is over, and Discord
                    // may still be at it: what follows must not overtake it, be there something to look for or not.
                    eligible_at = now + self.config.request_timeout;
                    Phase::Reconciling
                }
            }
            // The store gives none of these.
            State::Scheduled | State::Succeeded | State::Dead | State::Cancelled | State::NeedsReview => Phase::Queued,
        };
        let stored = (progress.steps().len(), progress.to_json().map_or(0, |json| json.len()));
        let waits = error.filter(|_| matches!(phase, Phase::Delayed { .. } | Phase::Reconciling)).map(Box::new);
        if state != State::Running && waits.as_ref().is_some_and(|error| error.held_by.is_some()) {
            // The gate may have changed while no process had this queue: it is asked again.
            eligible_at = eligible_at.min(now);
        }
        let known = Known {
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
        let entry = Entry {
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
            Change { eligible_at, intent, unknown_outcome: known.unknown_outcome.clone(), ..change }
        });
        self.known.insert(seq, known);
        (entry, change)
    }

    /// How an operation that broke its guild ends, unless its outcome has to be checked first.
    pub(super) fn end_poison(&mut self, seq: u64, poison: Poison, now: UnixMs) -> Option<Change> {
        let known = self.known.get(&seq)?;
        if poison.times > 1 && known.unknown_outcome.is_some() {
            // Looking for it broke the guild, too.
            let why =
                "it broke what executes operations, and so did looking for what came of it; see whether it happened";
            return self.conclude(seq, Verdict::Review(Failure::new(FailureClass::Poison, why)), None, now);
        }
        let verdict = give_up(poisoned(), known.unknown_outcome.as_ref(), &self.config);
        self.conclude(seq, verdict, None, now)
    }

    fn read(&mut self, operation: &NewOperation, room: Room) -> (Kept, Objects, Sends) {
        let NewOperation { id, kind, guild, payload: json, .. } = operation;
        let (id, kind, guild) = (*id, *kind, *guild);
        let parsed = serde_json::from_str(json).map_err(|error| error.to_string());
        match parsed.and_then(|value| Payload::parse(kind, &value, guild).map_err(|invalid| invalid.to_string())) {
            Err(why) => (Kept::Wrong(why), Objects::default(), kind.sends()),
            Ok(payload) => {
                let (objects, sends) = (payload.objects(id, guild), payload.sends());
                let bytes = json.len();
                if room == Room::IfLeft && self.bytes + bytes > self.config.payload_bytes {
                    return (Kept::No, objects, sends);
                }
                self.bytes += bytes;
                (Kept::Yes { payload: Box::new(payload), bytes }, objects, sends)
            }
        }
    }

    /// Takes the payloads of operations that it knows and has none of; that of the first in any case.
    pub(super) fn reread(&mut self, page: Vec<Stored>, first: u64) {
        for Stored { operation, seq, .. } in page {
            if self.known.get(&seq).is_some_and(|known| matches!(known.payload, Kept::No)) {
                let room = if seq == first { Room::InAnyCase } else { Room::IfLeft };
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
            Kept::No => Readiness::Unread,
            Kept::Wrong(why) => {
                let message = format!("its payload is not what {} takes: {why}", known.kind.name());
                Readiness::Wrong(Failure::new(FailureClass::Validation, message))
            }
            Kept::Yes { payload, .. } => {
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
            Kept::Yes { payload, .. } => Some(payload),
            Kept::No | Kept::Wrong(_) => None,
        }
    }

    /// The work of an operation whose payload has ids only.
    pub(super) fn work(
        &mut self,
        seq: u64,
        resolved: Payload,
        bound: Option<(u64, Option<u64>)>,
        now: UnixMs,
    ) -> Option<Work> {
        let known = self.known.get_mut(&seq)?;
        let _ = known.take_payload(&mut self.bytes);
        Some(known.work(resolved, bound, self.config.max_wait, now, self.right.clone()))
    }

    /// It is being executed: its attempt counts. Nothing of it was sent, and nothing is stored; `false` if it is gone.
    pub(super) fn begin(&mut self, seq: u64) -> bool {
        let Some(known) = self.known.get_mut(&seq) else { return false };
        known.attempts += 1;
        known.has_opened = false;
        self.released_since_start = Released::default();
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
    pub(super) fn start(&mut self, seq: u64, now: UnixMs) -> Option<Change> {
        let known = self.known.get_mut(&seq)?;
        known.waits = None;
        let intent = match (known.sends, known.intent) {
            (Sends::Again, _) | (_, Some(_)) => Intent::Keep,
            (Sends::Object | Sends::Message | Sends::Once, None) => {
                known.intent = Some(now);
                known.has_opened = true;
                Intent::Open(now)
            }
        };
        let change = known.change(self.queue, self.fence, State::Running, now);
        Some(known.with_progress(Change { intent, ..change }))
    }

    /// Steps of it were done.
    pub(super) fn advance(&mut self, seq: u64, steps: Vec<ProgressStep>) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.advance(steps);
        }
    }

    /// Whether a step has to be stored before the next one is done.
    pub(super) fn has_unstored_object(&self, seq: u64) -> bool {
        self.known.get(&seq).is_some_and(Known::has_unstored_object)
    }

    /// Its next call has to wait, and none is in flight: what it has done so far is stored, and its attempt does not count
    /// until it goes on.
    pub(super) fn suspend(&mut self, seq: u64, now: UnixMs) -> Option<Change> {
        let known = self.known.get_mut(&seq)?;
        let intent = known.close_if_untouched();
        let change = known.change(self.queue, self.fence, State::Queued, now);
        let attempts = known.attempts.saturating_sub(1);
        Some(known.with_progress(Change { intent, attempts, ..change }))
    }

    /// A call of it was about to be sent, and was not.
    pub(super) fn unstart(&mut self, seq: u64, now: UnixMs) -> Option<Change> {
        let known = self.known.get_mut(&seq)?;
        known.attempts = known.attempts.saturating_sub(1);
        let intent = known.close_if_untouched();
        self.line.on_waiting(seq, Phase::Queued, now);
        let change = known.change(self.queue, self.fence, State::Queued, now);
        Some(known.with_progress(Change { intent, ..change }))
    }

    /// Its time is up.
    pub(super) fn expire(&mut self, seq: u64, now: UnixMs) -> Option<Change> {
        let known = self.known.get(&seq)?;
        let verdict = give_up(known.expired(), known.unknown_outcome.as_ref(), &self.config);
        self.conclude(seq, verdict, None, now)
    }

    /// Others may pass it from now on.
    pub(super) fn park(&self, seq: u64, now: UnixMs) -> Option<Change> {
        let (known, entry) = (self.known.get(&seq)?, self.line.entry(seq)?);
        let change = known.change(self.queue, self.fence, State::Delayed, now);
        Some(Change { parked: true, eligible_at: entry.eligible_at, error: known.waits.as_deref().cloned(), ..change })
    }

    /// The gate has changed: what it held back is due now. What has to be stored of that, so that a crash does not undo it.
    pub(super) fn release(&mut self, released: &Released, now: UnixMs) -> Vec<Change> {
        if self.line.running().is_some() {
            self.released_since_start.merge(released);
        }
        let mut changes = Vec::new();
        for (seq, known) in self.known.iter().filter(|(_, known)| known.is_held_by(released)) {
            let Some(entry) = self.line.entry(*seq) else { continue };
            if entry.eligible_at <= now || self.line.running() == Some(*seq) {
                continue;
            }
            let parked = entry.phase == Phase::Delayed { parked: true };
            let error = known.waits.as_deref().cloned();
            let change = known.change(self.queue, self.fence, entry.phase.state(), now);
            self.line.on_released(*seq, now);
            changes.push(Change { parked, error, ..change });
        }
        changes
    }

    /// It is done, by somebody else's word.
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

    /// Somebody did something to an operation.
    pub(super) fn hear(&mut self, word: Word, now: UnixMs) {
        match word {
            Word::Cancelled(id) => {
                if let Some(seq) = self.line.place(id)
                    && self.line.running() != Some(seq)
                {
                    self.drop_at(seq);
                }
            }
            Word::Hastened(id) => {
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
        verdict: Verdict,
        attempt: Option<Attempt>,
        now: UnixMs,
    ) -> Option<Change> {
        let (queue, fence) = (self.queue, self.fence);
        let known = self.known.get_mut(&seq)?;
        known.waits = None;
        let mut change = match verdict {
            Verdict::Succeeded(done) => {
                let intent = known.close();
                emit(known.ended(State::Succeeded, None, now));
                Change {
                    intent,
                    attempt,
                    result: (!done.result.is_null()).then(|| done.result.to_string()),
                    made: done.made,
                    bind: done.bind,
                    unbind: done.unbind,
                    ..known.change(queue, fence, State::Succeeded, now)
                }
            }
            Verdict::Dead(failure) => {
                let (intent, failure) = (known.close(), known.with_steps(failure));
                emit(known.ended(State::Dead, Some(&failure), now));
                let change = known.change(queue, fence, State::Dead, now);
                known.with_progress(Change { intent, attempt, error: Some(failure), ..change })
            }
            Verdict::Review(failure) => {
                let failure = known.with_steps(failure);
                emit(known.ended(State::NeedsReview, Some(&failure), now));
                let change = known.change(queue, fence, State::NeedsReview, now);
                known.with_progress(Change { attempt, error: Some(failure), ..change })
            }
            Verdict::Delayed { wait, held, reason, error } => {
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
                let change = known.change(queue, fence, State::Delayed, now);
                let change = Change { intent, attempt, eligible_at: until, parked, error: Some(error), ..change };
                known.with_progress(change)
            }
            Verdict::Retrying { wait, error } => {
                // Its calls may have had an effect: the intent stays open.
                let until = now + wait;
                self.line.on_waiting(seq, Phase::Retrying, until);
                emit(OperationRetried { of: known.subject(), error: &error, wait });
                let change = known.change(queue, fence, State::Retrying, now);
                known.with_progress(Change { attempt, eligible_at: until, error: Some(error), ..change })
            }
            Verdict::Reconciling { wait, error } => {
                let until = now + wait;
                known.unknown_outcome.get_or_insert(UnknownOutcome::new(now)).checked_since.get_or_insert(now);
                known.waits = Some(Box::new(error.clone()));
                self.line.on_waiting(seq, Phase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &error.message, wait });
                let change = known.change(queue, fence, State::Reconciling, now);
                known.with_progress(Change { attempt, eligible_at: until, error: Some(error), ..change })
            }
            Verdict::Checking { wait, failure } => {
                let until = now + wait;
                let unknown = known.unknown_outcome.get_or_insert(UnknownOutcome::new(now));
                (unknown.ends_with, unknown.checked_since) = (Some(failure.clone()), Some(now));
                self.line.on_waiting(seq, Phase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &failure.message, wait });
                let change = known.change(queue, fence, State::Reconciling, now);
                known.with_progress(Change { attempt, eligible_at: until, error: Some(failure), ..change })
            }
            Verdict::Unchecked { wait, error } => {
                let until = now + wait;
                if let Some(unknown) = &mut known.unknown_outcome {
                    unknown.failed_checks += 1;
                }
                self.line.on_waiting(seq, Phase::Reconciling, until);
                emit(OperationAmbiguous { of: known.subject(), why: &error.message, wait });
                let change = known.change(queue, fence, State::Reconciling, now);
                Change { eligible_at: until, error: Some(error), ..change }
            }
            Verdict::Again => {
                // It was not found, but it was sent: the intent stays open, and a later search starts from its first time.
                if let Some(unknown) = &mut known.unknown_outcome {
                    (unknown.checked_since, unknown.failed_checks) = (None, 0);
                }
                self.line.on_waiting(seq, Phase::Queued, now);
                known.change(queue, fence, State::Queued, now)
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
