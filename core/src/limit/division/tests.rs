//! Tests of each rule of a divided limit.

use std::time::Duration;

use super::{DivisionConfig, LimitShare, MemberId, Renewal, ShareAction, ShareRow, ShareUsage};
use crate::time::Timestamp;

const ME: MemberId = MemberId(1);
const OTHER: MemberId = MemberId(2);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn row(member: MemberId, turn: u64, share: u32) -> ShareRow {
    let hold = DivisionConfig::default().hold();
    ShareRow { member, heartbeat: 1, turn, share, hold, has_left: false, is_dead: false }
}

/// A process that has joined, and whose limiter has applied its allowance.
fn joined(limit: u32) -> LimitShare {
    let mut share = LimitShare::new(DivisionConfig { limit, ..DivisionConfig::default() }, ME);
    share.on_renewed(Renewal::Joined { turn: 1 }, at(8_000), at(0));
    apply(&mut share);
    share
}

fn apply(share: &mut LimitShare) {
    let version = share.allowance().version;
    share.on_usage(ShareUsage { version, is_within: true });
}

fn do_next(share: &mut LimitShare, now: Timestamp) -> Option<ShareAction> {
    let action = share.next_action(now);
    if let Some(action) = action {
        share.on_done(action, now);
    }
    action
}

/// A process that is alone and has reserved the whole limit.
fn alone(limit: u32) -> LimitShare {
    let mut share = joined(limit);
    share.on_rows(vec![row(ME, 1, 0)], at(0));
    assert_eq!(do_next(&mut share, at(0)), Some(ShareAction::Reserve { share: limit }));
    apply(&mut share);
    share
}

#[test]
fn a_process_that_is_alone_reserves_all_of_the_limit() {
    let share = alone(50);
    assert_eq!(share.allowance().share, 50);
    assert_eq!(share.sends_until(), Some(at(8_000)));
}

#[test]
fn a_joiner_reserves_nothing_until_the_others_have_lowered_their_rows() {
    let mut share = joined(50);
    share.on_rows(vec![row(ME, 2, 0), row(OTHER, 1, 50)], at(0));
    assert_eq!(share.next_action(at(0)), None);
    share.on_rows(vec![row(ME, 2, 0), row(OTHER, 1, 25)], at(10));
    assert_eq!(do_next(&mut share, at(10)), Some(ShareAction::Reserve { share: 25 }));
    assert_eq!(share.allowance().share, 25);
}

#[test]
fn a_row_is_lowered_only_when_the_tokens_in_use_fit() {
    let mut share = alone(50);
    share.on_rows(vec![row(ME, 1, 50), row(OTHER, 2, 0)], at(0));
    let allowance = share.allowance();
    assert_eq!(allowance.share, 25);
    assert_eq!(share.next_action(at(0)), None);
    // A usage report of the previous allowance is ignored.
    share.on_usage(ShareUsage { version: allowance.version - 1, is_within: true });
    assert_eq!(share.next_action(at(0)), None);
    share.on_usage(ShareUsage { version: allowance.version, is_within: false });
    assert_eq!(share.next_action(at(0)), None);
    share.on_usage(ShareUsage { version: allowance.version, is_within: true });
    assert_eq!(share.next_action(at(0)), Some(ShareAction::Lower { share: 25, turn: None }));
}

#[test]
fn the_row_of_a_silent_process_is_removed_after_lease_timeout_and_window() {
    let mut share = joined(50);
    let silent = DivisionConfig::default().hold();
    share.on_rows(vec![row(ME, 2, 0), row(OTHER, 1, 50)], at(0));
    let end = at(0) + silent;
    assert_eq!(share.next_wake(at(0)), Some(end));
    assert_eq!(share.next_action(end.before(Duration::from_micros(1))), None);
    assert_eq!(do_next(&mut share, end), Some(ShareAction::Remove { member: OTHER, heartbeat: 1 }));
    assert_eq!(do_next(&mut share, end), Some(ShareAction::Reserve { share: 50 }));
}

