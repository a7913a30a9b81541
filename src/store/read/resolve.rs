//! Resolves references, and finds objects that operations created.

use std::collections::{HashMap, HashSet};

use guildhall_actors::ports::{ResolvedReference, UnresolvedReference};
use guildhall_core::operation::{ManagedKind, OperationId};
use sea_orm::{ConnectionTrait, FromQueryResult};
use uuid::Uuid;

use crate::store::sql;
use crate::store::{
    error::EngineError,
    operation_row::parse_state,
    rows::{ColumnType, Columns, RowValue, Rows, scalars, with_rows, with_rows_as, without_nul},
    write::guild_number,
};

pub(in crate::store) async fn resolve(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    references: &[UnresolvedReference],
) -> Result<Vec<ResolvedReference>, EngineError> {
    let keys = keys(on, guild, references).await?;
    let operations = operations(on, guild, references).await?;
    let resolved = |reference: &UnresolvedReference| match reference {
        UnresolvedReference::Key(kind, key) => keys.get(&(kind.name().to_owned(), without_nul(key))).copied(),
        UnresolvedReference::Operation(id) => operations.get(id).copied(),
    };
    Ok(references.iter().map(|reference| resolved(reference).unwrap_or(ResolvedReference::Missing(None))).collect())
}

#[derive(FromQueryResult)]
struct KeyRow {
    kind: String,
    key: String,
    discord_id: i64,
    channel_id: Option<i64>,
}

async fn keys(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    references: &[UnresolvedReference],
) -> Result<HashMap<(String, String), ResolvedReference>, EngineError> {
    const SHAPE: Columns = Columns(&[("kind", ColumnType::Text), ("key", ColumnType::Text)]);
    let mut rows = Rows::new();
    for reference in references {
        match reference {
            UnresolvedReference::Key(kind, key) => rows.push(&[RowValue::Text(kind.name()), RowValue::Text(key)]),
            UnresolvedReference::Operation(_) => {}
        }
    }
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let mut found = HashMap::new();
    for row in
        with_rows_as::<KeyRow>(on, sql::resolve::OBJECTS_OF_KEYS, SHAPE, rows, vec![guild_number(guild).into()]).await?
    {
        found.insert((row.kind, row.key), object(row.discord_id, row.channel_id));
    }
    Ok(found)
}

fn object(id: i64, channel: Option<i64>) -> ResolvedReference {
    ResolvedReference::Object { id: id.cast_unsigned(), channel: channel.map(i64::cast_unsigned) }
}

#[derive(FromQueryResult)]
struct TargetRow {
    id: Uuid,
    guild_id: Option<i64>,
    state: String,
    made: Option<i64>,
    channel_id: Option<i64>,
}

async fn operations(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    references: &[UnresolvedReference],
) -> Result<HashMap<OperationId, ResolvedReference>, EngineError> {
    const SHAPE: Columns = Columns(&[("op", ColumnType::Uuid)]);
    let mut rows = Rows::new();
    for reference in references {
        match reference {
            UnresolvedReference::Operation(id) => rows.push(&[RowValue::Uuid(id.uuid())]),
            UnresolvedReference::Key(..) => {}
        }
    }
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let mut found = HashMap::new();
    for row in with_rows_as::<TargetRow>(on, sql::resolve::RESULTS_OF_OPERATIONS, SHAPE, rows, Vec::new()).await? {
        if row.guild_id != guild.map(u64::cast_signed) {
            continue;
        }
        let state = parse_state(&row.state)?;
        let resolved = match (state.is_final(), row.made) {
            (false, _) => ResolvedReference::Pending,
            (true, Some(made)) => object(made, row.channel_id),
            (true, None) => ResolvedReference::Missing(Some(state)),
        };
        found.insert(OperationId::from_uuid(row.id), resolved);
    }
    Ok(found)
}

/// Columns of [`sql::resolve::BOUND_OBJECTS`].
pub(in crate::store) const OBJECTS: Columns = Columns(&[("object", ColumnType::Number)]);

/// Which of these objects have a key, or were created by an operation.
pub(in crate::store) async fn bound(
    on: &impl ConnectionTrait,
    kind: ManagedKind,
    ids: &[u64],
) -> Result<Vec<u64>, EngineError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = Rows::of(ids.iter().map(|id| RowValue::Number(id.cast_signed())));
    let found = with_rows(on, sql::resolve::BOUND_OBJECTS, OBJECTS, rows, vec![kind.name().into()]).await?;
    let found: HashSet<i64> = scalars(&found)?.into_iter().collect();
    Ok(ids.iter().copied().filter(|id| found.contains(&id.cast_signed())).collect())
}
