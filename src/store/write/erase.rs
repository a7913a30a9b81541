//! Erases data about a user or a guild, a bounded number of rows at a time.
//!
//! Rows are examined in the order of their keys. The engine returns the text of rows that contain the ID anywhere;
//! whether the ID is a separate number there is decided here, since one ID may be a part of another.

use guildhall_actors::access::{DataSubject, ErasureCursor, ErasureStep};
use sea_orm::{DatabaseTransaction, QueryResult, Value};
use uuid::Uuid;

use super::{Context, EngineError, change_seq, sweep};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows};

/// Number of rows that one step examines: few enough not to delay other writes.
const STEP: i64 = 1_000;

/// A table that contains data about users or guilds.
#[derive(Clone, Copy, Debug)]
enum ErasureTable {
    Operations,
    DeadLetters,
    Results,
    Events,
    State,
    ManagedObjects,
    Channels,
}

/// In the order in which they are examined. Cursors depend on this order.
const TABLES: [ErasureTable; 7] = [
    ErasureTable::Operations,
    ErasureTable::DeadLetters,
    ErasureTable::Results,
    ErasureTable::Events,
    ErasureTable::State,
    ErasureTable::ManagedObjects,
    ErasureTable::Channels,
];

const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);

/// Result of one step on a table.
struct ErasurePage<K> {
    /// Keys of rows to remove.
    remove: Vec<K>,
    /// Number of rows that mention the subject and stay.
    retained: u64,
    /// The last key that was examined, unless the table is finished.
    last: Option<K>,
}

/// Examines the next rows of a table, and removes those about the subject.
pub(super) async fn step(
    on: &DatabaseTransaction,
    context: &Context,
    subject: DataSubject,
    from: &ErasureCursor,
) -> Result<ErasureStep, EngineError> {
    let mut erased = ErasureStep::default();
    let Some(table) = TABLES.get(from.table) else { return Ok(erased) };
    let after = match table {
        ErasureTable::Operations => operations(on, context, subject, &from.after, &mut erased).await?,
        ErasureTable::DeadLetters => dead_letters(on, context, subject, &from.after, &mut erased).await?,
        ErasureTable::Results => results(on, subject, &from.after, &mut erased).await?,
        ErasureTable::Events => events(on, subject, &from.after, &mut erased).await?,
        ErasureTable::State => state(on, subject, &from.after, &mut erased).await?,
        ErasureTable::ManagedObjects => managed_objects(on, subject, &mut erased).await?,
        ErasureTable::Channels => channels(on, subject, &mut erased).await?,
    };
    erased.next = match after {
        Some(after) => Some(ErasureCursor { table: from.table, after }),
        None if from.table + 1 < TABLES.len() => Some(ErasureCursor { table: from.table + 1, after: String::new() }),
        None => None,
    };
    Ok(erased)
}

/// Evaluates rows with a key, a text (NULL without the ID), whether the guild's column names the subject, and whether
/// the row must stay.
fn page<K>(
    subject: DataSubject,
    rows: &[QueryResult],
    key: impl Fn(&QueryResult) -> Result<K, EngineError>,
) -> Result<ErasurePage<K>, EngineError> {
    let mut page = ErasurePage { remove: Vec::new(), retained: 0, last: None };
    for row in rows {
        let text: Option<String> = row.try_get("", "text")?;
        let is_its = row.try_get::<i64>("", "its")? != 0;
        if !is_its && !text.is_some_and(|text| subject.is_in(&text)) {
            continue;
        }
        if row.try_get::<i64>("", "stays")? == 0 {
            page.remove.push(key(row)?);
        } else {
            page.retained += 1;
        }
    }
    if rows.len() as i64 == STEP {
        page.last = rows.last().map(key).transpose()?;
    }
    Ok(page)
}

/// The pattern of rows that may be about the subject, and the guild to compare with; 0 means none.
fn values(subject: DataSubject) -> [Value; 2] {
    let guild = match subject {
        DataSubject::User(_) => 0,
        DataSubject::Guild(id) => id.cast_signed(),
    };
    [format!("%{}%", subject.id()).into(), guild.into()]
}

fn uuid_after(after: &str) -> Value {
    after.parse::<Uuid>().unwrap_or_default().into()
}

fn uuid_of(row: &QueryResult) -> Result<Uuid, EngineError> {
    Ok(row.try_get_by_index(0)?)
}

