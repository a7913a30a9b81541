//! Row-level security in PostgreSQL: where it works, and the errors where it cannot.

use guildhall::settings;
use guildhall::settings::RowSecurityMode;
use guildhall::store::{OpenError, Store, migrate};
use guildhall_actors::ports::{OperationFilter, OperationStore as _};
use guildhall_testkit::{
    pgbouncer::PgBouncer,
    postgres::{self, PostgresServer},
};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};
use tokio::task::block_in_place;

use crate::{
    setup::settings_for,
    tenants::{create_two_tenants, tenant_store},
};

fn settings(url: &str, mode: RowSecurityMode, role: &str) -> settings::StoreSettings {
    let row_security = settings::RowSecuritySettings { mode, role: role.to_owned() };
    settings::StoreSettings { row_security, ..settings_for(url) }
}

/// A role that no other test uses.
fn role() -> String {
    format!("api-{:016x}", fastrand::u64(..))
}

async fn count(connection: &impl sea_orm::ConnectionTrait, table: &str) -> i64 {
    let select = Statement::from_string(DbBackend::Postgres, format!("SELECT COUNT(*) FROM {table}"));
    connection.query_one_raw(select).await.unwrap().unwrap().try_get_by_index(0).unwrap()
}

/// Counts the rows of a table as the role, without any condition.
async fn count_as_role(connection: &DatabaseConnection, role: &str, tenant: Option<&str>, table: &str) -> i64 {
    let transaction = connection.begin().await.unwrap();
    transaction.execute_unprepared(&format!("SET LOCAL ROLE \"{role}\"")).await.unwrap();
    if let Some(tenant) = tenant {
        transaction.execute_unprepared(&format!("SET LOCAL guildhall.tenant = '{tenant}'")).await.unwrap();
    }
    let counted = count(&transaction, table).await;
    transaction.rollback().await.unwrap();
    counted
}

