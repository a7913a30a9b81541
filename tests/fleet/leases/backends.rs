//! Test setup: a lease backend, and the connections of two processes to it.

use std::{sync::Arc, time::Duration};

use guildhall::redis::{RedisClient, RedisConfig, RedisKeys, RedisLeases};
use guildhall::settings;
use guildhall::settings::{RedisUrl, SettingsSources};
use guildhall::store::{SqlLeases, migrate};
use guildhall_actors::ports::{Lease, LeaseName, LeaseStore};
use guildhall_testkit::{postgres, redis::RedisServer};
use tempfile::TempDir;

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A lease that does not expire within a test.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);
/// A lease that expires at once.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
    Redis,
}

/// Connections of two processes to one backend.
pub(crate) struct LeasePair {
    pub(crate) one: Arc<dyn LeaseStore>,
    pub(crate) two: Arc<dyn LeaseStore>,
    _backend: Backend,
}

#[expect(dead_code, reason = "held until they are dropped")]
enum Backend {
    Folder(TempDir),
    Shared,
    Redis(RedisServer),
}

impl LeasePair {
    pub(crate) async fn new(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}/guildhall.db", folder.path().display());
                let (one, two) = (migrate_and_open(&url).await, sql(&url, "20000"));
                Self { one: Arc::new(one), two: Arc::new(two), _backend: Backend::Folder(folder) }
            }
            Engine::Postgres => {
                let url = postgres::shared().create_database().await;
                let (one, two) = (migrate_and_open(&url).await, sql(&url, "20000"));
                Self { one: Arc::new(one), two: Arc::new(two), _backend: Backend::Shared }
            }
            Engine::Redis => {
                let server = RedisServer::start();
                let one = redis(server.url(), TEST_TIMEOUT);
                let two = redis(server.url(), TEST_TIMEOUT);
                Self { one: Arc::new(one), two: Arc::new(two), _backend: Backend::Redis(server) }
            }
        }
    }
}

pub(crate) fn settings_for(url: &str, timeout_ms: &str) -> settings::StoreSettings {
    let environment = [("GUILDHALL__STORE__URL", url), ("GUILDHALL__STORE__TIMEOUT_MS", timeout_ms)];
    let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
    settings::load(SettingsSources { environment, ..SettingsSources::default() }).unwrap().settings.store
}

/// Leases in a migrated database.
pub(crate) fn sql(url: &str, timeout_ms: &str) -> SqlLeases {
    SqlLeases::open(&settings_for(url, timeout_ms)).unwrap()
}

/// Migrates a database and opens its leases.
pub(crate) async fn migrate_and_open(url: &str) -> SqlLeases {
    migrate::up(&settings_for(url, "20000")).await.unwrap();
    sql(url, "20000")
}

pub(crate) fn redis(url: RedisUrl, timeout: Duration) -> RedisLeases {
    RedisLeases::new(RedisClient::new(RedisConfig { url, ca_file: None, timeout }).unwrap(), RedisKeys::new(42))
}

pub(crate) fn lease_name(text: &str) -> LeaseName {
    LeaseName::new(text).unwrap()
}

/// Acquires a lease that must be free.
pub(crate) async fn acquire_free(leases: &dyn LeaseStore, text: &str, ttl: Duration) -> Lease {
    leases.acquire(&lease_name(text), "a test", ttl).await.unwrap().expect("it is free")
}

/// Whether a lease is free. Acquires and releases it to find out.
pub(crate) async fn is_free(leases: &dyn LeaseStore, text: &str) -> bool {
    match leases.acquire(&lease_name(text), "who looks", LONG).await.unwrap() {
        Some(lease) => leases.release(&lease).await.unwrap(),
        None => false,
    }
}

/// Acquires a lease as soon as it has expired.
pub(crate) async fn acquire_after_expiry(leases: &dyn LeaseStore, text: &str) -> Lease {
    let acquiring = async {
        loop {
            if let Some(lease) = leases.acquire(&lease_name(text), "who waits", LONG).await.unwrap() {
                return lease;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, acquiring).await.expect("it did not expire")
}

/// Runs each test on every backend.
macro_rules! with_all {
    ($($(#[$attribute:meta])* async fn $name:ident($pair:ident) $body:block)*) => {$(
        mod $name {
            use super::*;
            use crate::leases::backends::{Engine, LeasePair, TEST_TIMEOUT};

            $(#[$attribute])*
            async fn run($pair: LeasePair) $body

            async fn with(engine: Engine) {
                tokio::time::timeout(TEST_TIMEOUT, async { run(LeasePair::new(engine).await).await }).await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                with(Engine::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                with(Engine::Postgres).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() {
                with(Engine::Redis).await;
            }
        }
    )*};
}
pub(crate) use with_all;
