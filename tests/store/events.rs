//! The contract of sessions and handled events.

use std::{sync::Arc, time::Duration};

use guildhall_actors::ports::{
    CommitResult, EventStore as _, HandlerCommit, IdentifyDecision, IdentifyRequest, NewOperation, OperationStore as _,
    StateWrite, StoredSession, SubmitError, SubmitResult,
};
use guildhall_core::operation::{OperationState, Queue, QueueKey};
use tokio::sync::Barrier;

use crate::{
    events_setup::{commit, done, entry, handled, handled_seqs, handled_with_operations, key, session, state_write},
    setup::{
        Engine, GUILD, accepted as accepted_at, at, guild_operation, new_id, on_both, open_new_store, operation,
        operation_with_key, state_of, submit, user_queue,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);

/// A store with a small bound on operations in a queue.
async fn open_with_max_queued(
    engine: Engine,
    max_queued: u64,
) -> (guildhall::store::Store, crate::setup::StoreLocation) {
    let mut location = crate::setup::StoreLocation::new(engine).await;
    location.settings.max_queued = max_queued;
    (location.open().await, location)
}

on_both! {
    async fn handler_results_are_committed_once_with_their_row(engine) {
        let (store, _place) = open_new_store(engine).await;
        let operation = guild_operation();
        let item = HandlerCommit {
            operations: vec![operation.clone()],
            set: vec![state_write("sess:1", Some("{\"a\":1}"))],
            ..handled("s", 1, "welcome")
        };
        let accepted = CommitResult::Done(vec![accepted_at(1)]);
        assert_eq!(store.commit(vec![item.clone()]).await.unwrap(), [accepted]);
        assert_eq!(store.handled_after("s", 0).await.unwrap(), [(1, Arc::from("welcome"))]);
        assert_eq!(store.values(vec!["sess:1".to_owned()], at(0)).await.unwrap(), [Some("{\"a\":1}".to_owned())]);
        // Committed again with another operation and another value: a handler that runs twice may have another result.
        let again = HandlerCommit { operations: vec![guild_operation()], set: vec![state_write("sess:1", Some("2"))], ..item };
        assert_eq!(commit(&store, again).await, CommitResult::Skipped);
        let loaded = store.load(QUEUE, 0, 9).await.unwrap().operations;
        assert_eq!(loaded.iter().map(|stored| stored.operation.id).collect::<Vec<_>>(), [operation.id]);
        assert_eq!(store.values(vec!["sess:1".to_owned()], at(0)).await.unwrap(), [Some("{\"a\":1}".to_owned())]);
        assert_eq!(commit(&store, handled("s", 1, "other")).await, done(), "each handler has its own row");
        assert_eq!(commit(&store, handled("t", 1, "welcome")).await, done(), "each session has its own row");
        let rows = store.handled_after("s", 0).await.unwrap();
        assert_eq!(rows, [(1, Arc::from("other")), (1, Arc::from("welcome"))]);
        assert!(store.commit(Vec::new()).await.unwrap().is_empty());
    }

    async fn duplicate_item_in_one_call_is_committed_once(engine) {
        let (store, _place) = open_new_store(engine).await;
        let twice = || handled_with_operations("s", 7, vec![guild_operation()]);
        let answers = store.commit(vec![twice(), handled("s", 8, "h"), twice(), twice()]).await.unwrap();
        let accepted = CommitResult::Done(vec![accepted_at(1)]);
        assert_eq!(answers, [accepted, done(), CommitResult::Skipped, CommitResult::Skipped]);
        assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 1);
        assert_eq!(handled_seqs(&store, "s", 0).await, [7, 8]);
    }

    async fn refused_item_leaves_nothing_and_the_others_are_committed(engine) {
        let (store, _place) = open_with_max_queued(engine, 2).await;
        submit(&store, &NewOperation { payload_hash: [1; 32], ..operation_with_key("used") }).await;
        let refused = |seq, operations| HandlerCommit {
            set: vec![state_write(&format!("set:{seq}"), Some("1"))],
            inbox: Some(entry("s", seq, 5)),
            ..handled_with_operations("s", seq, operations)
        };
        let (other, free) = (operation(QueueKey::user(1)), operation(QueueKey::user(2)));
        let unknown = NewOperation { refers_to: vec![new_id()], ..guild_operation() };
        let items = vec![
            handled_with_operations("s", 1, vec![other.clone()]),
            // The key belongs to another payload, so its first operation is refused too.
            refused(2, vec![operation(QueueKey::user(3)), operation_with_key("used")]),
            refused(3, vec![unknown]),
            refused(4, vec![guild_operation(), guild_operation()]),
            handled_with_operations("s", 5, vec![free.clone()]),
            handled("s", 6, "h"),
        ];
        let answers = store.commit(items).await.unwrap();
        let accepted = |user| CommitResult::Done(vec![SubmitResult::Accepted {
            seq: 1,
            queue: user_queue(user),
            state: OperationState::Queued,
        }]);
        assert_eq!((&answers[0], &answers[4], &answers[5]), (&accepted(1), &accepted(2), &done()));
        assert!(matches!(answers[1], CommitResult::Refused(SubmitError::KeyReused { index: 1, .. })), "{answers:?}");
        assert!(matches!(answers[2], CommitResult::Refused(SubmitError::UnknownOperation { index: 0, .. })), "{answers:?}");
        assert!(matches!(answers[3], CommitResult::Refused(SubmitError::Full { max: 2, .. })), "{answers:?}");
        assert_eq!(handled_seqs(&store, "s", 0).await, [1, 5, 6]);
        let values = store.values((2..5).map(|seq| format!("set:{seq}")).collect(), at(0)).await.unwrap();
        assert_eq!(values, [None, None, None]);
        assert!(store.inbox(0, 9).await.unwrap().is_empty());
        assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 1);
        assert!(store.load(user_queue(3), 0, 9).await.unwrap().operations.is_empty());
        assert_eq!(state_of(&store, other.id).await, OperationState::Queued);
        assert_eq!(state_of(&store, free.id).await, OperationState::Queued);
        // A refused commit may be tried again with fewer operations.
        assert_eq!(commit(&store, refused(4, vec![guild_operation()])).await, CommitResult::Done(vec![
            accepted_at(2),
        ]));
        assert_eq!(handled_seqs(&store, "s", 3).await, [4, 5, 6]);
    }

    async fn refused_item_does_not_block_the_next_with_its_key(engine) {
        let (store, _place) = open_with_max_queued(engine, 1).await;
        let answers = store.commit(vec![
            handled_with_operations("s", 1, vec![guild_operation(), guild_operation()]),
            handled_with_operations("s", 1, vec![guild_operation()]),
            handled_with_operations("s", 1, vec![]),
        ]).await.unwrap();
        assert!(matches!(answers[0], CommitResult::Refused(SubmitError::Full { .. })), "{answers:?}");
        assert_eq!(answers[1..], [CommitResult::Done(vec![accepted_at(1)]), CommitResult::Skipped]);
    }

    async fn idempotency_key_finds_the_existing_operation(engine) {
        let (store, _place) = open_new_store(engine).await;
        let first = operation_with_key("event:s:1:h:0");
        submit(&store, &first).await;
        let again = NewOperation { id: new_id(), ..first.clone() };
        let existing = SubmitResult::Existing { id: first.id, state: OperationState::Queued, result: None };
        assert_eq!(commit(&store, handled_with_operations("s", 1, vec![again])).await, CommitResult::Done(vec![existing]));
        assert_eq!(store.load(QUEUE, 0, 9).await.unwrap().operations.len(), 1);
    }

    async fn thousand_items_are_committed_in_one_call(engine) {
        let (store, _place) = open_new_store(engine).await;
        let items: Vec<_> = (1..=1_000).map(|seq| match seq % 3 {
            0 => handled_with_operations("s", seq, vec![operation(QueueKey::user(seq))]),
            1 => HandlerCommit { inbox: Some(entry("s", seq, 1)), ..handled("s", seq, "h") },
            _ => handled("s", seq, "h"),
        }).collect();
        let answers = store.commit(items.clone()).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, CommitResult::Done(_))));
        assert_eq!(handled_seqs(&store, "s", 0).await, (1..=1_000).collect::<Vec<_>>());
        assert_eq!(handled_seqs(&store, "s", 990).await, (991..=1_000).collect::<Vec<_>>());
        let waiting = store.inbox(0, 1_000).await.unwrap();
        let in_order = waiting.iter().map(|entry| entry.key.seq);
        assert!(in_order.eq((1..=1_000).filter(|seq| seq % 3 == 1)));
        assert!(waiting.is_sorted_by(|one, next| one.position < next.position));
        assert_eq!(store.depths().await.unwrap()["queued"], 333);
        assert_eq!(store.commit(items).await.unwrap(), vec![CommitResult::Skipped; 1_000]);
    }

    async fn concurrent_callers_get_their_own_results(engine) {
        let (store, _place) = open_new_store(engine).await;
        let barrier = Arc::new(Barrier::new(48));
        let callers: Vec<_> = (0..48_u64).map(|nth| {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                // Three callers an event, with two items each: one of the three commits it.
                let seq = nth / 3 * 2;
                let items = vec![handled_with_operations("s", seq, vec![guild_operation()]), handled("s", seq + 1, "h")];
                store.commit(items).await.unwrap()
            })
        }).collect();
        let (mut committed, mut skipped) = (0, 0);
        for caller in callers {
            let answers = caller.await.unwrap();
            assert_eq!(answers.len(), 2);
            assert_eq!(answers[0] == CommitResult::Skipped, answers[1] == CommitResult::Skipped, "{answers:?}");
            if answers[0] == CommitResult::Skipped { skipped += 1 } else { committed += 1 }
        }
        assert_eq!((committed, skipped), (16, 32));
        assert_eq!(store.load(QUEUE, 0, 99).await.unwrap().operations.len(), 16);
    }

    async fn value_expires_is_removed_and_the_last_write_wins(engine) {
        let (store, _place) = open_new_store(engine).await;
        let until = StateWrite { expires_at: Some(at(50)), ..state_write("until", Some("1")) };
        let items = vec![
            HandlerCommit { set: vec![state_write("a", Some("1")), state_write("b", Some("1")), until], ..handled("s", 1, "h") },
            HandlerCommit { set: vec![state_write("a", Some("2")), state_write("b", None), state_write("c", None)], ..handled("s", 2, "h") },
        ];
        store.commit(items).await.unwrap();
        let keys: Vec<String> = ["a", "b", "until", "nothing", "a"].map(str::to_owned).to_vec();
        let some = |value: &str| Some(value.to_owned());
        let now = store.values(keys.clone(), at(49)).await.unwrap();
        assert_eq!(now, [some("2"), None, some("1"), None, some("2")]);
        assert_eq!(store.values(keys, at(50)).await.unwrap()[2], None);
        store.set_state("a", None, None).await.unwrap();
        assert_eq!(store.state("a").await.unwrap(), None);
        assert!(store.values(Vec::new(), at(0)).await.unwrap().is_empty());
    }

    async fn session_is_stored_and_its_confirmed_number_never_decreases(engine) {
        let (store, _place) = open_new_store(engine).await;
        assert!(store.sessions().await.unwrap().is_empty());
        let (first, second) = (session(0, "a", 10), session(1, "b", 3));
        store.save_sessions(vec![first.clone(), second.clone()]).await.unwrap();
        assert_eq!(store.sessions().await.unwrap(), [first.clone(), second.clone()]);
        let back = StoredSession { confirmed: 9, at: at(5), ..first.clone() };
        let on = StoredSession { confirmed: 4, resume_url: None, ..second.clone() };
        store.save_sessions(vec![back, on]).await.unwrap();
        let now = StoredSession { at: at(5), ..first.clone() };
        let moved = StoredSession { confirmed: 4, ..second.clone() };
        assert_eq!(store.sessions().await.unwrap(), [now, moved], "the known URL stays");
        // Several updates of one session in one call.
        let sessions = [12, 11, 13, 2].map(|confirmed| StoredSession { confirmed, ..first.clone() });
        store.save_sessions(sessions.to_vec()).await.unwrap();
        assert_eq!(store.sessions().await.unwrap()[0].confirmed, 13);
        // The same shard id with another number of shards is another shard.
        let of_three = StoredSession { shards: 3, ..session(0, "c", 1) };
        store.save_sessions(vec![of_three.clone()]).await.unwrap();
        assert_eq!(store.sessions().await.unwrap().len(), 3);
        assert!(store.sessions().await.unwrap().contains(&of_three));
    }

    async fn confirmed_rows_are_removed_but_not_handled_again(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.save_sessions(vec![session(0, "a", 0), session(1, "b", 0)]).await.unwrap();
        let items = (1..=6).flat_map(|seq| [handled("a", seq, "x"), handled("a", seq, "y"), handled("b", seq, "x")]);
        store.commit(items.collect()).await.unwrap();
        store.save_sessions(vec![session(0, "a", 4)]).await.unwrap();
        assert_eq!(handled_seqs(&store, "a", 0).await, [5, 5, 6, 6]);
        assert_eq!(handled_seqs(&store, "b", 0).await, [1, 2, 3, 4, 5, 6]);
        let late = handled_with_operations("a", 4, vec![guild_operation()]);
        assert_eq!(commit(&store, late).await, CommitResult::Skipped, "every handler has finished it");
        assert!(store.load(QUEUE, 0, 9).await.unwrap().operations.is_empty());
    }

    async fn new_session_replaces_the_previous_one(engine) {
        let (store, _place) = open_new_store(engine).await;
        store.save_sessions(vec![session(0, "a", 5), session(1, "b", 5)]).await.unwrap();
        store.commit(vec![handled("a", 6, "h"), handled("b", 6, "h"), handled("new", 1, "h")]).await.unwrap();
        store.save_sessions(vec![session(0, "new", 0)]).await.unwrap();
        let sessions = store.sessions().await.unwrap();
        assert_eq!(sessions, [session(0, "new", 0), session(1, "b", 5)], "sequence numbers start again");
        assert!(handled_seqs(&store, "a", 0).await.is_empty());
        assert_eq!((handled_seqs(&store, "b", 0).await, handled_seqs(&store, "new", 0).await), (vec![6], vec![1]));
    }

    async fn committed_data_survives_a_crash(engine) {
        let (store, place) = open_new_store(engine).await;
        let operation = guild_operation();
        store.save_sessions(vec![session(0, "s", 1)]).await.unwrap();
        let waits = HandlerCommit { inbox: Some(entry("s", 3, 9)), ..handled("s", 3, "h") };
        store.commit(vec![handled_with_operations("s", 2, vec![operation.clone()]), waits]).await.unwrap();
        // It is not closed: work in flight and connections are lost.
        drop(store);
        let store = reopen(&place).await;
        assert_eq!(store.sessions().await.unwrap(), [session(0, "s", 1)]);
        assert_eq!(handled_seqs(&store, "s", 1).await, [2, 3]);
        assert_eq!(state_of(&store, operation.id).await, OperationState::Queued);
        assert_eq!(store.inbox(0, 9).await.unwrap()[0].key, key("s", 3, "h"));
        assert_eq!(commit(&store, handled_with_operations("s", 2, vec![guild_operation()])).await, CommitResult::Skipped);
    }

    async fn only_one_shard_of_a_bucket_identifies_within_the_spacing(engine) {
        let (store, place) = open_new_store(engine).await;
        // Half of the requests come from another process, if the engine allows one.
        let other = match engine {
            Engine::Sqlite => store.clone(),
            Engine::Postgres => place.open().await,
        };
        let ask = |bucket, now| IdentifyRequest { bucket, spacing: Duration::from_secs(5), daily_limit: 1_000, now: at(now) };
        let barrier = Arc::new(Barrier::new(16));
        let askers: Vec<_> = (0..16).map(|nth| {
            let (store, barrier) = (if nth % 2 == 0 { store.clone() } else { other.clone() }, Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                store.identify(ask(3, nth)).await.unwrap()
            })
        }).collect();
        let mut let_go = 0;
        for asker in askers {
            match asker.await.unwrap() {
                IdentifyDecision::Allowed => let_go += 1,
                IdentifyDecision::Wait(wait) => assert!(wait > Duration::from_secs(4) && wait < Duration::from_secs(6), "{wait:?}"),
                IdentifyDecision::Exhausted(left) => panic!("{left:?}"),
            }
        }
        assert_eq!(let_go, 1);
        assert_eq!(store.identify(ask(4, 0)).await.unwrap(), IdentifyDecision::Allowed, "each bucket has its own spacing");
        assert_eq!(store.identify(ask(4, 4_999)).await.unwrap(), IdentifyDecision::Wait(Duration::from_millis(1)));
        assert_eq!(store.identify(ask(4, 5_000)).await.unwrap(), IdentifyDecision::Allowed);
        other.close().await;
    }

    async fn daily_identifies_are_counted_over_buckets_and_restarts(engine) {
        const DAY: u64 = 24 * 60 * 60 * 1_000;
        let (store, place) = open_new_store(engine).await;
        let ask = |bucket, now| IdentifyRequest { bucket, spacing: Duration::from_secs(5), daily_limit: 3, now: at(now) };
        for (bucket, now) in [(0, 0), (1, 10_000), (0, 20_000)] {
            assert_eq!(store.identify(ask(bucket, now)).await.unwrap(), IdentifyDecision::Allowed);
        }
        store.close().await;
        let store = place.open().await;
        let left = Duration::from_millis(DAY - 30_000);
        assert_eq!(store.identify(ask(2, 30_000)).await.unwrap(), IdentifyDecision::Exhausted(left));
        assert_eq!(store.identify(ask(2, DAY - 1)).await.unwrap(), IdentifyDecision::Exhausted(Duration::from_millis(1)));
        assert_eq!(store.identify(ask(2, DAY)).await.unwrap(), IdentifyDecision::Allowed, "the first was a day ago");
        assert_eq!(store.identify(ask(3, DAY)).await.unwrap(), IdentifyDecision::Exhausted(Duration::from_secs(10)));
        let none = IdentifyRequest { daily_limit: 0, ..ask(3, DAY) };
        assert!(matches!(store.identify(none).await.unwrap(), IdentifyDecision::Exhausted(_)));
    }

    async fn clock_set_back_does_not_block_identifies_for_long(engine) {
        let (store, _place) = open_new_store(engine).await;
        let ask = |now| IdentifyRequest { bucket: 0, spacing: Duration::from_secs(5), daily_limit: 1_000, now: at(now) };
        assert_eq!(store.identify(ask(3_600_000)).await.unwrap(), IdentifyDecision::Allowed);
        assert_eq!(store.identify(ask(0)).await.unwrap(), IdentifyDecision::Allowed);
        // A clock that is slightly behind waits for what another process has just done.
        assert_eq!(store.identify(ask(3_599_000)).await.unwrap(), IdentifyDecision::Wait(Duration::from_secs(6)));
    }
}

/// Opens the store as soon as the previous process has released it.
async fn reopen(location: &crate::setup::StoreLocation) -> guildhall::store::Store {
    loop {
        match guildhall::store::Store::open(&location.settings).await {
            Ok(store) => return store,
            Err(guildhall::store::OpenError::InUse { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}
