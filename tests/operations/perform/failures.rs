//! The result of an operation for each response of Discord.

use std::time::Duration;

use guildhall_actors::ports::{Execution, ExecutionResult, HoldScope};
use guildhall_core::operation::payload::{AssignRole, Method, Request};
use guildhall_core::operation::{FailureClass, Payload, Reference};
use guildhall_sim::{CloudflareForm, FaultAction, Scope};
use guildhall_testkit::gate::run;

use super::fixture::{BASIC_PERMISSIONS, ExecutorFixture, create_role, send_message};

const CREATE_ROLE: &str = "POST /guilds/*/roles";
const ASSIGN: &str = "PUT /guilds/*/members/*/roles/*";

fn assign(fixture: &ExecutorFixture) -> Execution {
    let role = Reference::Id(fixture.create_guild_fixture.role);
    fixture.execution(Payload::AssignRole(AssignRole { user: fixture.create_guild_fixture.member, role }))
}

#[test]
fn refusal_has_the_class_of_its_status_and_its_code() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        for (status, code, class) in [
            (400, 50_035, FailureClass::Validation),
            (405, 0, FailureClass::Validation),
            (403, 50_013, FailureClass::Forbidden),
            (404, 10_004, FailureClass::NotFound),
            (400, 30_005, FailureClass::Conflict),
            (400, 30_013, FailureClass::Conflict),
        ] {
            fixture.world.fault_once(CREATE_ROLE, FaultAction::Status { status, code });
            let failure = fixture.execute_failing(&fixture.execution(create_role("x"))).await;
            assert_eq!((failure.class, failure.status, failure.code), (class, Some(status), Some(code)), "{failure}");
            assert!(failure.message.contains(&status.to_string()), "{failure}");
        }
        for status in [500, 502, 503] {
            fixture.world.fault_once(CREATE_ROLE, FaultAction::Status { status, code: 0 });
            assert_eq!(
                fixture.execute_failing(&fixture.execution(create_role("x"))).await.class,
                FailureClass::Ambiguous
            );
            fixture.world.fault_once(ASSIGN, FaultAction::Status { status, code: 0 });
            assert_eq!(fixture.execute_failing(&assign(&fixture)).await.class, FailureClass::Transient);
        }
        for cut in [FaultAction::DropBefore, FaultAction::DropAfter] {
            fixture.world.fault_once(ASSIGN, cut);
            assert_eq!(fixture.execute_failing(&assign(&fixture)).await.class, FailureClass::Transient);
        }
        assert!(fixture.roles_named("x").await.is_empty());
    });
}

#[test]
fn validation_error_lists_its_fields() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let body = serde_json::json!({ "name": "x".repeat(101), "color": -1 });
        let path = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        let request = Request { method: Method::Post, path, body: Some(body), user: None };
        let failure = fixture.execute_failing(&fixture.execution(Payload::Request(request))).await;
        assert_eq!((failure.class, failure.code), (FailureClass::Validation, Some(50_035)));
        assert!(failure.message.contains("name: Must be between 1 and 100 in length."), "{failure}");
        assert!(failure.message.contains("color: "), "{failure}");
        // An operation that is invalid is not sent.
        let before = fixture.world.arrived();
        let without_guild = Execution { guild: None, ..fixture.execution(create_role("x")) };
        assert_eq!(fixture.execute_failing(&without_guild).await.class, FailureClass::Validation);
        let role = Reference::Key("nobody resolved it".into());
        let unresolved = Payload::AssignRole(AssignRole { user: fixture.create_guild_fixture.member, role });
        assert_eq!(fixture.execute_failing(&fixture.execution(unresolved)).await.class, FailureClass::Validation);
        assert_eq!(fixture.world.arrived(), before);
    });
}

