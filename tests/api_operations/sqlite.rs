//! The API on a SQLite file.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use guildhall::api::Services;
use guildhall::api::{ControlConfig, Listener};
use guildhall::settings;
use guildhall::store::Store;
use guildhall_actors::ports::{ClaimFrom, IntentUpdate, OperationStore as _, OperationUpdate, UpdateResult};
use guildhall_actors::submission::SubmissionConfig;
use guildhall_core::{
    operation::{Failure, FailureClass, OperationId, OperationState},
    time::UnixMs,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Answer, BEGIN, Ear, GUILD, GUILD_QUEUE, call, hall::Hall, listen, new_control, new_desk, role, run};

pub(crate) struct OnSqlite {
    store: Store,
    pub(crate) hall: Hall,
    listener: Listener,
}

impl OnSqlite {
    pub(crate) async fn open(folder: &TempDir) -> Self {
        Self::open_for(folder, 5).await
    }

    /// Limits each queue to `max_queued` operations.
    pub(crate) async fn open_for(folder: &TempDir, max_queued: u64) -> Self {
        Self::open_with(folder, max_queued, ControlConfig::default()).await
    }

    pub(crate) async fn open_with(folder: &TempDir, max_queued: u64, control: ControlConfig) -> Self {
        let settings = settings::StoreSettings {
            url: format!("sqlite:{}/guildhall.db", folder.path().display()).parse().unwrap(),
            direct_url: None,
            instance: None,
            lease: settings::LeaseSettings::default(),
            migrate: true,
            row_security: settings::RowSecuritySettings::default(),
            timeout: Duration::from_secs(20),
            lock_wait: Duration::ZERO,
            read_connections: 2,
            max_waiting: 100,
            max_queued,
            max_bytes: 0,
            max_audit: 0,
            usage: guildhall_core::usage::UsageLimits::default(),
            keep_keys: Duration::from_secs(3_600),
        };
        let store = Store::open(&settings).await.unwrap();
        let desk = new_desk(Arc::new(store.clone()), Arc::new(Ear::default()), None, SubmissionConfig::default());
        let control = new_control(control).with_keys(Arc::new(store.clone())).with_erasure(Arc::new(store.clone()));
        let services = Services { operations: Some(Arc::new(desk)), ..Services::default() };
        let (hall, control) = Hall::open(control, &store, services).await;
        Self { store, hall, listener: listen(control) }
    }

    /// Closes the file, so that it can be opened again.
    pub(crate) async fn close(self) {
        self.away().await;
    }

    /// Makes the store unavailable.
    pub(crate) async fn away(&self) {
        self.store.close().await;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        call(self.listener.address(), method, path, &[], &body).await
    }

    async fn submit(&self, body: Value) -> Answer {
        self.ask("POST", &format!("/v1/guilds/{GUILD}/operations"), body).await
    }

    /// Marks an operation as dead, as the actor of its guild would.
    pub(crate) async fn give_up(&self, id: &str) {
        let id: OperationId = id.parse().unwrap();
        let claim = self.store.claim(ClaimFrom::Queues(vec![GUILD_QUEUE])).await.unwrap().remove(0);
        let change = OperationUpdate {
            queue: GUILD_QUEUE,
            fence: claim.fence,
            id,
            guild: Some(GUILD.parse().unwrap()),
            state: OperationState::Dead,
            attempts: 1,
            delays: 0,
            eligible_at: UnixMs::new(BEGIN),
            parked: false,
            error: Some(Failure::new(FailureClass::Forbidden, "Missing Permissions")),
            result: None,
            made: None,
            intent: IntentUpdate::Keep,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: UnixMs::new(BEGIN + 5),
        };
        assert_eq!(self.store.record(vec![change]).await.unwrap(), [UpdateResult::Done]);
        assert!(self.store.release(GUILD_QUEUE, claim.fence).await.unwrap());
    }
}

fn keyed(name: &str) -> Value {
    let mut role = role(name);
    role["key"] = name.into();
    role
}

