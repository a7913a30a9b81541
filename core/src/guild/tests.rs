use super::bits::Bits;
use super::*;
use crate::operation::OperationId;
use crate::time::UnixMs;

fn at(seconds: u64) -> UnixMs {
    UnixMs::new(1_000_000 + seconds * 1_000)
}

fn id(n: u64) -> OperationId {
    OperationId::new(n, [0; 10])
}

fn entry(seq: u64, objects: u8) -> QueueEntry<Bits> {
    QueueEntry {
        id: id(seq),
        seq,
        phase: WaitPhase::Queued,
        eligible_at: at(0),
        deadline: None,
        deployment: None,
        objects: Bits(objects),
    }
}

fn order(entries: impl IntoIterator<Item = QueueEntry<Bits>>) -> OperationOrder<Bits> {
    let mut order = OperationOrder::new(OrderConfig::default());
    assert_eq!(order.next(at(0)), OrderStep::NeedMore);
    order.on_loaded(entries, false);
    order
}

fn run(order: &mut OperationOrder<Bits>, seq: u64, now: UnixMs) {
    assert_eq!(order.next(now), OrderStep::Run(seq));
    order.on_started(seq);
    assert_eq!(order.next(now), OrderStep::Idle, "one at a time");
}

#[test]
fn operations_run_in_order_and_a_waiting_one_blocks_the_rest() {
    let mut order = order([entry(1, 1), entry(2, 2)]);
    run(&mut order, 1, at(0));
    order.on_waiting(1, WaitPhase::Retrying, at(5));
    assert_eq!(order.next(at(4)), OrderStep::WaitUntil(at(5)));
    run(&mut order, 1, at(5));
    order.on_finished(1);
    run(&mut order, 2, at(5));
    order.on_finished(2);
    assert_eq!(order.next(at(5)), OrderStep::Idle);
    order.on_woken();
    assert_eq!(order.next(at(5)), OrderStep::NeedMore);
}

#[test]
fn parked_operation_is_passed_by_those_without_conflicts() {
    let mut order = order([entry(1, 0b001), entry(2, 0b011), entry(3, 0b010), entry(4, 0b100)]);
    run(&mut order, 1, at(0));
    assert!(order.on_delayed(1, at(100), DelayScope::Alone, at(0)), "100 s is longer than 60 s");
    run(&mut order, 4, at(0));
    order.on_finished(4);
    assert_eq!(order.next(at(1)), OrderStep::WaitUntil(at(100)), "2 conflicts with 1, and 3 conflicts with 2");
    run(&mut order, 1, at(100));
    order.on_finished(1);
    run(&mut order, 2, at(100));
}

#[test]
fn repeatedly_delayed_operation_parks_a_minute_after_its_first_delay() {
    let mut order = order([entry(1, 1), entry(2, 2)]);
    run(&mut order, 1, at(0));
    assert!(!order.on_delayed(1, at(40), DelayScope::Alone, at(0)));
    run(&mut order, 1, at(40));
    assert!(!order.on_delayed(1, at(80), DelayScope::Alone, at(40)));
    assert_eq!(order.next(at(59)), OrderStep::WaitUntil(at(60)));
    assert_eq!(order.next(at(60)), OrderStep::Park(1));
    run(&mut order, 2, at(60));
    order.on_finished(2);
    run(&mut order, 1, at(80));
    assert!(order.on_delayed(1, at(81), DelayScope::Alone, at(80)), "it is still the same delay");
}

#[test]
fn operation_delayed_with_all_others_is_not_passed() {
    let mut order = order([entry(1, 1), entry(2, 2)]);
    run(&mut order, 1, at(0));
    assert!(!order.on_delayed(1, at(3_600), DelayScope::WithAll, at(0)));
    assert_eq!(order.next(at(3_599)), OrderStep::WaitUntil(at(3_600)));
}

#[test]
fn operations_of_one_deployment_never_pass_each_other() {
    let deployed = |seq, objects| QueueEntry { deployment: Some(id(99)), ..entry(seq, objects) };
    let mut order = order([deployed(1, 1), deployed(2, 2), entry(3, 4)]);
    run(&mut order, 1, at(0));
    assert!(order.on_delayed(1, at(100), DelayScope::Alone, at(0)));
    run(&mut order, 3, at(0));
}

