//! Scheduled operations, and what an operation waits for.

use std::{sync::Arc, time::Duration};

use guildhall::store::{ClusterEvent, Store};
use guildhall_actors::ports::{
    ClaimFrom, DelayedBy, NewOperation, OperationFilter, OperationStore as _, OperationUpdate, PauseTarget, StoreError,
    SubmitError, SubmitResult, WaitReason,
};
use guildhall_core::{
    operation::{OperationId, OperationState, Queue, QueueKey},
    time::UnixMs,
};
use sea_orm::{ConnectionTrait as _, Database};

use crate::setup::{
    GUILD, accepted, at, claim, guild_operation, on_both, open_new_store, operation, operation_update, queue_of,
    record, state_of, submit, submit_error, user_queue,
};

const QUEUE: Queue = Queue::Guild(GUILD);

fn scheduled_at(after: u64) -> NewOperation {
    NewOperation { eligible_at: at(after), ..guild_operation() }
}

fn refers_to(target: &NewOperation) -> NewOperation {
    NewOperation { refers_to: vec![target.id], ..guild_operation() }
}

/// The operations of a queue in order, without scheduled ones.
async fn order(store: &Store, queue: Queue) -> Vec<OperationId> {
    let page = store.load(queue, 0, 1_000).await.unwrap();
    page.operations.iter().map(|stored| stored.operation.id).collect()
}

async fn first_scheduled(store: &Store) -> Option<UnixMs> {
    store.load(QUEUE, 0, 1).await.unwrap().scheduled
}

async fn wait_reason(store: &Store, id: OperationId) -> Option<WaitReason> {
    store.get(id).await.unwrap().unwrap().waits_for
}

