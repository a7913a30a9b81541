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
    access::{key, note},
    setup::{
        self, GUILD, KEEP, at, change, claim, ended, fresh, in_guild, keyed, new_id, on_both, operation, record,
        refused, state_of, submit, tried,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);

on_both! {
    async fn what_is_accepted_is_loaded_in_order_with_all_its_parts(engine) {
        let (store, _place) = fresh(engine).await;
        let first = NewOperation {
            payload: r#"{"name":"ü\u0000\"'"}"#.to_owned(),
            deadline_at: Some(at(99)),
            deployment: Some(new_id()),
            trace: TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            reason: Some("because".to_owned()),
            ..in_guild()
        };
        let second = in_guild();
        let other = operation(QueueKey::user(5));
        let submitted = store.submit(vec![first.clone(), second.clone(), other.clone()]).await.unwrap();
        let to_user = SubmitResult::Accepted { seq: 1, queue: setup::of_user(5), state: OperationState::Queued };
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
        assert_eq!(store.load(setup::of_user(5), 0, 10).await.unwrap().operations[0].operation.id, other.id);
    }

    async fn a_change_is_kept_once_however_often_it_is_told(engine) {
        let (store, _place) = fresh(engine).await;
        let operation = keyed("k");
        submit(&store, &operation).await;
        let fence = claim(&store, QUEUE).await.fence;
        let mut start = change(&operation, fence, OperationState::Running);
        start.intent = IntentUpdate::Open(at(3));
        for _ in 0..2 {
            assert_eq!(record(&store, start.clone()).await, UpdateResult::Done);
            assert_eq!(store.load(QUEUE, 0, 1).await.unwrap().operations[0].intent, Some(at(3)));
        }
        let mut end = change(&operation, fence, OperationState::Succeeded);
        end.result = Some("{\"id\":\"9\"}".to_owned());
        end.made = Some(9);
        end.attempt = Some(tried(1));
        for _ in 0..2 {
            assert_eq!(record(&store, end.clone()).await, UpdateResult::Done);
        }
        let shown = store.show(operation.id).await.unwrap().unwrap();
        assert_eq!((shown.stored.state, shown.attempts.len()), (OperationState::Succeeded, 1));
        assert_eq!(shown.stored.intent, None, "the outcome is known");
        assert_eq!((shown.result, shown.finished_at), (end.result.clone(), Some(at(10))));
        assert_eq!(shown.stored.operation.idempotency, operation.idempotency);
        assert_eq!(record(&store, change(&operation, fence, OperationState::Dead)).await, UpdateResult::Gone);
        assert!(store.load(QUEUE, 0, 9).await.unwrap().operations.is_empty());
        assert!(store.release(QUEUE, fence).await.unwrap());
        assert_eq!(store.next_due().await.unwrap(), None);
        let again = NewOperation { id: new_id(), ..operation.clone() };
        let existing = SubmitResult::Existing { id: operation.id, state: OperationState::Succeeded, result: end.result };
        assert_eq!(submit(&store, &again).await, existing);
    }

    async fn an_end_and_the_next_start_go_together_and_one_operation_may_change_twice(engine) {
        let (store, _place) = fresh(engine).await;
        let (one, two) = (in_guild(), in_guild());
        store.submit(vec![one.clone(), two.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        let changes = vec![
            change(&one, fence, OperationState::Running),
            change(&one, fence, OperationState::Succeeded),
            change(&two, fence, OperationState::Running),
            change(&one, fence, OperationState::Dead),
        ];
        let recorded = store.record(changes).await.unwrap();
        assert_eq!(recorded, [UpdateResult::Done, UpdateResult::Done, UpdateResult::Done, UpdateResult::Gone]);
        assert_eq!((state_of(&store, one.id).await, state_of(&store, two.id).await), (OperationState::Succeeded, OperationState::Running));
        assert!(store.letters(DeadLetterFilter { limit: 9, ..Default::default() }).await.unwrap().is_empty());
    }

    async fn a_stale_fence_changes_nothing(engine) {
        let (store, _place) = fresh(engine).await;
        let operation = in_guild();
        submit(&store, &operation).await;
        let first = claim(&store, QUEUE).await.fence;
        assert!(store.claim(ClaimFrom::Queues(vec![QUEUE])).await.unwrap().is_empty(), "it is claimed already");
        assert!(store.release(QUEUE, first).await.unwrap());
        assert!(store.release(QUEUE, first).await.unwrap(), "release is idempotent");
        assert_eq!(record(&store, change(&operation, first, OperationState::Running)).await, UpdateResult::Fenced);
        let second = claim(&store, QUEUE).await.fence;
        assert!(second > first);
        assert_eq!(record(&store, change(&operation, first, OperationState::Running)).await, UpdateResult::Fenced);
        assert!(!store.release(QUEUE, first).await.unwrap());
        let mixed = vec![change(&operation, second, OperationState::Running), change(&operation, first, OperationState::Dead)];
        assert_eq!(store.record(mixed).await.unwrap(), [UpdateResult::Done, UpdateResult::Fenced]);
        assert_eq!(state_of(&store, operation.id).await, OperationState::Running);
    }

    async fn many_operations_at_once_are_kept_like_one(engine) {
        let (store, _place) = fresh(engine).await;
        let batch: Vec<_> = (0..600).map(|nth| keyed(&nth.to_string())).collect();
        let accepted: Vec<_> = (1..=600).map(setup::accepted).collect();
        assert_eq!(store.submit(batch.clone()).await.unwrap(), accepted);
        let fence = claim(&store, QUEUE).await.fence;
        let loaded = store.load(QUEUE, 0, 1_000).await.unwrap().operations;
        let in_order = loaded.iter().map(|stored| stored.operation.id);
        assert!(in_order.eq(batch.iter().map(|operation| operation.id)));
        let ends: Vec<_> = batch.iter().map(|operation| change(operation, fence, OperationState::Succeeded)).collect();
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
        let (store, _place) = fresh(engine).await;
        let callers: Vec<_> = (0..50).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { submit(&store, &keyed("same")).await })
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

    async fn a_batch_is_kept_as_a_whole_or_not_at_all(engine) {
        let (store, _place) = fresh(engine).await;
        let first = keyed("used");
        submit(&store, &first).await;
        let other = NewOperation { payload_hash: [8; 32], ..keyed("used") };
        let batch = vec![in_guild(), keyed("fresh"), other];
        assert_eq!(refused(&store, batch).await, SubmitError::KeyReused { index: 2, id: first.id });
        let one = keyed("twice");
        let two = NewOperation { payload_hash: [8; 32], ..keyed("twice") };
        assert_eq!(refused(&store, vec![one.clone(), two]).await, SubmitError::KeyReused { index: 1, id: one.id });
        let nobody = new_id();
        let lost = NewOperation { refers_to: vec![nobody], ..in_guild() };
        let missing = SubmitError::NoSuchOperation { index: 1, id: nobody };
        assert_eq!(refused(&store, vec![in_guild(), lost]).await, missing);
        let elsewhere = NewOperation { refers_to: vec![first.id], ..operation(QueueKey::Guild(3)) };
        assert!(matches!(refused(&store, vec![elsewhere]).await, SubmitError::NoSuchOperation { index: 0, .. }));
        assert_eq!(store.load(QUEUE, 0, 99).await.unwrap().operations.len(), 1);
        let same = vec![keyed("a"), keyed("a")];
        let id = same[0].id;
        let submitted = store.submit(same).await.unwrap();
        assert_eq!(submitted[1], SubmitResult::Existing { id, state: OperationState::Queued, result: None });
        assert_eq!(submitted[0], setup::accepted(2));
    }

    async fn a_queue_takes_no_more_than_it_may(engine) {
        let (store, _place) = fresh(engine).await;
        store.submit((0..999).map(|_| in_guild()).collect()).await.unwrap();
        let full = SubmitError::Full { queue: QUEUE, pending: 1000, most: 1000 };
        assert_eq!(refused(&store, vec![in_guild(), in_guild()]).await, full);
        assert_eq!(submit(&store, &in_guild()).await, setup::accepted(1000));
        assert!(matches!(refused(&store, vec![in_guild()]).await, SubmitError::Full { .. }));
        submit(&store, &operation(QueueKey::application())).await;
        let fence = claim(&store, QUEUE).await.fence;
        let first = store.load(QUEUE, 0, 1).await.unwrap().operations.remove(0).operation;
        record(&store, change(&first, fence, OperationState::Succeeded)).await;
        submit(&store, &in_guild()).await;
    }

    async fn queues_are_claimed_when_due_the_longest_waiting_first(engine) {
        let (store, _place) = fresh(engine).await;
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
        let mut later = change(&head, claims[0].fence, OperationState::Delayed);
        later.eligible_at = at(77);
        record(&store, later).await;
        store.release(Queue::Guild(2), claims[0].fence).await.unwrap();
        assert_eq!(store.next_due().await.unwrap(), Some(at(77)), "the others wait for the first");
    }

    async fn what_was_cancelled_cannot_start_and_what_started_cannot_be_cancelled(engine) {
        let (store, _place) = fresh(engine).await;
        let (one, two) = (keyed("one"), in_guild());
        store.submit(vec![one.clone(), two.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        for _ in 0..2 {
            assert_eq!(store.cancel(one.id, at(1)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
        }
        assert_eq!(record(&store, change(&one, fence, OperationState::Running)).await, UpdateResult::Gone);
        assert_eq!(record(&store, change(&two, fence, OperationState::Running)).await, UpdateResult::Done);
        assert_eq!(store.cancel(two.id, at(1)).await.unwrap(), Some((OperationState::Running, QUEUE)));
        assert_eq!(store.cancel(new_id(), at(1)).await.unwrap(), None);
        let again = NewOperation { id: new_id(), ..one.clone() };
        let existing = SubmitResult::Existing { id: one.id, state: OperationState::Cancelled, result: None };
        assert_eq!(submit(&store, &again).await, existing);
        assert_eq!(store.depths().await.unwrap()["running"], 1);
        assert_eq!(store.depths().await.unwrap()["queued"], 0);
    }

    async fn what_may_have_happened_cannot_be_cancelled_though_it_waits(engine) {
        let (store, _place) = fresh(engine).await;
        let (tried, sent, held) = (in_guild(), in_guild(), in_guild());
        store.submit(vec![tried.clone(), sent.clone(), held.clone()]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, OperationUpdate { attempts: 1, ..change(&tried, fence, OperationState::Retrying) }).await;
        record(&store, OperationUpdate { attempts: 1, ..change(&tried, fence, OperationState::Delayed) }).await;
        record(&store, OperationUpdate { attempts: 0, intent: IntentUpdate::Open(at(1)), ..change(&sent, fence, OperationState::Queued) }).await;
        record(&store, OperationUpdate { attempts: 0, ..change(&held, fence, OperationState::Delayed) }).await;
        assert_eq!(store.cancel(tried.id, at(2)).await.unwrap(), Some((OperationState::Delayed, QUEUE)));
        assert_eq!(store.cancel(sent.id, at(2)).await.unwrap(), Some((OperationState::Queued, QUEUE)));
        assert_eq!(store.cancel(held.id, at(2)).await.unwrap(), Some((OperationState::Cancelled, QUEUE)));
    }

    async fn unknown_outcome_is_stored_until_the_operation_ends(engine) {
        let (store, _place) = fresh(engine).await;
        let (one, other) = (in_guild(), in_guild());
        store.submit(vec![one.clone(), other]).await.unwrap();
        let fence = claim(&store, QUEUE).await.fence;
        let mut unknown = UnknownOutcome::new(at(7));
        let set = |unknown: &UnknownOutcome| Some(unknown.clone());
        record(&store, OperationUpdate { unknown_outcome: set(&unknown), ..change(&one, fence, OperationState::Retrying) }).await;
        // A field that an update does not set stays.
        record(&store, change(&one, fence, OperationState::Running)).await;
        let stored = async |store: &Store| -> Vec<Option<UnknownOutcome>> {
            let page = store.load(QUEUE, 0, 10).await.unwrap();
            page.operations.into_iter().map(|stored| stored.unknown_outcome).collect()
        };
        assert_eq!(stored(&store).await, [set(&unknown), None]);
        unknown.ends_with = Some(Failure::new(FailureClass::Forbidden, "Missing Permissions"));
        (unknown.checked_since, unknown.failed_checks) = (Some(at(9)), 2);
        record(&store, OperationUpdate { unknown_outcome: set(&unknown), ..change(&one, fence, OperationState::Reconciling) }).await;
        assert_eq!(stored(&store).await, [set(&unknown), None]);
        assert_eq!(store.show(one.id).await.unwrap().unwrap().stored.unknown_outcome, set(&unknown));
    }

    async fn progress_and_the_first_time_of_an_intent_stay_until_the_end(engine) {
        let (store, place) = fresh(engine).await;
        let partial = in_guild();
        submit(&store, &partial).await;
        let fence = claim(&store, QUEUE).await.fence;
        let mut progress = Progress::default();
        progress.add(ProgressStep::RoleOverwriteSet { channel_id: 1, role_id: 2 });
        let json = progress.to_json().unwrap();
        let stored = async |store: &Store| store.load(QUEUE, 0, 1).await.unwrap().operations.remove(0);
        record(&store, OperationUpdate { intent: IntentUpdate::Open(at(1)), ..change(&partial, fence, OperationState::Running) }).await;
        let steps = Some(ProgressUpdate { grown: json.len(), json });
        record(&store, OperationUpdate { attempts: 0, progress: steps, ..change(&partial, fence, OperationState::Queued) }).await;
        record(&store, OperationUpdate { intent: IntentUpdate::Open(at(7)), ..change(&partial, fence, OperationState::Running) }).await;
        let seen = stored(&store).await;
        assert_eq!((seen.intent, &seen.progress), (Some(at(1)), &progress), "the first time, and the completed steps");
        record(&store, OperationUpdate { attempts: 0, intent: IntentUpdate::Close, ..change(&partial, fence, OperationState::Queued) }).await;
        assert_eq!(store.cancel(partial.id, at(2)).await.unwrap(), Some((OperationState::Queued, QUEUE)), "a step was \
            done");
        record(&store, change(&partial, fence, OperationState::Dead)).await;
        store.close().await;
        let store = place.open().await;
        let shown = store.show(partial.id).await.unwrap().unwrap().stored;
        assert_eq!((shown.intent, shown.progress), (None, progress));
    }

    async fn what_waited_behind_a_cancelled_operation_is_due_at_once(engine) {
        let (store, place) = fresh(engine).await;
        let (head, next) = (in_guild(), in_guild());
        store.submit(vec![head.clone(), next]).await.unwrap();
        let delay = async |fence| {
            let later = OperationUpdate { attempts: 0, eligible_at: at(9_000), ..change(&head, fence, OperationState::Delayed) };
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
        submit(&store, &NewOperation { eligible_at: at(3), created_at: at(3), ..in_guild() }).await;
        record(&store, change(&next, fence, OperationState::Succeeded)).await;
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.next_due().await.unwrap(), Some(at(3)));
    }

    async fn an_operation_that_waits_can_be_hastened(engine) {
        let (store, _place) = fresh(engine).await;
        let operation = NewOperation { eligible_at: at(500), ..in_guild() };
        submit(&store, &operation).await;
        for _ in 0..2 {
            assert_eq!(store.hasten(operation.id, at(5)).await.unwrap(), Some((OperationState::Queued, QUEUE)));
        }
        assert_eq!(store.next_due().await.unwrap(), Some(at(5)));
        assert_eq!(store.hasten(new_id(), at(5)).await.unwrap(), None);
    }

    async fn queues_that_wait_for_the_gate_are_made_due_when_it_changes(engine) {
        let (store, _place) = fresh(engine).await;
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
            record(&store, change(&operation, fence, OperationState::Running)).await;
            let held = OperationUpdate { eligible_at: at(9_000), error: Some(held_by(condition)), ..change(&operation, fence, state) };
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

    async fn the_sweep_keeps_what_something_pending_refers_to(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (made, plain) = (in_guild(), in_guild());
        ended(&store, &made, fence, OperationState::Succeeded).await;
        ended(&store, &plain, fence, OperationState::Succeeded).await;
        let refers = NewOperation { refers_to: vec![made.id], ..in_guild() };
        submit(&store, &refers).await;
        assert_eq!(store.sweep(KEEP, at(1_009)).await.unwrap().operations, 0);
        assert_eq!(store.sweep(KEEP, at(1_010)).await.unwrap().operations, 1);
        assert!(store.show(plain.id).await.unwrap().is_none());
        assert!(store.show(made.id).await.unwrap().is_some());
        record(&store, change(&refers, fence, OperationState::Succeeded)).await;
        assert_eq!(store.sweep(KEEP, at(5_000)).await.unwrap().operations, 2);
    }

    async fn each_kind_of_end_is_kept_for_its_own_time(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (dead, review, keyed) = (in_guild(), in_guild(), keyed("kept"));
        ended(&store, &dead, fence, OperationState::Dead).await;
        ended(&store, &review, fence, OperationState::NeedsReview).await;
        ended(&store, &keyed, fence, OperationState::Succeeded).await;
        store.set_state("gone", Some("x".to_owned()), Some(at(0))).await.unwrap();
        let swept = store.sweep(KEEP, at(9_000)).await.unwrap();
        assert_eq!((swept.operations, swept.letters, swept.keys, swept.state), (1, 0, 0, 1));
        let again = || NewOperation { id: new_id(), ..keyed.clone() };
        assert!(matches!(submit(&store, &again()).await, SubmitResult::Existing { .. }), "the key outlives the \
            operation");
        let swept = store.sweep(KEEP, at(11_000)).await.unwrap();
        assert_eq!((swept.operations, swept.letters), (1, 0));
        let swept = store.sweep(KEEP, at(60_010)).await.unwrap();
        assert_eq!((swept.operations, swept.keys), (0, 1));
        assert!(matches!(submit(&store, &again()).await, SubmitResult::Accepted { .. }));
        let swept = store.sweep(KEEP, at(100_010)).await.unwrap();
        assert_eq!((swept.operations, swept.letters), (1, 1));
    }

    async fn a_key_whose_time_is_up_is_free_before_it_is_swept(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let first = keyed("short");
        ended(&store, &first, fence, OperationState::Succeeded).await;
        let late = NewOperation { created_at: at(60_010), payload_hash: [9; 32], ..keyed("short") };
        assert!(matches!(submit(&store, &late).await, SubmitResult::Accepted { .. }));
    }

    async fn dead_letters_are_done_again_once_and_keep_their_origin(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (dead, review) = (in_guild(), in_guild());
        submit(&store, &dead).await;
        let mut died = change(&dead, fence, OperationState::Dead);
        died.error = Some(Failure { status: Some(403), ..Failure::new(FailureClass::Forbidden, "may not") });
        record(&store, died.clone()).await;
        ended(&store, &review, fence, OperationState::NeedsReview).await;
        let all = || DeadLetterFilter { limit: 10, ..Default::default() };
        let letter = store.letters(all()).await.unwrap().remove(0);
        assert_eq!((letter.id, Some(letter.error), letter.attempts), (dead.id, died.error, 1));
        let again = NewOperation { redrive_of: Some(dead.id), ..in_guild() };
        let too = NewOperation { redrive_of: Some(dead.id), ..in_guild() };
        let reviewed = NewOperation { redrive_of: Some(review.id), ..in_guild() };
        let nothing = NewOperation { redrive_of: Some(new_id()), ..in_guild() };
        let batch = vec![again.clone(), too, reviewed.clone(), nothing];
        assert_eq!(store.redrive(batch.clone()).await.unwrap(), [again.id, reviewed.id]);
        assert_eq!(store.redrive(batch).await.unwrap(), [again.id, reviewed.id], "redrive is idempotent");
        assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 2);
        assert_eq!(store.letters(all()).await.unwrap()[0].redriven_as, Some(again.id));
        let open = DeadLetterFilter { redriven: Some(false), ..all() };
        assert!(store.letters(open.clone()).await.unwrap().is_empty());
        assert_eq!(store.depths().await.unwrap()["dead_letters"], 0, "a redriven letter needs no attention");
        record(&store, change(&again, fence, OperationState::Dead)).await;
        let letters = store.letters(open.clone()).await.unwrap();
        assert_eq!((letters[0].id, letters[0].redrive_of), (again.id, Some(dead.id)));
        let forbidden = DeadLetterFilter { class: Some("forbidden".to_owned()), ..all() };
        assert_eq!(store.discard(forbidden).await.unwrap(), 1);
        assert_eq!(store.depths().await.unwrap()["dead_letters"], 1);
    }

    async fn what_is_paused_is_not_claimed_as_due(engine) {
        let (store, _place) = fresh(engine).await;
        store.submit(vec![in_guild(), operation(QueueKey::user(4))]).await.unwrap();
        store.pause(PauseTarget::Queue(QUEUE), true).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), (false, vec![QUEUE]));
        let claims = store.claim(ClaimFrom::Due { now: at(9), limit: 9 }).await.unwrap();
        assert_eq!(claims.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [setup::of_user(4)]);
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

    async fn objects_are_known_by_their_latest_key(engine) {
        let (store, _place) = fresh(engine).await;
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
        let nothing = ResolvedReference::Nothing(None);
        let bind = async |bind: Vec<Binding>, unbind: Vec<(ManagedKind, u64)>| {
            let operation = in_guild();
            submit(&store, &operation).await;
            let mut end = change(&operation, fence, OperationState::Succeeded);
            (end.bind, end.unbind) = (bind, unbind);
            record(&store, end).await;
        };
        bind(vec![role("mod", 1)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(1), nothing, nothing]);
        bind(vec![role("mod", 2)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(2), nothing, nothing]);
        bind(vec![role("vip", 2)], vec![]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [nothing, object(2), nothing]);
        assert_eq!(store.bound(ManagedKind::Role, vec![1, 2, 3]).await.unwrap(), [2]);
        bind(vec![role("mod", 5)], vec![(ManagedKind::Role, 2)]).await;
        assert_eq!(store.resolve(Some(GUILD), wanted()).await.unwrap(), [object(5), nothing, nothing]);
        assert_eq!(store.resolve(Some(7), wanted()).await.unwrap(), [nothing, nothing, nothing]);
    }

    async fn what_an_operation_made_is_found_by_its_name(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (role, waits, dead) = (in_guild(), in_guild(), in_guild());
        store.submit(vec![role.clone(), waits.clone()]).await.unwrap();
        let mut end = change(&role, fence, OperationState::Succeeded);
        end.made = Some(55);
        record(&store, end).await;
        ended(&store, &dead, fence, OperationState::Dead).await;
        let ids = [role.id, waits.id, dead.id, new_id()];
        let wanted = || ids.into_iter().map(UnresolvedReference::Operation).collect::<Vec<_>>();
        let nothing = ResolvedReference::Nothing(None);
        let resolved = store.resolve(Some(GUILD), wanted()).await.unwrap();
        let made = ResolvedReference::Object { id: 55, channel: None };
        assert_eq!(resolved, [made, ResolvedReference::Pending, ResolvedReference::Nothing(Some(OperationState::Dead)), nothing]);
        assert_eq!(store.resolve(Some(2), wanted()).await.unwrap(), [nothing; 4]);
        assert_eq!(store.bound(ManagedKind::Role, vec![54, 55]).await.unwrap(), [55]);

        let to_a_user = operation(QueueKey::user(9));
        submit(&store, &to_a_user).await;
        let fence = claim(&store, setup::of_user(9)).await.fence;
        let mut end = change(&to_a_user, fence, OperationState::Succeeded);
        end.made = Some(66);
        record(&store, end).await;
        assert_eq!(store.bound(ManagedKind::Message, vec![65, 66]).await.unwrap(), [66], "outside of any guild");
    }

    async fn lists_give_the_newest_first_by_whatever_is_asked(engine) {
        let (store, _place) = fresh(engine).await;
        let fence = claim(&store, QUEUE).await.fence;
        let (one, two) = (in_guild(), NewOperation { kind: OperationKind::CreateRole, ..in_guild() });
        let others = key(1, "other", &["operations:write", "guild:2"]);
        assert_eq!(store.add_key(others, note(AuditAction::KeysCreate)).await.unwrap(), AddKeyResult::Done);
        let other = NewOperation { tenant: "other".into(), ..operation(QueueKey::Guild(2)) };
        store.submit(vec![one.clone(), two.clone(), other.clone()]).await.unwrap();
        let mut parked = change(&two, fence, OperationState::Delayed);
        parked.parked = true;
        record(&store, parked).await;
        let list = async |filter: OperationFilter| {
            let shown = store.list(OperationFilter { limit: 10, ..filter }).await.unwrap();
            shown.into_iter().map(|shown| shown.stored.operation.id).collect::<Vec<_>>()
        };
        let any = OperationFilter::default;
        assert_eq!(list(any()).await, [other.id, two.id, one.id]);
        assert_eq!(list(OperationFilter { among: Some(vec![GUILD]), ..any() }).await, [two.id, one.id]);
        assert_eq!(list(OperationFilter { state: Some(OperationState::Delayed), ..any() }).await, [two.id]);
        assert_eq!(list(OperationFilter { kind: Some(OperationKind::AssignRole), ..any() }).await, [other.id, one.id]);
        assert_eq!(list(OperationFilter { parked: Some(true), ..any() }).await, [two.id]);
        assert_eq!(list(OperationFilter { before: Some(two.id), ..any() }).await, [one.id]);
        assert_eq!(list(OperationFilter { tenant: Some("other".into()), ..any() }).await, [other.id]);
    }

    async fn a_guilds_list_has_what_is_done_what_waits_and_what_waits_in_other_queues(engine) {
        let (store, _place) = fresh(engine).await;
        let answer = || NewOperation { guild: Some(GUILD), ..operation(QueueKey::interaction(9)) };
        let all = [in_guild(), answer(), in_guild(), answer(), in_guild()];
        store.submit(all.to_vec()).await.unwrap();
        store.submit(vec![operation(QueueKey::Guild(GUILD + 1))]).await.unwrap();
        let (fence, other) = (claim(&store, QUEUE).await.fence, claim(&store, QueueKey::interaction(9).queue("default")).await.fence);
        ended(&store, &all[0], fence, OperationState::Succeeded).await;
        ended(&store, &all[1], other, OperationState::Succeeded).await;
        record(&store, change(&all[2], fence, OperationState::Running)).await;
        let list = async |filter: OperationFilter, limit: usize| {
            let shown = store.list(OperationFilter { among: Some(vec![GUILD, 77]), limit, ..filter }).await.unwrap();
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

    async fn values_outlive_the_process_until_their_time_is_up(engine) {
        let (store, place) = fresh(engine).await;
        store.set_state("a", Some("1".to_owned()), None).await.unwrap();
        store.set_state("a", Some("2".to_owned()), None).await.unwrap();
        store.set_state("b", Some("3".to_owned()), Some(at(0))).await.unwrap();
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.state("a").await.unwrap().as_deref(), Some("2"));
        store.set_state("a", None, None).await.unwrap();
        assert_eq!(store.state("a").await.unwrap(), None);
    }

    async fn the_next_process_takes_every_queue_and_the_last_ones_words_count_no_more(engine) {
        let (store, place) = fresh(engine).await;
        let operation = in_guild();
        submit(&store, &operation).await;
        let old = claim(&store, QUEUE).await.fence;
        record(&store, change(&operation, old, OperationState::Running)).await;
        store.close().await;
        let store = place.open().await;
        assert_eq!(record(&store, change(&operation, old, OperationState::Succeeded)).await, UpdateResult::Fenced);
        let claims = store.claim(ClaimFrom::Due { now: at(0), limit: 5 }).await.unwrap();
        assert_eq!(claims.len(), 1);
        assert!(claims[0].fence > old && claims[0].fence > Fence(0));
        assert_eq!(store.load(QUEUE, 0, 5).await.unwrap().operations[0].state, OperationState::Running);
    }
}
