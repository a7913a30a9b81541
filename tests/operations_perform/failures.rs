//! The result of an operation for each response of Discord.

use std::time::Duration;

use guildhall_actors::ports::{Execution, ExecutionResult, HoldScope};
use guildhall_core::operation::payload::{AssignRole, Method, Request};
use guildhall_core::operation::{FailureClass, Payload, Reference};
use guildhall_sim::{CloudflareForm, FaultAction, Scope};

use crate::gate::run;
use crate::stage::{PLAIN, Stage, create_role, send_message};

const CREATE_ROLE: &str = "POST /guilds/*/roles";
const ASSIGN: &str = "PUT /guilds/*/members/*/roles/*";

fn assign(stage: &Stage) -> Execution {
    let role = Reference::Id(stage.place.role);
    stage.work(Payload::AssignRole(AssignRole { user: stage.place.member, role }))
}

#[test]
fn a_refusal_has_the_class_of_its_status_and_names_its_code() {
    run(async {
        let stage = Stage::new().await;
        for (status, code, class) in [
            (400, 50_035, FailureClass::Validation),
            (405, 0, FailureClass::Validation),
            (403, 50_013, FailureClass::Forbidden),
            (404, 10_004, FailureClass::NotFound),
            (400, 30_005, FailureClass::Conflict),
            (400, 30_013, FailureClass::Conflict),
        ] {
            stage.world.fault_once(CREATE_ROLE, FaultAction::Status { status, code });
            let failure = stage.failed(&stage.work(create_role("x"))).await;
            assert_eq!((failure.class, failure.status, failure.code), (class, Some(status), Some(code)), "{failure}");
            assert!(failure.message.contains(&status.to_string()), "{failure}");
        }
        for status in [500, 502, 503] {
            stage.world.fault_once(CREATE_ROLE, FaultAction::Status { status, code: 0 });
            assert_eq!(stage.failed(&stage.work(create_role("x"))).await.class, FailureClass::Ambiguous);
            stage.world.fault_once(ASSIGN, FaultAction::Status { status, code: 0 });
            assert_eq!(stage.failed(&assign(&stage)).await.class, FailureClass::Transient);
        }
        for cut in [FaultAction::DropBefore, FaultAction::DropAfter] {
            stage.world.fault_once(ASSIGN, cut);
            assert_eq!(stage.failed(&assign(&stage)).await.class, FailureClass::Transient);
        }
        assert!(stage.roles_named("x").await.is_empty());
    });
}

#[test]
fn a_form_that_is_wrong_is_told_field_by_field() {
    run(async {
        let stage = Stage::new().await;
        let body = serde_json::json!({ "name": "x".repeat(101), "color": -1 });
        let path = format!("/guilds/{}/roles", stage.place.guild);
        let request = Request { method: Method::Post, path, body: Some(body), user: None };
        let failure = stage.failed(&stage.work(Payload::Request(request))).await;
        assert_eq!((failure.class, failure.code), (FailureClass::Validation, Some(50_035)));
        assert!(failure.message.contains("name: Must be between 1 and 100 in length."), "{failure}");
        assert!(failure.message.contains("color: "), "{failure}");
        // An operation that is invalid is not sent.
        let before = stage.world.arrived();
        let nowhere = Execution { guild: None, ..stage.work(create_role("x")) };
        assert_eq!(stage.failed(&nowhere).await.class, FailureClass::Validation);
        let role = Reference::Key("nobody resolved it".into());
        let unresolved = Payload::AssignRole(AssignRole { user: stage.place.member, role });
        assert_eq!(stage.failed(&stage.work(unresolved)).await.class, FailureClass::Validation);
        assert_eq!(stage.world.arrived(), before);
    });
}

