//! Administrative actions on operations and guilds: cancel, retry, pause.

use std::sync::Arc;

use guildhall_actors::access::{Caller, default_tenant};
use guildhall_actors::ports::PauseTarget;
use guildhall_actors::submission::{OperationError, RetryResult};
use guildhall_core::access::{Grant, Scope};
use guildhall_core::operation::OperationState;
use serde_json::json;

use super::{GUILD, GUILD_QUEUE, Notification, TestApi, run};

#[test]
fn pending_operation_is_cancelled_idempotently() {
    run(async {
        let api = TestApi::start();
        for state in [OperationState::Scheduled, OperationState::Queued, OperationState::Delayed] {
            let id = api.create_role("a").await;
            api.store.set_state(&id, state);
            api.take_notifications();
            // The first request may have failed before the guild was notified.
            for _ in 0..2 {
                let response = api.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
                assert_eq!((response.status, response.text("state")), (200, "cancelled".to_owned()));
                assert_eq!(api.take_notifications(), [Notification::Cancelled(id.parse().unwrap(), GUILD_QUEUE)]);
            }
            assert_eq!(api.get(&format!("/v1/operations/{id}")).await.text("state"), "cancelled");
        }
    });
}

#[test]
fn running_or_final_operation_cannot_be_cancelled() {
    use OperationState::{Dead, NeedsReview, Reconciling, Retrying, Running, Succeeded};
    run(async {
        let api = TestApi::start();
        for state in [Running, Retrying, Reconciling, Succeeded, Dead, NeedsReview] {
            let id = api.create_role("a").await;
            api.store.set_state(&id, state);
            api.take_notifications();
            let response = api.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
            assert_eq!(response.assert_problem(409, "conflict").text("state"), state.name());
            assert!(api.take_notifications().is_empty());
        }
    });
}

#[test]
fn retry_expedites_a_pending_operation() {
    run(async {
        let api = TestApi::start();
        for state in [OperationState::Queued, OperationState::Delayed, OperationState::Retrying] {
            let id = api.create_role("a").await;
            api.store.set_state(&id, state);
            api.take_notifications();
            let response = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            assert_eq!(
                (response.status, response.text("id"), response.text("state")),
                (202, id.clone(), state.name().into())
            );
            assert_eq!(api.take_notifications(), [Notification::Expedited(id.parse().unwrap(), GUILD_QUEUE)]);
        }
    });
}

#[test]
fn retry_redrives_a_failed_operation_once() {
    run(async {
        let api = TestApi::start();
        for state in [OperationState::Dead, OperationState::NeedsReview] {
            let id = api.create_role("Pilots").await;
            api.store.set_state(&id, state);
            api.take_notifications();
            let response = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            let redriven = response.text("id");
            assert_eq!((response.status, response.text("redrive_of")), (202, id.clone()));
            assert_eq!(response.header("location").unwrap(), format!("/v1/operations/{redriven}"));
            assert_eq!(api.take_notifications(), [Notification::Wake(GUILD_QUEUE)]);
            let (first, second) = (api.store.stored(&id), api.store.stored(&redriven));
            assert_eq!((first.payload, first.payload_hash), (second.payload, second.payload_hash));
            assert_eq!((second.redrive_of, second.queue), (Some(first.id), first.queue));

            api.post(&format!("/v1/operations/{id}/retry"), json!({})).await.assert_problem(409, "already-redriven");
            assert!(api.take_notifications().is_empty());
        }
    });
}

#[test]
fn retry_needs_the_scopes_of_a_submission_in_every_state() {
    run(async {
        let api = TestApi::start();
        let caller = |scopes: &[&str]| {
            let grant = Arc::new(Grant::read(scopes.iter().copied()).unwrap());
            Caller { tenant: Some(default_tenant()), grant, ..Caller::operator() }
        };
        let (without, with) = (caller(&["operations:write"]), caller(&["operations:write", "danger"]));
        for state in [
            OperationState::Queued,
            OperationState::Delayed,
            OperationState::Retrying,
            OperationState::Dead,
            OperationState::NeedsReview,
        ] {
            let admin_role = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": "8"}});
            let id = api.post(&format!("/v1/guilds/{GUILD}/operations"), admin_role).await.text("id");
            api.store.set_state(&id, state);
            api.take_notifications();
            let operation = id.parse().unwrap();
            match api.service.retry(&without, operation).await {
                Err(OperationError::Forbidden { missing: lack, .. }) => {
                    assert!(lack.contains("grants ADMINISTRATOR"), "{lack}");
                }
                other => panic!("{}: {other:?}", state.name()),
            }
            assert!(api.take_notifications().is_empty(), "{}", state.name());
            let retried = api.service.retry(&with, operation).await.unwrap();
            // The new operation has only scopes that both keys have.
            if let RetryResult::Redriven { id } = retried {
                let redriven = api.store.stored(&id.to_string());
                assert!(redriven.scopes.allow(Scope::Danger) && !redriven.scopes.allow(Scope::Admin));
            }
        }
    });
}

#[test]
fn deleted_operation_is_retried_from_its_dead_letter() {
    run(async {
        let api = TestApi::start();
        let id = api.create_role("Pilots").await;
        api.store.set_state(&id, OperationState::Dead);
        api.store.delete_row(&id);
        let response = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
        assert_eq!((response.status, response.text("redrive_of")), (202, id));
    });
}

#[test]
fn running_or_succeeded_operation_is_not_retried() {
    run(async {
        let api = TestApi::start();
        for state in
            [OperationState::Running, OperationState::Reconciling, OperationState::Succeeded, OperationState::Cancelled]
        {
            let id = api.create_role("a").await;
            api.store.set_state(&id, state);
            let response = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            assert_eq!(response.assert_problem(409, "conflict").text("state"), state.name());
        }
        assert_eq!(api.store.count(), 4);
    });
}

#[test]
fn guild_and_fleet_are_paused_and_resumed() {
    run(async {
        let api = TestApi::start();
        // A guild that nothing has named is unknown.
        api.create_role("a").await;
        api.take_notifications();
        let path = format!("/v1/guilds/{GUILD}");
        let status = async || {
            let guild = api.get(&path).await.json();
            (guild["paused"].as_bool().unwrap(), guild["all_paused"].as_bool().unwrap())
        };
        for (route, expected, notification) in [
            (format!("{path}/pause"), (true, false), Notification::Paused(PauseTarget::Queue(GUILD_QUEUE), true)),
            ("/v1/pause".to_owned(), (true, true), Notification::Paused(PauseTarget::All, true)),
            (format!("{path}/resume"), (false, true), Notification::Paused(PauseTarget::Queue(GUILD_QUEUE), false)),
            ("/v1/resume".to_owned(), (false, false), Notification::Paused(PauseTarget::All, false)),
        ] {
            // The body is optional.
            assert_eq!(super::call(api.address(), "POST", &route, &[], "").await.status, 200, "{route}");
            assert_eq!(status().await, expected, "{route}");
            assert_eq!(api.take_notifications(), [notification]);
        }
    });
}
