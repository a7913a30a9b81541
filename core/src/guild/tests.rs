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

fn line(entries: impl IntoIterator<Item = QueueEntry<Bits>>) -> OperationOrder<Bits> {
    let mut line = OperationOrder::new(OrderConfig::default());
    assert_eq!(line.next(at(0)), OrderStep::NeedMore);
    line.on_loaded(entries, false);
    line
}

fn run(line: &mut OperationOrder<Bits>, seq: u64, now: UnixMs) {
    assert_eq!(line.next(now), OrderStep::Run(seq));
    line.on_started(seq);
    assert_eq!(line.next(now), OrderStep::Idle, "one at a time");
}

#[test]
fn operations_run_in_order_and_one_that_waits_holds_up_the_others() {
    let mut line = line([entry(1, 1), entry(2, 2)]);
    run(&mut line, 1, at(0));
    line.on_waiting(1, WaitPhase::Retrying, at(5));
    assert_eq!(line.next(at(4)), OrderStep::WaitUntil(at(5)));
    run(&mut line, 1, at(5));
    line.on_ended(1);
    run(&mut line, 2, at(5));
    line.on_ended(2);
    assert_eq!(line.next(at(5)), OrderStep::Idle);
    line.on_woken();
    assert_eq!(line.next(at(5)), OrderStep::NeedMore);
}

#[test]
fn one_that_is_held_alone_for_long_is_passed_by_those_that_share_nothing_with_those_before() {
    let mut line = line([entry(1, 0b001), entry(2, 0b011), entry(3, 0b010), entry(4, 0b100)]);
    run(&mut line, 1, at(0));
    assert!(line.on_delayed(1, at(100), DelayScope::Alone, at(0)), "100 s is longer than 60 s");
    run(&mut line, 4, at(0));
    line.on_ended(4);
    assert_eq!(line.next(at(1)), OrderStep::WaitUntil(at(100)), "2 conflicts with 1, and 3 conflicts with 2");
    run(&mut line, 1, at(100));
    line.on_ended(1);
    run(&mut line, 2, at(100));
}

#[test]
fn one_that_is_held_again_and_again_is_passed_a_minute_after_the_first_time() {
    let mut line = line([entry(1, 1), entry(2, 2)]);
    run(&mut line, 1, at(0));
    assert!(!line.on_delayed(1, at(40), DelayScope::Alone, at(0)));
    run(&mut line, 1, at(40));
    assert!(!line.on_delayed(1, at(80), DelayScope::Alone, at(40)));
    assert_eq!(line.next(at(59)), OrderStep::WaitUntil(at(60)));
    assert_eq!(line.next(at(60)), OrderStep::Park(1));
    run(&mut line, 2, at(60));
    line.on_ended(2);
    run(&mut line, 1, at(80));
    assert!(line.on_delayed(1, at(81), DelayScope::Alone, at(80)), "it is still the same delay");
}

#[test]
fn nobody_passes_one_that_is_held_with_everybody_else() {
    let mut line = line([entry(1, 1), entry(2, 2)]);
    run(&mut line, 1, at(0));
    assert!(!line.on_delayed(1, at(3_600), DelayScope::WithAll, at(0)));
    assert_eq!(line.next(at(3_599)), OrderStep::WaitUntil(at(3_600)));
}

#[test]
fn operations_of_one_deployment_never_pass_each_other() {
    let deployed = |seq, objects| QueueEntry { deployment: Some(id(99)), ..entry(seq, objects) };
    let mut line = line([deployed(1, 1), deployed(2, 2), entry(3, 4)]);
    run(&mut line, 1, at(0));
    assert!(line.on_delayed(1, at(100), DelayScope::Alone, at(0)));
    run(&mut line, 3, at(0));
}

