//! Following the changes of operations.

use std::{collections::HashMap, time::Duration};

use guildhall::store::Store;
use guildhall_actors::ports::{
    ChangeFeed as _, ChangePage, DeadLetterFilter, NewOperation, OperationFilter, OperationStore as _, OperationUpdate,
};
use guildhall_core::operation::{
    ChangeCursor, Failure, FailureClass, OperationId, OperationKind, OperationState, Queue, QueueKey,
};
use sea_orm::{ConnectionTrait as _, Database, DbBackend, Statement, TransactionTrait as _};
use tokio::time::timeout;

use crate::setup::{
    Engine, GUILD, RETENTION, StoreLocation, TEST_TIMEOUT, at, claim, guild_operation, new_attempt, new_id, on_both,
    open_new_store, operation, operation_update, record, settings_for, submit, submit_and_finish,
};

const QUEUE: Queue = Queue::Guild(GUILD);

async fn current_cursor(store: &Store) -> ChangeCursor {
    ChangeCursor::at(store.visible().await.unwrap())
}

async fn follow(store: &Store, from: &ChangeCursor, limit: usize) -> ChangePage {
    store.follow(from.clone(), OperationFilter::default(), limit).await.unwrap()
}

/// Follows from a cursor to the end, in pages of this size. Returns the changes in order.
async fn catch_up(store: &Store, from: &mut ChangeCursor, page: usize) -> Vec<(OperationId, OperationState)> {
    let mut changes = Vec::new();
    loop {
        let page_read = follow(store, from, page).await;
        for one in &page_read.changed {
            from.on_delivered(&page_read.visible, one.change, one.details.stored.operation.id.uuid());
            changes.push((one.details.stored.operation.id, one.details.stored.state));
        }
        if !page_read.has_more {
            from.on_end(&page_read.visible);
            return changes;
        }
    }
}

fn transient_failure_update(
    operation: &NewOperation,
    fence: guildhall_actors::ports::Fence,
    state: OperationState,
) -> OperationUpdate {
    OperationUpdate {
        error: Some(Failure::new(FailureClass::Transient, "Nobody Answered 100%")),
        ..operation_update(operation, fence, state)
    }
}

