//! Sessions, handled events, and the inbox.

use std::{collections::HashMap, sync::Arc};

use guildhall_actors::ports::{InboxEntry, InboxKey, StoredSession};
use guildhall_core::time::UnixMs;
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DbBackend, EntityTrait as _, FromQueryResult, QueryFilter as _, QueryOrder as _,
    QuerySelect as _, Select, Statement,
    sea_query::{Expr, ExprTrait as _},
};

use super::MAX_ROWS;
use crate::store::sql;
use crate::store::{
    entities::{handled, inbox, sessions, state},
    error::EngineError,
    operation_row::{count, time},
    rows::{ColumnType, Columns, RowValue, Rows, first_rows, with_rows_as, without_nul},
    write::signed,
};

pub(in crate::store) fn select_sessions() -> Select<sessions::Entity> {
    sessions::Entity::find().order_by_asc(sessions::Column::Shards).order_by_asc(sessions::Column::Shard)
}

pub(in crate::store) async fn sessions(on: &impl ConnectionTrait) -> Result<Vec<StoredSession>, EngineError> {
    let session = |row: sessions::Model| {
        Ok(StoredSession {
            shards: count(row.shards)?,
            shard: count(row.shard)?,
            session: Arc::from(row.session),
            resume_url: row.resume_url,
            confirmed: row.confirmed.unsigned_abs(),
            at: time(row.updated_at),
            fence: None,
        })
    };
    select_sessions().all(on).await?.into_iter().map(session).collect()
}

#[derive(FromQueryResult)]
struct HandledRow {
    seq: i64,
    handler: String,
}

/// Selects the next page of the events of a session that are handled.
pub(in crate::store) fn select_handled(engine: DbBackend, session: &str, seq: i64, handler: &str) -> Statement {
    use handled::Column::{Handler, Seq, Session};
    let after = Expr::tuple([Expr::from(seq), Expr::from(handler)]);
    let select = handled::Entity::find()
        .select_only()
        .columns([Seq, Handler])
        .filter(Session.eq(session))
        .filter(Expr::tuple([Seq.into_expr(), Handler.into_expr()]).gt(after))
        .order_by_asc(Seq)
        .order_by_asc(Handler);
    first_rows(engine, &select, MAX_ROWS)
}

/// Reads all of them, page by page: if one was missing, a handler would get an event twice.
pub(in crate::store) async fn handled_after(
    on: &impl ConnectionTrait,
    session: &str,
    seq: u64,
) -> Result<Vec<(u64, Arc<str>)>, EngineError> {
    let session = without_nul(session);
    let mut found: Vec<(u64, Arc<str>)> = Vec::new();
    // The empty string sorts before every handler of the first sequence number to read.
    let mut after = HandledRow { seq: signed(seq.saturating_add(1)), handler: String::new() };
    loop {
        let select = select_handled(on.get_database_backend(), &session, after.seq, &after.handler);
        let page = HandledRow::find_by_statement(select).all(on).await?;
        let is_last = page.len() < MAX_ROWS;
        for row in page {
            found.push((row.seq.unsigned_abs(), Arc::from(row.handler.as_str())));
            after = row;
        }
        if is_last {
            return Ok(found);
        }
    }
}

/// Selects events that wait, in order.
pub(in crate::store) fn select_waiting(engine: DbBackend, after: i64, max: usize) -> Statement {
    use inbox::Column::{Dead, Place};
    let select = inbox::Entity::find().filter(Dead.is_null()).filter(Place.gt(after)).order_by_asc(Place);
    first_rows(engine, &select, max)
}

/// Selects events that were given up, newest first.
pub(in crate::store) fn select_dead(engine: DbBackend, before: i64, max: usize) -> Statement {
    use inbox::Column::{Dead, Place};
    let select = inbox::Entity::find().filter(Dead.is_not_null()).filter(Place.lt(before)).order_by_desc(Place);
    first_rows(engine, &select, max)
}

pub(in crate::store) async fn inbox(
    on: &impl ConnectionTrait,
    after: i64,
    max: usize,
) -> Result<Vec<InboxEntry>, EngineError> {
    entries(on, select_waiting(on.get_database_backend(), after, max)).await
}

pub(in crate::store) async fn dead(
    on: &impl ConnectionTrait,
    before: Option<i64>,
    max: usize,
) -> Result<Vec<InboxEntry>, EngineError> {
    entries(on, select_dead(on.get_database_backend(), before.unwrap_or(i64::MAX), max)).await
}

async fn entries(on: &impl ConnectionTrait, select: Statement) -> Result<Vec<InboxEntry>, EngineError> {
    let entry = |row: inbox::Model| {
        let key =
            InboxKey { session: Arc::from(row.session), seq: row.seq.unsigned_abs(), handler: Arc::from(row.handler) };
        Ok(InboxEntry {
            key,
            position: row.place,
            lane: row.lane,
            name: row.name,
            event: row.event,
            attempts: count(row.attempts)?,
            eligible_at: time(row.eligible_at),
            dead: row.dead,
            created_at: time(row.created_at),
        })
    };
    inbox::Model::find_by_statement(select).all(on).await?.into_iter().map(entry).collect()
}

pub(in crate::store) const STATE_KEYS: Columns = Columns(&[("its_key", ColumnType::Text)]);

/// Values by their keys, unless they have expired.
pub(in crate::store) async fn values(
    on: &impl ConnectionTrait,
    keys: &[String],
    now: UnixMs,
) -> Result<Vec<Option<String>>, EngineError> {
    let rows = Rows::of(keys.iter().map(|key| RowValue::Text(key)));
    let found = with_rows_as(on, sql::events::VALUES, STATE_KEYS, rows, vec![signed(now.millis()).into()]).await?;
    let found: HashMap<_, _> = found.into_iter().map(|row: state::Model| (row.key, row.value)).collect();
    Ok(keys.iter().map(|key| found.get(&without_nul(key)).cloned()).collect())
}
