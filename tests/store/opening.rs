//! Opening a store: its owner, and its schema version.

use guildhall::store::{OpenError, Store, migrate};
use guildhall_actors::ports::OperationStore as _;
use sea_orm::{ConnectionTrait as _, Database};

use crate::setup::{Engine, StoreLocation, guild_operation, on_both, open_new_store, submit};

on_both! {
    async fn store_in_use_is_neither_migrated_nor_opened(engine) {
        let (store, place) = open_new_store(engine).await;
        let error = migrate::down(&place.settings, 1).await.unwrap_err();
        match engine {
            Engine::Sqlite => assert!(matches!(error, OpenError::InUse { .. }), "{error}"),
            Engine::Postgres => assert_eq!(error, OpenError::Alive { count: 1 }),
        }
        if engine == Engine::Sqlite {
            let error = Store::open(&place.settings).await.unwrap_err();
            let OpenError::InUse { pid, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*pid, Some(std::process::id()));
            assert!(error.to_string().contains("stop that process"), "{error}");
        }
        submit(&store, &guild_operation()).await;
        store.close().await;
        let store = place.open().await;
        assert_eq!(store.depths().await.unwrap()["queued"], 1);
    }

    async fn migrations_apply_revert_and_apply_again(engine) {
        let place = StoreLocation::new(engine).await;
        let count = |steps: Vec<migrate::MigrationStatus>| steps.iter().filter(|step| step.applied).count();
        let before = migrate::status(&place.settings).await.unwrap();
        let all = before.len();
        assert_eq!(count(before), 0);
        for _ in 0..2 {
            assert_eq!(count(migrate::up(&place.settings).await.unwrap()), all);
            assert_eq!(count(migrate::up(&place.settings).await.unwrap()), all, "up is idempotent");
            assert_eq!(count(migrate::status(&place.settings).await.unwrap()), all);
            let store = place.open().await;
            submit(&store, &guild_operation()).await;
            store.close().await;
            for left in (0..all).rev() {
                assert_eq!(count(migrate::down(&place.settings, 1).await.unwrap()), left);
            }
        }
    }

    async fn older_store_is_not_migrated_without_permission(engine) {
        let mut place = StoreLocation::new(engine).await;
        place.settings.migrate = false;
        let error = Store::open(&place.settings).await.unwrap_err();
        assert!(error.to_string().contains("`guildhall migrate up`"), "{error}");
        migrate::up(&place.settings).await.unwrap();
        place.open().await;
    }

    async fn newer_store_is_refused(engine) {
        let (store, place) = open_new_store(engine).await;
        store.close().await;
        let connection = Database::connect(place.raw_url()).await.unwrap();
        let future = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('9999_future', 0)";
        connection.execute_unprepared(future).await.unwrap();
        connection.close().await.unwrap();
        for error in [Store::open(&place.settings).await.unwrap_err(), migrate::up(&place.settings).await.unwrap_err()] {
            assert_eq!(error, OpenError::Newer { unknown: "9999_future".to_owned(), needs: None });
        }
    }
}

#[tokio::test]
async fn unreachable_server_is_reported_at_once() {
    let settings = crate::setup::settings_for("postgres://guildhall@127.0.0.1:1/nothing");
    let error = Store::open(&settings).await.unwrap_err();
    assert!(error.to_string().contains("cannot open the store"), "{error}");
}