#[test]
fn a_limit_holds_and_says_whom_and_for_how_long() {
    run(async {
        let stage = Stage::new().await;
        let limit = |scope| FaultAction::RateLimit { scope, retry_after_ms: 90_000 };
        let held = |performed: ExecutionResult| match performed {
            ExecutionResult::Held { retry_after, hold, reason, status, .. } => (retry_after, hold, reason, status),
            other => panic!("expected it to be held, got {other:?}"),
        };
        stage.world.fault_once(CREATE_ROLE, limit(Scope::User));
        let (retry_after, hold, reason, status) = held(stage.perform(&stage.work(create_role("x"))).await);
        assert_eq!((hold, reason, status), (HoldScope::Route, "rate_limited", Some(429)));
        assert!(retry_after.unwrap() > Duration::from_secs(80));
        let (retry_after, hold, reason, status) = held(stage.perform(&stage.work(create_role("x"))).await);
        assert_eq!((hold, reason, status), (HoldScope::Route, "route_limit", None));
        assert!(retry_after.unwrap() > Duration::from_secs(60));

        stage.world.fault_once("POST /channels/*/messages", limit(Scope::Shared));
        let message = stage.work(send_message(stage.place.channel, "x"));
        let (_, hold, reason, _) = held(stage.perform(&message).await);
        assert_eq!((hold, reason), (HoldScope::Route, "rate_limited_shared"));

        stage.world.fault_once(ASSIGN, limit(Scope::Global));
        let (_, hold, reason, _) = held(stage.perform(&assign(&stage)).await);
        assert_eq!((hold, reason), (HoldScope::All, "rate_limited_global"));
        let (_, hold, reason, _) = held(stage.perform(&assign(&stage)).await);
        assert_eq!((hold, reason), (HoldScope::All, "global_limit"));
    });
}

#[test]
fn a_ban_and_a_wrong_token_hold_everything() {
    run(async {
        for (fault, word) in [
            (FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(60_000) }, "blocked"),
            (FaultAction::Status { status: 401, code: 0 }, "unauthorized"),
        ] {
            let stage = Stage::new().await;
            stage.world.fault_once(CREATE_ROLE, fault);
            for status in [Some(if word == "blocked" { 429 } else { 401 }), None] {
                match stage.perform(&stage.work(create_role("x"))).await {
                    ExecutionResult::Held { hold, reason, status: found, .. } => {
                        assert_eq!((hold, reason, found), (HoldScope::All, word, status));
                    }
                    other => panic!("expected it to be held, got {other:?}"),
                }
            }
            assert_eq!(stage.world.arrived(), 1, "the second was not sent");
        }
    });
}

#[test]
fn an_open_breaker_holds_its_own_route_or_everything() {
    run(async {
        let stage = Stage::with_breakers(2).await;
        let outage = FaultAction::Status { status: 503, code: 0 };
        stage.world.faults(ASSIGN, outage.clone(), 1.0, Some(2));
        for _ in 0..2 {
            assert_eq!(stage.failed(&assign(&stage)).await.class, FailureClass::Transient);
        }
        let held = |performed: ExecutionResult| match performed {
            ExecutionResult::Held { retry_after, hold, reason, status: None, .. } => {
                (retry_after.is_some(), hold, reason)
            }
            other => panic!("expected it to be held, got {other:?}"),
        };
        assert_eq!(held(stage.perform(&assign(&stage)).await), (true, HoldScope::Route, "breaker_open"));
        stage.done(&stage.work(create_role("others go on"))).await;
        // Failures of two routes in a row are attributed to Discord.
        let stage = Stage::with_breakers(2).await;
        stage.world.fault_once(ASSIGN, outage.clone());
        assert_eq!(stage.failed(&assign(&stage)).await.class, FailureClass::Transient);
        stage.world.fault_once(CREATE_ROLE, outage);
        assert_eq!(stage.failed(&stage.work(create_role("x"))).await.class, FailureClass::Ambiguous);
        let message = stage.work(send_message(stage.place.channel, "x"));
        assert_eq!(held(stage.perform(&message).await), (true, HoldScope::All, "breaker_open"));
    });
}

#[test]
fn what_the_bot_may_not_do_is_forbidden() {
    run(async {
        let stage = Stage::with_permissions(PLAIN & !(1 << 28)).await;
        let failure = stage.failed(&stage.work(create_role("x"))).await;
        assert_eq!((failure.class, failure.code), (FailureClass::Forbidden, Some(50_013)));
        assert!(failure.message.contains("Missing Permissions"), "{failure}");
    });
}
