//! Dead letters.

use std::sync::Arc;

use guildhall_actors::ports::{DeadLetter, DeadLetterFilter};
use guildhall_core::{
    access::{Bounds, ScopeSet},
    operation::{OperationId, OperationKind, Queue},
};
use sea_orm::{ConnectionTrait, QueryResult, Value};
use uuid::Uuid;

use super::WhereClause;
use crate::store::{
    error::EngineError,
    operation_row::{failure, read_u32, readable, time},
    rows::{query, without_nul},
    write::signed,
};

/// Selects dead letters: the SQL after `dead_letters l`, and its values.
pub(in crate::store) struct DeadLetterCondition {
    pub(in crate::store) sql: String,
    pub(in crate::store) values: Vec<Value>,
}

impl DeadLetterCondition {
    /// Newest first.
    pub(in crate::store) fn newest_first(filter: &DeadLetterFilter) -> Self {
        Self::ordered(filter, "l.id DESC")
    }

    /// Oldest first.
    pub(in crate::store) fn oldest_first(filter: &DeadLetterFilter) -> Self {
        Self::ordered(filter, "l.id")
    }

    fn ordered(filter: &DeadLetterFilter, order: &str) -> Self {
        let mut conditions = WhereClause::default();
        if let Some(tenant) = &filter.tenant {
            conditions.and("l.tenant = ?", tenant.to_string());
        }
        if let Some(id) = filter.id {
            conditions.and("l.id = ?", id.uuid());
        }
        if let Some(guilds) = &filter.guilds {
            conditions.and_in("l.guild_id", guilds);
        }
        if let Some(kind) = filter.kind {
            conditions.and("l.kind = ?", kind.name());
        }
        if let Some(class) = &filter.class {
            conditions.and("l.class = ?", class.clone());
        }
        if let Some(text) = &filter.message_contains {
            conditions.and("l.wording LIKE ? ESCAPE '!'", like_pattern(text));
        }
        if let Some(after) = filter.died_after {
            conditions.and("l.died_at >= ?", signed(after.millis()));
        }
        if let Some(before) = filter.died_before {
            conditions.and("l.died_at < ?", signed(before.millis()));
        }
        match filter.redriven {
            Some(true) => conditions.and_sql("l.redriven_as IS NOT NULL"),
            Some(false) => conditions.and_sql("l.redriven_as IS NULL"),
            None => {}
        }
        if let Some(before) = filter.before {
            conditions.and("l.id < ?", before.uuid());
        }
        let (sql, values) = conditions.ordered(order, filter.limit);
        Self { sql, values }
    }
}

/// A pattern that matches texts with these words. Messages of dead letters are stored in lower case.
fn like_pattern(words: &str) -> String {
    let mut pattern = String::from("%");
    for character in without_nul(&words.to_lowercase()).chars() {
        if matches!(character, '%' | '_' | '!') {
            pattern.push('!');
        }
        pattern.push(character);
    }
    pattern + "%"
}

pub(in crate::store) async fn list(
    on: &impl ConnectionTrait,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, EngineError> {
    let DeadLetterCondition { sql, values } = DeadLetterCondition::newest_first(filter);
    let select = format!(
        "SELECT l.id, l.tenant, l.queue, l.guild_id, l.kind, l.payload, l.error, l.attempts, l.reason, l.created_at,
        l.died_at, l.redrive_of, l.redriven_as, l.bounds, l.caller, l.scopes FROM dead_letters l {sql}"
    );
    readable(&query(on, &select, values).await?, read_dead_letter)
}

fn read_dead_letter(row: &QueryResult) -> Result<DeadLetter, EngineError> {
    let id: Uuid = row.try_get_by_index(0)?;
    let tenant: String = row.try_get_by_index(1)?;
    let kind: String = row.try_get_by_index(4)?;
    let error: String = row.try_get_by_index(6)?;
    let redrive_of: Option<Uuid> = row.try_get_by_index(11)?;
    let redriven_as: Option<Uuid> = row.try_get_by_index(12)?;
    Ok(DeadLetter {
        id: OperationId::from_uuid(id),
        tenant: Arc::from(tenant),
        queue: Queue::from_number(row.try_get_by_index(2)?),
        guild: row.try_get_by_index::<Option<i64>>(3)?.map(i64::cast_unsigned),
        caller: Arc::from(row.try_get_by_index::<String>(14)?),
        bounds: Bounds::from_number(row.try_get_by_index(13)?),
        scopes: ScopeSet::from_number(row.try_get_by_index(15)?),
        kind: OperationKind::from_name(&kind).ok_or_else(|| {
            EngineError::Corrupt(format!("dead letter {id} has the kind {kind:?}, which this version does not know"))
        })?,
        payload: row.try_get_by_index(5)?,
        error: failure(&error)?,
        attempts: read_u32(row, 7)?,
        reason: row.try_get_by_index(8)?,
        created_at: time(row.try_get_by_index(9)?),
        died_at: time(row.try_get_by_index(10)?),
        redrive_of: redrive_of.map(OperationId::from_uuid),
        redriven_as: redriven_as.map(OperationId::from_uuid),
    })
}
