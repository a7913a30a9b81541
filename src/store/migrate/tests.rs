//! Stores of other versions: what the program accepts, refuses and records.

use std::sync::{Arc, Mutex};

use guildhall_actors::ports::{NewOperation, OperationFilter, OperationStore as _, SubmitResult};
use guildhall_core::{
    access::Bounds,
    operation::{OperationState, Queue},
};
use guildhall_migrations::{Declared, Step as NewStep};
use guildhall_testkit::postgres::PostgresServer;
use tempfile::TempDir;

use super::*;
use crate::store::{Store, query_plan_tests::settings, tenant_isolation_tests::operation};

/// A migration of the next version that only expands the schema.
const EXPAND: NewStep = NewStep {
    name: "9001_expand",
    up: &[
        "CREATE TABLE extra (id {uuid} PRIMARY KEY, note TEXT)",
        "ALTER TABLE operations ADD COLUMN extra_count BIGINT NOT NULL DEFAULT 0",
        "CREATE INDEX operations_extra ON operations (extra_count)",
    ],
    down: &["DROP INDEX operations_extra", "ALTER TABLE operations DROP COLUMN extra_count", "DROP TABLE extra"],
};

/// A migration that removes something that this program uses.
const BREAK: NewStep =
    NewStep { name: "9002_break", up: &["ALTER TABLE operations RENAME COLUMN trace TO traceparent"], down: &[] };

/// This program's migrations and these.
fn newer(more: Vec<Box<dyn Migration>>) -> Vec<Box<dyn Migration>> {
    let mut history = Migrator::migrations();
    history.extend(more);
    history
}

fn breaking(compatible_from: u32) -> Box<dyn Migration> {
    Box::new(Declared { step: BREAK, compatible_from })
}

fn newest_known() -> u32 {
    Migrator::migrations().iter().map(|migration| migration.number()).max().unwrap()
}

/// Locations for a store of each engine.
struct StoreLocations {
    folder: TempDir,
    server: PostgresServer,
}

impl StoreLocations {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: PostgresServer::start() }
    }

    async fn both(&self, name: &str) -> [Settings; 2] {
        let file = format!("sqlite:{}/{name}.db", self.folder.path().display());
        [settings(&file), settings(&self.server.create_database().await)]
    }
}

