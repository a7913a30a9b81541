//! Row-level security in PostgreSQL: where it works, and the errors where it cannot.

use guildhall::settings;
use guildhall::settings::RowSecurityMode;
use guildhall::store::{OpenError, Store, migrate};
use guildhall_actors::ports::{OperationFilter, OperationStore as _};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};
use tokio::task::block_in_place;

use crate::{
    pgbouncer::PgBouncer,
    postgres::{self, PostgresServer},
    setup::settings_for,
    tenants::{seen_by, two},
};

fn settings(url: &str, mode: RowSecurityMode, role: &str) -> settings::StoreSettings {
    let row_security = settings::RowSecuritySettings { mode, role: role.to_owned() };
    settings::StoreSettings { row_security, ..settings_for(url) }
}

/// A role that no other test uses.
fn role() -> String {
    format!("api-{:016x}", fastrand::u64(..))
}

async fn count(on: &impl sea_orm::ConnectionTrait, what: &str) -> i64 {
    let select = Statement::from_string(DbBackend::Postgres, format!("SELECT COUNT(*) FROM {what}"));
    on.query_one_raw(select).await.unwrap().unwrap().try_get_by_index(0).unwrap()
}

/// Counts the rows of a table as the role, without any condition.
async fn counted_as(on: &DatabaseConnection, role: &str, tenant: Option<&str>, table: &str) -> i64 {
    let transaction = on.begin().await.unwrap();
    transaction.execute_unprepared(&format!("SET LOCAL ROLE \"{role}\"")).await.unwrap();
    if let Some(tenant) = tenant {
        transaction.execute_unprepared(&format!("SET LOCAL guildhall.tenant = '{tenant}'")).await.unwrap();
    }
    let counted = count(&transaction, table).await;
    transaction.rollback().await.unwrap();
    counted
}

