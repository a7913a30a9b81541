//! Query plans: with 100,000 finished operations, the engines find rows by indexes.

use std::time::Duration;

use guildhall_actors::ports::OperationFilter;
use guildhall_core::operation::{ChangeCursor, OperationKind, OperationState, VisibleChanges};
use guildhall_testkit::postgres;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbBackend, QueryTrait as _, Statement, TransactionTrait as _, Value,
};
use uuid::Uuid;

use super::{
    Store, connect,
    read::{changes, events, interactions, locations, operations, resolve},
    rows::{self, RowValue, Rows},
    sql, write,
};
use crate::settings::StoreSettings as Settings;

/// Finished operations, created by the engine itself; `{n}` is their number, `{uuid}` an ID made from it.
const FILL: &str = "INSERT INTO operations (id, tenant, queue, guild_id, seq, kind, payload, payload_hash, lane, state,
    attempts, delays, max_attempts, eligible_at, parked, created_at, updated_at, finished_at, changed)
    SELECT {uuid}, 'default', {n} % 100, {n} % 100, {n}, CASE WHEN {n} % 2 = 0 THEN 'create_role' ELSE 'assign_role' END,
    '{}', {hash}, 'operation', CASE WHEN {n} % 50 = 0 THEN 'dead' ELSE 'succeeded' END,
    1, 0, 3, {n}, 0, {n}, {n}, {n}, {n} FROM {numbers}";

pub(super) fn settings(url: &str) -> Settings {
    Settings {
        url: url.parse().unwrap(),
        direct_url: None,
        instance: None,
        lease: crate::settings::LeaseSettings::default(),
        migrate: true,
        row_security: crate::settings::RowSecuritySettings::default(),
        timeout: Duration::from_secs(60),
        lock_wait: Duration::from_secs(20),
        read_connections: 1,
        max_waiting: 10,
        max_queued: 10,
        max_bytes: 0,
        max_audit: 0,
        usage: guildhall_core::usage::UsageLimits::default(),
        idempotency_retention: Duration::from_secs(1),
    }
}

/// The query plan of a statement, as the engine prints it.
pub(super) async fn plan(on: &impl ConnectionTrait, explain: &str, mut statement: Statement) -> String {
    statement.sql = format!("{explain} {}", statement.sql);
    let rows = on.query_all_raw(statement).await.unwrap();
    let column = usize::from(explain.contains("QUERY PLAN")) * 3;
    let lines: Vec<String> = rows.iter().map(|row| row.try_get_by_index(column).unwrap()).collect();
    lines.join("\n")
}