/// Finished operations to which no pending operation refers. Others stay until they are finished.
async fn operations(
    on: &DatabaseTransaction,
    context: &Context,
    subject: DataSubject,
    after: &str,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const SELECT: &str = "SELECT o.id,
        CASE WHEN o.payload LIKE $1 OR o.result LIKE $1 OR o.error LIKE $1 OR o.reason LIKE $1 OR o.progress LIKE $1
            THEN o.payload || ' ' || COALESCE(o.result, '') || ' ' || COALESCE(o.error, '') || ' ' || COALESCE(o.reason, '')
            || ' ' || COALESCE(o.progress, '')
            END AS text,
        CAST(CASE WHEN o.guild_id = $2 THEN 1 ELSE 0 END AS BIGINT) AS its,
        CAST(CASE WHEN o.finished_at IS NULL OR EXISTS (SELECT 1 FROM operation_refs r WHERE r.target = o.id)
            THEN 1 ELSE 0 END AS BIGINT) AS stays
        FROM operations o WHERE o.id > $3 ORDER BY o.id LIMIT $4 + 0";
    const CLEAR: &str = "UPDATE idempotency SET result = NULL WHERE operation_id IN (SELECT op FROM {v})";
    const REMOVE: &str =
        "DELETE FROM operations WHERE id IN (SELECT op FROM {v}) RETURNING id, queue, changed, caller, tenant,
        bytes";
    let [pattern, guild] = values(subject);
    let rows = query(on, SELECT, vec![pattern, guild, uuid_after(after), STEP.into()]).await?;
    let page = page(subject, &rows, uuid_of)?;
    let ids = || Rows::of(page.remove.iter().copied().map(RowValue::Uuid));
    with_rows(on, CLEAR, IDS, ids(), Vec::new()).await?;
    let gone = with_rows(on, REMOVE, IDS, ids(), Vec::new()).await?;
    if let Some(change) = sweep::after_removal(on, context, &gone).await? {
        change_seq::record_removed(on, change).await?;
    }
    count(erased, "operations", page.remove.len(), page.retained);
    Ok(page.last.map(|id| id.to_string()))
}

async fn dead_letters(
    on: &DatabaseTransaction,
    context: &Context,
    subject: DataSubject,
    after: &str,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const SELECT: &str = "SELECT l.id,
        CASE WHEN l.payload LIKE $1 OR l.error LIKE $1 OR l.reason LIKE $1
            THEN l.payload || ' ' || l.error || ' ' || COALESCE(l.reason, '') END AS text,
        CAST(CASE WHEN l.guild_id = $2 THEN 1 ELSE 0 END AS BIGINT) AS its, CAST(0 AS BIGINT) AS stays
        FROM dead_letters l WHERE l.id > $3 ORDER BY l.id LIMIT $4 + 0";
    const REMOVE: &str = "DELETE FROM dead_letters WHERE id IN (SELECT op FROM {v}) RETURNING caller, tenant, bytes";
    let [pattern, guild] = values(subject);
    let rows = query(on, SELECT, vec![pattern, guild, uuid_after(after), STEP.into()]).await?;
    let page = page(subject, &rows, uuid_of)?;
    let gone =
        with_rows(on, REMOVE, IDS, Rows::of(page.remove.iter().copied().map(RowValue::Uuid)), Vec::new()).await?;
    context.count_removed(&gone, 0)?;
    count(erased, "dead_letters", page.remove.len(), page.retained);
    Ok(page.last.map(|id| id.to_string()))
}

/// Results that outlive their operations together with an idempotency key. The key itself stays, so that nothing is
/// done twice.
async fn results(
    on: &DatabaseTransaction,
    subject: DataSubject,
    after: &str,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const SELECT: &str = "SELECT i.scope, i.key, CASE WHEN i.result LIKE $1 THEN i.result END AS text,
        CAST(0 AS BIGINT) AS its, CAST(CASE WHEN i.state IS NULL THEN 1 ELSE 0 END AS BIGINT) AS stays
        FROM idempotency i WHERE (i.scope, i.key) > ($2, $3) ORDER BY i.scope, i.key LIMIT $4 + 0";
    const KEYS: Columns = Columns(&[("its_scope", ColumnType::Text), ("its_key", ColumnType::Text)]);
    const CLEAR: &str =
        "UPDATE idempotency SET result = NULL WHERE (scope, key) IN (SELECT its_scope, its_key FROM {v})";
    let [pattern, _] = values(subject);
    // Neither scopes nor keys contain a line break.
    let (scope, key) = after.split_once('\n').unwrap_or_default();
    let rows = query(on, SELECT, vec![pattern, scope.into(), key.into(), STEP.into()]).await?;
    let page =
        page(subject, &rows, |row| Ok((row.try_get_by_index::<String>(0)?, row.try_get_by_index::<String>(1)?)))?;
    let mut keys = Rows::new();
    for (scope, key) in &page.remove {
        keys.push(&[RowValue::Text(scope), RowValue::Text(key)]);
    }
    with_rows(on, CLEAR, KEYS, keys, Vec::new()).await?;
    count(erased, "results", page.remove.len(), page.retained);
    Ok(page.last.map(|(scope, key)| format!("{scope}\n{key}")))
}

