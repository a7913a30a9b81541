//! What PostgreSQL shows to a tenant, whatever the statement: the API's own statements without their filters, and plain
//! ones without any.

use std::sync::Arc;

use guildhall_actors::access::{AuditAction, AuditFilter, Caller};
use guildhall_actors::ports::{
    DeadLetterFilter, DelayedBy, KeyFilter, KeyStore as _, NewApiKey, NewOperation, OperationFilter,
    OperationStore as _,
};
use guildhall_core::{
    access::{Bounds, Grant, KeyId, ScopeSet},
    lane::Lane,
    operation::{OperationId, OperationKind, Queue, QueueKey},
    time::UnixMs,
};
use guildhall_testkit::postgres::PostgresServer;
use sea_orm::{ConnectionTrait, Database, QueryResult};

use super::{
    Store,
    query_plan_tests::settings,
    read::{access, dead_letters, operations, totals},
    row_security::{GRANTS, TENANT_TABLES},
    rows::query,
};

/// Tables of the engine: no row of them belongs to a tenant, and the API's role has no access to them.
const ENGINE_TABLES: [&str; 20] = [
    "seaql_migrations",
    "applied_migrations",
    "instances",
    "leases",
    "sessions",
    "handled",
    "inbox",
    "identifies",
    "shard_owners",
    "state",
    "switches",
    "marks",
    "budget_spend",
    "crashed_inputs",
    "generated_admin_key",
    "guild_names",
    "limit_shares",
    "process_ends",
    "received_interactions",
    "usage",
];

/// Tables of the engine that every tenant may read.
const SHARED_TABLES: [&str; 2] = ["switches", "marks"];

pub(super) fn operation(tenant: &str, guild: u64, n: u8) -> NewOperation {
    NewOperation {
        id: OperationId::new(guild, [n; 10]),
        tenant: Arc::from(tenant),
        queue: QueueKey::Guild(guild),
        guild: Some(guild),
        caller: Arc::from("key"),
        bounds: Bounds::Tenant,
        scopes: ScopeSet::default(),
        kind: OperationKind::AssignRole,
        payload: "{}".to_owned(),
        payload_hash: [n; 32],
        lane: Lane::Operation,
        max_attempts: 3,
        eligible_at: UnixMs::new(0),
        delayed_by: DelayedBy::Caller,
        deadline_at: None,
        deployment: None,
        trace: None,
        reason: None,
        idempotency: None,
        refers_to: Vec::new(),
        redrive_of: None,
        created_at: UnixMs::new(0),
    }
}

/// A store whose owner is not a superuser, with three operations of each of two tenants.
async fn two_tenant_store(server: &PostgresServer) -> (Store, String) {
    let (url, _) = server.create_database_with_owner("CREATEROLE").await;
    let store = Store::open(&settings(&url)).await.unwrap();
    assert!(store.shared.row_security.is_some(), "this test needs row-level security");
    for (tenant, guild) in [("acme", 7), ("rival", 8)] {
        let key = NewApiKey {
            id: KeyId::from_random(guild.into()),
            tenant: Arc::from(tenant),
            name: tenant.to_owned(),
            digest: [0; 32],
            grant: Grant::read(["audit", format!("guild:{guild}").as_str()]).unwrap(),
            created_at: UnixMs::new(0),
            expires_at: None,
        };
        let caller = Caller { tenant: Some(Arc::from(tenant)), ..Caller::operator() };
        store.add_key(key, caller.audit_record(AuditAction::KeysCreate, UnixMs::new(0))).await.unwrap();
        let own = store.scoped_to_tenant(Arc::from(tenant));
        own.submit((1..=3).map(|n| operation(tenant, guild, n)).collect()).await.unwrap();
    }
    (store, url)
}