/// Fills a store, and checks that no tenant sees rows of the other, and that without a tenant no rows are visible.
async fn assert_tenants_are_isolated(settings: &settings::StoreSettings, url: &str, role: &str) {
    let store = Store::open(settings).await.unwrap();
    let (acme, rival) = create_two_tenants(&store).await;
    for tenant in [&acme, &rival] {
        let listed = tenant_store(&store, tenant.name)
            .list(OperationFilter { limit: 99, ..OperationFilter::default() })
            .await
            .unwrap();
        assert_eq!(listed.len(), 4);
    }
    store.close().await;
    let connection = Database::connect(url).await.unwrap();
    for table in [
        "operations",
        "dead_letters",
        "operation_attempts",
        "guild_queues",
        "idempotency",
        "operation_refs",
        "managed_objects",
        "channel_guilds",
        "audit",
    ] {
        let total = count(&connection, table).await;
        let parts = [
            count_as_role(&connection, role, Some("acme"), table).await,
            count_as_role(&connection, role, Some("rival"), table).await,
        ];
        assert!(parts[0] > 0 && parts[0] == parts[1] && total >= parts[0] + parts[1], "{table}: {parts:?} of {total}");
        assert_eq!(count_as_role(&connection, role, Some("nobody"), table).await, 0, "{table}");
        assert_eq!(count_as_role(&connection, role, None, table).await, 0, "{table}");
    }
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_with_createrole_needs_no_setup() {
    let (url, _) = postgres::shared().create_database_with_owner("CREATEROLE").await;
    let role = role();
    let settings = settings(&url, RowSecurityMode::Required, &role);
    assert_tenants_are_isolated(&settings, &url, &role).await;
    // Opens again, now that everything exists.
    Store::open(&settings).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_without_createrole_gets_advice_that_works() {
    let (url, user) = postgres::shared().create_database_with_owner("").await;
    let role = role();
    let required = settings(&url, RowSecurityMode::Required, &role);
    let error = Store::open(&required).await.unwrap_err();
    let OpenError::RowSecurity(message) = &error else { panic!("{error:?}") };
    let advice = format!("CREATE ROLE \"{role}\" NOLOGIN; GRANT \"{role}\" TO \"{user}\"");
    assert!(message.contains(&advice), "{message}");
    // In `auto` mode the store opens without it: queries isolate tenants, as with SQLite.
    let auto = settings::StoreSettings {
        row_security: settings::RowSecuritySettings { mode: RowSecurityMode::Auto, role: role.clone() },
        ..required.clone()
    };
    Store::open(&auto).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    operator.execute_unprepared(&advice).await.unwrap();
    operator.close().await.unwrap();
    assert_tenants_are_isolated(&required, &url, &role).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_that_bypasses_row_security_is_refused() {
    let (url, user) = postgres::shared().create_database_with_owner("CREATEROLE").await;
    let role = role();
    let required = settings(&url, RowSecurityMode::Required, &role);
    Store::open(&required).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    let open_error = async || match Store::open(&required).await.unwrap_err() {
        OpenError::RowSecurity(open_error) => open_error,
        other => panic!("{other:?}"),
    };
    operator.execute_unprepared(&format!("ALTER ROLE \"{role}\" BYPASSRLS")).await.unwrap();
    assert!(open_error().await.contains("NOBYPASSRLS"));
    operator.execute_unprepared(&format!("ALTER ROLE \"{role}\" NOBYPASSRLS")).await.unwrap();
    let owner = Database::connect(&url).await.unwrap();
    owner.execute_unprepared("ALTER TABLE operations NO FORCE ROW LEVEL SECURITY").await.unwrap();
    assert!(open_error().await.contains("FORCE ROW LEVEL SECURITY"));
    owner.execute_unprepared("ALTER TABLE operations FORCE ROW LEVEL SECURITY").await.unwrap();
    Store::open(&required).await.unwrap().close().await;
    // A role that is a member of its owner is not a separate role.
    operator.execute_unprepared(&format!("REVOKE \"{role}\" FROM {user}; GRANT {user} TO \"{role}\"")).await.unwrap();
    assert!(open_error().await.contains("may not switch to"));
    operator.close().await.unwrap();
    owner.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_access_to_rows_is_refused() {
    let (url, owner) = postgres::shared().create_database_with_owner("CREATEROLE").await;
    Store::open(&settings(&url, RowSecurityMode::Auto, &role())).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    let other_user = format!("stranger_{owner}");
    operator.execute_unprepared(&format!("CREATE ROLE {other_user} LOGIN")).await.unwrap();
    let database = url.rsplit('/').next().unwrap();
    let connection = postgres::shared().connect(database).await;
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {other_user}");
    connection.execute_unprepared(&grant).await.unwrap();
    let other_url = url.replace(&format!("{owner}@"), &format!("{other_user}@"));
    let error = Store::open(&settings(&other_url, RowSecurityMode::Off, "x")).await.unwrap_err();
    assert_eq!(error, OpenError::NotTheOwner { user: other_user.clone(), owner: owner.clone() });
    assert!(error.to_string().contains(&format!("GRANT \"{owner}\" TO \"{other_user}\"")), "{error}");
    operator.execute_unprepared(&format!("GRANT {owner} TO {other_user}")).await.unwrap();
    Store::open(&settings(&other_url, RowSecurityMode::Off, "x")).await.unwrap().close().await;
    // A new owner of the tables sees their rows.
    connection.execute_unprepared(&format!("REVOKE {owner} FROM {other_user}")).await.unwrap();
    connection.execute_unprepared(&format!("REASSIGN OWNED BY {owner} TO {other_user}")).await.unwrap();
    let store = Store::open(&settings(&other_url, RowSecurityMode::Off, "x")).await.unwrap();
    create_two_tenants(&store).await;
    store.close().await;
    connection.close().await.unwrap();
    operator.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmigrated_store_is_refused_when_row_security_is_required() {
    let (url, _) = postgres::shared().create_database_with_owner("CREATEROLE").await;
    let role = role();
    let required = settings(&url, RowSecurityMode::Required, &role);
    let fixed = settings::StoreSettings { migrate: false, ..required.clone() };
    let off = settings::StoreSettings {
        row_security: settings::RowSecuritySettings { mode: RowSecurityMode::Off, role: role.clone() },
        ..required.clone()
    };
    migrate::up(&off).await.unwrap();
    assert!(matches!(Store::open(&fixed).await.unwrap_err(), OpenError::RowSecurity(_)));
    migrate::up(&required).await.unwrap();
    Store::open(&fixed).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_are_isolated_behind_pgbouncer() {
    let server = block_in_place(PostgresServer::start);
    let bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let direct = server.create_database().await;
    let role = role();
    let through = settings(&bouncer.url(direct.rsplit('/').next().unwrap()), RowSecurityMode::Required, &role);
    let pooled = settings::StoreSettings { direct_url: Some(direct.parse().unwrap()), ..through };
    assert_tenants_are_isolated(&pooled, &direct, &role).await;
    let store = Store::open(&pooled).await.unwrap();
    // The next user of a pooled connection has no tenant.
    for _ in 0..20 {
        let acme = tenant_store(&store, "acme");
        let own = acme.list(OperationFilter { limit: 99, ..OperationFilter::default() });
        let all = store.list(OperationFilter { limit: 99, ..OperationFilter::default() });
        let (own, all) = tokio::join!(own, all);
        assert_eq!((own.unwrap().len(), all.unwrap().len()), (4, 8));
    }
    store.close().await;
}
