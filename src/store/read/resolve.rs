//! What references stand for, and which objects are our own.

use std::collections::{HashMap, HashSet};

use guildhall_actors::operations::{Resolved, Wanted};
use guildhall_core::operation::{ManagedKind, OperationId};
use sea_orm::ConnectionTrait;
use uuid::Uuid;

use crate::store::{
    operation_row::state_named,
    rows::{Cell, Holds, Rows, Shape, kept, with_rows},
    trouble::Trouble,
    write::guild_number,
};

pub(in crate::store) async fn resolve(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    wanted: &[Wanted],
) -> Result<Vec<Resolved>, Trouble> {
    let keys = keys(on, guild, wanted).await?;
    let operations = operations(on, guild, wanted).await?;
    let resolved = |want: &Wanted| match want {
        Wanted::Key(kind, key) => keys.get(&(kind.name().to_owned(), kept(key))).copied(),
        Wanted::Operation(id) => operations.get(id).copied(),
    };
    Ok(wanted.iter().map(|want| resolved(want).unwrap_or(Resolved::Nothing(None))).collect())
}

async fn keys(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    wanted: &[Wanted],
) -> Result<HashMap<(String, String), Resolved>, Trouble> {
    const SHAPE: Shape = Shape(&[("kind", Holds::Text), ("key", Holds::Text)]);
    const SELECT: &str = "SELECT m.kind, m.key, m.discord_id, m.channel_id FROM {v}
        JOIN managed_objects m ON m.guild_id = $2 AND m.kind = v.kind AND m.key = v.key";
    let mut rows = Rows::new();
    for want in wanted {
        match want {
            Wanted::Key(kind, key) => rows.push(&[Cell::Text(kind.name()), Cell::Text(key)]),
            Wanted::Operation(_) => {}
        }
    }
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let mut found = HashMap::new();
    for row in with_rows(on, SELECT, SHAPE, rows, vec![guild_number(guild).into()]).await? {
        let id: i64 = row.try_get_by_index(2)?;
        let channel: Option<i64> = row.try_get_by_index(3)?;
        let object = Resolved::Object { id: id.cast_unsigned(), channel: channel.map(i64::cast_unsigned) };
        found.insert((row.try_get_by_index(0)?, row.try_get_by_index(1)?), object);
    }
    Ok(found)
}

async fn operations(
    on: &impl ConnectionTrait,
    guild: Option<u64>,
    wanted: &[Wanted],
) -> Result<HashMap<OperationId, Resolved>, Trouble> {
    const SHAPE: Shape = Shape(&[("op", Holds::Uuid)]);
    // A message that was made is known with its channel if it has a key.
    const SELECT: &str = "SELECT o.id, o.guild_id, o.state, o.made, m.channel_id FROM {v}
        JOIN operations o ON o.id = v.op
        LEFT JOIN managed_objects m ON m.kind = 'message' AND m.discord_id = o.made";
    let mut rows = Rows::new();
    for want in wanted {
        match want {
            Wanted::Operation(id) => rows.push(&[Cell::Uuid(id.uuid())]),
            Wanted::Key(..) => {}
        }
    }
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let mut found = HashMap::new();
    for row in with_rows(on, SELECT, SHAPE, rows, Vec::new()).await? {
        let id: Uuid = row.try_get_by_index(0)?;
        let its_guild: Option<i64> = row.try_get_by_index(1)?;
        if its_guild != guild.map(u64::cast_signed) {
            continue;
        }
        let state = state_named(&row.try_get_by_index::<String>(2)?)?;
        let made: Option<i64> = row.try_get_by_index(3)?;
        let channel: Option<i64> = row.try_get_by_index(4)?;
        let resolved = match (state.is_final(), made) {
            (false, _) => Resolved::Pending,
            (true, Some(made)) => {
                Resolved::Object { id: made.cast_unsigned(), channel: channel.map(i64::cast_unsigned) }
            }
            (true, None) => Resolved::Nothing(Some(state)),
        };
        found.insert(OperationId::from_uuid(id), resolved);
    }
    Ok(found)
}

/// What [`BOUND`] takes.
pub(in crate::store) const OBJECTS: Shape = Shape(&[("object", Holds::Number)]);

/// Finds objects that have a key, or were made by an operation.
pub(in crate::store) const BOUND: &str = "SELECT v.object FROM {v}
    WHERE EXISTS (SELECT 1 FROM managed_objects m WHERE m.kind = $2 AND m.discord_id = v.object)
    OR EXISTS (SELECT 1 FROM operations o WHERE o.made = v.object AND o.made IS NOT NULL)";

/// Which of these objects have a key, or were made by an operation.
pub(in crate::store) async fn bound(
    on: &impl ConnectionTrait,
    kind: ManagedKind,
    ids: &[u64],
) -> Result<Vec<u64>, Trouble> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = Rows::of(ids.iter().map(|id| Cell::Number(id.cast_signed())));
    let found = with_rows(on, BOUND, OBJECTS, rows, vec![kind.name().into()]).await?;
    let found: HashSet<i64> = found.iter().map(|row| row.try_get_by_index(0)).collect::<Result<_, _>>()?;
    Ok(ids.iter().copied().filter(|id| found.contains(&id.cast_signed())).collect())
}