#[test]
fn deadline_expires_any_waiting_operation_but_not_a_sent_one() {
    let dated = |seq, deadline| QueueEntry { deadline: Some(at(deadline)), ..entry(seq, 1) };
    let mut order = order([dated(1, 20), entry(2, 1), dated(3, 10)]);
    run(&mut order, 1, at(0));
    order.on_waiting(1, WaitPhase::Reconciling, at(30));
    assert_eq!(order.next(at(1)), OrderStep::WaitUntil(at(10)));
    assert_eq!(order.next(at(10)), OrderStep::Expire(3));
    order.on_finished(3);
    assert_eq!(order.next(at(25)), OrderStep::WaitUntil(at(30)), "1 may have been executed: it is reconciled");
    run(&mut order, 1, at(30));
    order.on_waiting(1, WaitPhase::Queued, at(30));
    assert_eq!(order.next(at(30)), OrderStep::Expire(1));
}

#[test]
fn expedited_operation_runs_now_and_a_cancelled_one_never() {
    let mut order = order([entry(1, 1), entry(2, 1), entry(3, 2)]);
    run(&mut order, 1, at(0));
    order.on_cancelled(1);
    order.on_expedited(1, at(0));
    assert_eq!(order.running(), Some(1), "a running operation cannot be cancelled");
    order.on_delayed(1, at(1_000), DelayScope::Alone, at(0));
    run(&mut order, 3, at(0));
    order.on_finished(3);
    order.on_expedited(1, at(7));
    run(&mut order, 1, at(7));
    order.on_delayed(1, at(1_000), DelayScope::Alone, at(7));
    order.on_cancelled(1);
    run(&mut order, 2, at(8));
}

#[test]
fn full_order_lets_nothing_more_pass() {
    let mut order = OperationOrder::new(OrderConfig { lookahead: 2, ..OrderConfig::default() });
    order.on_loaded([entry(1, 1), entry(2, 1)], true);
    run(&mut order, 1, at(0));
    order.on_delayed(1, at(100), DelayScope::Alone, at(0));
    assert_eq!(order.next(at(0)), OrderStep::WaitUntil(at(100)));
    run(&mut order, 1, at(100));
    order.on_finished(1);
    order.on_cancelled(2);
    assert_eq!(order.next(at(100)), OrderStep::NeedMore);
}

#[test]
fn operation_delayed_by_its_callers_share_is_passed_at_once() {
    let mut order = order([entry(1, 1), entry(2, 2), entry(3, 1)]);
    run(&mut order, 1, at(0));
    assert!(order.on_delayed(1, at(5), DelayScope::ByCaller, at(0)), "even if it is due soon");
    run(&mut order, 2, at(0));
    order.on_finished(2);
    // An operation that shares an object with it does not pass it.
    assert_eq!(order.next(at(4)), OrderStep::WaitUntil(at(5)));
    run(&mut order, 1, at(5));
    order.on_finished(1);
    run(&mut order, 3, at(5));
}

#[test]
fn scheduled_operation_blocks_nothing_and_joins_when_due() {
    let mut order = order([entry(1, 1), entry(2, 1)]);
    order.on_scheduled(Some(at(30)));
    run(&mut order, 1, at(0));
    order.on_finished(1);
    run(&mut order, 2, at(1));
    order.on_finished(2);
    assert_eq!(order.next(at(1)), OrderStep::WaitUntil(at(30)));
    assert_eq!(order.next(at(30)), OrderStep::Join);
    order.on_joined(None);
    assert_eq!(order.next(at(30)), OrderStep::NeedMore);
    order.on_loaded([entry(3, 1)], false);
    run(&mut order, 3, at(30));
}

#[test]
fn new_operations_are_loaded_behind_a_waiting_one() {
    let mut order = order([entry(1, 1)]);
    run(&mut order, 1, at(0));
    order.on_waiting(1, WaitPhase::Retrying, at(60));
    assert_eq!(order.next(at(1)), OrderStep::WaitUntil(at(60)));
    order.on_woken();
    assert_eq!(order.next(at(1)), OrderStep::NeedMore);
    order.on_loaded([], false);
    order.on_scheduled(Some(at(5)));
    assert_eq!(order.next(at(1)), OrderStep::WaitUntil(at(5)));
    assert_eq!(order.next(at(5)), OrderStep::Join);
}
