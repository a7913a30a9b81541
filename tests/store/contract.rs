//! The contract of the operation store.

use guildhall::store::Store;
use guildhall_actors::access::AuditAction;
use guildhall_actors::ports::{
    AddKeyResult, Binding, ClaimFrom, DeadLetterFilter, Fence, IntentUpdate, KeyStore as _, NewOperation,
    OperationFilter, OperationStore as _, OperationUpdate, PauseTarget, ProgressUpdate, ResolvedReference, SubmitError,
    SubmitResult, UnknownOutcome, UnresolvedReference, UpdateResult,
};
use guildhall_core::operation::{
    Failure, FailureClass, GateCondition, ManagedKind, OperationKind, OperationState, Progress, ProgressStep, Queue,
    QueueKey,
};
use guildhall_core::trace::TraceContext;

use crate::{
    access::{audit_record, key},
    setup::{
        self, GUILD, RETENTION, at, claim, guild_operation, new_attempt, new_id, on_both, open_new_store, operation,
        operation_update, operation_with_key, record, state_of, submit, submit_and_finish, submit_error,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);

on_both! {
    async fn operations_are_loaded_complete_and_in_order(engine) {
        let (store, _place) = open_new_store(engine).await;
        let first = NewOperation {
            payload: r#"{"name":"ü\u0000\"'"}"#.to_owned(),
            deadline_at: Some(at(99)),
            deployment: Some(new_id()),
            trace: TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            reason: Some("because".to_owned()),
            ..guild_operation()
        };
        let second = guild_operation();
        let other = operation(QueueKey::user(5));
        let submitted = store.submit(vec![first.clone(), second.clone(), other.clone()]).await.unwrap();
        let to_user = SubmitResult::Accepted { seq: 1, queue: setup::user_queue(5), state: OperationState::Queued };
        assert_eq!(submitted, [setup::accepted(1), setup::accepted(2), to_user]);
        let loaded = store.load(QUEUE, 0, 10).await.unwrap().operations;
        assert_eq!(loaded.iter().map(|stored| stored.operation.id).collect::<Vec<_>>(), [first.id, second.id]);
        let stored = &loaded[0];
        assert_eq!(stored.operation.payload, first.payload);
        assert_eq!(stored.operation.payload_hash, first.payload_hash);
        assert_eq!(stored.operation.deadline_at, first.deadline_at);
        assert_eq!(stored.operation.deployment, first.deployment);
        assert_eq!((&stored.operation.trace, &stored.operation.reason), (&first.trace, &first.reason));
        assert_eq!((stored.operation.kind, stored.operation.guild), (OperationKind::AssignRole, Some(GUILD)));
        assert_eq!((stored.seq, stored.state, stored.attempts, stored.delays), (1, OperationState::Queued, 0, 0));
        assert!(!stored.parked && stored.intent.is_none() && stored.error.is_none());
        assert_eq!(store.load(QUEUE, 1, 10).await.unwrap().operations.len(), 1);
        assert_eq!(store.load(QUEUE, 0, 1).await.unwrap().operations.len(), 1);
        assert_eq!(store.load(setup::user_queue(5), 0, 10).await.unwrap().operations[0].operation.id, other.id);
    }

    async fn repeated_update_is_applied_once(engine) {
        let (store, _place) = open_new_store(engine).await;
        let operation = operation_with_key("k");
        submit(&store, &operation).await;
        let fence = claim(&store, QUEUE).await.fence;
        let mut start = operation_update(&operation, fence, OperationState::Running);
        start.intent = IntentUpdate::Open(at(3));
        for _ in 0..2 {
            assert_eq!(record(&store, start.clone()).await, UpdateResult::Done);
            assert_eq!(store.load(QUEUE, 0, 1).await.unwrap().operations[0].intent, Some(at(3)));
        }
        let mut end = operation_update(&operation, fence, OperationState::Succeeded);
        end.result = Some("{\"id\":\"9\"}".to_owned());
        end.created = Some(9);
        end.attempt = Some(new_attempt(1));
        for _ in 0..2 {
            assert_eq!(record(&store, end.clone()).await, UpdateResult::Done);
        }
        let shown = store.get(operation.id).await.unwrap().unwrap();
        assert_eq!((shown.stored.state, shown.attempts.len()), (OperationState::Succeeded, 1));
        assert_eq!(shown.stored.intent, None, "the outcome is known");
        assert_eq!((shown.result, shown.finished_at), (end.result.clone(), Some(at(10))));
        assert_eq!(shown.stored.operation.idempotency, operation.idempotency);
        assert_eq!(record(&store, operation_update(&operation, fence, OperationState::Dead)).await, UpdateResult::Finished);
        assert!(store.load(QUEUE, 0, 9).await.unwrap().operations.is_empty());
        assert!(store.release(QUEUE, fence).await.unwrap());
        assert_eq!(store.next_due().await.unwrap(), None);
        let again = NewOperation { id: new_id(), ..operation.clone() };
        let existing = SubmitResult::Existing { id: operation.id, state: OperationState::Succeeded, result: end.result };
        assert_eq!(submit(&store, &again).await, existing);
    }

    async fn one_call_may_update_an_operation_twice(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (one, two) = (guild_operation(), guild_operation());
        store.submit(vec![one.clone(), two.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        let changes = vec![
            operation_update(&one, fence, OperationState::Running),
            operation_update(&one, fence, OperationState::Succeeded),
            operation_update(&two, fence, OperationState::Running),
            operation_update(&one, fence, OperationState::Dead),
        ];
        let recorded = store.record(changes).await.unwrap();
        assert_eq!(recorded, [UpdateResult::Done, UpdateResult::Done, UpdateResult::Done, UpdateResult::Finished]);
        assert_eq!((state_of(&store, one.id).await, state_of(&store, two.id).await), (OperationState::Succeeded, OperationState::Running));
        assert!(store.dead_letters(DeadLetterFilter { limit: 9, ..Default::default() }).await.unwrap().is_empty());
    }

    async fn stale_fence_changes_nothing(engine) {
        let (store, _place) = open_new_store(engine).await;
        let operation = guild_operation();
        submit(&store, &operation).await;
        let first = claim(&store, QUEUE).await.fence;
        assert!(store.claim(ClaimFrom::Queues(vec![QUEUE])).await.unwrap().is_empty(), "it is claimed already");
        assert!(store.release(QUEUE, first).await.unwrap());
        assert!(store.release(QUEUE, first).await.unwrap(), "release is idempotent");
        assert_eq!(record(&store, operation_update(&operation, first, OperationState::Running)).await, UpdateResult::Fenced);
        let second = claim(&store, QUEUE).await.fence;
        assert!(second > first);
        assert_eq!(store.queue_fence(GUILD).await.unwrap(), Some(second.0));
        assert_eq!(store.queue_fence(GUILD + 1).await.unwrap(), None, "a guild without a queue");
        assert_eq!(store.queue_fence(u64::MAX).await.unwrap(), None);
        assert_eq!(record(&store, operation_update(&operation, first, OperationState::Running)).await, UpdateResult::Fenced);
        assert!(!store.release(QUEUE, first).await.unwrap());
        let mixed = vec![operation_update(&operation, second, OperationState::Running), operation_update(&operation, first, OperationState::Dead)];
        assert_eq!(store.record(mixed).await.unwrap(), [UpdateResult::Done, UpdateResult::Fenced]);
        assert_eq!(state_of(&store, operation.id).await, OperationState::Running);
    }

    async fn many_operations_are_stored_in_one_call(engine) {
        let (store, _place) = open_new_store(engine).await;
        let batch: Vec<_> = (0..600).map(|nth| operation_with_key(&nth.to_string())).collect();
        let accepted: Vec<_> = (1..=600).map(setup::accepted).collect();
        assert_eq!(store.submit(batch.clone()).await.unwrap(), accepted);
        let fence = claim(&store, QUEUE).await.fence;
        let loaded = store.load(QUEUE, 0, 1_000).await.unwrap().operations;
        let in_order = loaded.iter().map(|stored| stored.operation.id);
        assert!(in_order.eq(batch.iter().map(|operation| operation.id)));
        let ends: Vec<_> = batch.iter().map(|operation| operation_update(operation, fence, OperationState::Succeeded)).collect();
        assert_eq!(store.record(ends).await.unwrap(), [UpdateResult::Done; 600]);
        assert!(store.load(QUEUE, 0, 1_000).await.unwrap().operations.is_empty());
        let known = |operation: &NewOperation| SubmitResult::Existing {
            id: operation.id,
            state: OperationState::Succeeded,
            result: None,
        };
        let again = batch.iter().map(|operation| NewOperation { id: new_id(), ..operation.clone() }).collect();
        assert_eq!(store.submit(again).await.unwrap(), batch.iter().map(known).collect::<Vec<_>>());
    }

    async fn fifty_callers_with_one_key_get_one_operation(engine) {
        let (store, _place) = open_new_store(engine).await;
        let callers: Vec<_> = (0..50).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { submit(&store, &operation_with_key("same")).await })
        }).collect();
        let mut accepted = 0;
        let mut ids = std::collections::HashSet::new();
        for caller in callers {
            match caller.await.unwrap() {
                SubmitResult::Accepted { .. } => accepted += 1,
                SubmitResult::Existing { id, state, .. } => {
                    assert_eq!(state, OperationState::Queued);
                    ids.insert(id);
                }
            }
        }
        assert_eq!((accepted, ids.len()), (1, 1));
        assert_eq!(store.load(QUEUE, 0, 99).await.unwrap().operations.len(), 1);
    }

    async fn batch_is_stored_as_a_whole_or_not_at_all(engine) {
        let (store, _place) = open_new_store(engine).await;
        let first = operation_with_key("used");
        submit(&store, &first).await;
        let other = NewOperation { payload_hash: [8; 32], ..operation_with_key("used") };
        let batch = vec![guild_operation(), operation_with_key("fresh"), other];
        assert_eq!(submit_error(&store, batch).await, SubmitError::KeyReused { index: 2, id: first.id });
        let one = operation_with_key("twice");
        let two = NewOperation { payload_hash: [8; 32], ..operation_with_key("twice") };
        assert_eq!(submit_error(&store, vec![one.clone(), two]).await, SubmitError::KeyReused { index: 1, id: one.id });
        let nobody = new_id();
        let lost = NewOperation { refers_to: vec![nobody], ..guild_operation() };
        let missing = SubmitError::UnknownOperation { index: 1, id: nobody };
        assert_eq!(submit_error(&store, vec![guild_operation(), lost]).await, missing);
        let elsewhere = NewOperation { refers_to: vec![first.id], ..operation(QueueKey::Guild(3)) };
        assert!(matches!(submit_error(&store, vec![elsewhere]).await, SubmitError::UnknownOperation { index: 0, .. }));
        assert_eq!(store.load(QUEUE, 0, 99).await.unwrap().operations.len(), 1);
        let same = vec![operation_with_key("a"), operation_with_key("a")];
        let id = same[0].id;
        let submitted = store.submit(same).await.unwrap();
        assert_eq!(submitted[1], SubmitResult::Existing { id, state: OperationState::Queued, result: None });
        assert_eq!(submitted[0], setup::accepted(2));
    }

    async fn queue_refuses_operations_past_its_bound(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.submit((0..999).map(|_| guild_operation()).collect()).await.unwrap();
        let full = SubmitError::Full { queue: QUEUE, pending: 1000, max: 1000 };
        assert_eq!(submit_error(&store, vec![guild_operation(), guild_operation()]).await, full);
        assert_eq!(submit(&store, &guild_operation()).await, setup::accepted(1000));
        assert!(matches!(submit_error(&store, vec![guild_operation()]).await, SubmitError::Full { .. }));
        submit(&store, &operation(QueueKey::application())).await;
        let fence = claim(&store, QUEUE).await.fence;
        let first = store.load(QUEUE, 0, 1).await.unwrap().operations.remove(0).operation;
        record(&store, operation_update(&first, fence, OperationState::Succeeded)).await;
        submit(&store, &guild_operation()).await;
    }

    async fn due_queues_are_claimed_longest_waiting_first(engine) {
        let (store, _place) = open_new_store(engine).await;
        let due = |guild, when| NewOperation { eligible_at: at(when), created_at: at(when), ..operation(QueueKey::Guild(guild)) };
        store.submit(vec![due(1, 30), due(2, 10), due(3, 20), due(4, 99)]).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(10)));
        let claims = store.claim(ClaimFrom::Due { now: at(50), limit: 2 }).await.unwrap();
        assert_eq!(claims.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [Queue::Guild(2), Queue::Guild(3)]);
        let rest = store.claim(ClaimFrom::Due { now: at(50), limit: 9 }).await.unwrap();
        assert_eq!(rest.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [Queue::Guild(1)]);
        assert_eq!(store.next_due().await.unwrap(), Some(at(99)));
        let head = store.load(Queue::Guild(2), 0, 1).await.unwrap().operations.remove(0).operation;
        submit(&store, &due(2, 0)).await;
        let mut later = operation_update(&head, claims[0].fence, OperationState::Delayed);
        later.eligible_at = at(77);
        record(&store, later).await;
        store.release(Queue::Guild(2), claims[0].fence).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(77)), "the others wait for the first");
    }

    async fn cancelled_operation_cannot_start_and_running_one_cannot_cancel(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (one, two) = (operation_with_key("one"), guild_operation());
        store.submit(vec![one.clone(), two.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        for _ in 0..2 {
            assert_eq!(store.cancel(one.id, at(1)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        }
        assert_eq!(record(&store, operation_update(&one, fence, OperationState::Running)).await, UpdateResult::Finished);
        assert_eq!(record(&store, operation_update(&two, fence, OperationState::Running)).await, UpdateResult::Done);
        assert_eq!(store.cancel(two.id, at(1)).await.unwrap(), Some((OperationState::Running, QUEUE)));
        assert_eq!(store.cancel(new_id(), at(1)).await.unwrap(), None);
        let again = NewOperation { id: new_id(), ..one.clone() };
        let existing = SubmitResult::Existing { id: one.id, state: OperationState::Cancelled, result: None };
        assert_eq!(submit(&store, &again).await, existing);
        assert_eq!(store.depths().await.unwrap()["running"], 1);
        assert_eq!(store.depths().await.unwrap()["queued"], 0);
    }

    async fn operation_that_may_have_happened_cannot_be_cancelled(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (tried, sent, held) = (guild_operation(), guild_operation(), guild_operation());
        store.submit(vec![tried.clone(), sent.clone(), held.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, OperationUpdate { attempts: 1, ..operation_update(&tried, fence, OperationState::Retrying) }).await;
        record(&store, OperationUpdate { attempts: 1, ..operation_update(&tried, fence, OperationState::Delayed) }).await;
        record(&store, OperationUpdate { attempts: 0, intent: IntentUpdate::Open(at(1)), ..operation_update(&sent, fence, OperationState::Queued) }).await;
        record(&store, OperationUpdate { attempts: 0, ..operation_update(&held, fence, OperationState::Delayed) }).await;
        assert_eq!(store.cancel(tried.id, at(2)).await.unwrap(), Some((OperationState::Delayed, QUEUE)));
        assert_eq!(store.cancel(sent.id, at(2)).await.unwrap(), Some((OperationState::Queued, QUEUE)));
        assert_eq!(store.cancel(held.id, at(2)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
    }

    async fn unknown_outcome_is_stored_until_the_operation_ends(engine) {
        let (store, _place) = open_new_store(engine).await;
        let (one, other) = (guild_operation(), guild_operation());
        store.submit(vec![one.clone(), other]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        let mut unknown = UnknownOutcome::new(at(7));
        let set = |unknown: &UnknownOutcome| Some(unknown.clone());
        record(&store, OperationUpdate { unknown_outcome: set(&unknown), ..operation_update(&one, fence, OperationState::Retrying) }).await;
        // A field that an update does not set stays.
        record(&store, operation_update(&one, fence, OperationState::Running)).await;
        let stored = async |store: &Store| -> Vec<Option<UnknownOutcome>> {
            let page = store.load(QUEUE, 0, 10).await.unwrap();
            page.operations.into_iter().map(|stored| stored.unknown_outcome).collect()
        };
        assert_eq!(stored(&store).await, [set(&unknown), None]);
        unknown.ends_with = Some(Failure::new(FailureClass::Forbidden, "Missing Permissions"));
        (unknown.checked_since, unknown.failed_checks) = (Some(at(9)), 2);
        record(&store, OperationUpdate { unknown_outcome: set(&unknown), ..operation_update(&one, fence, OperationState::Reconciling) }).await;
        assert_eq!(stored(&store).await, [set(&unknown), None]);
        assert_eq!(store.get(one.id).await.unwrap().unwrap().stored.unknown_outcome, set(&unknown));
    }

    async fn progress_and_first_intent_time_stay_until_the_end(engine) {
        let (store, place) = open_new_store(engine).await;
        let partial = guild_operation();
        submit(&store, &partial).await;
        let fence = claim(&store, QUEUE).await.fence;
        let mut progress = Progress::default();
        progress.add(ProgressStep::RoleOverwriteSet { channel_id: 1, role_id: 2 });
        let json = progress.to_json().unwrap();
        let stored = async |store: &Store| store.load(QUEUE, 0, 1).await.unwrap().operations.remove(0);
        record(&store, OperationUpdate { intent: IntentUpdate::Open(at(1)), ..operation_update(&partial, fence, OperationState::Running) }).await;
        let steps = Some(ProgressUpdate { added_bytes: json.len(), json });
        record(&store, OperationUpdate { attempts: 0, progress: steps, ..operation_update(&partial, fence, OperationState::Queued) }).await;
        record(&store, OperationUpdate { intent: IntentUpdate::Open(at(7)), ..operation_update(&partial, fence, OperationState::Running) }).await;
        let seen = stored(&store).await;
        assert_eq!((seen.intent, &seen.progress), (Some(at(1)), &progress), "the first time, and the completed steps");
        record(&store, OperationUpdate { attempts: 0, intent: IntentUpdate::Close, ..operation_update(&partial, fence, OperationState::Queued) }).await;
        assert_eq!(store.cancel(partial.id, at(2)).await.unwrap(), Some((OperationState::Queued, QUEUE)), "a step was \
            done");
        record(&store, operation_update(&partial, fence, OperationState::Dead)).await;
        store.close().await;
        let store = place.open().await;
        let shown = store.get(partial.id).await.unwrap().unwrap().stored;
        assert_eq!((shown.intent, shown.progress), (None, progress));
    }

    async fn operation_behind_a_cancelled_one_is_due_at_once(engine) {
        let (store, place) = open_new_store(engine).await;
        let (head, next) = (guild_operation(), guild_operation());
        store.submit(vec![head.clone(), next]).await.unwrap();
        let delay = async |fence| {
            let later = OperationUpdate { attempts: 0, eligible_at: at(9_000), ..operation_update(&head, fence, OperationState::Delayed) };
            record(&store, later).await;
        };
        let fence = claim(&store, QUEUE).await.fence;
        delay(fence).await;
        store.release(QUEUE, fence).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(9_000)));
        store.cancel(head.id, at(1)).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(0)));
        // The same if the owner of the queue is gone before it could release it.
        let fence = claim(&store, QUEUE).await.fence;
        let next = store.load(QUEUE, 0, 1).await.unwrap().operations.remove(0).operation;
        submit(&store, &NewOperation { eligible_at: at(3), created_at: at(3), ..guild_operation() }).await;
        record(&store, operation_update(&next, fence, OperationState::Succeeded)).await;
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.next_due().await.unwrap(), Some(at(3)));
    }

    async fn waiting_operation_can_be_expedited(engine) {
        let (store, _place) = open_new_store(engine).await;
        let operation = NewOperation { eligible_at: at(500), ..guild_operation() };
        submit(&store, &operation).await;
        for _ in 0..2 {
            assert_eq!(store.expedite(operation.id, at(5)).await.unwrap(), Some((OperationState::Queued, QUEUE)));
        }
        assert_eq!(store.next_due().await.unwrap(), Some(at(5)));
        assert_eq!(store.expedite(new_id(), at(5)).await.unwrap(), None);
    }

    async fn queues_held_by_the_gate_become_due_when_it_changes(engine) {
        let (store, _place) = open_new_store(engine).await;
        let held_by = |condition| Failure { held_by: condition, ..Failure::new(FailureClass::RateLimited, "held") };
        // Held by the gate, held by a route, held by the gate during reconciliation, and held in a queue that has an
        // owner.
        let waits = [
            (1, OperationState::Delayed, Some(GateCondition::Token)),
            (2, OperationState::Delayed, None),
            (3, OperationState::Reconciling, Some(GateCondition::GlobalLimit)),
            (4, OperationState::Delayed, Some(GateCondition::Token)),
        ];
        for (guild, state, condition) in waits {
            let operation = operation(QueueKey::Guild(guild));
            submit(&store, &operation).await;
            let fence = claim(&store, Queue::Guild(guild)).await.fence;
            record(&store, operation_update(&operation, fence, OperationState::Running)).await;
            let held = OperationUpdate { eligible_at: at(9_000), error: Some(held_by(condition)), ..operation_update(&operation, fence, state) };
            record(&store, held).await;
            if guild != 4 {
                store.release(Queue::Guild(guild), fence).await.unwrap();
            }
        }
        assert_eq!(store.next_due().await.unwrap(), Some(at(9_000)));
        assert_eq!(store.release_held(at(50), 1).await.unwrap(), 1);
        assert_eq!(store.release_held(at(50), 9).await.unwrap(), 1);
        assert_eq!(store.release_held(at(50), 9).await.unwrap(), 0);
        let claims = store.claim(ClaimFrom::Due { now: at(50), limit: 9 }).await.unwrap();
        assert_eq!(claims.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [Queue::Guild(1), Queue::Guild(3)]);
        assert_eq!(store.next_due().await.unwrap(), Some(at(9_000)));
    }

    async fn sweep_keeps_what_pending_operations_refer_to(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (made, plain) = (guild_operation(), guild_operation());
        submit_and_finish(&store, &made, fence, OperationState::Succeeded).await;
        submit_and_finish(&store, &plain, fence, OperationState::Succeeded).await;
        let refers = NewOperation { refers_to: vec![made.id], ..guild_operation() };
        submit(&store, &refers).await;
        assert_eq!(store.sweep(RETENTION, at(1_009)).await.unwrap().operations, 0);
        assert_eq!(store.sweep(RETENTION, at(1_010)).await.unwrap().operations, 1);
        assert!(store.get(plain.id).await.unwrap().is_none());
        assert!(store.get(made.id).await.unwrap().is_some());
        record(&store, operation_update(&refers, fence, OperationState::Succeeded)).await;
        assert_eq!(store.sweep(RETENTION, at(5_000)).await.unwrap().operations, 2);
    }

    async fn each_final_state_has_its_own_retention(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (dead, review, keyed) = (guild_operation(), guild_operation(), operation_with_key("kept"));
        submit_and_finish(&store, &dead, fence, OperationState::Dead).await;
        submit_and_finish(&store, &review, fence, OperationState::NeedsReview).await;
        submit_and_finish(&store, &keyed, fence, OperationState::Succeeded).await;
        store.set_state("gone", Some("x".to_owned()), Some(at(0))).await.unwrap();
        let swept = store.sweep(RETENTION, at(9_000)).await.unwrap();
        assert_eq!((swept.operations, swept.dead_letters, swept.keys, swept.state), (1, 0, 0, 1));
        let again = || NewOperation { id: new_id(), ..keyed.clone() };
        assert!(matches!(submit(&store, &again()).await, SubmitResult::Existing { .. }), "the key outlives the \
            operation");
        let swept = store.sweep(RETENTION, at(11_000)).await.unwrap();
        assert_eq!((swept.operations, swept.dead_letters), (1, 0));
        let swept = store.sweep(RETENTION, at(60_010)).await.unwrap();
        assert_eq!((swept.operations, swept.keys), (0, 1));
        assert!(matches!(submit(&store, &again()).await, SubmitResult::Accepted { .. }));
        let swept = store.sweep(RETENTION, at(100_010)).await.unwrap();
        assert_eq!((swept.operations, swept.dead_letters), (1, 1));
    }

    async fn expired_key_is_free_before_it_is_swept(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let first = operation_with_key("short");
        submit_and_finish(&store, &first, fence, OperationState::Succeeded).await;
        let late = NewOperation { created_at: at(60_010), payload_hash: [9; 32], ..operation_with_key("short") };
        assert!(matches!(submit(&store, &late).await, SubmitResult::Accepted { .. }));
    }

    async fn dead_letters_are_redriven_once_and_keep_their_origin(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (dead, review) = (guild_operation(), guild_operation());
        submit(&store, &dead).await;
        let mut died = operation_update(&dead, fence, OperationState::Dead);
        died.error = Some(Failure { status: Some(403), ..Failure::new(FailureClass::Forbidden, "may not") });
        record(&store, died.clone()).await;
        submit_and_finish(&store, &review, fence, OperationState::NeedsReview).await;
        let all = || DeadLetterFilter { limit: 10, ..Default::default() };
        let letter = store.dead_letters(all()).await.unwrap().remove(0);
        assert_eq!((letter.id, Some(letter.error), letter.attempts), (dead.id, died.error, 1));
        let again = NewOperation { redrive_of: Some(dead.id), ..guild_operation() };
        let too = NewOperation { redrive_of: Some(dead.id), ..guild_operation() };
        let reviewed = NewOperation { redrive_of: Some(review.id), ..guild_operation() };
        let nothing = NewOperation { redrive_of: Some(new_id()), ..guild_operation() };
        let batch = vec![again.clone(), too, reviewed.clone(), nothing];
        assert_eq!(store.redrive(batch.clone()).await.unwrap(), [again.id, reviewed.id]);
        assert_eq!(store.redrive(batch).await.unwrap(), [again.id, reviewed.id], "redrive is idempotent");
        assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 2);
        assert_eq!(store.dead_letters(all()).await.unwrap()[0].redriven_as, Some(again.id));
        let open = DeadLetterFilter { redriven: Some(false), ..all() };
        assert!(store.dead_letters(open.clone()).await.unwrap().is_empty());
        assert_eq!(store.depths().await.unwrap()["dead_letters"], 0, "a redriven letter needs no attention");
        record(&store, operation_update(&again, fence, OperationState::Dead)).await;
        let letters = store.dead_letters(open.clone()).await.unwrap();
        assert_eq!((letters[0].id, letters[0].redrive_of), (again.id, Some(dead.id)));
        let forbidden = DeadLetterFilter { class: Some("forbidden".to_owned()), ..all() };
        assert_eq!(store.discard(forbidden).await.unwrap(), 1);
        assert_eq!(store.depths().await.unwrap()["dead_letters"], 1);
    }

    async fn paused_queue_is_not_claimed_as_due(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.submit(vec![guild_operation(), operation(QueueKey::user(4))]).await.unwrap();
        store.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), (false, vec![QUEUE]));
        let claims = store.claim(ClaimFrom::Due { now: at(9), limit: 9 }).await.unwrap();
        assert_eq!(claims.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [setup::user_queue(4)]);
        assert!(claim(&store, QUEUE).await.paused);
        store.pause(PauseTarget::Queue(QUEUE), false).await.unwrap();
        store.pause(PauseTarget::All, true).await.unwrap();
        submit(&store, &operation(QueueKey::application())).await;
        assert!(store.claim(ClaimFrom::Due { now: at(9), limit: 9 }).await.unwrap().is_empty());
        assert_eq!(store.next_due().await.unwrap(), None);
        assert_eq!(store.paused().await.unwrap(), (true, vec![]));
        store.pause(PauseTarget::All, false).await.unwrap();
        assert_eq!(store.claim(ClaimFrom::Due { now: at(9), limit: 9 }).await.unwrap().len(), 1);
    }

    async fn objects_are_found_by_their_latest_key(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let role = |key: &str, id| Binding {
            kind: ManagedKind::Role, key: key.to_owned(), discord_id: id, channel: None, origin: "created",
        };
        let wanted = || vec![
            UnresolvedReference::Key(ManagedKind::Role, "mod".to_owned()),
            UnresolvedReference::Key(ManagedKind::Role, "vip".to_owned()),
            UnresolvedReference::Key(ManagedKind::Channel, "mod".to_owned()),
        ];
        let object = |id| ResolvedReference::Object { id, channel: None };
        let nothing = ResolvedReference::Missing(None);
        let bind = async |bind: Vec<Binding>, unbind: Vec<(ManagedKind, u64)>| {
            let operation = guild_operation();
            submit(&store, &operation).await;
            let mut end = operation_update(&operation, fence, OperationState::Succeeded);
            (end.bind, end.unbind) = (bind, unbind);
            record(&store, end).await;
        };
        bind(vec![role("mod", 1)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(1), nothing, nothing]);
        bind(vec![role("mod", 2)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(2), nothing, nothing]);
        bind(vec![role("vip", 2)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [nothing, object(2), nothing]);
        assert_eq!(store.find_bound(ManagedKind::Role, vec![1, 2, 3]).await.unwrap(), [2]);
        bind(vec![role("mod", 5)], vec![(ManagedKind::Role, 2)]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(5), nothing, nothing]);
        assert_eq!(store.resolve(Some(7), wanted()).await.unwrap(), [nothing, nothing, nothing]);
    }

    async fn created_object_is_found_by_its_operation_id(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (role, waits, dead) = (guild_operation(), guild_operation(), guild_operation());
        store.submit(vec![role.clone(), waits.clone()]).await.unwrap();
        let mut end = operation_update(&role, fence, OperationState::Succeeded);
        end.created = Some(55);
        record(&store, end).await;
        submit_and_finish(&store, &dead, fence, OperationState::Dead).await;
        let ids = [role.id, waits.id, dead.id, new_id()];
        let wanted = || ids.into_iter().map(UnresolvedReference::Operation).collect::<Vec<_>>();
        let nothing = ResolvedReference::Missing(None);
        let resolved = store.resolve(Some(GUILD), wanted()).await.unwrap();
        let made = ResolvedReference::Object { id: 55, channel: None };
        assert_eq!(resolved, [made, ResolvedReference::Pending, ResolvedReference::Missing(Some(OperationState::Dead)), nothing]);
        assert_eq!(store.resolve(Some(2), wanted()).await.unwrap(), [nothing; 4]);
        assert_eq!(store.find_bound(ManagedKind::Role, vec![54, 55]).await.unwrap(), [55]);

        let to_a_user = operation(QueueKey::user(9));
        submit(&store, &to_a_user).await;
        let fence = claim(&store, setup::user_queue(9)).await.fence;
        let mut end = operation_update(&to_a_user, fence, OperationState::Succeeded);
        end.created = Some(66);
        record(&store, end).await;
        assert_eq!(store.find_bound(ManagedKind::Message, vec![65, 66]).await.unwrap(), [66], "outside of any guild");
    }

    async fn lists_are_filtered_and_newest_first(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (one, two) = (guild_operation(), NewOperation { kind: OperationKind::CreateRole, ..guild_operation() });
        let others = key(1, "other", &["operations:write", "guild:2"]);
        assert_eq!(store.add_key(others, audit_record(AuditAction::KeysCreate)).await.unwrap(), AddKeyResult::Done);
        let other = NewOperation { tenant: "other".into(), ..operation(QueueKey::Guild(2)) };
        store.submit(vec![one.clone(), two.clone(), other.clone()]).await.unwrap();
        let mut parked = operation_update(&two, fence, OperationState::Delayed);
        parked.parked = true;
        record(&store, parked).await;
        let list = async |filter: OperationFilter| {
            let shown = store.list(OperationFilter { limit: 10, ..filter }).await.unwrap();
            shown.into_iter().map(|shown| shown.stored.operation.id).collect::<Vec<_>>()
        };
        let any = OperationFilter::default;
        assert_eq!(list(any()).await, [other.id, two.id, one.id]);
        assert_eq!(list(OperationFilter { guilds: Some(vec![GUILD]), ..any() }).await, [two.id, one.id]);
        assert_eq!(list(OperationFilter { state: Some(OperationState::Delayed), ..any() }).await, [two.id]);
        assert_eq!(list(OperationFilter { kind: Some(OperationKind::AssignRole), ..any() }).await, [other.id, one.id]);
        assert_eq!(list(OperationFilter { parked: Some(true), ..any() }).await, [two.id]);
        assert_eq!(list(OperationFilter { before: Some(two.id), ..any() }).await, [one.id]);
        assert_eq!(list(OperationFilter { tenant: Some("other".into()), ..any() }).await, [other.id]);
    }

    async fn guild_list_has_finished_and_pending_operations_of_all_queues(engine) {
        let (store, _place) = open_new_store(engine).await;
        let answer = || NewOperation { guild: Some(GUILD), ..operation(QueueKey::interaction(9)) };
        let all = [guild_operation(), answer(), guild_operation(), answer(), guild_operation()];
        store.submit(all.to_vec()).await.unwrap();
        store.submit(vec![operation(QueueKey::Guild(GUILD + 1))]).await.unwrap();
        let (fence, other) = (claim(&store, QUEUE).await.fence, claim(&store, QueueKey::interaction(9).queue("default")).await.fence);
        submit_and_finish(&store, &all[0], fence, OperationState::Succeeded).await;
        submit_and_finish(&store, &all[1], other, OperationState::Succeeded).await;
        record(&store, operation_update(&all[2], fence, OperationState::Running)).await;
        let list = async |filter: OperationFilter, limit: usize| {
            let shown = store.list(OperationFilter { guilds: Some(vec![GUILD, 77]), limit, ..filter }).await.unwrap();
            let place = |id| all.iter().position(|one| one.id == id).unwrap();
            shown.into_iter().map(|shown| place(shown.stored.operation.id)).collect::<Vec<_>>()
        };
        let any = OperationFilter::default;
        assert_eq!(list(any(), 10).await, [4, 3, 2, 1, 0]);
        assert_eq!(list(any(), 3).await, [4, 3, 2]);
        assert_eq!(list(OperationFilter { before: Some(all[3].id), ..any() }, 2).await, [2, 1]);
        assert_eq!(list(OperationFilter { state: Some(OperationState::Succeeded), ..any() }, 10).await, [1, 0]);
        assert_eq!(list(OperationFilter { state: Some(OperationState::Queued), ..any() }, 10).await, [4, 3]);
        assert_eq!(list(OperationFilter { state: Some(OperationState::Running), ..any() }, 10).await, [2]);
        assert_eq!(list(OperationFilter { tenant: Some("other".into()), ..any() }, 10).await, [0; 0]);
    }

    async fn values_survive_a_restart_until_they_expire(engine) {
        let (store, place) = open_new_store(engine).await;
        store.set_state("a", Some("1".to_owned()), None).await.unwrap();
        store.set_state("a", Some("2".to_owned()), None).await.unwrap();
        store.set_state("b", Some("3".to_owned()), Some(at(0))).await.unwrap();
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.state("a").await.unwrap().as_deref(), Some("2"));
        store.set_state("a", None, None).await.unwrap();
        assert_eq!(store.state("a").await.unwrap(), None);
    }

    async fn next_process_takes_over_queues_and_fences_the_previous_one(engine) {
        let (store, place) = open_new_store(engine).await;
        let operation = guild_operation();
        submit(&store, &operation).await;
        let old = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&operation, old, OperationState::Running)).await;
        store.close().await;
        let store = place.open().await;
        assert_eq!(record(&store, operation_update(&operation, old, OperationState::Succeeded)).await, UpdateResult::Fenced);
        let claims = store.claim(ClaimFrom::Due { now: at(0), limit: 5 }).await.unwrap();
        assert_eq!(claims.len(), 1);
        assert!(claims[0].fence > old && claims[0].fence > Fence(0));
        assert_eq!(store.load(QUEUE, 0, 5).await.unwrap().operations[0].state, OperationState::Running);
    }
}
