//! Migration from queues that tenants share to one queue per tenant, and back.

use guildhall::store::migrate;
use guildhall_actors::ports::{DeadLetterFilter, NewOperation, OperationStore as _};
use guildhall_core::{
    operation::{OperationId, OperationState, Queue, QueueKey},
    time::UnixMs,
};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, Statement};
use uuid::Uuid;

use crate::setup::{GUILD, StoreLocation, at, on_both, operation, state_of, submit};

/// A row of the old schema: number, tenant, queue, sequence number, state and due time.
type OldRow = (u8, &'static str, i64, i64, &'static str, i64);

const USER: i64 = -5;
const INTERACTION: i64 = -5 - (1 << 62);
/// Long after any test.
const FAR: i64 = 9_000_000_000_000;
const DUE: i64 = 1_000;

const ROWS: [OldRow; 9] = [
    (1, "acme", USER, 1, "queued", DUE),
    (2, "rival", USER, 2, "delayed", DUE + 7),
    (3, "acme", USER, 3, "queued", DUE),
    (4, "rival", USER, 4, "queued", DUE),
    (5, "acme", USER, 5, "queued", FAR),
    (6, "acme", USER, 6, "succeeded", DUE),
    (7, "default", 0, 1, "queued", DUE),
    (8, "acme", INTERACTION, 1, "queued", DUE),
    (9, "acme", GUILD as i64, 4, "queued", DUE),
];

fn id(n: u8) -> Uuid {
    Uuid::from_u128(u128::from(n))
}

async fn insert(connection: &DatabaseConnection) {
    const INSERT: &str =
        "INSERT INTO operations (id, tenant, queue, seq, kind, payload, payload_hash, lane, state, attempts,
        delays, max_attempts, eligible_at, parked, created_at, updated_at, finished_at, changed)
        VALUES ($1, $2, $3, $4, 'assign_role', '{}', $5, 'operation', $6, 0, 0, 3, $7, 0, 1, 1, $8, 1)";
    const QUEUES: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
        VALUES ($1, $2, 9, 5, 0, 1, 3)";
    const LETTER: &str = "INSERT INTO dead_letters (id, tenant, queue, kind, payload, class, error, wording, attempts,
        created_at, died_at) VALUES ($1, 'rival', $2, 'assign_role', '{}', 'forbidden',
        '{\"class\":\"forbidden\",\"message\":\"no\",\"status\":null,\"code\":null}', 'no', 1, 1, 1)";
    let engine = connection.get_database_backend();
    let run = async |sql: &str, values: Vec<sea_orm::Value>| {
        connection.execute_raw(Statement::from_sql_and_values(engine, sql, values)).await.unwrap();
    };
    for (queue, tenant) in
        [(USER, "acme"), (0, "default"), (INTERACTION, "acme"), (GUILD as i64, "acme"), (-77, "acme")]
    {
        run(QUEUES, vec![queue.into(), tenant.into()]).await;
    }
    for (n, tenant, queue, seq, state, due) in ROWS {
        let finished = (state == "succeeded").then_some(2_i64);
        let values = vec![
            id(n).into(),
            tenant.into(),
            queue.into(),
            seq.into(),
            vec![7_u8; 32].into(),
            state.into(),
            due.into(),
            finished.into(),
        ];
        run(INSERT, values).await;
    }
    // An operation that refers to the one that is due far in the future.
    let refers = "INSERT INTO operation_refs (operation_id, target) VALUES ($1, $2)";
    run(refers, vec![id(3).into(), id(5).into()]).await;
    run(LETTER, vec![id(100).into(), USER.into()]).await;
}

async fn query_pairs(connection: &DatabaseConnection, sql: &str) -> Vec<(i64, i64)> {
    let rows = connection.query_all_raw(Statement::from_string(connection.get_database_backend(), sql)).await.unwrap();
    rows.iter().map(|row| (row.try_get_by_index(0).unwrap(), row.try_get_by_index(1).unwrap())).collect()
}

on_both! {
    async fn shared_queues_are_split_by_tenant_and_keep_their_order(engine) {
        let place = StoreLocation::new(engine).await;
        migrate::up(&place.settings).await.unwrap();
        let last = migrate::status(&place.settings).await.unwrap();
        let newer = last.iter().filter(|step| step.name.as_str() >= "0014").count();
        migrate::down(&place.settings, u32::try_from(newer).unwrap()).await.unwrap();
        let on = Database::connect(place.raw_url()).await.unwrap();
        insert(&on).await;
        migrate::up(&place.settings).await.unwrap();

        let store = place.open().await;
        let loaded = async |queue: Queue| {
            let page = store.load(queue, 0, 99).await.unwrap();
            let ids: Vec<_> = page.operations.iter().map(|stored| stored.operation.id.uuid().as_u128()).collect();
            (ids, page.scheduled)
        };
        let far = Some(UnixMs::new(FAR as u64));
        assert_eq!(loaded(QueueKey::user(5).queue("acme")).await, (vec![1], far), "3 refers to 5");
        assert_eq!(loaded(QueueKey::user(5).queue("rival")).await, (vec![2, 4], None));
        assert_eq!(loaded(QueueKey::application().queue("default")).await, (vec![7], None));
        assert_eq!(loaded(QueueKey::interaction(5).queue("acme")).await, (vec![8], None));
        assert_eq!(loaded(Queue::Guild(GUILD)).await, (vec![9], None));
        assert_eq!(store.next_due().await.unwrap(), Some(UnixMs::new(1)), "the guild's queue is unchanged");
        let letter = store.dead_letters(DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() }).await.unwrap().remove(0);
        assert_eq!(letter.queue, QueueKey::user(5).queue("rival"));
        let depths = store.depths().await.unwrap();
        assert_eq!((depths["scheduled"], depths["queued"], depths["delayed"]), (2, 5, 1));
        // New operations join behind them; the scheduled ones join later.
        let acme = NewOperation { tenant: "acme".into(), ..operation(QueueKey::user(5)) };
        submit(&store, &acme).await;
        assert_eq!(store.get(acme.id).await.unwrap().unwrap().stored.seq, 6);
        store.cancel(acme.id, at(1)).await.unwrap();
        store.close().await;
        let pending = "SELECT COUNT(*), CAST(SUM(pending) AS BIGINT) FROM guild_queues WHERE key IS NOT NULL";
        assert_eq!(query_pairs(&on, pending).await, [(4, 7)]);

        migrate::down(&place.settings, u32::try_from(newer).unwrap()).await.unwrap();
        let in_order = "SELECT queue, seq FROM operations WHERE finished_at IS NULL AND queue <= 0 ORDER BY queue, seq";
        let back: Vec<_> = [(INTERACTION, 1), (USER, 1), (USER, 2), (USER, 3), (USER, 4), (USER, 5), (0, 1)].into();
        assert_eq!(query_pairs(&on, in_order).await, back);
        on.close().await.unwrap();
        migrate::up(&place.settings).await.unwrap();
        let store = place.open().await;
        assert_eq!(store.depths().await.unwrap()["scheduled"], 2, "applied again");
        assert_eq!(state_of(&store, OperationId::from_uuid(id(1))).await, OperationState::Queued);
    }
}