/// Checks the statements that run often, and the index that each should use.
async fn check(on: &DatabaseConnection, explain: &str, is_scan: impl Fn(&str) -> bool) {
    let engine = on.get_database_backend();
    let page = |filter: OperationFilter| operations::select_list(engine, &OperationFilter { limit: 50, ..filter });
    let any = OperationFilter::default;
    let by_state = page(OperationFilter { state: Some(OperationState::Dead), ..any() });
    let by_kind = page(OperationFilter { kind: Some(OperationKind::CreateRole), ..any() });
    let time = |at| Some(guildhall_core::time::UnixMs::new(at));
    let by_time = page(OperationFilter { created_after: time(5), created_before: time(9), ..any() });
    let newest = page(any());
    let by_key = |table, key| if engine == DbBackend::Postgres { table } else { key };
    let after = ChangeCursor::at(VisibleChanges { next: 99_000, ..VisibleChanges::default() });
    let follow = changes::select_changes(engine, &after, &any(), 50);
    let mut after = ChangeCursor::at(VisibleChanges { next: 99_000, open: [7, 98_000].into() });
    let follow_open = changes::select_changes(engine, &after, &any(), 50);
    after.on_delivered(&VisibleChanges { next: 99_000, open: [98_000].into() }, 7, Uuid::nil());
    let follow_begun = changes::select_changes(engine, &after, &any(), 50);
    let me = || Value::from(Uuid::nil());
    let in_sql = |sql: &str, values: Vec<Value>| Statement::from_sql_and_values(engine, sql, values);
    let plain = [
        (in_sql(&operations::LOAD, vec![7_i64.into(), 0_i64.into(), 10_i64.into()]), "operations_pending"),
        (in_sql(sql::queues::TAKE_DUE, vec![me(), 5_i64.into(), 10_i64.into()]), "guild_queues_due"),
        (in_sql(sql::schedule::DUE, vec![7_i64.into(), 5_i64.into(), 10_i64.into()]), "operations_scheduled"),
        (in_sql(sql::schedule::FIRST, vec![7_i64.into()]), "operations_scheduled"),
        (by_state, "operations_state"),
        (by_kind, "operations_kind"),
        (by_time, by_key("Index Cond: ((id >= ", "(id>? AND id<?)")),
        (newest, "operations"),
        (follow, "operations_changed"),
        (follow_open, "operations_changed"),
        (follow_begun, "operations_changed"),
        (in_sql(sql::sweep::OPERATIONS, vec!["dead".into(), 90_i64.into(), 10_i64.into()]), "operations_finished"),
    ];
    let stamp = if engine == DbBackend::Postgres { write::ChangeSeq::Postgres } else { write::ChangeSeq::Counted(7) };
    let (update, updated) = stamp.bind(sql::outcome::UPDATE, vec![me()], 1);
    let with_rows = [
        (update.as_str(), write::CHANGES, updated, "operations"),
        (
            sql::operations::FINISHED,
            operations::IDS,
            Vec::new(),
            by_key("operations_pkey", "sqlite_autoindex_operations_1"),
        ),
        (sql::resolve::BOUND_OBJECTS, resolve::OBJECTS, vec!["role".into()], "operations_made"),
        (sql::locations::SELECT_OWNERS, locations::LOCATION_COLUMNS, vec![], "channel_guilds"),
    ];
    let plain = plain.into_iter().chain(event_statements(engine));
    let with_rows = with_rows.into_iter().chain(event_row_statements(engine));
    // One row, and as many as fill one statement.
    let with_rows = with_rows.flat_map(|(sql, shape, after, index)| {
        [1, 256].map(|count| {
            let mut rows = Rows::new();
            (0..count).for_each(|_| rows.push(&vec![RowValue::Null; shape.0.len()]));
            (rows::statements(engine, sql, shape, rows, &after).next().unwrap(), index)
        })
    });
    for (statement, index) in plain.chain(with_rows) {
        let sql = statement.sql.clone();
        let plan = plan(on, explain, statement).await;
        assert!(plan.contains(index), "{sql}\nshould use {index}:\n{plan}");
        assert!(!plan.lines().any(&is_scan), "{sql}\nscans:\n{plan}");
        assert!(!plan.contains("(tenant = $"), "{sql}\nfilters by tenant:\n{plan}");
    }
}

/// Statements of events, with the index that each should use; the names of primary keys depend on the engine.
fn event_statements(engine: DbBackend) -> Vec<(Statement, &'static str)> {
    let number = |number: i64| Value::from(number);
    let by_key = |table, key| if engine == DbBackend::Postgres { table } else { key };
    let selects = [
        (events::select_sessions().build(engine), by_key("sessions_pkey", "sqlite_autoindex_sessions_1")),
        (events::select_handled(engine, "s7", 5, "h"), by_key("handled_pkey", "USING PRIMARY KEY (session=? AND ")),
        (events::select_waiting(engine, 5, 10), "inbox_waiting"),
        (events::select_dead(engine, 50_000, 10), "inbox_dead"),
    ];
    let in_sql = [
        (sql::sessions::SWEEP_DEAD, vec![number(90), number(10)], "inbox_died"),
        (
            sql::sessions::ORPHANED_SESSIONS,
            vec![number(10)],
            by_key("handled_pkey", "SEARCH h USING PRIMARY KEY (session>?)"),
        ),
        (
            sql::sessions::SWEEP_ORPHANED,
            vec!["s7".into(), number(50), number(10)],
            by_key("handled_pkey", "USING PRIMARY KEY"),
        ),
        (sql::identify::LAST_OF_BUCKET, vec![number(3), number(5), number(90)], "identifies_bucket"),
        (sql::identify::LAST_OF_BUDGET, vec![number(5), number(999)], "identifies_at"),
        (sql::identify::FORGET, vec![number(5)], "identifies_at"),
        (sql::interactions::SWEEP_EXPIRED, vec![number(90), number(10)], "received_interactions_expiry"),
        (sql::interactions::PAST_BOUND, vec![number(90)], "received_interactions_expiry"),
    ];
    let in_sql =
        in_sql.into_iter().map(|(sql, values, index)| (Statement::from_sql_and_values(engine, sql, values), index));
    selects.into_iter().chain(in_sql).collect()
}