#[test]
fn what_was_accepted_is_there_after_a_restart_and_its_key_still_counts() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        let first = api.submit(json!({"operations": [keyed("a"), keyed("b"), keyed("c")]})).await;
        assert_eq!(first.status, 202, "{first:?}");
        let ids: Vec<Value> = [0, 1, 2].map(|n| first.json()["operations"][n]["id"].clone()).into();
        api.submit(json!({"operations": [role("d"), role("e"), role("f")]})).await.is_problem(429, "queue-full");
        api.store.close().await;

        let api = OnSqlite::open(&folder).await;
        let listed = api.ask("GET", "/v1/operations?limit=2", Value::Null).await.json();
        assert_eq!((&listed["operations"][0]["id"], &listed["operations"][1]["id"]), (&ids[2], &ids[1]));
        let path = format!("/v1/operations?limit=2&cursor={}", listed["next"].as_str().unwrap());
        let rest = api.ask("GET", &path, Value::Null).await.json();
        assert_eq!((&rest["operations"][0]["id"], &rest["next"]), (&ids[0], &Value::Null));
        let again = api.submit(keyed("b")).await;
        assert_eq!((again.status, &again.json()["id"]), (200, &ids[1]));
        let mut other = keyed("b");
        other["payload"]["name"] = "B".into();
        api.submit(other).await.is_problem(422, "idempotency-key-reused");
        let shown = api.ask("GET", &format!("/v1/operations/{}", ids[1].as_str().unwrap()), Value::Null).await.json();
        assert_eq!((&shown["payload"]["name"], &shown["key"], &shown["seq"]), (&json!("b"), &json!("b"), &json!(2)));
        api.store.close().await;
    });
}

#[test]
fn people_pause_cancel_and_redrive_what_the_file_holds() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        let guild = format!("/v1/guilds/{GUILD}");
        let (one, two) = (api.submit(role("one")).await.text("id"), api.submit(role("two")).await.text("id"));
        assert_eq!(api.ask("POST", &format!("{guild}/pause"), Value::Null).await.status, 200);
        let standing = api.ask("GET", &guild, Value::Null).await.json();
        assert_eq!((&standing["paused"], &standing["depth"]), (&json!(true), &json!(2)));
        assert_eq!(api.ask("POST", &format!("{guild}/resume"), Value::Null).await.status, 200);

        assert_eq!(api.ask("POST", &format!("/v1/operations/{two}/cancel"), Value::Null).await.status, 200);
        let late = api.ask("POST", &format!("/v1/operations/{two}/retry"), Value::Null).await;
        assert_eq!(late.is_problem(409, "conflict").text("state"), "cancelled");

        api.give_up(&one).await;
        let letter = api.ask("GET", &format!("/v1/dead-letters/{one}"), Value::Null).await.json();
        assert_eq!((&letter["error"]["class"], &letter["payload"]["name"]), (&json!("forbidden"), &json!("one")));
        let summary = api.ask("POST", "/v1/dead-letters/redrive", json!({"class": "forbidden"})).await.json();
        assert_eq!((&summary["redriven"], &summary["more"]), (&json!(1), &json!(false)));
        let again = summary["operations"][0]["operation"].as_str().unwrap().to_owned();
        let shown = api.ask("GET", &format!("/v1/operations/{again}"), Value::Null).await.json();
        assert_eq!((&shown["redrive_of"], &shown["state"]), (&json!(one), &json!("queued")));
        let second = api.ask("POST", &format!("/v1/dead-letters/{one}/redrive"), Value::Null).await;
        assert_eq!(second.is_problem(409, "already-redriven").text("operation_id"), again);
        assert_eq!(api.ask("DELETE", &format!("/v1/dead-letters/{one}"), Value::Null).await.status, 204);
        assert_eq!(api.ask("POST", &format!("/v1/operations/{again}/retry"), Value::Null).await.status, 202);
        let depth = api.ask("GET", &guild, Value::Null).await.json()["depth"].clone();
        assert_eq!(depth, 1);
        api.store.close().await;
    });
}