on_both! {
    async fn scheduled_operation_has_no_seq_until_it_is_due(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (late, soon) = (scheduled_at(500), guild_operation());
        let state = OperationState::Scheduled;
        assert_eq!(submit(&store, &late).await, SubmitResult::Accepted { seq: 0, queue: QUEUE, state });
        assert_eq!(submit(&store, &soon).await, accepted(2));
        assert_eq!((order(&store, QUEUE).await, first_scheduled(&store).await), (vec![soon.id], Some(at(500))));
        let shown = store.get(late.id).await.unwrap().unwrap();
        assert_eq!((shown.stored.seq, shown.stored.state, shown.waits_for), (0, state, Some(WaitReason::Delay)));
        assert_eq!(store.depths().await.unwrap()["scheduled"], 1);
        assert_eq!(store.count_scheduled(QUEUE, 10).await.unwrap(), 1);
        let listed = store.list(OperationFilter { state: Some(state), limit: 9, ..OperationFilter::default() }).await.unwrap();
        assert_eq!(listed.iter().map(|shown| shown.stored.operation.id).collect::<Vec<_>>(), [late.id]);
        assert_eq!(store.join_due(QUEUE, at(499), 10).await.unwrap(), Some(at(500)));
        assert_eq!(state_of(&store, late.id).await, state);
        assert_eq!(store.join_due(QUEUE, at(500), 10).await.unwrap(), None);
        assert_eq!(store.join_due(QUEUE, at(500), 10).await.unwrap(), None, "it joins once");
        assert_eq!((order(&store, QUEUE).await, first_scheduled(&store).await), (vec![soon.id, late.id], None));
        assert_eq!(state_of(&store, late.id).await, OperationState::Queued);
    }

    async fn scheduled_operation_waits_from_when_it_is_due(engine) {
        let (store, _place) = open_new_store(engine).await;
        let oldest = async || store.oldest_waiting().await.unwrap()["queued"];
        assert_eq!(oldest().await, None);
        let late = scheduled_at(500);
        submit(&store, &late).await;
        assert_eq!(oldest().await, None, "a scheduled operation does not wait yet");
        store.join_due(QUEUE, at(900), 10).await.unwrap();
        assert_eq!(oldest().await, Some(at(900)));
        let soon = guild_operation();
        submit(&store, &soon).await;
        assert_eq!(oldest().await, Some(soon.created_at), "it was accepted before the other was due");
    }

    async fn queue_is_claimed_when_a_scheduled_operation_is_due(engine) {
        let (store, place) = open_new_store(engine).await;
        let (late, soon) = (scheduled_at(500), guild_operation());
        store.submit(vec![late.clone(), soon.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&soon, fence, OperationState::Succeeded)).await;
        store.release(QUEUE, fence).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(500)));
        assert!(store.claim(ClaimFrom::Due { now: at(499), limit: 9 }).await.unwrap().is_empty());
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.next_due().await.unwrap(), Some(at(500)));
        assert_eq!(store.claim(ClaimFrom::Due { now: at(500), limit: 9 }).await.unwrap().len(), 1);
        store.join_due(QUEUE, at(500), 9).await.unwrap();
        assert_eq!(order(&store, QUEUE).await, [late.id]);
    }

    async fn due_operations_precede_later_submissions(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (third, first, second) = (scheduled_at(30), scheduled_at(10), scheduled_at(20));
        store.submit(vec![third.clone(), first.clone(), second.clone()]).await.unwrap();
        let after = NewOperation { eligible_at: at(25), created_at: at(25), ..guild_operation() };
        assert_eq!(submit(&store, &after).await, accepted(6));
        assert_eq!(order(&store, QUEUE).await, [first.id, second.id, after.id]);
        store.join_due(QUEUE, at(30), 10).await.unwrap();
        assert_eq!(order(&store, QUEUE).await, [first.id, second.id, after.id, third.id]);
    }

    async fn operations_due_together_keep_their_submission_order(engine) {
        let (store, _place) = open_new_store(engine).await;
        let all: Vec<_> =
            (0..700).map(|_| NewOperation { delayed_by: DelayedBy::Policy, ..scheduled_at(50) }).collect();
        for chunk in all.chunks(90) {
            store.submit(chunk.to_vec()).await.unwrap();
        }
        assert_eq!(wait_reason(&store, all[0].id).await, Some(WaitReason::Policy));
        assert_eq!(store.join_due(QUEUE, at(50), 3).await.unwrap(), Some(at(50)), "the others wait for the next call");
        assert_eq!(order(&store, QUEUE).await.len(), 3);
        assert_eq!(store.join_due(QUEUE, at(50), 10_000).await.unwrap(), None);
        assert_eq!(order(&store, QUEUE).await, all.iter().map(|one| one.id).collect::<Vec<_>>());
    }

    async fn scheduled_operations_count_in_the_bound_of_their_queue(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.submit((0..1_000).map(|_| scheduled_at(50)).collect()).await.unwrap();
        assert!(matches!(submit_error(&store, vec![guild_operation()]).await, SubmitError::Full { pending: 1_000, .. }));
    }

    async fn operation_joins_right_after_the_scheduled_one_it_refers_to(engine) {
        let (store, _place) = open_new_store(engine).await;
        let target = scheduled_at(100);
        let (follows, other) = (refers_to(&target), guild_operation());
        let chained = refers_to(&follows);
        let long = NewOperation { eligible_at: at(900), ..refers_to(&target) };
        let batch = vec![target.clone(), long.clone(), follows.clone(), chained.clone(), other.clone()];
        store.submit(batch).await.unwrap();
        assert_eq!(order(&store, QUEUE).await, [other.id]);
        assert_eq!(wait_reason(&store, follows.id).await, Some(WaitReason::Scheduled(target.id)));
        assert_eq!(wait_reason(&store, chained.id).await, Some(WaitReason::Scheduled(follows.id)));
        assert_eq!(first_scheduled(&store).await, Some(at(100)));
        assert_eq!(store.join_due(QUEUE, at(100), 10).await.unwrap(), Some(at(900)));
        assert_eq!(order(&store, QUEUE).await, [other.id, target.id, follows.id, chained.id]);
        assert_eq!(wait_reason(&store, long.id).await, Some(WaitReason::Delay));
    }

    async fn expedited_operation_joins_and_its_dependents_follow(engine) {
        let (store, _place) = open_new_store(engine).await;
        let target = scheduled_at(1_000);
        let follows = refers_to(&target);
        let dm = NewOperation { refers_to: vec![target.id], guild: Some(GUILD), ..operation(QueueKey::user(5)) };
        store.submit(vec![target.clone(), follows.clone(), dm.clone()]).await.unwrap();
        assert_eq!(store.expedite(follows.id, at(5)).await.unwrap(), Some((OperationState::Scheduled, QUEUE)), "it has \
            to wait for its reference");
        let mut notices = store.cluster_events();
        for _ in 0..2 {
            assert_eq!(store.expedite(target.id, at(5)).await.unwrap(), Some((OperationState::Queued, QUEUE)));
        }
        let expected = vec![(queue_of(&dm), None), (QUEUE, None)];
        // A heartbeat may arrive in between.
        let woken = loop {
            match notices.recv().await.unwrap() {
                ClusterEvent::Members => {}
                other => break other,
            }
        };
        assert_eq!(woken, ClusterEvent::Queues(expected), "their queues are woken");
        assert_eq!((order(&store, QUEUE).await, first_scheduled(&store).await), (vec![target.id], Some(at(5))));
        assert_eq!(store.join_due(QUEUE, at(5), 10).await.unwrap(), None);
        assert_eq!(order(&store, QUEUE).await, [target.id, follows.id]);
        assert_eq!(store.load(user_queue(5), 0, 9).await.unwrap().scheduled, Some(at(5)));
        assert_eq!(store.claim(ClaimFrom::Due { now: at(5), limit: 9 }).await.unwrap().len(), 2);
        store.join_due(user_queue(5), at(5), 10).await.unwrap();
        assert_eq!(order(&store, user_queue(5)).await, [dm.id]);
    }

    async fn cancelled_operation_releases_its_dependents(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (target, remaining) = (scheduled_at(1_000), scheduled_at(2_000));
        let follows = NewOperation { refers_to: vec![target.id, remaining.id], ..guild_operation() };
        store.submit(vec![target.clone(), remaining.clone(), follows.clone()]).await.unwrap();
        assert_eq!(store.cancel(target.id, at(5)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        assert_eq!(wait_reason(&store, follows.id).await, Some(WaitReason::Scheduled(remaining.id)));
        assert_eq!(store.cancel(remaining.id, at(6)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        assert_eq!(store.next_due().await.unwrap(), Some(at(6)));
        assert_eq!(store.join_due(QUEUE, at(6), 10).await.unwrap(), None);
        assert_eq!(order(&store, QUEUE).await, [follows.id]);
        assert_eq!(store.cancel(follows.id, at(7)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        assert_eq!(store.next_due().await.unwrap(), None);
    }

    async fn operation_waits_for_a_scheduled_one_of_another_queue(engine) {
        let (store, _place) = open_new_store(engine).await;
        let target = scheduled_at(100);
        let dm = NewOperation { refers_to: vec![target.id], guild: Some(GUILD), ..operation(QueueKey::user(5)) };
        store.submit(vec![target.clone(), dm.clone()]).await.unwrap();
        let again = store.join_due(user_queue(5), at(100), 10).await.unwrap().unwrap();
        assert!(again > at(100), "its target has not joined");
        assert_eq!(state_of(&store, dm.id).await, OperationState::Scheduled);
        store.join_due(QUEUE, at(150), 10).await.unwrap();
        assert_eq!(store.load(user_queue(5), 0, 9).await.unwrap().scheduled, Some(at(150)));
        assert_eq!(store.join_due(user_queue(5), at(150), 10).await.unwrap(), None);
        assert_eq!(order(&store, user_queue(5)).await, [dm.id]);
    }

    async fn deadline_makes_a_scheduled_operation_join(engine) {
        let (store, _place) = open_new_store(engine).await;
        let target = scheduled_at(1_000);
        let late = NewOperation { deadline_at: Some(at(50)), ..refers_to(&target) };
        store.submit(vec![target.clone(), late.clone()]).await.unwrap();
        assert_eq!(first_scheduled(&store).await, Some(at(50)));
        store.join_due(QUEUE, at(50), 10).await.unwrap();
        assert_eq!(order(&store, QUEUE).await, [late.id]);
    }

    async fn tenants_have_separate_queues_for_one_user(engine) {
        let (store, _place) = open_new_store(engine).await;
        let of = |tenant: &str, eligible| NewOperation {
            tenant: Arc::from(tenant),
            eligible_at: at(eligible),
            ..operation(QueueKey::user(5))
        };
        let (a, b) = (of("acme", 2_592_000_000), of("rival", 0));
        let (a_later, c) = (of("acme", 0), of("", 0));
        store.submit(vec![a.clone(), b.clone(), a_later.clone(), c.clone()]).await.unwrap();
        assert_eq!(order(&store, queue_of(&a)).await, [a_later.id]);
        assert_eq!(order(&store, queue_of(&b)).await, [b.id]);
        assert_eq!(order(&store, user_queue(5)).await, [c.id], "without a tenant it belongs to the default one");
        assert_eq!(wait_reason(&store, b.id).await, Some(WaitReason::Owner));
    }

    async fn queue_number_collision_is_refused_with_the_queue_name(engine) {
        let (store, place) = open_new_store(engine).await;
        submit(&store, &operation(QueueKey::user(5))).await;
        let connection = Database::connect(place.raw_url()).await.unwrap();
        let other = "UPDATE guild_queues SET key = 'another' WHERE key = '5'";
        connection.execute_unprepared(other).await.unwrap();
        let error = submit_error(&store, vec![operation(QueueKey::user(5))]).await;
        let SubmitError::Store(StoreError::Corrupt(message)) = &error else { panic!("{error:?}") };
        assert!(message.contains("the queue of user 5 of tenant default") && !message.contains("another'"), "{message}");
        submit(&store, &operation(QueueKey::user(6))).await;
    }

    async fn queued_operation_shows_what_it_waits_for(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (head, next) = (guild_operation(), guild_operation());
        store.submit(vec![head.clone(), next.clone()]).await.unwrap();
        assert_eq!(wait_reason(&store, head.id).await, Some(WaitReason::Owner));
        assert_eq!(wait_reason(&store, next.id).await, Some(WaitReason::Behind(head.id)));
        let fence = claim(&store, QUEUE).await.fence;
        assert_eq!(wait_reason(&store, head.id).await, Some(WaitReason::NextInQueue));
        let parked = OperationUpdate { parked: true, attempts: 0, ..operation_update(&head, fence, OperationState::Delayed) };
        record(&store, parked).await;
        assert_eq!(wait_reason(&store, next.id).await, Some(WaitReason::Behind(head.id)), "it may conflict");
        assert_eq!(wait_reason(&store, head.id).await, None, "a delayed operation shows its own reason");
        store.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        assert_eq!(wait_reason(&store, next.id).await, Some(WaitReason::Paused));
        store.pause(PauseTarget::All, true).await.unwrap();
        let listed = store.list(OperationFilter { limit: 9, ..OperationFilter::default() }).await.unwrap();
        let waits: Vec<_> = listed.iter().map(|shown| shown.waits_for).collect();
        assert_eq!(waits, [Some(WaitReason::AllPaused); 2], "a pause outlasts the reason of a delayed operation");
    }

    async fn many_scheduled_operations_are_not_loaded(engine) {
        let (store, _place) = open_new_store(engine).await;
        for n in 0..10 {
            store.submit((0..100).map(|m| scheduled_at(1_000 - n * 100 - m)).collect()).await.unwrap();
        }
        let page = store.load(QUEUE, 0, 1_000).await.unwrap();
        assert_eq!((page.operations.len(), page.scheduled), (0, Some(at(1))));
        assert_eq!(store.count_scheduled(QUEUE, 50).await.unwrap(), 50);
        tokio::time::timeout(Duration::from_secs(30), store.join_due(QUEUE, at(1_000), 1_000)).await.unwrap().unwrap();
        assert_eq!(order(&store, QUEUE).await.len(), 1_000);
    }
}
