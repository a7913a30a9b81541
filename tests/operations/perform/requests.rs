//! Reads and raw requests.

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::payload::{Method, Read, Request};
use guildhall_core::operation::{FailureClass, Payload};
use guildhall_sim::FaultAction;
use guildhall_testkit::gate::run;
use serde_json::{Value, json};

use super::fixture::ExecutorFixture;

fn request(method: Method, path: String, body: Option<Value>) -> Payload {
    Payload::Request(Request { method, path, body, user: None })
}

#[test]
fn read_returns_the_response_unless_it_is_too_large() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let read = |path: &str| Payload::Read(Read { path: path.to_owned() });
        let me = fixture.execute(&fixture.execution(read("/users/@me"))).await;
        assert_eq!((&me.result["bot"], me.status), (&json!(true), Some(200)));
        assert_eq!(fixture.execute_failing(&fixture.execution(read("/users/5"))).await.class, FailureClass::NotFound);
        assert_eq!(
            fixture.execute_failing(&fixture.execution(read("/users/../guilds"))).await.class,
            FailureClass::Validation
        );

        let channels = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
        let topic = "x".repeat(1_000);
        for name in ["a", "b", "c", "d"] {
            let body = json!({ "name": name, "topic": topic });
            fixture.execute(&fixture.execution(request(Method::Post, channels.clone(), Some(body)))).await;
        }
        let large = fixture.execute_failing(&fixture.execution(read(&channels))).await;
        assert_eq!(large.class, FailureClass::Validation);
        assert!(large.message.contains("at most 4096"), "{large}");
    });
}

#[test]
fn request_returns_what_it_created_and_has_the_marker() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        let execution = fixture.execution(request(Method::Post, roles.clone(), Some(json!({ "name": "raw" }))));
        let created = fixture.execute(&execution).await;
        let role = created.created.unwrap();
        assert_eq!(created.result["name"], "raw");
        assert!(fixture.reasons(30).await[0].contains(&execution.marker.tag()));
        let delete = fixture.execution(request(Method::Delete, format!("{roles}/{role}"), None));
        assert_eq!(fixture.execute(&delete).await.status, Some(204));
        assert_eq!(fixture.execute(&delete).await.status, Some(404), "nothing is left to delete");
    });
}

#[test]
fn only_a_post_has_an_unknown_outcome() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        let post = fixture.execution(request(Method::Post, roles.clone(), Some(json!({ "name": "raw" }))));
        fixture.execute_lost(&post, "POST /guilds/*/roles", FaultAction::DropAfter).await;
        assert!(fixture.reconcile_unclear(&post).await.contains("POST"));
        let role = &fixture.roles_named("raw").await[0]["id"];
        let path = format!("{roles}/{}", role.as_str().unwrap());
        let patch = fixture.execution(request(Method::Patch, path, Some(json!({ "name": "new" }))));
        fixture.world.fault_once("PATCH /guilds/*/roles/*", FaultAction::DropBefore);
        assert_eq!(fixture.execute_failing(&patch).await.class, FailureClass::Transient);
        assert_eq!(fixture.reconcile(&patch).await, ReconcileResult::Absent);
    });
}