on_both! {
    async fn follower_sees_each_change_once_with_the_latest_state(engine) {
        let (store, _place) = open_new_store(engine).await;
        let before = guild_operation();
        submit(&store, &before).await;
        let mut from = current_cursor(&store).await;
        assert!(catch_up(&store, &mut from, 10).await.is_empty(), "a new cursor starts now");
        let (one, two) = (guild_operation(), operation(QueueKey::user(5)));
        store.submit(vec![one.clone(), two.clone()]).await.unwrap();
        assert_eq!(catch_up(&store, &mut from, 10).await, [(one.id, OperationState::Queued), (two.id, OperationState::Queued)]);
        assert!(catch_up(&store, &mut from, 10).await.is_empty());

        let fence = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&before, fence, OperationState::Running)).await;
        record(&store, operation_update(&one, fence, OperationState::Running)).await;
        record(&store, operation_update(&before, fence, OperationState::Succeeded)).await;
        let changes = catch_up(&store, &mut from, 10).await;
        assert_eq!(changes, [(one.id, OperationState::Running), (before.id, OperationState::Succeeded)], "latest states, \
            in the order of the changes");
        store.cancel(two.id, at(20)).await.unwrap();
        assert_eq!(catch_up(&store, &mut from, 10).await, [(two.id, OperationState::Cancelled)]);
        store.close().await;
    }

    async fn page_may_end_within_a_change_and_the_next_continues_there(engine) {
        let (store, _place) = open_new_store(engine).await;
        let mut from = current_cursor(&store).await;
        let batch: Vec<_> = (0..50).map(|_| guild_operation()).collect();
        let ids: Vec<_> = batch.iter().map(|operation| (operation.id, OperationState::Queued)).collect();
        store.submit(batch).await.unwrap();
        let mut changes = Vec::new();
        while changes.len() < 50 {
            let followed = follow(&store, &from, 7).await;
            let one = &followed.changed[0];
            from.on_delivered(&followed.visible, one.change, one.details.stored.operation.id.uuid());
            changes.push((one.details.stored.operation.id, one.details.stored.state));
            // A follower that is interrupted resumes from its saved cursor.
            from = ChangeCursor::from_bytes(&from.to_bytes()).unwrap();
        }
        assert_eq!(changes, ids);
        assert!(catch_up(&store, &mut from, 7).await.is_empty());
        store.close().await;
    }

    async fn filter_returns_only_matching_changes(engine) {
        let (store, _place) = open_new_store(engine).await;
        let from = current_cursor(&store).await;
        let (here, there) = (guild_operation(), operation(QueueKey::Guild(7)));
        store.submit(vec![here.clone(), there.clone(), operation(QueueKey::user(5))]).await.unwrap();
        let fits = |filter: OperationFilter| {
            let (store, from) = (store.clone(), from.clone());
            async move {
                let followed = store.follow(from, filter, 10).await.unwrap();
                followed.changed.iter().map(|one| one.details.stored.operation.id).collect::<Vec<_>>()
            }
        };
        let any = OperationFilter::default;
        assert_eq!(fits(OperationFilter { guilds: Some(vec![7, 9]), ..any() }).await, [there.id]);
        assert_eq!(fits(OperationFilter { guilds: Some(vec![]), ..any() }).await, []);
        assert_eq!(fits(OperationFilter { kind: Some(OperationKind::CreateRole), ..any() }).await, []);
        assert_eq!(fits(OperationFilter { state: Some(OperationState::Queued), ..any() }).await.len(), 3);
        assert_eq!(fits(OperationFilter { tenant: Some("acme".into()), ..any() }).await, []);
        store.close().await;
    }

    async fn change_removed_before_delivery_is_reported(engine) {
        let (store, place) = open_new_store(engine).await;
        let mut late = current_cursor(&store).await;
        let removed = guild_operation();
        submit(&store, &removed).await;
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&removed, fence, OperationState::Succeeded)).await;
        let mut cursor = late.clone();
        let last = follow(&store, &late, 10).await.changed.last().unwrap().change;
        // Other tests use the same server: their open transactions may still hold back the cursor.
        while cursor.is_behind(last) {
            catch_up(&store, &mut cursor, 10).await;
        }
        assert_eq!(follow(&store, &late, 10).await.max_deleted, None);
        assert_eq!(store.sweep(RETENTION, at(10_000)).await.unwrap().operations, 1);
        let forgotten = follow(&store, &late, 10).await.max_deleted.unwrap();
        assert!(late.is_behind(forgotten) && !cursor.is_behind(forgotten));
        // The mark is durable, and numbers continue after a restart.
        store.close().await;
        let store = place.open().await;
        assert_eq!(follow(&store, &late, 10).await.max_deleted, Some(forgotten));
        assert!(!cursor.is_ahead(&store.visible().await.unwrap()));
        let next = guild_operation();
        submit(&store, &next).await;
        assert_eq!(catch_up(&store, &mut cursor, 10).await, [(next.id, OperationState::Queued)]);
        assert_eq!(catch_up(&store, &mut late, 10).await, [(next.id, OperationState::Queued)]);
        store.close().await;
    }

    async fn change_wakes_the_follower(engine) {
        let (store, _place) = open_new_store(engine).await;
        let mut ticks = store.ticks();
        ticks.borrow_and_update();
        let one = guild_operation();
        submit(&store, &one).await;
        assert!(ticks.has_changed().unwrap(), "the wake-up precedes the reply");
        ticks.borrow_and_update();
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&one, fence, OperationState::Succeeded)).await;
        assert!(ticks.has_changed().unwrap());
        store.close().await;
    }

    async fn finished_operation_is_shown_with_all_attempts(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (done, open, unknown) = (guild_operation(), guild_operation(), new_id());
        store.submit(vec![done.clone(), open.clone()]).await.unwrap();
        let held = guildhall_actors::ports::Attempt { class: "rate_limited".to_owned(), ..new_attempt(0) };
        let delayed = OperationUpdate { attempt: Some(held), delays: 1, ..operation_update(&done, fence, OperationState::Delayed) };
        record(&store, delayed).await;
        record(&store, OperationUpdate { attempt: Some(new_attempt(1)), ..operation_update(&done, fence, OperationState::Succeeded) }).await;
        let mut finished = store.finished(vec![done.id, open.id, unknown]).await.unwrap();
        finished.sort_unstable();
        let mut expected = vec![done.id, unknown];
        expected.sort_unstable();
        assert_eq!(finished, expected);
        let shown = store.get_all(vec![done.id, open.id, unknown]).await.unwrap();
        let tries: HashMap<_, _> =
            shown.iter().map(|shown| (shown.stored.operation.id, shown.attempts.iter().map(|tried| tried.n).collect::<Vec<_>>())).collect();
        assert_eq!(tries, HashMap::from([(done.id, vec![0, 1]), (open.id, vec![])]));
        store.close().await;
    }

    async fn operations_are_listed_by_creation_time(engine) {
        let (store, _place) = open_new_store(engine).await;
        let mut all = Vec::new();
        for n in 0..4_u64 {
            // As a service does it: an id contains its creation time.
            let id = OperationId::new(at(n * 1_000).millis(), [n.to_le_bytes()[0]; 10]);
            all.push(NewOperation { id, created_at: at(n * 1_000), ..guild_operation() });
        }
        store.submit(all.clone()).await.unwrap();
        let list = |filter: OperationFilter| {
            let store = store.clone();
            async move {
                let listed = store.list(OperationFilter { limit: 10, ..filter }).await.unwrap();
                listed.iter().map(|shown| shown.stored.operation.created_at.millis() - at(0).millis()).collect::<Vec<_>>()
            }
        };
        let any = OperationFilter::default;
        assert_eq!(list(OperationFilter { created_after: Some(at(2_000)), ..any() }).await, [3_000, 2_000]);
        assert_eq!(list(OperationFilter { created_before: Some(at(2_000)), ..any() }).await, [1_000, 0]);
        let (after, before) = (Some(at(500)), Some(at(2_500)));
        assert_eq!(list(OperationFilter { created_after: after, created_before: before, ..any() }).await, [2_000, 1_000]);
        store.close().await;
    }

    async fn dead_letters_are_found_by_text_and_time_and_discarded_oldest_first(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let mut ids = Vec::new();
        for (n, text) in ["Nobody Answered 100%", "nobody ANSWERED 1000", "ÄRGER_mit !"].into_iter().enumerate() {
            let one = guild_operation();
            submit(&store, &one).await;
            let error = Some(Failure::new(FailureClass::Transient, text));
            let died = OperationUpdate { error, at: at(100 * n as u64), ..operation_update(&one, fence, OperationState::Dead) };
            record(&store, died).await;
            ids.push(one.id);
        }
        let find = |filter: DeadLetterFilter| {
            let store = store.clone();
            async move {
                let found = store.dead_letters(DeadLetterFilter { limit: 10, ..filter }).await.unwrap();
                let mut found: Vec<_> = found.iter().map(|letter| letter.id).collect();
                found.reverse();
                found
            }
        };
        let containing = |text: &str| DeadLetterFilter { message_contains: Some(text.to_owned()), ..DeadLetterFilter::default() };
        assert_eq!(find(containing("NOBODY answered")).await, ids[..2]);
        assert_eq!(find(containing("100%")).await, ids[..1], "wildcards of the engine match literally");
        assert_eq!(find(containing("ärger_MIT !")).await, ids[2..]);
        assert_eq!(find(containing("ärgerxmit")).await, []);
        assert_eq!(find(containing("transient")).await, [], "the class is not part of the text");
        let died = |after: Option<u64>, before: Option<u64>| DeadLetterFilter {
            died_after: after.map(at),
            died_before: before.map(at),
            ..DeadLetterFilter::default()
        };
        assert_eq!(find(died(Some(100), None)).await, ids[1..]);
        assert_eq!(find(died(None, Some(100))).await, ids[..1]);
        assert_eq!(find(died(Some(1), Some(101))).await, ids[1..2]);
        assert_eq!(store.discard(DeadLetterFilter { limit: 1, ..containing("nobody") }).await.unwrap(), 1);
        assert_eq!(find(DeadLetterFilter::default()).await, ids[1..]);
        assert_eq!(store.discard(DeadLetterFilter { limit: 10, ..died(None, Some(1_000)) }).await.unwrap(), 2);
        store.close().await;
    }

    async fn interrupted_follower_misses_no_change_of_concurrent_writers(engine) {
        const GUILDS: u64 = 8;
        const EACH: usize = 60;
        let place = StoreLocation::new(engine).await;
        let first = place.open().await;
        // SQLite has one writer, shared by all clones.
        let second = if engine == Engine::Postgres { place.open().await } else { first.clone() };
        let mut from = current_cursor(&first).await;
        let writers: Vec<_> = (0..GUILDS)
            .map(|guild| {
                let store = if guild % 2 == 0 { first.clone() } else { second.clone() };
                tokio::spawn(write_operations(store, Queue::Guild(100 + guild), EACH))
            })
            .collect();
        let mut last: HashMap<OperationId, OperationState> = HashMap::new();
        let mut cursors = Vec::new();
        while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
            let reader = if fastrand::bool() { &first } else { &second };
            let followed = follow(reader, &from, fastrand::usize(1..40)).await;
            let cut = fastrand::usize(0..=followed.changed.len() + 3);
            for one in followed.changed.iter().take(cut) {
                from.on_delivered(&followed.visible, one.change, one.details.stored.operation.id.uuid());
                last.insert(one.details.stored.operation.id, one.details.stored.state);
            }
            if !followed.has_more && cut >= followed.changed.len() {
                from.on_end(&followed.visible);
            }
            cursors.push(from.to_bytes());
            if fastrand::u8(..) < 16 {
                // Goes back to an earlier cursor.
                from = ChangeCursor::from_bytes(&cursors[fastrand::usize(cursors.len().saturating_sub(20)..cursors.len())]).unwrap();
            }
        }
        let written = futures_util::future::join_all(writers).await;
        for (id, state) in catch_up(&first, &mut from, 13).await {
            last.insert(id, state);
        }
        let written: HashMap<OperationId, OperationState> = written.into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(written.len(), GUILDS as usize * EACH);
        let missed: Vec<_> = written.iter().filter(|(id, state)| last.get(*id) != Some(state)).collect();
        assert!(missed.is_empty(), "{} missed, such as {:?}", missed.len(), missed.first());
        first.close().await;
        second.close().await;
    }
}

