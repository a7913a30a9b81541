//! The API on a SQLite file.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use guildhall::api::Services;
use guildhall::api::{ControlConfig, Listener};
use guildhall::settings;
use guildhall::store::Store;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::{
    AddKeyResult, ClaimFrom, IntentUpdate, KeyStore as _, NewApiKey, OperationStore as _, OperationUpdate, UpdateResult,
};
use guildhall_actors::submission::SubmissionConfig;
use guildhall_core::{
    access::KeyId,
    operation::{Failure, FailureClass, OperationId, OperationState},
    time::UnixMs,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    GUILD, GUILD_QUEUE, RecordingNotifier, Response, START_MS, call, listen, new_control, new_service, role, run,
    service_fixture::ServiceFixture,
};

pub(crate) struct SqliteApi {
    store: Store,
    pub(crate) services: ServiceFixture,
    listener: Listener,
}

impl SqliteApi {
    pub(crate) async fn open(folder: &TempDir) -> Self {
        Self::open_with_max_queued(folder, 5).await
    }

    /// Limits each queue to `max_queued` operations.
    pub(crate) async fn open_with_max_queued(folder: &TempDir, max_queued: u64) -> Self {
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
            idempotency_retention: Duration::from_secs(3_600),
        };
        let store = Store::open(&settings).await.unwrap();
        let service = new_service(
            Arc::new(store.clone()),
            Arc::new(RecordingNotifier::default()),
            None,
            SubmissionConfig::default(),
        );
        let control = new_control(control).with_keys(Arc::new(store.clone())).with_erasure(Arc::new(store.clone()));
        let services = Services { operations: Some(Arc::new(service)), ..Services::default() };
        let (services, control) = ServiceFixture::open(control, &store, services).await;
        Self { store, services, listener: listen(control) }
    }

    /// Closes the file, so that it can be opened again.
    pub(crate) async fn close(self) {
        self.close_store().await;
    }

    /// Makes the store unavailable.
    pub(crate) async fn close_store(&self) {
        self.store.close().await;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    pub(crate) async fn request(&self, method: &str, path: &str, body: Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        call(self.listener.address(), method, path, &[], &body).await
    }

    /// Adds a key with the secret of this one that has expired. Returns it.
    pub(crate) async fn add_expired_copy(&self, key: &str, id: &str) -> String {
        let original = self.store.key(id.parse::<KeyId>().unwrap()).await.unwrap().unwrap().key;
        let expires_at = Some(UnixMs::new(START_MS));
        let copy = NewApiKey { id: KeyId::from_random(1), expires_at, ..original };
        let text = key.replace(id, copy.id.as_str());
        let record = Caller::operator().audit_record(AuditAction::KeysCreate, UnixMs::new(START_MS));
        assert_eq!(self.store.add_key(copy, record).await.unwrap(), AddKeyResult::Done);
        text
    }

    async fn submit(&self, body: Value) -> Response {
        self.request("POST", &format!("/v1/guilds/{GUILD}/operations"), body).await
    }

    /// Marks an operation as dead, as the actor of its guild would.
    pub(crate) async fn mark_dead(&self, id: &str) {
        let id: OperationId = id.parse().unwrap();
        let claim = self.store.claim(ClaimFrom::Queues(vec![GUILD_QUEUE])).await.unwrap().remove(0);
        let update = OperationUpdate {
            queue: GUILD_QUEUE,
            fence: claim.fence,
            id,
            guild: Some(GUILD.parse().unwrap()),
            state: OperationState::Dead,
            attempts: 1,
            delays: 0,
            eligible_at: UnixMs::new(START_MS),
            parked: false,
            error: Some(Failure::new(FailureClass::Forbidden, "Missing Permissions")),
            result: None,
            created: None,
            intent: IntentUpdate::Unchanged,
            progress: None,
            attempt: None,
            unknown_outcome: None,
            bind: Vec::new(),
            unbind: Vec::new(),
            at: UnixMs::new(START_MS + 5),
        };
        assert_eq!(self.store.record(vec![update]).await.unwrap(), [UpdateResult::Done]);
        assert!(self.store.release(GUILD_QUEUE, claim.fence).await.unwrap());
    }
}