async fn submit_and_read(store: &Store, n: u8) {
    let new = NewOperation { bounds: Bounds::Anywhere, ..operation("default", 7, n) };
    let submitted = store.submit(vec![new.clone()]).await.unwrap().remove(0);
    assert!(matches!(submitted, SubmitResult::Accepted { .. }), "{submitted:?}");
    assert_eq!(store.get(new.id).await.unwrap().unwrap().stored.state, OperationState::Queued);
    let page = store.load(Queue::Guild(7), 0, 99).await.unwrap();
    assert!(page.operations.iter().any(|stored| stored.operation.id == new.id));
    let listed = store.list(OperationFilter { limit: 99, ..OperationFilter::default() }).await.unwrap();
    assert!(listed.iter().any(|details| details.stored.operation.id == new.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_compatible_version_is_used() {
    let places = StoreLocations::new();
    for settings in places.both("expand").await {
        let store = Store::open(&settings).await.unwrap();
        submit_and_read(&store, 1).await;
        store.close().await;
        let next = newer(vec![Box::new(EXPAND)]);
        up_with(&settings, &next).await.unwrap();

        let store = Store::open(&settings).await.unwrap();
        submit_and_read(&store, 2).await;
        store.close().await;
        let steps = up(&settings).await.unwrap();
        assert_eq!(
            steps.last().map(|step| (step.name.as_str(), step.compatibility())),
            Some(("9001_expand", Compatibility::Newer))
        );
        assert_eq!(status(&settings).await.unwrap(), steps);
        let error = down(&settings, 1).await.unwrap_err();
        assert_eq!(error, OpenError::Newer { unknown: "9001_expand".to_owned(), needs: None });
        // The newer version continues with what this one wrote.
        prepare_with(&settings, &next).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_breaking_version_is_refused() {
    let places = StoreLocations::new();
    let (newest, unknown) = (newest_known(), newest_known() + 1);
    for (needs, refused) in [(9002, true), (unknown, true), (newest, false)] {
        for settings in places.both(&needs.to_string()).await {
            up_with(&settings, &newer(vec![Box::new(EXPAND), breaking(needs)])).await.unwrap();
            let opened = prepare(&settings).await;
            let migrated = up(&settings).await.map(|_| ());
            if refused {
                let error = OpenError::Newer { unknown: "9002_break".to_owned(), needs: Some(needs) };
                assert_eq!((opened, migrated), (Err(error.clone()), Err(error.clone())));
                assert_eq!(Store::open(&settings).await.map(|_| ()), Err(error.clone()));
                let message = error.to_string();
                assert!(
                    message.contains(&format!("migration {needs:04}")) && message.contains("or a newer one"),
                    "{message}"
                );
            } else {
                assert_eq!((opened, migrated), (Ok(()), Ok(())));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_migration_is_refused_with_both_hashes() {
    const SAME: NewStep = NewStep {
        name: "9001_renamed",
        up: &[
            "CREATE TABLE extra (id {uuid} PRIMARY KEY, -- what it is\n    note TEXT)",
            "ALTER TABLE operations ADD COLUMN extra_count BIGINT NOT NULL DEFAULT 0",
            "CREATE INDEX operations_extra /* new */ ON operations (extra_count)",
        ],
        down: &[],
    };
    const OTHER: NewStep = NewStep { up: &["CREATE TABLE extra (id {uuid} PRIMARY KEY, note BIGINT)"], ..EXPAND };
    let places = StoreLocations::new();
    for settings in places.both("changed").await {
        up_with(&settings, &newer(vec![Box::new(EXPAND)])).await.unwrap();
        prepare_with(&settings, &newer(vec![Box::new(SAME)])).await.unwrap();
        let engine = match &settings.url {
            StoreUrl::Sqlite(_) => DbBackend::Sqlite,
            StoreUrl::Postgres { .. } => DbBackend::Postgres,
        };
        let changed = OpenError::Changed {
            name: "9001_expand".to_owned(),
            stored: EXPAND.hash(engine),
            expected: OTHER.hash(engine),
        };
        let other = newer(vec![Box::new(OTHER)]);
        assert_eq!(prepare_with(&settings, &other).await, Err(changed.clone()));
        assert_eq!(up_with(&settings, &other).await, Err(changed.clone()));
        let message = changed.to_string();
        assert!(message.contains(&EXPAND.hash(engine)) && message.contains(&OTHER.hash(engine)), "{message}");
        // A migration with another number in between is applied, and no other.
        let between = NewStep { name: "9000_between", up: &["CREATE TABLE late (id {uuid})"], down: &[] };
        let steps = up_with(&settings, &newer(vec![Box::new(between), Box::new(EXPAND)])).await.unwrap();
        assert!(steps.iter().all(|step| step.compatibility() == Compatibility::Applied), "{steps:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashes_are_recorded_for_a_store_that_has_none() {
    let places = StoreLocations::new();
    for settings in places.both("unrecorded").await {
        up(&settings).await.unwrap();
        let on = connect::open_direct(&settings).await.unwrap();
        on.execute_unprepared("DROP TABLE applied_migrations").await.unwrap();
        close_connection(on).await;
        let recorded = async || {
            let steps = status(&settings).await.unwrap();
            steps.iter().filter(|step| step.stored_hash.is_some()).count()
        };
        let read_only = Settings { migrate: false, ..settings.clone() };
        Store::open(&read_only).await.unwrap().close().await;
        assert_eq!(recorded().await, 0, "nothing changes without permission");
        Store::open(&settings).await.unwrap().close().await;
        assert_eq!(recorded().await, Migrator::migrations().len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaking_migration_waits_until_older_processes_end() {
    let server = PostgresServer::start();
    let settings = settings(&server.create_database().await);
    let store = Store::open(&settings).await.unwrap();
    let next = newer(vec![Box::new(EXPAND), breaking(9001)]);
    assert_eq!(up_with(&settings, &next).await, Err(OpenError::Alive { count: 1 }));
    let applied = status(&settings).await.unwrap();
    assert!(applied.iter().all(MigrationStatus::is_known), "nothing of it was applied");
    // A migration that only expands is applied while a process uses the store.
    up_with(&settings, &newer(vec![Box::new(EXPAND)])).await.unwrap();
    submit_and_read(&store, 1).await;
    store.close().await;
    up_with(&settings, &next).await.unwrap();
}

/// A migration with code must declare the statements in its code: they are part of its hash.
#[tokio::test]
async fn migrations_run_no_statement_that_their_hash_does_not_cover() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&format!("sqlite:{}/scratch.db", folder.path().display()));
    let _file = lock_file(&settings).unwrap();
    let mut on = connect::open_direct(&settings).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    on.set_metric_callback(move |info| sink.lock().unwrap().push(info.statement.sql.clone()));
    record::create_tables(&on).await.unwrap();
    let mut count = 0;
    for migration in Migrator::migrations() {
        record::apply(&on, &*migration).await.unwrap();
        let declared = migration.statements(DbBackend::Sqlite);
        for sql in std::mem::take(&mut *seen.lock().unwrap()) {
            if !sql.contains("seaql_migrations") && !sql.contains("applied_migrations") {
                let is_declared = declared.iter().any(|one| sql.starts_with(one.as_str()));
                assert!(is_declared, "{} does not declare {sql}", migration.name());
                count += 1;
            }
        }
    }
    assert!(count >= 3, "0014 has statements in its code");
}
