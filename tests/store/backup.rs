//! Backups of an SQLite file.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use guildhall::store::{
    Store,
    backup::{self, BackupError},
};
use guildhall_actors::ports::OperationStore as _;
use guildhall_core::operation::{OperationState, Queue};
use tempfile::TempDir;

use crate::setup::{
    Engine, GUILD, StoreLocation, claim, guild_operation, open_new_store, state_of, submit, submit_and_finish,
};

const SETTLE: Duration = Duration::from_millis(400);

fn new_path() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backup.db");
    (folder, path)
}

fn names(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_an_open_store_is_complete_and_private() {
    let (store, place) = open_new_store(Engine::Sqlite).await;
    let (finished, queued) = (guild_operation(), guild_operation());
    let fence = claim(&store, Queue::Guild(GUILD)).await.fence;
    submit_and_finish(&store, &finished, fence, OperationState::Succeeded).await;
    submit(&store, &queued).await;
    let (folder, path) = new_path();
    let made = backup::create(&place.settings, &path).await.unwrap();
    assert_eq!((made.unfinished, made.bytes), (1, fs::metadata(&path).unwrap().len()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(&folder), ["backup.db"]);
    let refused = backup::create(&place.settings, &path).await.unwrap_err();
    assert!(matches!(refused, BackupError::Exists(_)), "{refused}");

    // What is accepted later is not in it, and the replaced file is kept.
    let lost = guild_operation();
    submit(&store, &lost).await;
    let in_use = backup::restore(&place.settings, &path, SETTLE).await.unwrap_err();
    assert!(in_use.to_string().contains("another process"), "{in_use}");
    store.close().await;
    let restored = backup::restore(&place.settings, &path, SETTLE).await.unwrap();
    assert_eq!(restored.store.due, 1);
    let store = place.open().await;
    assert_eq!(state_of(&store, finished.id).await, OperationState::Succeeded);
    assert!(store.get(queued.id).await.unwrap().unwrap().stored.unknown_outcome.is_some());
    assert!(store.get(lost.id).await.unwrap().is_none());
    store.close().await;
    let replaced = restored.replaced.unwrap();
    let replaced = Store::open(&crate::setup::settings_for(&format!("sqlite:{}", replaced.display()))).await.unwrap();
    assert_eq!(state_of(&replaced, lost.id).await, OperationState::Queued);
    replaced.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_backup_leaves_the_store_unchanged() {
    let (store, place) = open_new_store(Engine::Sqlite).await;
    let queued = guild_operation();
    submit(&store, &queued).await;
    let (_folder, path) = new_path();
    backup::create(&place.settings, &path).await.unwrap();
    store.close().await;
    let whole = fs::read(&path).unwrap();
    for (content, reason) in [
        (b"not a database".to_vec(), "not a database"),
        (Vec::new(), "not a store of Guildhall"),
        (whole[..whole.len() / 2].to_vec(), "malformed"),
    ] {
        fs::write(&path, content).unwrap();
        let refused = backup::restore(&place.settings, &path, SETTLE).await.unwrap_err();
        assert!(matches!(refused, BackupError::Unusable { .. }) && refused.to_string().contains(reason), "{refused}");
    }
    let store = place.open().await;
    assert_eq!(store.get(queued.id).await.unwrap().unwrap().stored.unknown_outcome, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_a_missing_store_or_of_postgres_is_refused() {
    let (folder, path) = new_path();
    let missing = StoreLocation::new(Engine::Sqlite).await;
    let refused = backup::create(&missing.settings, &path).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoStore(_)), "{refused}");
    let database = StoreLocation::new(Engine::Postgres).await;
    for refused in [
        backup::create(&database.settings, &path).await.unwrap_err(),
        backup::restore(&database.settings, &path, SETTLE).await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("pg_dump"), "{refused}");
    }
    assert!(names(&folder).is_empty());
}
