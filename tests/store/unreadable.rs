//! Unreadable rows: reported when their queue is loaded, and no obstacle once they are set aside.

use guildhall_actors::ports::{DeadLetterFilter, OperationFilter, OperationStore as _, UpdateResult};
use guildhall_core::operation::{FailureClass, OperationId, OperationState, Queue, QueueKey};
use sea_orm::{ConnectionTrait as _, Database};

use crate::setup::{StoreLocation, claim, on_both, open_new_store, operation, operation_update, record, submit};

const KIND: &str = "kind = 'juggle'";

/// The damage, a part of the error text, and the final state of the operation.
const DAMAGES: &[(&str, &str, OperationState)] = &[
    (KIND, "\"juggle\"", OperationState::Dead),
    ("lane = 'sideways'", "unknown lane", OperationState::Dead),
    ("attempts = -1", "count: -1", OperationState::Dead),
    ("max_attempts = -7", "count: -7", OperationState::Dead),
    ("error = 'oh {'", "failure", OperationState::Dead),
    ("state = 'dreaming'", "dreaming", OperationState::NeedsReview),
    ("progress = '['", "progress", OperationState::NeedsReview),
    ("unknown_outcome = '{}'", "unknown_outcome", OperationState::NeedsReview),
];

async fn execute(location: &StoreLocation, sql: &str) {
    let connection = Database::connect(location.raw_url()).await.unwrap();
    connection.execute_unprepared(sql).await.unwrap();
    connection.close().await.unwrap();
}

on_both! {
    async fn unreadable_row_is_reported_and_can_be_set_aside(engine) {
        let (store, place) = open_new_store(engine).await;
        let mut unknown_kind: Option<OperationId> = None;
        for (guild, (damage, message, end)) in (1_u64..).zip(DAMAGES) {
            let queue = Queue::Guild(guild);
            let [first, damaged, last] = [(); 3].map(|()| operation(QueueKey::Guild(guild)));
            for one in [&first, &damaged, &last] {
                submit(&store, one).await;
            }
            execute(&place, &format!("UPDATE operations SET {damage} WHERE queue = {guild} AND seq = 2")).await;
            let fence = claim(&store, queue).await.fence;
            let page = store.load(queue, 0, 99).await.unwrap();
            let ids: Vec<_> = page.operations.iter().map(|stored| stored.operation.id).collect();
            assert_eq!(ids, [first.id, last.id], "{damage}");
            let [unreadable] = page.unreadable.as_slice() else { panic!("{damage}: {:?}", page.unreadable) };
            assert_eq!((unreadable.id, unreadable.seq, unreadable.guild), (damaged.id, 2, Some(guild)), "{damage}");
            assert!(unreadable.problem.contains(message), "{damage}: {}", unreadable.problem);
            let (state, error) = unreadable.final_state();
            assert_eq!((state, error.class), (*end, FailureClass::Poison), "{damage}");
            let mut aside = operation_update(&damaged, fence, state);
            (aside.attempts, aside.error) = (unreadable.attempts, Some(error));
            assert_eq!(record(&store, aside).await, UpdateResult::Done, "{damage}");
            assert!(store.load(queue, 0, 99).await.unwrap().unreadable.is_empty(), "{damage}");
            if *damage == KIND {
                unknown_kind = Some(damaged.id);
            } else {
                let shown = store.get(damaged.id).await.unwrap().unwrap().stored;
                assert_eq!(shown.state, *end, "{damage}");
                assert!(shown.error.unwrap().message.contains(message), "{damage}");
            }
        }
        let letters = || async {
            let letters = store.dead_letters(DeadLetterFilter { limit: 99, ..Default::default() }).await.unwrap();
            letters.into_iter().map(|letter| letter.id).collect::<Vec<_>>()
        };
        let unknown_kind = unknown_kind.unwrap();
        let listed = store.list(OperationFilter { limit: 99, ..Default::default() }).await.unwrap();
        assert_eq!(listed.len(), DAMAGES.len() * 3 - 1, "only the row of an unknown kind is left out");
        assert_eq!(letters().await.len(), 4);
        assert!(!letters().await.contains(&unknown_kind));
        // A version that knows the kind can show and redrive it.
        execute(&place, "UPDATE dead_letters SET kind = 'assign_role'").await;
        assert!(letters().await.contains(&unknown_kind));
    }

    async fn damaged_rows_do_not_hide_other_operations(engine) {
        let (store, place) = open_new_store(engine).await;
        for (guild, (damage, ..)) in (1_u64..).zip(DAMAGES) {
            submit(&store, &operation(QueueKey::Guild(guild))).await;
            execute(&place, &format!("UPDATE operations SET {damage} WHERE queue = {guild}")).await;
        }
        let sound = operation(QueueKey::Guild(99));
        submit(&store, &sound).await;
        let listed = store.list(OperationFilter { limit: 99, ..Default::default() }).await.unwrap();
        assert_eq!(listed[0].stored.operation.id, sound.id);
        assert_eq!(listed.len(), DAMAGES.len() + 1 - 2, "all but those of an unknown kind or state");
    }
}
