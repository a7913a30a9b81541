//! The indexed order takes the same steps as one that compares all pairs.

use std::time::Duration;

use proptest::prelude::*;

use super::conflict::tests::sets;
use super::reference::QuadraticOrder;
use super::*;
use crate::operation::OperationId;
use crate::operation::payload::Objects;
use crate::time::UnixMs;

/// An event for both orders. Numbers choose an operation, or are seconds.
#[derive(Clone, Debug)]
enum Event {
    End,
    Delay {
        seconds: u64,
        held: DelayScope,
    },
    Wait {
        seconds: u64,
        phase: WaitPhase,
    },
    NotStarted,
    Cancel(u64),
    EndOf(u64),
    Expedite(u64),
    Wake,
    Schedule(u64),
    Pass(u64),
    /// The clock is set back.
    Back(u64),
}

fn events() -> impl Strategy<Value = Event> {
    let held = prop_oneof![Just(DelayScope::Alone), Just(DelayScope::ByCaller), Just(DelayScope::WithAll)];
    let phase = prop_oneof![Just(WaitPhase::Queued), Just(WaitPhase::Retrying), Just(WaitPhase::Reconciling)];
    prop_oneof![
        6 => Just(Event::End),
        8 => (1_u64..200, held).prop_map(|(seconds, held)| Event::Delay { seconds, held }),
        2 => (1_u64..50, phase).prop_map(|(seconds, phase)| Event::Wait { seconds, phase }),
        1 => Just(Event::NotStarted),
        1 => (1_u64..20).prop_map(Event::Cancel),
        1 => (1_u64..20).prop_map(Event::EndOf),
        1 => (1_u64..20).prop_map(Event::Expedite),
        1 => Just(Event::Wake),
        1 => (0_u64..100).prop_map(Event::Schedule),
        4 => (0_u64..100).prop_map(Event::Pass),
        1 => (0_u64..50).prop_map(Event::Back),
    ]
}

/// A loaded operation.
#[derive(Clone, Debug)]
struct Loaded {
    objects: Objects,
    phase: WaitPhase,
    eligible: u64,
    deadline: Option<u64>,
    deployment: Option<u64>,
}

fn loaded() -> impl Strategy<Value = Loaded> {
    let phase = prop_oneof![
        6 => Just(WaitPhase::Queued),
        2 => Just(WaitPhase::Delayed { parked: true }),
        1 => Just(WaitPhase::Delayed { parked: false }),
        1 => Just(WaitPhase::Reconciling),
    ];
    let deadline = prop_oneof![4 => Just(None), 1 => (1_000_u64..2_000).prop_map(Some)];
    let deployment = prop_oneof![4 => Just(None), 1 => (1_u64..3).prop_map(Some)];
    let eligible = prop_oneof![2 => Just(1_000_u64), 1 => 1_000_u64..1_200];
    (sets(), phase, eligible, deadline, deployment).prop_map(|(objects, phase, eligible, deadline, deployment)| {
        Loaded { objects, phase, eligible, deadline, deployment }
    })
}

fn at(seconds: u64) -> UnixMs {
    UnixMs::new(seconds * 1_000)
}

fn entry(seq: u64, loaded: &Loaded) -> QueueEntry<Objects> {
    QueueEntry {
        id: OperationId::new(seq, [0; 10]),
        seq,
        phase: loaded.phase,
        eligible_at: at(loaded.eligible),
        deadline: loaded.deadline.map(at),
        deployment: loaded.deployment.map(|n| OperationId::new(n, [1; 10])),
        objects: loaded.objects.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn indexed_order_takes_the_same_steps_as_comparing_all_pairs(
        all in prop::collection::vec(loaded(), 1..20),
        events in prop::collection::vec(events(), 1..120),
        page in 1_usize..8,
        lookahead in 2_usize..20,
    ) {
        let config = OrderConfig { park_after: Duration::from_secs(60), lookahead };
        let (mut order, mut reference) = (OperationOrder::new(config), QuadraticOrder::new(config));
        let mut unloaded: Vec<QueueEntry<Objects>> = (1..).zip(&all).map(|(seq, loaded)| entry(seq, loaded)).collect();
        let mut now = 1_000;
        let both = |order: &mut OperationOrder<Objects>, reference: &mut QuadraticOrder<Objects>, now: u64| {
            let (step, expected) = (order.next(at(now)), reference.next(at(now)));
            prop_assert_eq!(step, expected);
            Ok(step)
        };
        for event in events {
            // Takes the steps that need no event.
            let running = loop {
                match both(&mut order, &mut reference, now)? {
                    OrderStep::NeedMore => {
                        let page: Vec<_> = unloaded.drain(..page.min(unloaded.len())).collect();
                        order.on_loaded(page.clone(), !unloaded.is_empty());
                        reference.on_loaded(page, !unloaded.is_empty());
                    }
                    OrderStep::Expire(seq) => {
                        order.on_finished(seq);
                        reference.on_finished(seq);
                    }
                    OrderStep::Join => {
                        order.on_joined(None);
                        reference.on_joined(None);
                    }
                    OrderStep::Park(_) => {}
                    OrderStep::Run(seq) => {
                        order.on_started(seq);
                        reference.on_started(seq);
                        both(&mut order, &mut reference, now)?;
                        break Some(seq);
                    }
                    OrderStep::WaitUntil(_) | OrderStep::Idle => break None,
                }
            };
            let mut done = true;
            match (&event, running) {
                (Event::End, Some(seq)) => {
                    order.on_finished(seq);
                    reference.on_finished(seq);
                }
                (Event::Delay { seconds, held }, Some(seq)) => {
                    let parked = order.on_delayed(seq, at(now + seconds), *held, at(now));
                    prop_assert_eq!(parked, reference.on_delayed(seq, at(now + seconds), *held, at(now)));
                }
                (Event::Wait { seconds, phase }, Some(seq)) => {
                    order.on_waiting(seq, *phase, at(now + seconds));
                    reference.on_waiting(seq, *phase, at(now + seconds));
                }
                (Event::NotStarted, Some(seq)) => {
                    order.on_not_started(seq);
                    reference.on_not_started(seq);
                }
                (Event::Cancel(seq), _) => {
                    order.on_cancelled(*seq);
                    reference.on_cancelled(*seq);
                    done = false;
                }
                (Event::EndOf(seq), None) => {
                    order.on_finished(*seq);
                    reference.on_finished(*seq);
                }
                (Event::Expedite(seq), _) => {
                    order.on_expedited(*seq, at(now));
                    reference.on_expedited(*seq, at(now));
                    done = false;
                }
                (Event::Wake, _) => {
                    order.on_woken();
                    reference.on_woken();
                    done = false;
                }
                (Event::Schedule(after), _) => {
                    order.on_scheduled(Some(at(now + after)));
                    reference.on_scheduled(Some(at(now + after)));
                    done = false;
                }
                (Event::Pass(seconds), _) => {
                    now += seconds;
                    done = false;
                }
                (Event::Back(seconds), _) => {
                    now = now.saturating_sub(*seconds).max(1_000);
                    done = false;
                }
                (Event::End | Event::Delay { .. } | Event::Wait { .. } | Event::NotStarted | Event::EndOf(_), _) => done = false,
            }
            if let Some(seq) = running.filter(|_| !done) {
                // A running operation finishes before the next event.
                order.on_finished(seq);
                reference.on_finished(seq);
            }
            prop_assert_eq!(order.len(), reference.len());
            prop_assert_eq!(order.running(), reference.running());
        }
    }
}
