//! Reads and raw requests.

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::payload::{Method, Read, Request};
use guildhall_core::operation::{FailureClass, Payload};
use guildhall_sim::FaultAction;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::Stage;

fn request(method: Method, path: String, body: Option<Value>) -> Payload {
    Payload::Request(Request { method, path, body, user: None })
}

#[test]
fn what_is_read_is_the_result_unless_it_is_too_large() {
    run(async {
        let stage = Stage::new().await;
        let read = |path: &str| Payload::Read(Read { path: path.to_owned() });
        let me = stage.done(&stage.work(read("/users/@me"))).await;
        assert_eq!((&me.result["bot"], me.status), (&json!(true), Some(200)));
        assert_eq!(stage.failed(&stage.work(read("/users/5"))).await.class, FailureClass::NotFound);
        assert_eq!(stage.failed(&stage.work(read("/users/../guilds"))).await.class, FailureClass::Validation);

        let channels = format!("/guilds/{}/channels", stage.place.guild);
        let topic = "x".repeat(1_000);
        for name in ["a", "b", "c", "d"] {
            let body = json!({ "name": name, "topic": topic });
            stage.done(&stage.work(request(Method::Post, channels.clone(), Some(body)))).await;
        }
        let large = stage.failed(&stage.work(read(&channels))).await;
        assert_eq!(large.class, FailureClass::Validation);
        assert!(large.message.contains("at most 4096"), "{large}");
    });
}

#[test]
fn a_request_says_what_it_made_and_carries_the_marker() {
    run(async {
        let stage = Stage::new().await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        let work = stage.work(request(Method::Post, roles.clone(), Some(json!({ "name": "raw" }))));
        let made = stage.done(&work).await;
        let role = made.made.unwrap();
        assert_eq!(made.result["name"], "raw");
        assert!(stage.reasons(30).await[0].contains(&work.marker.tag()));
        let gone = stage.work(request(Method::Delete, format!("{roles}/{role}"), None));
        assert_eq!(stage.done(&gone).await.status, Some(204));
        assert_eq!(stage.done(&gone).await.status, Some(404), "nothing is left to delete");
    });
}

#[test]
fn only_a_post_is_in_doubt() {
    run(async {
        let stage = Stage::new().await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        let post = stage.work(request(Method::Post, roles.clone(), Some(json!({ "name": "raw" }))));
        stage.lost(&post, "POST /guilds/*/roles", FaultAction::DropAfter).await;
        assert!(stage.unclear(&post).await.contains("POST"));
        let role = &stage.roles_named("raw").await[0]["id"];
        let path = format!("{roles}/{}", role.as_str().unwrap());
        let patch = stage.work(request(Method::Patch, path, Some(json!({ "name": "new" }))));
        stage.world.fault_once("PATCH /guilds/*/roles/*", FaultAction::DropBefore);
        assert_eq!(stage.failed(&patch).await.class, FailureClass::Transient);
        assert_eq!(stage.reconcile(&patch).await, ReconcileResult::Absent);
    });
}
