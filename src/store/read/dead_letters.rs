//! Dead letters.

use std::sync::Arc;

use guildhall_actors::ports::{DeadLetter, DeadLetterFilter};
use guildhall_core::{
    access::{Bounds, ScopeSet},
    operation::{OperationId, OperationKind, Queue},
};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, DbBackend, EntityTrait as _, FromQueryResult as _, QueryFilter as _,
    QueryOrder as _, QueryResult, QuerySelect as _, Statement, sea_query::LikeExpr,
};

use crate::store::{
    entities::dead_letters::{Column, Entity, Model},
    error::EngineError,
    operation_row::{count, failure, readable, time},
    rows::{first_rows, without_nul},
    write::signed,
};

fn conditions(filter: &DeadLetterFilter) -> Condition {
    let redriven = |yes| if yes { Column::RedrivenAs.is_not_null() } else { Column::RedrivenAs.is_null() };
    let containing = |text: &String| Column::Wording.like(LikeExpr::new(like_pattern(text)).escape('!'));
    Condition::all()
        .add_option(filter.tenant.as_deref().map(|tenant| Column::Tenant.eq(tenant)))
        .add_option(filter.id.map(|id| Column::Id.eq(id.uuid())))
        .add_option(filter.guilds.as_ref().map(|ids| Column::GuildId.is_in(ids.iter().map(|id| id.cast_signed()))))
        .add_option(filter.kind.map(|kind| Column::Kind.eq(kind.name())))
        .add_option(filter.class.as_deref().map(|class| Column::Class.eq(class)))
        .add_option(filter.message_contains.as_ref().map(containing))
        .add_option(filter.died_after.map(|after| Column::DiedAt.gte(signed(after.millis()))))
        .add_option(filter.died_before.map(|before| Column::DiedAt.lt(signed(before.millis()))))
        .add_option(filter.redriven.map(redriven))
        .add_option(filter.before.map(|before| Column::Id.lt(before.uuid())))
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

/// Selects the IDs of dead letters, oldest first.
pub(in crate::store) fn oldest_ids(engine: DbBackend, filter: &DeadLetterFilter) -> Statement {
    let select = Entity::find().select_only().column(Column::Id).filter(conditions(filter));
    first_rows(engine, &select.order_by_asc(Column::Id), filter.limit)
}

/// Newest first.
pub(in crate::store) async fn list(
    on: &impl ConnectionTrait,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, EngineError> {
    let select = Entity::find().filter(conditions(filter)).order_by_desc(Column::Id);
    let select = first_rows(on.get_database_backend(), &select, filter.limit);
    readable(&on.query_all_raw(select).await?, read_dead_letter)
}

fn read_dead_letter(row: &QueryResult) -> Result<DeadLetter, EngineError> {
    let row = Model::from_query_result(row, "")?;
    let unknown_kind = || {
        let (id, kind) = (row.id, &row.kind);
        EngineError::Corrupt(format!("dead letter {id} has the kind {kind:?}, which this version does not know"))
    };
    Ok(DeadLetter {
        id: OperationId::from_uuid(row.id),
        kind: OperationKind::from_name(&row.kind).ok_or_else(unknown_kind)?,
        tenant: Arc::from(row.tenant),
        queue: Queue::from_number(row.queue),
        guild: row.guild_id.map(i64::cast_unsigned),
        caller: Arc::from(row.caller),
        bounds: Bounds::from_number(row.bounds),
        scopes: ScopeSet::from_number(row.scopes),
        payload: row.payload,
        error: failure(&row.error)?,
        attempts: count(row.attempts)?,
        reason: row.reason,
        created_at: time(row.created_at),
        died_at: time(row.died_at),
        redrive_of: row.redrive_of.map(OperationId::from_uuid),
        redriven_as: row.redriven_as.map(OperationId::from_uuid),
    })
}