/// Dead events. Waiting events are handled soon, and removed then.
async fn events(
    on: &DatabaseTransaction,
    subject: DataSubject,
    after: &str,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const SELECT: &str = "SELECT e.place,
        CASE WHEN e.event LIKE $1 OR e.why LIKE $1 OR e.dead LIKE $1
            THEN e.event || ' ' || COALESCE(e.why, '') || ' ' || COALESCE(e.dead, '') END AS text,
        CAST(0 AS BIGINT) AS its, CAST(CASE WHEN e.dead IS NULL THEN 1 ELSE 0 END AS BIGINT) AS stays
        FROM inbox e WHERE e.place > $2 ORDER BY e.place LIMIT $3 + 0";
    const PLACES: Columns = Columns(&[("its_place", ColumnType::Number)]);
    const REMOVE: &str = "DELETE FROM inbox WHERE place IN (SELECT its_place FROM {v}) AND dead IS NOT NULL";
    let [pattern, _] = values(subject);
    let from = after.parse::<i64>().unwrap_or(i64::MIN);
    let rows = query(on, SELECT, vec![pattern, from.into(), STEP.into()]).await?;
    let page = page(subject, &rows, |row| Ok(row.try_get_by_index::<i64>(0)?))?;
    with_rows(on, REMOVE, PLACES, Rows::of(page.remove.iter().copied().map(RowValue::Number)), Vec::new()).await?;
    count(erased, "events", page.remove.len(), page.retained);
    Ok(page.last.map(|place| place.to_string()))
}

/// Values that bots store, by key or content. Values of the daemon itself are not about people.
async fn state(
    on: &DatabaseTransaction,
    subject: DataSubject,
    after: &str,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const SELECT: &str =
        "SELECT s.key, CASE WHEN s.key LIKE $1 OR s.value LIKE $1 THEN s.key || ' ' || s.value END AS text,
        CAST(0 AS BIGINT) AS its, CAST(0 AS BIGINT) AS stays
        FROM state s WHERE s.key > $2 AND s.key NOT LIKE 'gate:%' ORDER BY s.key LIMIT $3 + 0";
    const KEYS: Columns = Columns(&[("its_key", ColumnType::Text)]);
    const REMOVE: &str = "DELETE FROM state WHERE key IN (SELECT its_key FROM {v})";
    let [pattern, _] = values(subject);
    let rows = query(on, SELECT, vec![pattern, after.into(), STEP.into()]).await?;
    let page = page(subject, &rows, |row| Ok(row.try_get_by_index::<String>(0)?))?;
    with_rows(on, REMOVE, KEYS, Rows::of(page.remove.iter().map(|key| RowValue::Text(key))), Vec::new()).await?;
    count(erased, "state", page.remove.len(), page.retained);
    Ok(page.last)
}

/// Keys of a guild's roles, channels and messages. They stay while operations of the guild are pending.
async fn managed_objects(
    on: &DatabaseTransaction,
    subject: DataSubject,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const PENDING: &str = "SELECT 1 FROM operations WHERE guild_id = $1 AND finished_at IS NULL LIMIT 1";
    const COUNT: &str = "SELECT COUNT(*) FROM managed_objects WHERE guild_id = $1";
    const REMOVE: &str = "DELETE FROM managed_objects WHERE (guild_id, kind, key) IN
        (SELECT guild_id, kind, key FROM managed_objects WHERE guild_id = $1 LIMIT $2 + 0) RETURNING key";
    let DataSubject::Guild(guild) = subject else { return Ok(None) };
    let guild = guild.cast_signed();
    if query(on, PENDING, vec![guild.into()]).await?.is_empty() {
        let removed = query(on, REMOVE, vec![guild.into(), STEP.into()]).await?.len();
        count(erased, "managed_objects", removed, 0);
        return Ok((removed as i64 == STEP).then(|| "more".to_owned()));
    }
    let retained: i64 =
        query(on, COUNT, vec![guild.into()]).await?.first().map_or(Ok(0), |row| row.try_get_by_index(0))?;
    count(erased, "managed_objects", 0, retained.unsigned_abs());
    Ok(None)
}

/// Channels and webhooks of a guild. They are looked up again when they are needed.
async fn channels(
    on: &DatabaseTransaction,
    subject: DataSubject,
    erased: &mut ErasureStep,
) -> Result<Option<String>, EngineError> {
    const REMOVE: &str = "DELETE FROM channel_guilds WHERE (kind, id) IN
        (SELECT kind, id FROM channel_guilds WHERE guild_id = $1 LIMIT $2 + 0) RETURNING id";
    let DataSubject::Guild(guild) = subject else { return Ok(None) };
    let removed = query(on, REMOVE, vec![guild.cast_signed().into(), STEP.into()]).await?.len();
    count(erased, "channels", removed, 0);
    Ok((removed as i64 == STEP).then(|| "more".to_owned()))
}

fn count(erased: &mut ErasureStep, table: &'static str, removed: usize, retained: u64) {
    if removed > 0 {
        *erased.removed.entry(table).or_default() += removed as u64;
    }
    if retained > 0 {
        *erased.retained.entry(table).or_default() += retained;
    }
}