fn event_row_statements(engine: DbBackend) -> Vec<(&'static str, rows::Columns, Vec<Value>, &'static str)> {
    let is_postgres = engine == DbBackend::Postgres;
    let by_key = |table, key| if is_postgres { table } else { key };
    let forget = if is_postgres { sql::sessions::FORGET_ON_POSTGRES } else { sql::sessions::FORGET };
    vec![
        (sql::event_commit::INSERT, write::HANDLED, vec![], "sessions_session"),
        (sql::event_commit::REMOVE, write::KEYS, vec![], by_key("handled_pkey", "(session=? AND seq=? AND handler=?)")),
        (sql::inbox::PRESENT, write::KEYS, vec![], by_key("inbox_session_seq_handler_key", "sqlite_autoindex_inbox_1")),
        (
            sql::inbox::POSTPONE,
            write::POSTPONE_COLUMNS,
            vec![],
            by_key("inbox_session_seq_handler_key", "sqlite_autoindex_inbox_1"),
        ),
        (sql::sessions::SELECT_SESSIONS, write::SHARDS, vec![], by_key("sessions_pkey", "sqlite_autoindex_sessions_1")),
        (forget, write::CONFIRMED, vec![], by_key("handled_pkey", "(session=? AND seq<?)")),
        (
            sql::interactions::RECEIVED,
            interactions::TOKENS,
            vec![],
            by_key("received_interactions_pkey", "SEARCH r USING PRIMARY KEY (token=?)"),
        ),
        (sql::events::VALUES, events::STATE_KEYS, vec![5_i64.into()], by_key("state_pkey", "sqlite_autoindex_state_1")),
    ]
}

/// Rows about events: 100,000 each of handled events, inbox entries (waiting and dead) and identifies; `{n}` is their
/// number.
const FILL_EVENTS: [&str; 6] = [
    "INSERT INTO sessions (shards, shard, session, confirmed, updated_at)
        SELECT 1000, {n}, 's' || {n}, 0, {n} FROM {numbers} WHERE {n} <= 1000",
    "INSERT INTO handled (session, seq, handler, at) SELECT 's' || ({n} % 100), {n}, 'h', {n} FROM {numbers}",
    "INSERT INTO inbox (session, seq, handler, lane, name, event, attempts, eligible_at, dead, created_at, died_at)
        SELECT 's' || ({n} % 100), {n}, 'h', {n} % 10, 'member.join', '{}', 1, {n}, CASE WHEN {n} % 2 = 0 THEN 'no' END, {n},
        CASE WHEN {n} % 2 = 0 THEN {n} END FROM {numbers}",
    "INSERT INTO identifies (bucket, at) SELECT {n} % 16, {n} FROM {numbers}",
    "INSERT INTO state (key, value) SELECT 'k' || {n}, '1' FROM {numbers}",
    "INSERT INTO received_interactions (token, id, application_id, guild_id, received_at, expires_at)
        SELECT {uuid}, {n}, 1, {n} % 100, {n}, {n} FROM {numbers}",
];

async fn fill(on: &DatabaseConnection, uuid: &str, hash: &str, numbers: &str) {
    let fill = FILL.replace("{uuid}", uuid).replace("{hash}", hash).replace("{numbers}", numbers).replace("{n}", "n");
    rows::query(on, &fill, Vec::new()).await.unwrap();
    // PostgreSQL does not convert a UUID to bytes by itself.
    let bytes = uuid.strip_suffix("::uuid").map_or_else(|| uuid.to_owned(), |text| format!("decode({text}, 'hex')"));
    for fill in FILL_EVENTS {
        let fill = fill.replace("{numbers}", numbers).replace("{uuid}", &bytes).replace("{n}", "n");
        rows::query(on, &fill, Vec::new()).await.unwrap();
    }
}