/// Submits operations and moves them through their states, with several calls in flight. Returns the last state of
/// each.
async fn write_operations(store: Store, queue: Queue, count: usize) -> Vec<(OperationId, OperationState)> {
    let all: Vec<_> = (0..count).map(|_| operation(queue)).collect();
    let mut outcomes = Vec::new();
    let claimed = store.claim(guildhall_actors::ports::ClaimFrom::Queues(vec![queue])).await.unwrap();
    // Another process may have claimed the queue. Then operations are only submitted and cancelled.
    let fence = claimed.first().map(|claim| claim.fence);
    for batch in all.chunks(7) {
        store.submit(batch.to_vec()).await.unwrap();
        let Some(fence) = fence else {
            for one in batch.iter().step_by(2) {
                store.cancel(one.id, at(5)).await.unwrap();
            }
            let states = [OperationState::Cancelled, OperationState::Queued].into_iter().cycle();
            outcomes.extend(batch.iter().map(|one| one.id).zip(states));
            continue;
        };
        let running = batch.iter().map(|one| operation_update(one, fence, OperationState::Running)).collect();
        store.record(running).await.unwrap();
        let finishing = batch.iter().map(|one| async {
            let last = if fastrand::bool() { OperationState::Succeeded } else { OperationState::Retrying };
            store.record(vec![transient_failure_update(one, fence, last)]).await.unwrap();
            (one.id, last)
        });
        outcomes.extend(futures_util::future::join_all(finishing).await);
    }
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_commit_is_delivered_late_and_blocks_no_other_change() {
    let (store, location) = open_new_store(Engine::Postgres).await;
    let (slow, quick) = (guild_operation(), guild_operation());
    store.submit(vec![slow.clone(), quick.clone()]).await.unwrap();
    let mut from = current_cursor(&store).await;
    // A slow transaction of another process, and an unrelated one that stays open.
    let other_connection = Database::connect(location.raw_url()).await.unwrap();
    let unrelated_connection = Database::connect(location.raw_url()).await.unwrap();
    let open = other_connection.begin().await.unwrap();
    let touch = format!(
        "UPDATE operations SET state = 'delayed', changed = pg_current_xact_id()::text::bigint WHERE id = '{}'",
        slow.id
    );
    open.execute_unprepared(&touch).await.unwrap();
    let unrelated = unrelated_connection.begin().await.unwrap();
    let number = Statement::from_string(DbBackend::Postgres, "SELECT pg_current_xact_id()::text::bigint");
    let number = unrelated.query_one_raw(number).await.unwrap().unwrap();
    let number = number.try_get_by_index::<i64>(0).unwrap().unsigned_abs();

    store.cancel(quick.id, at(5)).await.unwrap();
    assert_eq!(catch_up(&store, &mut from, 10).await, [(quick.id, OperationState::Cancelled)]);
    assert!(from.open().len() >= 2 && from.open().contains(&number), "{from:?}");
    open.commit().await.unwrap();
    let after = guild_operation();
    submit(&store, &after).await;
    let changes = catch_up(&store, &mut from, 10).await;
    assert_eq!(
        changes,
        [(slow.id, OperationState::Delayed), (after.id, OperationState::Queued)],
        "ordered by start of the transaction"
    );
    assert!(catch_up(&store, &mut from, 10).await.is_empty() && from.open().contains(&number));
    unrelated.rollback().await.unwrap();
    assert!(catch_up(&store, &mut from, 10).await.is_empty() && !from.open().contains(&number));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_another_process_wakes_the_follower() {
    let location = StoreLocation::new(Engine::Postgres).await;
    let (one, other) = (location.open().await, location.open().await);
    let shared = async {
        while !one.is_shared() || !other.is_shared() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, shared).await.unwrap();
    let mut ticks = other.ticks();
    let mut from = current_cursor(&other).await;
    // A burst causes few wake-ups, and its last change is not lost.
    let batch: Vec<_> = (0..40).map(|_| guild_operation()).collect();
    for operation in &batch {
        submit(&one, operation).await;
    }
    let mut received = 0;
    let catching_up = async {
        while received < batch.len() {
            ticks.changed().await.unwrap();
            received += catch_up(&other, &mut from, 100).await.len();
        }
    };
    timeout(TEST_TIMEOUT, catching_up).await.unwrap();
    assert_eq!(received, batch.len());
    one.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_copied_from_another_server_can_be_followed() {
    let (store, location) = open_new_store(Engine::Postgres).await;
    let (copied, next) = (guild_operation(), guild_operation());
    submit(&store, &copied).await;
    store.close().await;
    let far = 1_u64 << 50;
    let raw = Database::connect(location.raw_url()).await.unwrap();
    raw.execute_unprepared(&format!("UPDATE operations SET changed = {far}")).await.unwrap();
    raw.execute_unprepared(&format!("INSERT INTO marks (name, at) VALUES ('forgotten', {far})")).await.unwrap();

    let store = Store::open(&settings_for(&location.raw_url())).await.unwrap();
    let mut from = current_cursor(&store).await;
    assert!(catch_up(&store, &mut from, 10).await.is_empty());
    submit(&store, &next).await;
    assert_eq!(catch_up(&store, &mut from, 10).await, [(next.id, OperationState::Queued)]);
    let elsewhere = ChangeCursor::at(guildhall_core::operation::VisibleChanges { next: far, ..Default::default() });
    assert!(elsewhere.is_ahead(&store.visible().await.unwrap()), "a cursor of the old server is ahead");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_restored_from_a_copy_reuses_no_change_number() {
    let location = StoreLocation::new(Engine::Sqlite).await;
    let store = location.open().await;
    let fence = claim(&store, QUEUE).await.fence;
    submit(&store, &guild_operation()).await;
    store.close().await;
    let file = location.raw_url().strip_prefix("sqlite:").unwrap().to_owned();
    let copy = format!("{file}.copy");
    std::fs::copy(&file, &copy).unwrap();

    let store = location.open().await;
    let mut from = current_cursor(&store).await;
    submit_and_finish(&store, &guild_operation(), claim(&store, QUEUE).await.fence, OperationState::Succeeded).await;
    catch_up(&store, &mut from, 10).await;
    store.close().await;
    std::fs::copy(&copy, &file).unwrap();
    let store = location.open().await;
    let next = guild_operation();
    submit(&store, &next).await;
    assert_eq!(catch_up(&store, &mut from, 10).await, [(next.id, OperationState::Queued)], "{fence:?}");
    store.close().await;
}