async fn tenants(on: &impl ConnectionTrait, sql: &str) -> Vec<String> {
    let rows = query(on, sql, Vec::new()).await.unwrap();
    rows.iter().map(|row: &QueryResult| row.try_get_by_index(0).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_without_filter_sees_only_its_tenant() {
    let server = PostgresServer::start();
    let (store, _) = two_tenant_store(&server).await;
    let own = store.scoped_to_tenant(Arc::from("acme"));
    let view = own.view().await.unwrap();
    let any = OperationFilter { limit: 100, ..OperationFilter::default() };
    let listed = operations::list(&view, &any).await.unwrap();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|details| &*details.stored.operation.tenant == "acme"), "{listed:?}");
    let theirs = operation("rival", 8, 1);
    assert!(operations::show(&view, theirs.id).await.unwrap().is_none());
    assert!(operations::load(&view, Queue::Guild(8), 0, 9).await.unwrap().operations.is_empty());
    assert!(
        dead_letters::list(&view, &DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() })
            .await
            .unwrap()
            .is_empty()
    );
    let notes = access::audit(&view, &AuditFilter { limit: 9, ..AuditFilter::default() }).await.unwrap();
    assert_eq!(notes.iter().map(|row| &*row.record.tenant).collect::<Vec<_>>(), ["acme"]);
    assert_eq!(totals::paused(&view, None).await.unwrap(), (false, vec![]));
    assert_eq!(access::tenant(&view, 8).await.unwrap(), None);
    for table in ["operations", "guild_queues", "audit"] {
        let seen = tenants(&view, &format!("SELECT DISTINCT tenant FROM {table}")).await;
        assert_eq!(seen, ["acme"], "{table}");
    }
    // It cannot change rows that it cannot see, nor give away rows that it can see.
    let change = "UPDATE operations SET reason = 'mine' RETURNING tenant";
    assert_eq!(tenants(&view, change).await, ["acme"; 3]);
    let give = query(&view, "UPDATE operations SET tenant = 'rival'", Vec::new()).await.unwrap_err().to_string();
    assert!(give.contains("row-level security"), "{give}");
    drop(view);
    for table in ENGINE_TABLES.iter().chain(&["api_keys"]).filter(|table| !SHARED_TABLES.contains(table)) {
        let view = own.view().await.unwrap();
        let error = query(&view, &format!("SELECT * FROM {table}"), Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("permission denied"), "{table}: {error}");
    }
    let view = own.view().await.unwrap();
    assert!(access::keys(&view, &KeyFilter { limit: 9, ..KeyFilter::default() }).await.is_err());
    drop(view);
    // The engine sees everything.
    let all = operations::list(&store.view().await.unwrap(), &any).await.unwrap();
    assert_eq!(all.len(), 6);
    store.close().await;
}

/// A new table needs a decision: its rows belong to tenants, or to the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_is_isolated_or_engine_only() {
    const TABLES: &str = "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
        AND c.relkind IN ('r', 'p') ORDER BY c.relname";
    const OPEN: &str = "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
        AND c.relkind IN ('r', 'p') AND NOT (c.relrowsecurity AND c.relforcerowsecurity) ORDER BY c.relname";
    let server = PostgresServer::start();
    let (store, url) = two_tenant_store(&server).await;
    store.close().await;
    let on = Database::connect(&url).await.unwrap();
    let mut expected: Vec<_> = TENANT_TABLES.into_iter().chain(ENGINE_TABLES).map(str::to_owned).collect();
    expected.sort();
    let tables = tenants(&on, TABLES).await;
    assert_eq!(
        tables, expected,
        "new table: if its rows belong to tenants, give it policies as migration 0009 does and add it to TENANT_TABLES \
         (and to GRANTS, for the statements of callers); else add it to ENGINE_TABLES here"
    );
    let mut engines: Vec<_> = ENGINE_TABLES.map(str::to_owned).into();
    engines.sort();
    assert_eq!(tenants(&on, OPEN).await, engines);
    assert!(GRANTS.iter().all(|(table, _)| TENANT_TABLES.contains(table) || SHARED_TABLES.contains(table)));
    on.close().await.unwrap();
}
