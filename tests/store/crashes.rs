//! Inputs that ended processes: counted by a process that ends, set aside by one that starts or takes over.

use std::time::Duration;

use guildhall::store::{Store, record_crash};
use guildhall_actors::crash::{Crash, CrashStore as _, Input};
use guildhall_actors::ports::{DeadLetterFilter, EventStore as _, IntentUpdate, OperationStore as _, UpdateResult};
use guildhall_core::operation::{FailureClass, OperationId, OperationState, Queue};
use sea_orm::{ConnectionTrait as _, Database, DbBackend};

use crate::{
    events_setup::key,
    setup::{
        GUILD, StoreLocation, at, claim, guild_operation, on_both, open_new_store, operation_update,
        operation_with_key, record, state_of, submit,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);

/// Records that a process ended because of this input. Returns the number of its crashes.
async fn crash(location: &StoreLocation, input: Input, after: u64) -> u32 {
    let crash =
        Crash { input, part: "token_bucket".to_owned(), cause: "panicked at \0x.rs:7".to_owned(), at: at(after) };
    record_crash(&location.settings, &crash, Duration::from_secs(20)).await.unwrap()
}

async fn crash_operation(location: &StoreLocation, id: OperationId, times: u32) {
    for n in 1..=times {
        assert_eq!(crash(location, Input::Operation(id), n.into()).await, n);
    }
}

/// Inserts many crashes, without a process for each.
async fn insert_crashes(location: &StoreLocation, seqs: std::ops::Range<u64>) {
    let row = |seq: u64| {
        let at = at(200 + seq).millis();
        format!("('event', {{nil}}, 's', {seq}, '', 1, 'router', 'oh no', {at}, {at})")
    };
    let connection = Database::connect(location.raw_url()).await.unwrap();
    let nil = match connection.get_database_backend() {
        DbBackend::Postgres => "CAST('00000000-0000-0000-0000-000000000000' AS UUID)",
        _ => "X'00000000000000000000000000000000'",
    };
    let rows: Vec<String> = seqs.map(row).collect();
    let sql = format!("INSERT INTO crashed_inputs VALUES {}", rows.join(", ").replace("{nil}", nil));
    connection.execute_unprepared(&sql).await.unwrap();
    connection.close().await.unwrap();
}

async fn load_ids(store: &Store) -> Vec<OperationId> {
    let page = store.load(QUEUE, 0, 99).await.unwrap();
    page.operations.into_iter().map(|stored| stored.operation.id).collect()
}

on_both! {
    async fn operation_that_crashed_two_processes_becomes_a_dead_letter(engine) {
        let (store, place) = open_new_store(engine).await;
        let (first, poison, last) = (guild_operation(), operation_with_key("k"), guild_operation());
        for operation in [&first, &poison, &last] {
            submit(&store, operation).await;
        }
        crash_operation(&place, first.id, 1).await;
        crash_operation(&place, poison.id, 2).await;
        let claimed = claim(&store, QUEUE).await;
        assert_eq!(load_ids(&store).await, [first.id, last.id], "one crash is not enough");
        let letter = store.dead_letters(DeadLetterFilter { limit: 9, ..Default::default() }).await.unwrap().remove(0);
        assert_eq!((letter.id, letter.error.class), (poison.id, FailureClass::Poison));
        for part in ["ended the process 2 times", "token_bucket panicked at ", "x.rs:7", "redrive"] {
            assert!(letter.error.message.contains(part), "{part}: {}", letter.error.message);
        }
        // Its queue continues under the same claim.
        assert_eq!(record(&store, operation_update(&first, claimed.fence, OperationState::Succeeded)).await, UpdateResult::Done);
        assert_eq!(record(&store, operation_update(&poison, claimed.fence, OperationState::Succeeded)).await, UpdateResult::Finished);
        // Its count starts again if it is ever seen again.
        assert_eq!(crash(&place, Input::Operation(poison.id), 9).await, 1);
        assert_eq!(crash(&place, Input::Operation(first.id), 9).await, 2);
    }

    async fn crashed_operation_whose_call_may_have_been_sent_needs_review(engine) {
        let (store, place) = open_new_store(engine).await;
        let (running, intent) = (guild_operation(), guild_operation());
        submit(&store, &running).await;
        submit(&store, &intent).await;
        let fence = claim(&store, QUEUE).await.fence;
        record(&store, operation_update(&running, fence, OperationState::Running)).await;
        let mut retrying = operation_update(&intent, fence, OperationState::Retrying);
        retrying.intent = IntentUpdate::Open(at(1));
        record(&store, retrying).await;
        store.release(QUEUE, fence).await.unwrap();
        for operation in [&running, &intent] {
            crash_operation(&place, operation.id, 2).await;
        }
        claim(&store, QUEUE).await;
        for operation in [&running, &intent] {
            assert_eq!(state_of(&store, operation.id).await, OperationState::NeedsReview);
            let shown = store.get(operation.id).await.unwrap().unwrap();
            let error = shown.stored.error.unwrap();
            assert_eq!(error.class, FailureClass::Poison);
            assert!(error.message.contains("may have been sent"), "{}", error.message);
        }
        assert!(store.dead_letters(DeadLetterFilter { limit: 9, ..Default::default() }).await.unwrap().is_empty());
    }

    async fn unknown_state_does_not_prevent_a_claim(engine) {
        let (store, place) = open_new_store(engine).await;
        let poison = guild_operation();
        submit(&store, &poison).await;
        crash_operation(&place, poison.id, 2).await;
        let on = Database::connect(place.raw_url()).await.unwrap();
        on.execute_unprepared("UPDATE operations SET state = 'dreaming', attempts = -1").await.unwrap();
        on.close().await.unwrap();
        claim(&store, QUEUE).await;
        assert_eq!(state_of(&store, poison.id).await, OperationState::NeedsReview);
    }

    async fn crashed_operation_is_set_aside_when_its_queue_is_claimed(engine) {
        let (store, place) = open_new_store(engine).await;
        let poison = guild_operation();
        submit(&store, &poison).await;
        crash_operation(&place, poison.id, 2).await;
        claim(&store, Queue::Guild(GUILD + 1)).await;
        assert_eq!(state_of(&store, poison.id).await, OperationState::Queued, "only the owner of its queue finishes \
            it");
        claim(&store, QUEUE).await;
        assert_eq!(state_of(&store, poison.id).await, OperationState::Dead);
    }

    async fn crashed_events_are_listed_until_they_are_removed(engine) {
        let (store, place) = open_new_store(engine).await;
        let event = |seq| Input::Event { session: "s".into(), seq };
        let entry = |handler| Input::InboxEntry(key("s", 7, handler));
        for input in [event(7), entry("h"), event(8), entry("other")] {
            assert_eq!(crash(&place, input, 0).await, 1);
        }
        assert!(store.inputs_to_set_aside().await.unwrap().is_empty());
        for input in [event(7), entry("h")] {
            assert_eq!(crash(&place, input, 1).await, 2);
        }
        let crashed_inputs = store.inputs_to_set_aside().await.unwrap();
        let mut inputs: Vec<Input> = crashed_inputs.iter().map(|crashed| crashed.input.clone()).collect();
        inputs.sort();
        assert_eq!(inputs, [event(7), entry("h")]);
        assert!(crashed_inputs.iter().all(|crashed| crashed.crashes == 2 && crashed.part == "token_bucket" && !crashed.crashed_while_set_aside()));
        store.forget_crashes(vec![event(7)]).await.unwrap();
        store.forget_crashes(vec![event(7)]).await.unwrap();
        assert_eq!(store.inputs_to_set_aside().await.unwrap().len(), 1);
        assert_eq!(crash(&place, event(7), 2).await, 1);
    }

    async fn crashes_are_swept_by_age_and_bounded_in_number(engine) {
        let (store, place) = open_new_store(engine).await;
        let event = |seq| Input::Event { session: "s".into(), seq };
        crash(&place, event(1), 0).await;
        crash(&place, event(2), 100).await;
        assert_eq!(store.sweep_events(at(50)).await.unwrap(), 1);
        assert_eq!(crash(&place, event(1), 101).await, 1, "its crash was swept");
        assert_eq!(crash(&place, event(2), 102).await, 2, "this one was not");
        insert_crashes(&place, 3..1_003).await;
        assert_eq!(crash(&place, event(1_001), 5_000).await, 2);
        assert_eq!(crash(&place, event(2), 5_001).await, 1, "the oldest was removed");
        assert_eq!(crash(&place, event(1), 5_002).await, 1, "the oldest was removed");
    }

    async fn crash_is_recorded_while_the_store_is_in_use(engine) {
        let (store, place) = open_new_store(engine).await;
        let operation = guild_operation();
        submit(&store, &operation).await;
        let writes = async {
            for _ in 0..50 {
                submit(&store, &guild_operation()).await;
            }
        };
        let ((), crashes) = tokio::join!(writes, crash(&place, Input::Operation(operation.id), 0));
        assert_eq!(crashes, 1);
    }
}

#[tokio::test]
async fn recording_a_crash_does_not_block_on_an_unreachable_store() {
    let settings = crate::setup::settings_for("postgres://nobody@127.0.0.1:1/none");
    let input = Input::Event { session: "s".into(), seq: 1 };
    let crash = Crash { input, part: "router".to_owned(), cause: "oh no".to_owned(), at: at(0) };
    let timeout = Duration::from_millis(300);
    assert!(record_crash(&settings, &crash, timeout).await.is_err());
}
