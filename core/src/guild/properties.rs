//! Compares the order with an oracle that checks everything each time.

use std::time::Duration;

use proptest::prelude::*;

use super::bits::Bits;
use super::*;
use crate::operation::OperationId;
use crate::time::UnixMs;

const PARK_AFTER: u64 = 60;
const START: u64 = 1_000;

/// The outcome of a running operation.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    End,
    Hold { seconds: u64, alone: bool },
    HoldCaller { seconds: u64 },
    Retry { seconds: u64 },
    Reconcile { seconds: u64 },
}

/// An event outside the running operation.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    Cancel(usize),
    Expedite(usize),
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
struct OperationSpec {
    objects: u8,
    deployment: Option<u64>,
    deadline: Option<u64>,
    eligible: u64,
    /// When it joins; it is not in the order before.
    scheduled: Option<u64>,
}

/// An operation as the oracle sees it, in whole seconds.
#[derive(Clone, Copy, Debug)]
struct OracleOperation {
    seq: u64,
    spec: OperationSpec,
    due: u64,
    held_since: Option<u64>,
    /// Delayed alone until `due` since its last run.
    held: bool,
    parked: bool,
    sent: bool,
}

impl OracleOperation {
    fn shares(&self, other: &Self) -> bool {
        self.spec.objects & other.spec.objects != 0
            || (self.spec.deployment.is_some() && self.spec.deployment == other.spec.deployment)
    }

    fn may_be_passed(&self, now: u64) -> bool {
        self.parked || (self.held && now < self.due && self.held_since.is_some_and(|since| now >= since + PARK_AFTER))
    }
}

/// Whether the operation at `index` may run now: every earlier one either has been delayed for long or stays behind
/// another, and none of them shares anything with it.
fn may_run(order: &[OracleOperation], index: usize, now: u64) -> bool {
    let candidate = &order[index];
    let earlier = &order[..index];
    candidate.due <= now
        && earlier.iter().all(|other| !candidate.shares(other))
        && earlier.iter().enumerate().all(|(position, other)| {
            other.may_be_passed(now) || order[..position].iter().any(|before| other.shares(before))
        })
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::End),
        4 => (1_u64..150, any::<bool>()).prop_map(|(seconds, alone)| Outcome::Hold { seconds, alone }),
        1 => (1_u64..150).prop_map(|seconds| Outcome::HoldCaller { seconds }),
        1 => (1_u64..20).prop_map(|seconds| Outcome::Retry { seconds }),
        1 => (1_u64..20).prop_map(|seconds| Outcome::Reconcile { seconds }),
    ]
}

fn interruptions() -> impl Strategy<Value = Interruption> {
    prop_oneof![
        1 => (0_usize..20).prop_map(Interruption::Cancel),
        1 => (0_usize..20).prop_map(Interruption::Expedite),
        4 => (0_u64..40).prop_map(Interruption::Pass),
    ]
}

fn specs() -> impl Strategy<Value = OperationSpec> {
    let deployment = prop_oneof![3 => Just(None), 1 => (1_u64..3).prop_map(Some)];
    let deadline = prop_oneof![3 => Just(None), 1 => (0_u64..400).prop_map(|after| Some(START + after))];
    let eligible = prop_oneof![4 => Just(START), 1 => (0_u64..100).prop_map(|after| START + after)];
    let scheduled = prop_oneof![3 => Just(None), 1 => (1_u64..300).prop_map(|after| Some(START + after))];
    (0_u8..16, deployment, deadline, eligible, scheduled).prop_map(
        |(objects, deployment, deadline, eligible, scheduled)| OperationSpec {
            objects,
            deployment,
            deadline,
            eligible,
            scheduled,
        },
    )
}

/// The scheduled operations in the store.
struct Schedule {
    /// In the order of acceptance.
    waiting: Vec<(u64, OperationSpec)>,
    next_seq: u64,
}

impl Schedule {
    fn first(&self) -> Option<u64> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    /// Takes the due operations, in the order in which they join.
    fn join(&mut self, now: u64) -> Vec<OracleOperation> {
        let (mut due, waiting): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|(due, _)| *due <= now);
        self.waiting = waiting;
        due.sort_by_key(|(due, _)| *due);
        due.into_iter().map(|(_, made)| self.assign(made)).collect()
    }

    fn assign(&mut self, made: OperationSpec) -> OracleOperation {
        self.next_seq += 1;
        let (seq, due) = (self.next_seq, made.eligible);
        OracleOperation { seq, spec: made, due, held_since: None, held: false, parked: false, sent: false }
    }
}

