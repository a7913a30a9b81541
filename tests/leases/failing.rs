//! Backends that fail, do not respond, or lose their data.

use std::{str::FromStr as _, time::Duration};

use futures_util::future::join_all;
use guildhall::store::SqlLeases;
use guildhall_actors::ports::{LeaseError, LeaseFence, LeaseStore};
use sea_orm::{
    ConnectionTrait as _, Database, DatabaseConnection, SqlxPostgresConnector,
    sqlx::postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::task::block_in_place;

use crate::{
    keepers::{LONG, STUCK, is_free, migrated, name, redis, sql, take},
    pgbouncer::PgBouncer,
    postgres::{self, PostgresServer},
    redis_server::RedisServer,
};

/// Timeout for calls that are meant to fail.
const BRIEF_MS: &str = "300";

fn is_out_of_reach<T: std::fmt::Debug>(answer: &Result<T, LeaseError>) {
    assert!(matches!(answer, Err(LeaseError::Unreachable(_))), "{answer:?}");
}

/// Repeats a call until it succeeds.
async fn at_last<T>(mut asked: impl AsyncFnMut() -> Result<T, LeaseError>) -> T {
    let asking = async {
        loop {
            if let Ok(answer) = asked().await {
                return answer;
            }
        }
    };
    tokio::time::timeout(STUCK, asking).await.expect("it did not respond")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_has_lost_everything_gives_a_greater_fence() {
    let mut server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), STUCK);
    let first = take(&leases, "1", LONG).await;
    block_in_place(|| server.restart_empty());
    let second = at_last(async || leases.acquire(&name("1"), "after", LONG).await).await.expect(
        "the data was lost, so \
        it is free",
    );
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    assert_eq!(leases.release(&first).await, Ok(false), "the first holder has nothing to release");
    assert_eq!(leases.renew(&first, LONG).await, Ok(None));
    assert!(leases.renew(&second, LONG).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_does_not_answer_is_not_waited_for() {
    let server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), Duration::from_millis(300));
    let lease = take(&leases, "1", LONG).await;
    server.stop();
    is_out_of_reach(&leases.acquire(&name("2"), "two", LONG).await);
    is_out_of_reach(&leases.renew(&lease, LONG).await);
    is_out_of_reach(&leases.release(&lease).await);
    server.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_redis_end_by_themselves() {
    let server = block_in_place(RedisServer::start);
    let leases = redis(server.url(), STUCK);
    let lease = take(&leases, "77", LONG).await;
    let mut wire = server.client().get_multiplexed_async_connection().await.unwrap();
    let mut lasts = async |key: &str| -> i64 {
        redis::cmd("PTTL").arg(format!("guildhall:{{42}}:{key}")).query_async(&mut wire).await.unwrap()
    };
    assert!((1..=3_600_000).contains(&lasts("bulk-lock:77").await));
    let fence = lasts("bulk-fence:77").await;
    assert!((6 * 24 * 3_600_000..=7 * 24 * 3_600_000).contains(&fence), "{fence}");
    assert_eq!(leases.release(&lease).await, Ok(true));
    assert_eq!(lasts("bulk-lock:77").await, -2, "the key is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_a_restart_of_postgres() {
    let mut server = block_in_place(PostgresServer::start);
    let url = server.database().await;
    migrated(&url).await.close().await;
    let leases = sql(&url, "2000");
    let first = take(&leases, "1", LONG).await;
    block_in_place(|| server.kill());
    is_out_of_reach(&leases.acquire(&name("2"), "two", LONG).await);
    block_in_place(|| server.start_again());
    let renewed = at_last(async || leases.renew(&first, LONG).await).await.expect("it is still held");
    assert!(!is_free(&leases, "1").await);
    assert_eq!(leases.release(&renewed).await, Ok(true));
    assert!(take(&leases, "1", LONG).await.fence > first.fence);
}

/// Pooled connections that change with each transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_kept_behind_a_pgbouncer_and_over_its_restart() {
    let server = postgres::shared();
    let url = server.database().await;
    migrated(&url).await.close().await;
    let mut bouncer = block_in_place(|| PgBouncer::start(server.port()));
    let options = PgConnectOptions::from_str(&bouncer.url(url.rsplit('/').next().unwrap())).unwrap();
    let options = options.statement_cache_capacity(0).extra_float_digits(None);
    let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options);
    let leases = SqlLeases::new(SqlxPostgresConnector::from_sqlx_postgres_pool(pool), STUCK);
    for _ in 0..3 {
        let names: Vec<_> = (0..40).map(|nth| name(&(nth % 10).to_string())).collect();
        let asked = join_all(names.iter().map(|name| leases.acquire(name, "behind", LONG))).await;
        let held: Vec<_> = asked.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(held.len(), 10, "{held:?}");
        block_in_place(|| bouncer.restart());
        for lease in held {
            let renewed = at_last(async || leases.renew(&lease, LONG).await).await.expect("it is still held");
            assert_eq!(leases.release(&renewed).await, Ok(true));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_somebody_else_writes_to_is_not_waited_for_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/guildhall.db", folder.path().display());
    migrated(&url).await.close().await;
    let leases = sql(&url, BRIEF_MS);
    let raw = Database::connect(&url).await.unwrap();
    let lease = take(&leases, "1", LONG).await;
    let writes = raw.begin_writing().await;
    is_out_of_reach(&leases.renew(&lease, LONG).await);
    writes.rollback().await.unwrap();
    assert!(leases.renew(&lease, LONG).await.unwrap().is_some());
}

/// Starts a write transaction, which locks the file.
trait Writes {
    async fn begin_writing(&self) -> sea_orm::DatabaseTransaction;
}

impl Writes for DatabaseConnection {
    async fn begin_writing(&self) -> sea_orm::DatabaseTransaction {
        use sea_orm::{SqliteTransactionMode, TransactionOptions, TransactionTrait as _};
        let mode = Some(SqliteTransactionMode::Immediate);
        let options = TransactionOptions { sqlite_transaction_mode: mode, ..TransactionOptions::default() };
        self.begin_with_options(options).await.unwrap()
    }
}

/// Rows that expired long ago are removed a few at a time, recent ones stay, and new leases have greater fences.
async fn old_rows_go(leases: impl LeaseStore, raw: DatabaseConnection) {
    let mut fences = Vec::new();
    for nth in 0..40 {
        let lease = take(&leases, &format!("old-{nth}"), LONG).await;
        fences.push(lease.fence);
    }
    let late = take(&leases, "late", LONG).await;
    assert_eq!(leases.release(&late).await, Ok(true));
    let week = 7 * 24 * 3_600 * 1_000_i64 + 3_700_000;
    raw.execute_unprepared(&format!("UPDATE leases SET expires_at = expires_at - {week} WHERE name LIKE 'old-%'"))
        .await
        .unwrap();
    let count = async |like: &str| -> i64 {
        let sql = format!("SELECT COUNT(*) FROM leases WHERE name LIKE '{like}'");
        let row = raw.query_one_raw(sea_orm::Statement::from_string(raw.get_database_backend(), sql)).await;
        row.unwrap().unwrap().try_get_by_index(0).unwrap()
    };
    for left in [24, 8, 0] {
        take(&leases, &format!("new-{left}"), LONG).await;
        assert_eq!(count("old-%").await, left);
    }
    assert_eq!((count("late").await, count("new-%").await), (1, 3));
    let again = take(&leases, "old-0", LONG).await;
    assert!(again.fence > fences[0] && fences[0] > LeaseFence(0), "{again:?} after {:?}", fences[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_a_week_ago_is_swept_from_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/guildhall.db", folder.path().display());
    let leases = migrated(&url).await;
    old_rows_go(leases, Database::connect(&url).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_a_week_ago_is_swept_from_postgres() {
    let url = postgres::shared().database().await;
    let leases = migrated(&url).await;
    old_rows_go(leases, Database::connect(&url).await.unwrap()).await;
}