/// On SQLite a guild's operations are in three indexes. Only the rows that are found there are sorted.
async fn check_guild_indexes(on: &DatabaseConnection) {
    let found_in = async |state| {
        let filter = OperationFilter { guilds: Some(vec![7]), state, limit: 50, ..OperationFilter::default() };
        let plan = plan(on, "EXPLAIN QUERY PLAN", operations::select_list(DbBackend::Sqlite, &filter)).await;
        let scans = plan.lines().filter(|line| line.contains("SCAN ") && !line.contains("SCAN piece"));
        assert_eq!(scans.count(), 0, "{plan}");
        let indexes = ["operations_guild (guild_id=?", "operations_pending (queue=?", "operations_apart (guild_id=?"];
        indexes.map(|index| plan.contains(index))
    };
    assert_eq!(found_in(None).await, [true, true, true]);
    assert_eq!(found_in(Some(OperationState::Dead)).await, [true, false, false]);
    assert_eq!(found_in(Some(OperationState::Queued)).await, [false, true, true]);
}

#[tokio::test]
async fn sqlite_finds_rows_by_their_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&format!("sqlite:{}", folder.path().join("guildhall.db").display()));
    Store::open(&settings).await.unwrap().close().await;
    let on = connect::open_writer(&settings).await.unwrap();
    let numbers = "(WITH RECURSIVE count (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < 100000)
        SELECT n FROM count)";
    fill(&on, "unhex(printf('%032x', n))", "zeroblob(32)", numbers).await;
    // Only rows that a statement takes or names itself are scanned; an index may be scanned in its order and up to a
    // limit.
    let is_scan = |line: &str| {
        let given = ["SCAN v", "SCAN (subquery", "VALUES CLAUSE", "CONSTANT ROW", "SCAN named", "SCAN oldest"];
        let found = ["SCAN moment", "SCAN found", "SCAN piece"];
        let given = given.iter().chain(&found).any(|rows| line.contains(rows));
        let whole = line.contains("SCAN ") && !line.contains(" USING ") && !given;
        whole || line.contains("TEMP B-TREE FOR ORDER BY") || line.contains("AUTOMATIC")
    };
    check(&on, "EXPLAIN QUERY PLAN", is_scan).await;
    check_guild_indexes(&on).await;
}

#[tokio::test]
async fn postgres_finds_rows_by_their_indexes() {
    let server = postgres::PostgresServer::start();
    // As a user who is not a superuser, so that policies apply.
    let settings = settings(&server.create_database_with_owner("CREATEROLE").await.0);
    Store::open(&settings).await.unwrap().close().await;
    let on = connect::open_writer(&settings).await.unwrap();
    let hash = "decode(repeat('00', 32), 'hex')";
    fill(&on, "lpad(to_hex(n), 32, '0')::uuid", hash, "generate_series(1, 100000) AS n").await;
    check(&on, "EXPLAIN", |line| line.contains("Seq Scan") || line.contains("Sort")).await;
    check_claim_index(&on).await;
    check_tenant_indexes(&on).await;
}

/// A tenant's query uses the same indexes, and filters the result by tenant.
async fn check_tenant_indexes(on: &DatabaseConnection) {
    let whole = on.begin().await.unwrap();
    let security = "SET LOCAL ROLE guildhall_api; SET LOCAL guildhall.tenant = 'default'";
    whole.execute_unprepared(security).await.unwrap();
    let page = |filter: OperationFilter| {
        operations::select_list(DbBackend::Postgres, &OperationFilter { limit: 50, ..filter })
    };
    for (filter, index) in [
        (OperationFilter { guilds: Some(vec![7]), ..OperationFilter::default() }, "operations_guild"),
        (OperationFilter { state: Some(OperationState::Dead), ..OperationFilter::default() }, "operations_state"),
        (OperationFilter::default(), "operations_pkey"),
    ] {
        let plan = plan(&whole, "EXPLAIN", page(filter)).await;
        assert!(plan.contains(index) && plan.contains("(tenant = $"), "{plan}");
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
    }
}

/// With 10,000 guilds that have work.
async fn check_claim_index(on: &DatabaseConnection) {
    const FILL: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
        SELECT n, 'default', 2, 1, 0, n, 1 FROM generate_series(1, 10000) AS n";
    rows::query(on, FILL, Vec::new()).await.unwrap();
    let values = vec![Uuid::nil().into(), 20_000_i64.into(), 200_i64.into(), 0_i64.into(), vec![u8::MAX; 128].into()];
    let take = Statement::from_sql_and_values(on.get_database_backend(), sql::queues::take_due_shared(), values);
    let plan = plan(on, "EXPLAIN", take).await;
    assert!(plan.contains("guild_queues_due"), "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
}
