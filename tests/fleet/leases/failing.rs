//! Backends that fail, do not respond, or lose their data.

use std::{str::FromStr as _, time::Duration};

use futures_util::future::join_all;
use guildhall::store::SqlLeases;
use guildhall_actors::ports::{LeaseError, LeaseFence, LeaseStore};
use guildhall_testkit::{
    pgbouncer::PgBouncer,
    postgres::{self, PostgresServer},
    redis::RedisServer,
};
use sea_orm::{
    ConnectionTrait as _, Database, DatabaseConnection, SqlxPostgresConnector,
    sqlx::postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::task::block_in_place;

use super::backends::{LONG, TEST_TIMEOUT, acquire_free, is_free, lease_name, migrate_and_open, redis, sql};

/// Timeout for calls that are meant to fail.
const SHORT_TIMEOUT_MS: &str = "300";

fn assert_unreachable<T: std::fmt::Debug>(result: &Result<T, LeaseError>) {
    assert!(matches!(result, Err(LeaseError::Unreachable(_))), "{result:?}");
}

/// Repeats a call until it succeeds.
async fn retry_until_ok<T>(mut call: impl AsyncFnMut() -> Result<T, LeaseError>) -> T {
    let retrying = async {
        loop {
            if let Ok(result) = call().await {
                return result;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, retrying).await.expect("it did not respond")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_lost_its_data_gives_a_greater_fence() {
    let mut server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), TEST_TIMEOUT);
    let first = acquire_free(&leases, "1", LONG).await;
    block_in_place(|| server.restart_empty());
    let second = retry_until_ok(async || leases.acquire(&lease_name("1"), "after", LONG).await).await.expect(
        "the data was lost, so \
        it is free",
    );
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    assert_eq!(leases.release(&first).await, Ok(false), "the first holder has nothing to release");
    assert_eq!(leases.renew(&first, LONG).await, Ok(None));
    assert!(leases.renew(&second, LONG).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_redis_times_out() {
    let server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), Duration::from_millis(300));
    let lease = acquire_free(&leases, "1", LONG).await;
    server.stop();
    assert_unreachable(&leases.acquire(&lease_name("2"), "two", LONG).await);
    assert_unreachable(&leases.renew(&lease, LONG).await);
    assert_unreachable(&leases.release(&lease).await);
    server.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keys_expire() {
    let server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), TEST_TIMEOUT);
    let lease = acquire_free(&leases, "77", LONG).await;
    let mut connection = server.client().get_multiplexed_async_connection().await.unwrap();
    let mut ttl_ms = async |key: &str| -> i64 {
        redis::cmd("PTTL").arg(format!("guildhall:{{42}}:{key}")).query_async(&mut connection).await.unwrap()
    };
    assert!((1..=3_600_000).contains(&ttl_ms("bulk-lock:77").await));
    let fence = ttl_ms("bulk-fence:77").await;
    assert!((6 * 24 * 3_600_000..=7 * 24 * 3_600_000).contains(&fence), "{fence}");
    assert_eq!(leases.release(&lease).await, Ok(true));
    assert_eq!(ttl_ms("bulk-lock:77").await, -2, "the key is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_survive_a_postgres_restart() {
    let mut server = block_in_place(PostgresServer::start);
    let url = server.create_database().await;
    migrate_and_open(&url).await.close().await;
    let leases = sql(&url, "2000");
    let first = acquire_free(&leases, "1", LONG).await;
    block_in_place(|| server.kill());
    assert_unreachable(&leases.acquire(&lease_name("2"), "two", LONG).await);
    block_in_place(|| server.start_again());
    let renewed = retry_until_ok(async || leases.renew(&first, LONG).await).await.expect("it is still held");
    assert!(!is_free(&leases, "1").await);
    assert_eq!(leases.release(&renewed).await, Ok(true));
    assert!(acquire_free(&leases, "1", LONG).await.fence > first.fence);
}

/// Pooled connections that change with each transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_survive_a_pgbouncer_restart() {
    let server = postgres::shared();
    let url = server.create_database().await;
    migrate_and_open(&url).await.close().await;
    let mut bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let options = PgConnectOptions::from_str(&bouncer.url(url.rsplit('/').next().unwrap())).unwrap();
    let options = options.statement_cache_capacity(0).extra_float_digits(None);
    let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options);
    let leases = SqlLeases::new(SqlxPostgresConnector::from_sqlx_postgres_pool(pool), TEST_TIMEOUT);
    for _ in 0..3 {
        let names: Vec<_> = (0..40).map(|nth| lease_name(&(nth % 10).to_string())).collect();
        let results = join_all(names.iter().map(|name| leases.acquire(name, "behind", LONG))).await;
        let held: Vec<_> = results.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(held.len(), 10, "{held:?}");
        block_in_place(|| bouncer.restart());
        for lease in held {
            let renewed = retry_until_ok(async || leases.renew(&lease, LONG).await).await.expect("it is still held");
            assert_eq!(leases.release(&renewed).await, Ok(true));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_sqlite_file_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/guildhall.db", folder.path().display());
    migrate_and_open(&url).await.close().await;
    let leases = sql(&url, SHORT_TIMEOUT_MS);
    let raw = Database::connect(&url).await.unwrap();
    let lease = acquire_free(&leases, "1", LONG).await;
    let transaction = raw.begin_immediate().await;
    assert_unreachable(&leases.renew(&lease, LONG).await);
    transaction.rollback().await.unwrap();
    assert!(leases.renew(&lease, LONG).await.unwrap().is_some());
}

/// Starts a write transaction, which locks the file.
trait BeginImmediate {
    async fn begin_immediate(&self) -> sea_orm::DatabaseTransaction;
}

impl BeginImmediate for DatabaseConnection {
    async fn begin_immediate(&self) -> sea_orm::DatabaseTransaction {
        use sea_orm::{SqliteTransactionMode, TransactionOptions, TransactionTrait as _};
        let mode = Some(SqliteTransactionMode::Immediate);
        let options = TransactionOptions { sqlite_transaction_mode: mode, ..TransactionOptions::default() };
        self.begin_with_options(options).await.unwrap()
    }
}

/// Rows that expired long ago are removed a few at a time, recent ones stay, and new leases have greater fences.
async fn check_sweep(leases: impl LeaseStore, raw: DatabaseConnection) {
    let mut fences = Vec::new();
    for nth in 0..40 {
        let lease = acquire_free(&leases, &format!("old-{nth}"), LONG).await;
        fences.push(lease.fence);
    }
    let recent = acquire_free(&leases, "late", LONG).await;
    assert_eq!(leases.release(&recent).await, Ok(true));
    let week = 7 * 24 * 3_600 * 1_000_i64 + 3_700_000;
    raw.execute_unprepared(&format!("UPDATE leases SET expires_at = expires_at - {week} WHERE name LIKE 'old-%'"))
        .await
        .unwrap();
    let count = async |like: &str| -> i64 {
        let sql = format!("SELECT COUNT(*) FROM leases WHERE name LIKE '{like}'");
        let row = raw.query_one_raw(sea_orm::Statement::from_string(raw.get_database_backend(), sql)).await;
        row.unwrap().unwrap().try_get_by_index(0).unwrap()
    };
    for remaining in [24, 8, 0] {
        acquire_free(&leases, &format!("new-{remaining}"), LONG).await;
        assert_eq!(count("old-%").await, remaining);
    }
    assert_eq!((count("late").await, count("new-%").await), (1, 3));
    let reacquired = acquire_free(&leases, "old-0", LONG).await;
    assert!(reacquired.fence > fences[0] && fences[0] > LeaseFence(0), "{reacquired:?} after {:?}", fences[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_expired_a_week_ago_are_swept_from_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/guildhall.db", folder.path().display());
    let leases = migrate_and_open(&url).await;
    check_sweep(leases, Database::connect(&url).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_expired_a_week_ago_are_swept_from_postgres() {
    let url = postgres::shared().create_database().await;
    let leases = migrate_and_open(&url).await;
    check_sweep(leases, Database::connect(&url).await.unwrap()).await;
}