#[test]
fn a_renewal_of_another_process_restarts_its_time() {
    let mut share = joined(50);
    share.on_rows(vec![row(ME, 2, 0), row(OTHER, 1, 50)], at(0));
    share.on_rows(vec![row(ME, 2, 0), ShareRow { heartbeat: 2, ..row(OTHER, 1, 50) }], at(20_000));
    assert_eq!(share.next_action(at(30_000)), None);
}

#[test]
fn leave_or_certain_death_frees_a_row_sooner() {
    let config = DivisionConfig::default();
    let left = ShareRow { heartbeat: 2, hold: config.hold_after_leave(0), has_left: true, ..row(OTHER, 1, 50) };
    let dead = ShareRow { is_dead: true, ..row(OTHER, 1, 50) };
    for gone in [left, dead] {
        let mut share = joined(50);
        share.on_rows(vec![row(ME, 2, 0), gone.clone()], at(0));
        assert_eq!(share.next_action(at(1_509)), None);
        let removed = ShareAction::Remove { member: OTHER, heartbeat: gone.heartbeat };
        assert_eq!(share.next_action(at(1_510)), Some(removed));
    }
}

#[test]
fn process_without_its_row_sends_nothing_until_its_tokens_are_back() {
    let mut share = alone(50);
    share.on_renewed(Renewal::Joined { turn: 3 }, at(60_000), at(50_000));
    assert_eq!((share.allowance().share, share.sends_until()), (0, None));
    let version = share.allowance().version;
    share.on_usage(ShareUsage { version, is_within: false });
    assert_eq!(share.sends_until(), None);
    share.on_usage(ShareUsage { version, is_within: true });
    assert_eq!(share.sends_until(), Some(at(60_000)));
}

#[test]
fn new_row_is_noticed_even_if_its_response_was_lost() {
    let mut share = alone(50);
    share.on_renewed(Renewal::Extended { share: 0, turn: 3 }, at(60_000), at(50_000));
    assert_eq!((share.allowance().share, share.sends_until()), (0, None));
}

#[test]
fn unknown_outcome_means_the_smaller_share_until_a_renewal() {
    let mut share = joined(50);
    share.on_rows(vec![row(ME, 1, 0)], at(0));
    let reserve = share.next_action(at(0)).unwrap();
    share.on_failed(reserve, at(0));
    assert_eq!((share.allowance().share, share.next_action(at(0))), (0, None));
    share.on_renewed(Renewal::Extended { share: 50, turn: 1 }, at(9_000), at(1_000));
    assert_eq!(share.allowance().share, 50);
    apply(&mut share);

    share.on_rows(vec![row(ME, 1, 50), row(OTHER, 2, 0)], at(1_000));
    apply(&mut share);
    let lower = share.next_action(at(1_000)).unwrap();
    share.on_failed(lower, at(1_000));
    // The joiner is gone again, but only the confirmed share is used.
    share.on_rows(vec![row(ME, 1, 50)], at(1_100));
    assert_eq!((share.allowance().share, share.next_action(at(1_100))), (25, None));
    share.on_renewed(Renewal::Extended { share: 25, turn: 1 }, at(9_000), at(1_200));
    share.on_rows(vec![row(ME, 1, 25)], at(1_200));
    assert_eq!(share.next_action(at(1_200)), Some(ShareAction::Reserve { share: 50 }));
}

#[test]
fn with_more_processes_than_tokens_those_that_waited_longest_are_next() {
    let mut share = joined(2);
    let rows = |own| vec![row(ME, 1, own), row(OTHER, 2, 1), row(MemberId(3), 3, 0)];
    share.on_rows(rows(0), at(0));
    assert_eq!(do_next(&mut share, at(0)), Some(ShareAction::Reserve { share: 1 }));
    apply(&mut share);
    assert_eq!(share.next_action(at(4_999)), None);
    assert_eq!(share.next_wake(at(10)), Some(at(5_000)));
    // Its time has ended: it releases its token, and moves to the end of the order.
    assert_eq!(share.next_action(at(5_000)), None);
    assert_eq!(share.allowance().share, 0);
    apply(&mut share);
    assert_eq!(do_next(&mut share, at(5_000)), Some(ShareAction::Lower { share: 0, turn: Some(4) }));
    assert_eq!(share.next_action(at(5_000)), None);
}