fn seconds(at: u64) -> UnixMs {
    UnixMs::new(at * 1_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn order_runs_exactly_what_the_oracle_allows(
        makes in prop::collection::vec(specs(), 1..20),
        fates in prop::collection::vec(outcomes(), 0..60),
        asides in prop::collection::vec(interruptions(), 0..40),
        page in 1_usize..8,
    ) {
        let config = OrderConfig { park_after: Duration::from_secs(PARK_AFTER), lookahead: 1_000 };
        let mut order = OperationOrder::new(config);
        let mut schedule = Schedule { waiting: Vec::new(), next_seq: 0 };
        let mut unloaded: Vec<OracleOperation> = Vec::new();
        for made in makes {
            match made.scheduled {
                Some(due) => schedule.waiting.push((due, made)),
                None => unloaded.push(schedule.assign(made)),
            }
        }
        let (mut oracle, mut now) = (Vec::<OracleOperation>::new(), START);
        let (mut fates, mut asides) = (fates.into_iter(), asides.into_iter());
        for round in 0.. {
            prop_assert!(round < 2_000, "the simulation does not end: {oracle:?}");
            match order.next(seconds(now)) {
                OrderStep::NeedMore => {
                    let loaded: Vec<OracleOperation> = unloaded.drain(..page.min(unloaded.len())).collect();
                    let entries = loaded.iter().map(|seen| QueueEntry {
                        id: OperationId::new(seen.seq, [0; 10]),
                        seq: seen.seq,
                        phase: WaitPhase::Queued,
                        eligible_at: seconds(seen.due),
                        deadline: seen.spec.deadline.map(seconds),
                        deployment: seen.spec.deployment.map(|n| OperationId::new(n, [1; 10])),
                        objects: Bits(seen.spec.objects),
                    });
                    order.on_loaded(entries, !unloaded.is_empty());
                    order.on_scheduled(schedule.first().map(seconds));
                    oracle.extend(loaded);
                }
                OrderStep::Join => {
                    prop_assert!(schedule.first().is_some_and(|due| due <= now));
                    unloaded.extend(schedule.join(now));
                    order.on_joined(schedule.first().map(seconds));
                }
                OrderStep::Expire(seq) => {
                    let index = oracle.iter().position(|seen| seen.seq == seq).unwrap();
                    prop_assert!(!oracle[index].sent && oracle[index].spec.deadline.unwrap() <= now);
                    oracle.remove(index);
                    order.on_finished(seq);
                }
                OrderStep::Park(seq) => {
                    let seen = oracle.iter_mut().find(|seen| seen.seq == seq).unwrap();
                    prop_assert!(seen.may_be_passed(now) && !seen.parked);
                    seen.parked = true;
                }
                OrderStep::Run(seq) => {
                    let index = oracle.iter().position(|seen| seen.seq == seq).unwrap();
                    let allowed: Vec<usize> = (0..oracle.len()).filter(|&i| may_run(&oracle, i, now)).collect();
                    prop_assert_eq!(allowed.first(), Some(&index));
                    prop_assert!(oracle.iter().all(|seen| seen.sent || seen.spec.deadline.is_none_or(|at| at > now)));
                    order.on_started(seq);
                    prop_assert_eq!(order.next(seconds(now)), OrderStep::Idle, "never two at a time");
                    let seen = &mut oracle[index];
                    match fates.next().unwrap_or(Outcome::End) {
                        Outcome::End => {
                            oracle.remove(index);
                            order.on_finished(seq);
                        }
                        Outcome::Hold { seconds: wait, alone } => {
                            let held = if alone { DelayScope::Alone } else { DelayScope::WithAll };
                            let parked = order.on_delayed(seq, seconds(now + wait), held, seconds(now));
                            seen.held_since = alone.then(|| seen.held_since.unwrap_or(now));
                            let long = wait > PARK_AFTER || seen.held_since.is_some_and(|since| now >= since + PARK_AFTER);
                            seen.parked = alone && (seen.parked || long);
                            (seen.held, seen.sent, seen.due) = (alone, false, now + wait);
                            prop_assert_eq!(parked, seen.parked);
                        }
                        Outcome::HoldCaller { seconds: wait } => {
                            prop_assert!(order.on_delayed(seq, seconds(now + wait), DelayScope::ByCaller, seconds(now)));
                            seen.held_since.get_or_insert(now);
                            (seen.parked, seen.held, seen.sent, seen.due) = (true, true, false, now + wait);
                        }
                        fate @ (Outcome::Retry { seconds: wait } | Outcome::Reconcile { seconds: wait }) => {
                            (seen.held, seen.held_since, seen.parked) = (false, None, false);
                            (seen.sent, seen.due) = (matches!(fate, Outcome::Reconcile { .. }), now + wait);
                            let phase = if seen.sent { WaitPhase::Reconciling } else { WaitPhase::Retrying };
                            order.on_waiting(seq, phase, seconds(seen.due));
                        }
                    }
                }
                OrderStep::Idle => {
                    let left = oracle.len() + unloaded.len() + schedule.waiting.len();
                    prop_assert_eq!(left, 0, "no further event would ever be due");
                    break;
                }
                OrderStep::WaitUntil(until) => {
                    let until = until.millis() / 1_000;
                    prop_assert!(until > now);
                    prop_assert!(schedule.first().is_none_or(|due| until <= due), "an operation would join late");
                    // No operation could have run meanwhile.
                    for moment in now..until {
                        prop_assert!((0..oracle.len()).all(|index| !may_run(&oracle, index, moment)), "at {moment}");
                    }
                    match asides.next() {
                        None => now = until,
                        Some(Interruption::Pass(by)) => now = (now + by).min(until),
                        Some(Interruption::Cancel(index)) if index < oracle.len() && !oracle[index].sent => {
                            order.on_cancelled(oracle.remove(index).seq);
                        }
                        Some(Interruption::Expedite(index)) if index < oracle.len() && !oracle[index].sent => {
                            let seen = &mut oracle[index];
                            seen.due = seen.due.min(now);
                            order.on_expedited(seen.seq, seconds(now));
                        }
                        Some(Interruption::Cancel(_) | Interruption::Expedite(_)) => {}
                    }
                }
            }
        }
    }
}