#[test]
fn a_deadline_ends_one_that_waits_wherever_it_stands_but_not_one_that_was_sent() {
    let dated = |seq, deadline| QueueEntry { deadline: Some(at(deadline)), ..entry(seq, 1) };
    let mut line = line([dated(1, 20), entry(2, 1), dated(3, 10)]);
    run(&mut line, 1, at(0));
    line.on_waiting(1, WaitPhase::Reconciling, at(30));
    assert_eq!(line.next(at(1)), OrderStep::WaitUntil(at(10)));
    assert_eq!(line.next(at(10)), OrderStep::Expire(3));
    line.on_ended(3);
    assert_eq!(line.next(at(25)), OrderStep::WaitUntil(at(30)), "1 may have been executed: it is reconciled");
    run(&mut line, 1, at(30));
    line.on_waiting(1, WaitPhase::Queued, at(30));
    assert_eq!(line.next(at(30)), OrderStep::Expire(1));
}

#[test]
fn one_that_is_hastened_runs_now_and_one_that_is_cancelled_never() {
    let mut line = line([entry(1, 1), entry(2, 1), entry(3, 2)]);
    run(&mut line, 1, at(0));
    line.on_cancelled(1);
    line.on_hastened(1, at(0));
    assert_eq!(line.running(), Some(1), "a running operation cannot be cancelled");
    line.on_delayed(1, at(1_000), DelayScope::Alone, at(0));
    run(&mut line, 3, at(0));
    line.on_ended(3);
    line.on_hastened(1, at(7));
    run(&mut line, 1, at(7));
    line.on_delayed(1, at(1_000), DelayScope::Alone, at(7));
    line.on_cancelled(1);
    run(&mut line, 2, at(8));
}

#[test]
fn a_full_line_passes_nothing_more() {
    let mut line = OperationOrder::new(OrderConfig { lookahead: 2, ..OrderConfig::default() });
    line.on_loaded([entry(1, 1), entry(2, 1)], true);
    run(&mut line, 1, at(0));
    line.on_delayed(1, at(100), DelayScope::Alone, at(0));
    assert_eq!(line.next(at(0)), OrderStep::WaitUntil(at(100)));
    run(&mut line, 1, at(100));
    line.on_ended(1);
    line.on_cancelled(2);
    assert_eq!(line.next(at(100)), OrderStep::NeedMore);
}

#[test]
fn operation_held_by_its_callers_share_is_passed_at_once() {
    let mut line = line([entry(1, 1), entry(2, 2), entry(3, 1)]);
    run(&mut line, 1, at(0));
    assert!(line.on_delayed(1, at(5), DelayScope::ByCaller, at(0)), "even if it is due soon");
    run(&mut line, 2, at(0));
    line.on_ended(2);
    // An operation that shares an object with it does not pass it.
    assert_eq!(line.next(at(4)), OrderStep::WaitUntil(at(5)));
    run(&mut line, 1, at(5));
    line.on_ended(1);
    run(&mut line, 3, at(5));
}

#[test]
fn scheduled_operation_blocks_nothing_and_joins_when_due() {
    let mut line = line([entry(1, 1), entry(2, 1)]);
    line.on_scheduled(Some(at(30)));
    run(&mut line, 1, at(0));
    line.on_ended(1);
    run(&mut line, 2, at(1));
    line.on_ended(2);
    assert_eq!(line.next(at(1)), OrderStep::WaitUntil(at(30)));
    assert_eq!(line.next(at(30)), OrderStep::Join);
    line.on_joined(None);
    assert_eq!(line.next(at(30)), OrderStep::NeedMore);
    line.on_loaded([entry(3, 1)], false);
    run(&mut line, 3, at(30));
}

#[test]
fn new_operations_are_loaded_behind_one_that_waits() {
    let mut line = line([entry(1, 1)]);
    run(&mut line, 1, at(0));
    line.on_waiting(1, WaitPhase::Retrying, at(60));
    assert_eq!(line.next(at(1)), OrderStep::WaitUntil(at(60)));
    line.on_woken();
    assert_eq!(line.next(at(1)), OrderStep::NeedMore);
    line.on_loaded([], false);
    line.on_scheduled(Some(at(5)));
    assert_eq!(line.next(at(1)), OrderStep::WaitUntil(at(5)));
    assert_eq!(line.next(at(5)), OrderStep::Join);
}
