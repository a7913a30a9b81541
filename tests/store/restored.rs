//! Preparing a store that was restored from a backup.

use std::time::Duration;

use guildhall::store::{OpenError, RestoreProgress, RestoredStore, prepare_restored};
use guildhall_actors::ports::{
    EventStore as _, HandlerCommit, NewOperation, OperationStore as _, OperationUpdate, RestoredOperation,
    UnknownOutcome, UpdateResult,
};
use guildhall_core::{
    operation::{Failure, FailureClass, OperationState, Queue},
    time::UnixMs,
};

use crate::{
    events_setup::{commit, done, entry, handled, handled_seqs, session},
    setup::{
        Engine, GUILD, at, claim, guild_operation, on_both, open_new_store, operation_update, record, state_of, submit,
        submit_and_finish,
    },
};

const QUEUE: Queue = Queue::Guild(GUILD);
const SETTLE: Duration = Duration::from_millis(400);

/// Scheduled for a time that has passed, but not in its queue yet.
fn overdue() -> NewOperation {
    NewOperation { created_at: UnixMs::new(1_000), eligible_at: UnixMs::new(2_000), ..guild_operation() }
}

on_both! {
    async fn restored_store_holds_what_was_unfinished(engine) {
        let (store, place) = open_new_store(engine).await;
        let (finished, queued, overdue) = (guild_operation(), guild_operation(), overdue());
        let later = NewOperation { eligible_at: at(3_600_000), ..guild_operation() };
        let fence = claim(&store, QUEUE).await.fence;
        submit_and_finish(&store, &finished, fence, OperationState::Succeeded).await;
        for operation in [&queued, &later, &overdue] {
            submit(&store, operation).await;
        }
        store.save_sessions(vec![session(0, "s", 7)]).await.unwrap();
        assert_eq!(commit(&store, handled("s", 9, "h")).await, done());
        let item = HandlerCommit { inbox: Some(entry("s", 8, 0)), ..handled("s", 8, "h") };
        assert_eq!(commit(&store, item).await, done());
        store.close().await;

        let restored = prepare_restored(&place.settings, SETTLE).await.unwrap();
        let expected = RestoredStore { due: 2, scheduled: 1, events: 1, sessions: 1, ..restored };
        assert_eq!((restored, restored.checked_at), (expected, None));

        let store = place.open().await;
        assert_eq!(store.restored().await.unwrap(), Some(restored));
        let outcome = |restored, since| Some(UnknownOutcome { restored: Some(restored), ..UnknownOutcome::new(since) });
        for (operation, outcome, state) in [
            (&queued, outcome(RestoredOperation::Due, at(0)), OperationState::Queued),
            (&overdue, outcome(RestoredOperation::Due, UnixMs::new(1_000)), OperationState::Scheduled),
            (&later, outcome(RestoredOperation::Scheduled, at(0)), OperationState::Scheduled),
            (&finished, None, OperationState::Succeeded),
        ] {
            let stored = store.get(operation.id).await.unwrap().unwrap().stored;
            assert_eq!((stored.unknown_outcome, stored.state), (outcome, state));
        }
        let stored = store.get(queued.id).await.unwrap().unwrap().stored;
        assert_eq!(stored.operation.eligible_at, restored.at + SETTLE, "no call of the earlier process is in flight then");
        assert!(store.sessions().await.unwrap().is_empty());
        assert!(handled_seqs(&store, "s", 0).await.is_empty());
        assert!(store.inbox(0, 9).await.unwrap().is_empty());
        let dead = store.dead_events(None, 9).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert!(dead[0].dead.as_ref().unwrap().contains("restored from a backup"), "{dead:?}");
    }

    async fn progress_of_a_restore_is_counted(engine) {
        let (store, place) = open_new_store(engine).await;
        let (found, absent, unclear) = (guild_operation(), guild_operation(), guild_operation());
        for operation in [&found, &absent, &unclear] {
            submit(&store, operation).await;
        }
        assert_eq!(store.restored().await.unwrap(), None);
        store.close().await;
        let restored = prepare_restored(&place.settings, SETTLE).await.unwrap();
        let store = place.open().await;
        let progress = |unchecked, not_sent, needs_review| RestoreProgress { unchecked, not_sent, needs_review };
        assert_eq!(store.restore_progress().await.unwrap(), progress(3, 0, 0));
        // Accepted since: not among them.
        submit(&store, &guild_operation()).await;
        let fence = claim(&store, QUEUE).await.fence;
        let error = Failure::new(FailureClass::Restored, "not sent");
        for (operation, state, error) in [
            (&found, OperationState::Succeeded, None),
            (&absent, OperationState::Dead, Some(error.clone())),
            (&unclear, OperationState::NeedsReview, Some(error)),
        ] {
            let update = OperationUpdate { error, ..operation_update(operation, fence, state) };
            assert_eq!(record(&store, update).await, UpdateResult::Done);
        }
        assert_eq!(store.restore_progress().await.unwrap(), progress(0, 1, 1));
        store.finish_restore(restored).await.unwrap();
        assert!(store.restored().await.unwrap().unwrap().checked_at.is_some());
    }

    async fn store_in_use_is_not_prepared(engine) {
        let (store, place) = open_new_store(engine).await;
        let queued = guild_operation();
        submit(&store, &queued).await;
        let refused = prepare_restored(&place.settings, SETTLE).await.unwrap_err();
        match engine {
            Engine::Sqlite => assert!(matches!(refused, OpenError::InUse { .. }), "{refused}"),
            Engine::Postgres => assert_eq!(refused, OpenError::Alive { count: 1 }),
        }
        assert_eq!(store.get(queued.id).await.unwrap().unwrap().stored.unknown_outcome, None);
    }

    async fn scheduled_operation_of_a_restored_store_can_be_cancelled(engine) {
        let (store, place) = open_new_store(engine).await;
        let (queued, later) = (guild_operation(), NewOperation { eligible_at: at(3_600_000), ..guild_operation() });
        for operation in [&queued, &later] {
            submit(&store, operation).await;
        }
        store.close().await;
        prepare_restored(&place.settings, SETTLE).await.unwrap();
        let store = place.open().await;
        store.cancel(later.id, at(9)).await.unwrap();
        assert_eq!(state_of(&store, later.id).await, OperationState::Cancelled);
        store.cancel(queued.id, at(9)).await.unwrap();
        assert_eq!(state_of(&store, queued.id).await, OperationState::Queued, "it may have been executed");
    }
}