fn role_with_key(name: &str) -> Value {
    let mut role = role(name);
    role["key"] = name.into();
    role
}

#[test]
fn accepted_operations_and_keys_survive_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let first =
            api.submit(json!({"operations": [role_with_key("a"), role_with_key("b"), role_with_key("c")]})).await;
        assert_eq!(first.status, 202, "{first:?}");
        let ids: Vec<Value> = [0, 1, 2].map(|n| first.json()["operations"][n]["id"].clone()).into();
        api.submit(json!({"operations": [role("d"), role("e"), role("f")]})).await.assert_problem(429, "queue-full");
        api.store.close().await;

        let api = SqliteApi::open(&folder).await;
        let listed = api.request("GET", "/v1/operations?limit=2", Value::Null).await.json();
        assert_eq!((&listed["operations"][0]["id"], &listed["operations"][1]["id"]), (&ids[2], &ids[1]));
        let path = format!("/v1/operations?limit=2&cursor={}", listed["next"].as_str().unwrap());
        let rest = api.request("GET", &path, Value::Null).await.json();
        assert_eq!((&rest["operations"][0]["id"], &rest["next"]), (&ids[0], &Value::Null));
        let repeated = api.submit(role_with_key("b")).await;
        assert_eq!((repeated.status, &repeated.json()["id"]), (200, &ids[1]));
        let mut other = role_with_key("b");
        other["payload"]["name"] = "B".into();
        api.submit(other).await.assert_problem(422, "idempotency-key-reused");
        let operation =
            api.request("GET", &format!("/v1/operations/{}", ids[1].as_str().unwrap()), Value::Null).await.json();
        assert_eq!(
            (&operation["payload"]["name"], &operation["key"], &operation["seq"]),
            (&json!("b"), &json!("b"), &json!(2))
        );
        api.store.close().await;
    });
}

#[test]
fn guild_is_paused_cancelled_and_redriven_on_sqlite() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let guild = format!("/v1/guilds/{GUILD}");
        let (one, two) = (api.submit(role("one")).await.text("id"), api.submit(role("two")).await.text("id"));
        assert_eq!(api.request("POST", &format!("{guild}/pause"), Value::Null).await.status, 200);
        let status = api.request("GET", &guild, Value::Null).await.json();
        assert_eq!((&status["paused"], &status["depth"]), (&json!(true), &json!(2)));
        assert_eq!(api.request("POST", &format!("{guild}/resume"), Value::Null).await.status, 200);

        assert_eq!(api.request("POST", &format!("/v1/operations/{two}/cancel"), Value::Null).await.status, 200);
        let late = api.request("POST", &format!("/v1/operations/{two}/retry"), Value::Null).await;
        assert_eq!(late.assert_problem(409, "conflict").text("state"), "cancelled");

        api.mark_dead(&one).await;
        let dead_letter = api.request("GET", &format!("/v1/dead-letters/{one}"), Value::Null).await.json();
        assert_eq!(
            (&dead_letter["error"]["class"], &dead_letter["payload"]["name"]),
            (&json!("forbidden"), &json!("one"))
        );
        let summary = api.request("POST", "/v1/dead-letters/redrive", json!({"class": "forbidden"})).await.json();
        assert_eq!((&summary["redriven"], &summary["more"]), (&json!(1), &json!(false)));
        let redriven = summary["operations"][0]["operation"].as_str().unwrap().to_owned();
        let operation = api.request("GET", &format!("/v1/operations/{redriven}"), Value::Null).await.json();
        assert_eq!((&operation["redrive_of"], &operation["state"]), (&json!(one), &json!("queued")));
        let second = api.request("POST", &format!("/v1/dead-letters/{one}/redrive"), Value::Null).await;
        assert_eq!(second.assert_problem(409, "already-redriven").text("operation_id"), redriven);
        assert_eq!(api.request("DELETE", &format!("/v1/dead-letters/{one}"), Value::Null).await.status, 204);
        assert_eq!(api.request("POST", &format!("/v1/operations/{redriven}/retry"), Value::Null).await.status, 202);
        let depth = api.request("GET", &guild, Value::Null).await.json()["depth"].clone();
        assert_eq!(depth, 1);
        api.store.close().await;
    });
}
