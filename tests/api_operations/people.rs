//! Administrative actions on operations and guilds: cancel, retry, pause.

use std::sync::Arc;

use guildhall_actors::access::{Caller, default_tenant};
use guildhall_actors::ports::PauseTarget;
use guildhall_actors::submission::{OperationError, RetryResult};
use guildhall_core::access::{Grant, Scope};
use guildhall_core::operation::OperationState;
use serde_json::json;

use super::{Api, GUILD, GUILD_QUEUE, Heard, run};

#[test]
fn an_operation_that_waits_is_taken_back_once_or_twice() {
    run(async {
        let api = Api::start();
        for state in [OperationState::Scheduled, OperationState::Queued, OperationState::Delayed] {
            let id = api.create_role("a").await;
            api.store.become_state(&id, state);
            api.heard();
            // The first request may have failed before the guild was notified.
            for _ in 0..2 {
                let answer = api.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
                assert_eq!((answer.status, answer.text("state")), (200, "cancelled".to_owned()));
                assert_eq!(api.heard(), [Heard::Cancelled(id.parse().unwrap(), GUILD_QUEUE)]);
            }
            assert_eq!(api.get(&format!("/v1/operations/{id}")).await.text("state"), "cancelled");
        }
    });
}

#[test]
fn an_operation_that_is_under_way_or_over_cannot_be_taken_back_and_its_state_is_told() {
    use OperationState::{Dead, NeedsReview, Reconciling, Retrying, Running, Succeeded};
    run(async {
        let api = Api::start();
        for state in [Running, Retrying, Reconciling, Succeeded, Dead, NeedsReview] {
            let id = api.create_role("a").await;
            api.store.become_state(&id, state);
            api.heard();
            let answer = api.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
            assert_eq!(answer.is_problem(409, "conflict").text("state"), state.name());
            assert!(api.heard().is_empty());
        }
    });
}

#[test]
fn an_operation_that_waits_is_due_when_a_person_says_so() {
    run(async {
        let api = Api::start();
        for state in [OperationState::Queued, OperationState::Delayed, OperationState::Retrying] {
            let id = api.create_role("a").await;
            api.store.become_state(&id, state);
            api.heard();
            let answer = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            assert_eq!(
                (answer.status, answer.text("id"), answer.text("state")),
                (202, id.clone(), state.name().into())
            );
            assert_eq!(api.heard(), [Heard::Hastened(id.parse().unwrap(), GUILD_QUEUE)]);
        }
    });
}

#[test]
fn an_operation_that_is_over_is_done_again_as_another_and_only_once() {
    run(async {
        let api = Api::start();
        for state in [OperationState::Dead, OperationState::NeedsReview] {
            let id = api.create_role("Pilots").await;
            api.store.become_state(&id, state);
            api.heard();
            let answer = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            let again = answer.text("id");
            assert_eq!((answer.status, answer.text("redrive_of")), (202, id.clone()));
            assert_eq!(answer.header("location").unwrap(), format!("/v1/operations/{again}"));
            assert_eq!(api.heard(), [Heard::Wake(GUILD_QUEUE)]);
            let (first, second) = (api.store.kept(&id), api.store.kept(&again));
            assert_eq!((first.payload, first.payload_hash), (second.payload, second.payload_hash));
            assert_eq!((second.redrive_of, second.queue), (Some(first.id), first.queue));

            api.post(&format!("/v1/operations/{id}/retry"), json!({})).await.is_problem(409, "already-redriven");
            assert!(api.heard().is_empty());
        }
    });
}

#[test]
fn retry_needs_the_scopes_of_a_submission_in_every_state() {
    run(async {
        let api = Api::start();
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
            let boss = json!({"kind": "create_role", "payload": {"name": "Boss", "permissions": "8"}});
            let id = api.post(&format!("/v1/guilds/{GUILD}/operations"), boss).await.text("id");
            api.store.become_state(&id, state);
            api.heard();
            let operation = id.parse().unwrap();
            match api.desk.retry(&without, operation).await {
                Err(OperationError::Forbidden { lack, .. }) => assert!(lack.contains("grants ADMINISTRATOR"), "{lack}"),
                other => panic!("{}: {other:?}", state.name()),
            }
            assert!(api.heard().is_empty(), "{}", state.name());
            let retried = api.desk.retry(&with, operation).await.unwrap();
            // The new operation has only scopes that both keys have.
            if let RetryResult::Again { id } = retried {
                let again = api.store.kept(&id.to_string());
                assert!(again.scopes.allow(Scope::Danger) && !again.scopes.allow(Scope::Admin));
            }
        }
    });
}

#[test]
fn a_dead_operation_that_was_forgotten_is_done_again_from_its_letter() {
    run(async {
        let api = Api::start();
        let id = api.create_role("Pilots").await;
        api.store.become_state(&id, OperationState::Dead);
        api.store.forget(&id);
        let answer = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
        assert_eq!((answer.status, answer.text("redrive_of")), (202, id));
    });
}

#[test]
fn an_operation_that_is_under_way_or_has_succeeded_is_not_tried_again() {
    run(async {
        let api = Api::start();
        for state in
            [OperationState::Running, OperationState::Reconciling, OperationState::Succeeded, OperationState::Cancelled]
        {
            let id = api.create_role("a").await;
            api.store.become_state(&id, state);
            let answer = api.post(&format!("/v1/operations/{id}/retry"), json!({})).await;
            assert_eq!(answer.is_problem(409, "conflict").text("state"), state.name());
        }
        assert_eq!(api.store.count(), 4);
    });
}

#[test]
fn a_guild_or_everything_is_paused_and_goes_on() {
    run(async {
        let api = Api::start();
        let path = format!("/v1/guilds/{GUILD}");
        let standing = async || {
            let shown = api.get(&path).await.json();
            (shown["paused"].as_bool().unwrap(), shown["all_paused"].as_bool().unwrap())
        };
        for (way, expected, heard) in [
            (format!("{path}/pause"), (true, false), Heard::Paused(PauseTarget::Queue(GUILD_QUEUE), true)),
            ("/v1/pause".to_owned(), (true, true), Heard::Paused(PauseTarget::All, true)),
            (format!("{path}/resume"), (false, true), Heard::Paused(PauseTarget::Queue(GUILD_QUEUE), false)),
            ("/v1/resume".to_owned(), (false, false), Heard::Paused(PauseTarget::All, false)),
        ] {
            // The body is optional.
            assert_eq!(super::call(api.address(), "POST", &way, &[], "").await.status, 200, "{way}");
            assert_eq!(standing().await, expected, "{way}");
            assert_eq!(api.heard(), [heard]);
        }
    });
}
