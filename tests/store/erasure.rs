//! What erasing a user or a guild removes, and what stays.

use std::collections::BTreeMap;

use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, AuditFilter, DataSubject, ErasureCursor, ErasureStep, ErasureStore as _};
use guildhall_actors::ports::{
    Binding, DeadLetterFilter, EventStore as _, HandlerCommit, InboxDisposition, InboxEntry, KeyStore as _,
    NewOperation, OperationStore as _, OperationUpdate, SubmitResult,
};
use guildhall_core::operation::{Failure, FailureClass, ManagedKind, OperationState, Queue};

use crate::{
    access::audit_record,
    events_setup::{commit, done, entry, handled, key},
    setup::{
        GUILD, at, claim, guild_operation, on_both, open_new_store, operation_update, operation_with_key, record,
        submit,
    },
};

const USER: u64 = 80_351_110_224_678_912;

/// Erases everything about a subject. Returns the sums of all steps.
async fn erase(store: &Store, subject: DataSubject) -> ErasureStep {
    let (mut total, mut from) = (ErasureStep::default(), Some(ErasureCursor::default()));
    let mut audit_record = Some(audit_record(AuditAction::Erase));
    while let Some(cursor) = from {
        let step = store.erase(subject, cursor, audit_record.take()).await.unwrap();
        for (table, count) in step.removed {
            *total.removed.entry(table).or_default() += count;
        }
        for (table, count) in step.retained {
            *total.retained.entry(table).or_default() += count;
        }
        from = step.next;
    }
    total
}

fn operation_about(text: &str) -> NewOperation {
    NewOperation { payload: format!(r#"{{"user_id":"{text}","role_id":"2"}}"#), ..guild_operation() }
}

fn counts<const N: usize>(pairs: [(&'static str, u64); N]) -> BTreeMap<&'static str, u64> {
    BTreeMap::from(pairs)
}

on_both! {
    async fn user_is_erased_from_finished_work_and_pending_work_stays(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, Queue::Guild(GUILD)).await.fence;
        let done_one = NewOperation { idempotency: operation_with_key("k").idempotency, ..operation_about(&USER.to_string()) };
        let other = operation_about(&format!("{USER}7"));
        let dead = operation_about(&USER.to_string());
        let pending = operation_about(&USER.to_string());
        for operation in [&done_one, &other, &dead, &pending] {
            submit(&store, operation).await;
        }
        let result = Some(format!(r#"{{"user_id":"{USER}"}}"#));
        for operation in [&done_one, &other] {
            record(&store, OperationUpdate { result: result.clone().filter(|_| operation.id == done_one.id), ..operation_update(operation, fence, OperationState::Succeeded) }).await;
        }
        let error = Some(Failure::new(FailureClass::Forbidden, "Missing Permissions"));
        record(&store, OperationUpdate { error, ..operation_update(&dead, fence, OperationState::Dead) }).await;
        for (key, value) in [(format!("sess:profile:{USER}"), "1".to_owned()), ("list".to_owned(), format!("[\"{USER}\"]")), (format!("x:{USER}0"), "1".to_owned()), (format!("gate:{USER}"), "1".to_owned())] {
            store.set_state(&key, Some(value), None).await.unwrap();
        }
        for seq in [1, 2] {
            let event = InboxEntry { event: format!(r#"{{"user_id":"{USER}"}}"#), ..entry("s", seq, 0) };
            assert_eq!(commit(&store, HandlerCommit { inbox: Some(event), ..handled("s", seq, "h") }).await, done());
        }
        store.postpone(key("s", 1, "h"), InboxDisposition::Dead { attempts: 8, reason: "gave up".to_owned() }, None, at(1)).await.unwrap();

        let erased = erase(&store, DataSubject::User(USER)).await;
        assert_eq!(erased.removed, counts([("operations", 2), ("dead_letters", 1), ("events", 1), ("state", 2)]));
        assert_eq!(erased.retained, counts([("operations", 1), ("events", 1)]));

        assert!(store.get(done_one.id).await.unwrap().is_none() && store.get(dead.id).await.unwrap().is_none());
        assert!(store.get(other.id).await.unwrap().is_some(), "another id that contains this one");
        assert_eq!(store.get(pending.id).await.unwrap().unwrap().stored.state, OperationState::Queued);
        let letters = store.dead_letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap();
        assert!(letters.is_empty(), "{letters:?}");
        let values = ["gate:80351110224678912", "list", "x:803511102246789120"].map(str::to_owned).to_vec();
        let left: Vec<_> = store.values(values, at(1)).await.unwrap().into_iter().map(|value| value.is_some()).collect();
        assert_eq!(left, [true, false, true]);
        assert!(store.dead_events(None, 9).await.unwrap().is_empty());
        assert_eq!(store.inbox(0, 9).await.unwrap().len(), 1);
        // The key still identifies the finished operation, without its result.
        let again = submit(&store, &NewOperation { id: crate::setup::new_id(), ..done_one.clone() }).await;
        assert_eq!(again, SubmitResult::Existing { id: done_one.id, state: OperationState::Succeeded, result: None });
        let audit = store.audit(AuditFilter { action: Some(AuditAction::Erase), limit: 9, ..AuditFilter::default() }).await.unwrap();
        assert_eq!(audit.len(), 1, "one record for all steps");
        let twice = erase(&store, DataSubject::User(USER)).await;
        assert!(twice.removed.is_empty(), "{twice:?}");
    }

    async fn guild_is_erased_with_its_objects_when_nothing_is_pending(engine) {
        let (store, _place) = open_new_store(engine).await;
        let fence = claim(&store, Queue::Guild(GUILD)).await.fence;
        let (made, pending) = (guild_operation(), guild_operation());
        submit(&store, &made).await;
        submit(&store, &pending).await;
        let bind = vec![Binding { kind: ManagedKind::Role, key: "greeter".to_owned(), discord_id: 5, channel: None, origin: "created" }];
        record(&store, OperationUpdate { bind, ..operation_update(&made, fence, OperationState::Succeeded) }).await;

        let first = erase(&store, DataSubject::Guild(GUILD)).await;
        assert_eq!(first.removed, counts([("operations", 1)]));
        assert_eq!(first.retained, counts([("operations", 1), ("managed_objects", 1)]));

        record(&store, operation_update(&pending, fence, OperationState::Succeeded)).await;
        let second = erase(&store, DataSubject::Guild(GUILD)).await;
        assert_eq!(second.removed, counts([("operations", 1), ("managed_objects", 1)]));
        assert!(second.retained.is_empty(), "{second:?}");
        let next = guild_operation();
        assert!(matches!(submit(&store, &next).await, SubmitResult::Accepted { .. }), "the guild can be used again");
    }

    async fn more_rows_than_one_step_examines_are_all_erased(engine) {
        let (store, _place) = open_new_store(engine).await;
        let queue = Queue::Guild(GUILD);
        let fence = claim(&store, queue).await.fence;
        let mut removed = 0;
        for _ in 0..3 {
            let batch: Vec<_> = (0..900).map(|n| if n % 2 == 0 { operation_about(&USER.to_string()) } else { guild_operation() }).collect();
            removed += 450;
            store.submit(batch.clone()).await.unwrap();
            store.record(batch.iter().map(|operation| operation_update(operation, fence, OperationState::Succeeded)).collect()).await.unwrap();
        }
        assert_eq!(erase(&store, DataSubject::User(USER)).await.removed, counts([("operations", removed)]));
    }
}
