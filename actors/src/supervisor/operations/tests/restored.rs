//! Operations of a restored backup are checked, and not sent unless they were scheduled for later.

use std::time::Duration;

use guildhall_core::operation::{FailureClass, OperationKind, OperationState};
use serde_json::json;

use crate::ports::RestoredOperation;
use crate::testing::operations::{ScriptedSearch, TestCluster, paused};

const GUILD: u64 = 7;

#[test]
fn restored_operation_is_checked_and_not_sent() {
    use OperationState::{Delayed, Queued, Reconciling, Retrying, Running};
    let cases = [
        (true, ScriptedSearch::Search, OperationState::Succeeded, None),
        (false, ScriptedSearch::Search, OperationState::Dead, Some(FailureClass::Restored)),
        (false, ScriptedSearch::Unclear, OperationState::NeedsReview, Some(FailureClass::Ambiguous)),
    ];
    for state in [Queued, Delayed, Retrying, Running, Reconciling] {
        for (happened, search, expected, class) in cases.clone() {
            paused(async move {
                let world = TestCluster::new();
                let (assign, create) = (world.assign(GUILD, 100, 1), world.create(GUILD));
                for id in [assign, create] {
                    world.store.restore(id, state, RestoredOperation::Due);
                    world.discord.script_search(id, [search.clone()]);
                    if happened {
                        world.discord.set_happened(id);
                    }
                }
                // Accepted after the restore.
                let next = world.assign(GUILD, 200, 1);
                let _operations = world.start();
                world.until_done().await;
                for id in [assign, create] {
                    let stored = world.store.row(id).stored;
                    assert_eq!((stored.state, stored.error.as_ref().map(|error| error.class)), (expected, class));
                    assert!(stored.error.is_none_or(|error| error.message.contains("restored from a backup")));
                }
                assert_eq!(world.discord.verified(), [assign, create], "{state:?}");
                assert_eq!(world.discord.sent(), [next], "{state:?}");
            });
        }
    }
}

#[test]
fn restored_scheduled_operation_is_checked_before_it_is_sent() {
    for happened in [true, false] {
        paused(async move {
            let world = TestCluster::new();
            let mut operation = world.operation(GUILD, OperationKind::CreateRole, &json!({ "name": "Mods" }));
            operation.eligible_at = operation.created_at + Duration::from_secs(60);
            let id = world.submit(operation);
            world.store.restore(id, OperationState::Scheduled, RestoredOperation::Scheduled);
            if happened {
                world.discord.set_happened(id);
            }
            let _operations = world.start();
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert_eq!(world.state(id), OperationState::Scheduled);
            world.until_done().await;
            assert_eq!(world.state(id), OperationState::Succeeded);
            assert_eq!((world.discord.verified(), world.discord.happened(id)), (vec![id], 1));
            assert_eq!(world.discord.sent().len(), usize::from(!happened));
        });
    }
}

#[test]
fn restored_read_runs_again() {
    for room in [64 * 1_024, 0] {
        paused(async move {
            let mut world = TestCluster::new();
            world.config.max_payload_bytes = room;
            let id = world.submit(world.operation(GUILD, OperationKind::Read, &json!({ "path": "/guilds/7/roles" })));
            world.store.restore(id, OperationState::Queued, RestoredOperation::Due);
            let _operations = world.start();
            world.until_done().await;
            assert_eq!((world.state(id), world.discord.sent()), (OperationState::Succeeded, vec![id]));
            assert!(world.discord.verified().is_empty());
        });
    }
}