/// Fills a store, and checks that no tenant sees rows of the other, and that without a tenant no rows are visible.
async fn keeps_tenants_apart(settings: &settings::StoreSettings, url: &str, role: &str) {
    let store = Store::open(settings).await.unwrap();
    let (acme, rival) = two(&store).await;
    for tenant in [&acme, &rival] {
        let listed = seen_by(&store, tenant.name)
            .list(OperationFilter { limit: 99, ..OperationFilter::default() })
            .await
            .unwrap();
        assert_eq!(listed.len(), 4);
    }
    store.close().await;
    let on = Database::connect(url).await.unwrap();
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
        let whole = count(&on, table).await;
        let parts =
            [counted_as(&on, role, Some("acme"), table).await, counted_as(&on, role, Some("rival"), table).await];
        assert!(parts[0] > 0 && parts[0] == parts[1] && whole >= parts[0] + parts[1], "{table}: {parts:?} of {whole}");
        assert_eq!(counted_as(&on, role, Some("nobody"), table).await, 0, "{table}");
        assert_eq!(counted_as(&on, role, None, table).await, 0, "{table}");
    }
    on.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_who_may_make_roles_needs_nothing_else() {
    let (url, _) = postgres::shared().database_of("CREATEROLE").await;
    let role = role();
    let settings = settings(&url, RowSecurityMode::Required, &role);
    keeps_tenants_apart(&settings, &url, &role).await;
    // Opens again, now that everything exists.
    Store::open(&settings).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_who_may_not_is_told_what_to_do_and_then_it_works() {
    let (url, user) = postgres::shared().database_of("").await;
    let role = role();
    let required = settings(&url, RowSecurityMode::Required, &role);
    let error = Store::open(&required).await.unwrap_err();
    let OpenError::RowSecurity(says) = &error else { panic!("{error:?}") };
    let advice = format!("CREATE ROLE \"{role}\" NOLOGIN; GRANT \"{role}\" TO \"{user}\"");
    assert!(says.contains(&advice), "{says}");
    // In `auto` mode the store opens without it: queries isolate tenants, as with SQLite.
    let auto = settings::StoreSettings {
        row_security: settings::RowSecuritySettings { mode: RowSecurityMode::Auto, role: role.clone() },
        ..required.clone()
    };
    Store::open(&auto).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    operator.execute_unprepared(&advice).await.unwrap();
    operator.close().await.unwrap();
    keeps_tenants_apart(&required, &url, &role).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_could_see_everything_is_refused() {
    let (url, user) = postgres::shared().database_of("CREATEROLE").await;
    let role = role();
    let required = settings(&url, RowSecurityMode::Required, &role);
    Store::open(&required).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    let says = async || match Store::open(&required).await.unwrap_err() {
        OpenError::RowSecurity(says) => says,
        other => panic!("{other:?}"),
    };
    operator.execute_unprepared(&format!("ALTER ROLE \"{role}\" BYPASSRLS")).await.unwrap();
    assert!(says().await.contains("NOBYPASSRLS"));
    operator.execute_unprepared(&format!("ALTER ROLE \"{role}\" NOBYPASSRLS")).await.unwrap();
    let owner = Database::connect(&url).await.unwrap();
    owner.execute_unprepared("ALTER TABLE operations NO FORCE ROW LEVEL SECURITY").await.unwrap();
    assert!(says().await.contains("FORCE ROW LEVEL SECURITY"));
    owner.execute_unprepared("ALTER TABLE operations FORCE ROW LEVEL SECURITY").await.unwrap();
    Store::open(&required).await.unwrap().close().await;
    // A role that is a member of its owner is not a separate role.
    operator.execute_unprepared(&format!("REVOKE \"{role}\" FROM {user}; GRANT {user} TO \"{role}\"")).await.unwrap();
    assert!(says().await.contains("may not switch to"));
    operator.close().await.unwrap();
    owner.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_from_whom_the_rows_are_kept_is_refused_and_not_served_nothing() {
    let (url, owner) = postgres::shared().database_of("CREATEROLE").await;
    Store::open(&settings(&url, RowSecurityMode::Auto, &role())).await.unwrap().close().await;
    let operator = postgres::shared().connect("postgres").await;
    let stranger = format!("stranger_{owner}");
    operator.execute_unprepared(&format!("CREATE ROLE {stranger} LOGIN")).await.unwrap();
    let database = url.rsplit('/').next().unwrap();
    let inside = postgres::shared().connect(database).await;
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {stranger}");
    inside.execute_unprepared(&grant).await.unwrap();
    let theirs = url.replace(&format!("{owner}@"), &format!("{stranger}@"));
    let error = Store::open(&settings(&theirs, RowSecurityMode::Off, "x")).await.unwrap_err();
    assert_eq!(error, OpenError::NotTheOwner { user: stranger.clone(), owner: owner.clone() });
    assert!(error.to_string().contains(&format!("GRANT \"{owner}\" TO \"{stranger}\"")), "{error}");
    operator.execute_unprepared(&format!("GRANT {owner} TO {stranger}")).await.unwrap();
    Store::open(&settings(&theirs, RowSecurityMode::Off, "x")).await.unwrap().close().await;
    // A new owner of the tables sees their rows.
    inside.execute_unprepared(&format!("REVOKE {owner} FROM {stranger}")).await.unwrap();
    inside.execute_unprepared(&format!("REASSIGN OWNED BY {owner} TO {stranger}")).await.unwrap();
    let store = Store::open(&settings(&theirs, RowSecurityMode::Off, "x")).await.unwrap();
    two(&store).await;
    store.close().await;
    inside.close().await.unwrap();
    operator.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_may_not_be_changed_is_given_nothing_until_it_is_migrated() {
    let (url, _) = postgres::shared().database_of("CREATEROLE").await;
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
async fn tenants_are_kept_apart_behind_a_pgbouncer_and_nothing_is_left_in_its_connections() {
    let server = block_in_place(PostgresServer::start);
    let bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let direct = server.database().await;
    let role = role();
    let through = settings(&bouncer.url(direct.rsplit('/').next().unwrap()), RowSecurityMode::Required, &role);
    let pooled = settings::StoreSettings { direct_url: Some(direct.parse().unwrap()), ..through };
    keeps_tenants_apart(&pooled, &direct, &role).await;
    let store = Store::open(&pooled).await.unwrap();
    // The next user of a pooled connection has no tenant.
    for _ in 0..20 {
        let acme = seen_by(&store, "acme");
        let own = acme.list(OperationFilter { limit: 99, ..OperationFilter::default() });
        let all = store.list(OperationFilter { limit: 99, ..OperationFilter::default() });
        let (own, all) = tokio::join!(own, all);
        assert_eq!((own.unwrap().len(), all.unwrap().len()), (4, 8));
    }
    store.close().await;
}