#[test]
fn rate_limit_holds_with_its_scope_and_delay() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let limit = |scope| FaultAction::RateLimit { scope, retry_after_ms: 90_000 };
        let held = |performed: ExecutionResult| match performed {
            ExecutionResult::Held { retry_after, scope: hold, reason, status, .. } => {
                (retry_after, hold, reason, status)
            }
            other => panic!("expected it to be held, got {other:?}"),
        };
        fixture.world.fault_once(CREATE_ROLE, limit(Scope::User));
        let (retry_after, hold, reason, status) = held(fixture.perform(&fixture.execution(create_role("x"))).await);
        assert_eq!((hold, reason, status), (HoldScope::Route, "rate_limited", Some(429)));
        assert!(retry_after.unwrap() > Duration::from_secs(80));
        let (retry_after, hold, reason, status) = held(fixture.perform(&fixture.execution(create_role("x"))).await);
        assert_eq!((hold, reason, status), (HoldScope::Route, "route_limit", None));
        assert!(retry_after.unwrap() > Duration::from_secs(60));

        fixture.world.fault_once("POST /channels/*/messages", limit(Scope::Shared));
        let message = fixture.execution(send_message(fixture.create_guild_fixture.channel, "x"));
        let (_, hold, reason, _) = held(fixture.perform(&message).await);
        assert_eq!((hold, reason), (HoldScope::Route, "rate_limited_shared"));

        fixture.world.fault_once(ASSIGN, limit(Scope::Global));
        let (_, hold, reason, _) = held(fixture.perform(&assign(&fixture)).await);
        assert_eq!((hold, reason), (HoldScope::All, "rate_limited_global"));
        let (_, hold, reason, _) = held(fixture.perform(&assign(&fixture)).await);
        assert_eq!((hold, reason), (HoldScope::All, "global_limit"));
    });
}

#[test]
fn ban_and_invalid_token_hold_everything() {
    run(async {
        for (fault, expected_reason) in [
            (FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(60_000) }, "blocked"),
            (FaultAction::Status { status: 401, code: 0 }, "unauthorized"),
        ] {
            let fixture = ExecutorFixture::new().await;
            fixture.world.fault_once(CREATE_ROLE, fault);
            for status in [Some(if expected_reason == "blocked" { 429 } else { 401 }), None] {
                match fixture.perform(&fixture.execution(create_role("x"))).await {
                    ExecutionResult::Held { scope: hold, reason, status: found, .. } => {
                        assert_eq!((hold, reason, found), (HoldScope::All, expected_reason, status));
                    }
                    other => panic!("expected it to be held, got {other:?}"),
                }
            }
            assert_eq!(fixture.world.arrived(), 1, "the second was not sent");
        }
    });
}

#[test]
fn open_breaker_holds_its_route_or_everything() {
    run(async {
        let fixture = ExecutorFixture::with_breakers(2).await;
        let outage = FaultAction::Status { status: 503, code: 0 };
        fixture.world.faults(ASSIGN, outage.clone(), 1.0, Some(2));
        for _ in 0..2 {
            assert_eq!(fixture.execute_failing(&assign(&fixture)).await.class, FailureClass::Transient);
        }
        let held = |performed: ExecutionResult| match performed {
            ExecutionResult::Held { retry_after, scope: hold, reason, status: None, .. } => {
                (retry_after.is_some(), hold, reason)
            }
            other => panic!("expected it to be held, got {other:?}"),
        };
        assert_eq!(held(fixture.perform(&assign(&fixture)).await), (true, HoldScope::Route, "breaker_open"));
        fixture.execute(&fixture.execution(create_role("others go on"))).await;
        // Failures of two routes in a row are attributed to Discord.
        let fixture = ExecutorFixture::with_breakers(2).await;
        fixture.world.fault_once(ASSIGN, outage.clone());
        assert_eq!(fixture.execute_failing(&assign(&fixture)).await.class, FailureClass::Transient);
        fixture.world.fault_once(CREATE_ROLE, outage);
        assert_eq!(fixture.execute_failing(&fixture.execution(create_role("x"))).await.class, FailureClass::Ambiguous);
        let message = fixture.execution(send_message(fixture.create_guild_fixture.channel, "x"));
        assert_eq!(held(fixture.perform(&message).await), (true, HoldScope::All, "breaker_open"));
    });
}

#[test]
fn missing_permission_is_forbidden() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS & !(1 << 28)).await;
        let failure = fixture.execute_failing(&fixture.execution(create_role("x"))).await;
        assert_eq!((failure.class, failure.code), (FailureClass::Forbidden, Some(50_013)));
        assert!(failure.message.contains("Missing Permissions"), "{failure}");
    });
}
