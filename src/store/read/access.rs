//! Keys, notes, and whose a guild is.

use std::sync::Arc;

use guildhall_actors::access::{Action, AuditFilter, AuditRow, Key, KeyFilter, NewKey, Note};
use guildhall_core::access::{Grant, KeyId};
use sea_orm::{ConnectionTrait, QueryResult};

use super::Where;
use crate::store::{operation_row::time, rows::query, trouble::Trouble, write::signed};

const KEY: &str =
    "SELECT k.id, k.tenant, k.name, k.digest, k.scopes, k.created_at, k.expires_at, k.revoked_at, k.rotated_to
    FROM api_keys k";

pub(in crate::store) async fn key(on: &impl ConnectionTrait, id: KeyId) -> Result<Option<Key>, Trouble> {
    let rows = query(on, &format!("{KEY} WHERE k.id = $1"), vec![id.to_string().into()]).await?;
    rows.first().map(read_key).transpose()
}

pub(in crate::store) async fn keys(on: &impl ConnectionTrait, filter: &KeyFilter) -> Result<Vec<Key>, Trouble> {
    let mut conditions = Where::default();
    if let Some(tenant) = &filter.tenant {
        conditions.and("k.tenant = ?", tenant.to_string());
    }
    if let Some((at, id)) = &filter.before {
        // Those of the same millisecond go by their ids, which are plain letters and digits.
        conditions.and(&format!("(k.created_at, k.id) < (?, '{id}')"), signed(at.millis()));
    }
    let (rest, values) = conditions.ordered("k.created_at DESC, k.id DESC", filter.limit);
    query(on, &format!("{KEY} {rest}"), values).await?.iter().map(read_key).collect()
}

fn read_key(row: &QueryResult) -> Result<Key, Trouble> {
    let id: String = row.try_get_by_index(0)?;
    let corrupt = |what: &str| Trouble::Corrupt(format!("the key {id:?} has {what} that cannot be read"));
    let named = |name: &str| name.parse::<KeyId>().map_err(|_| corrupt("an id"));
    let tenant: String = row.try_get_by_index(1)?;
    let digest: Vec<u8> = row.try_get_by_index(3)?;
    let scopes: String = row.try_get_by_index(4)?;
    let rotated_to: Option<String> = row.try_get_by_index(8)?;
    let moment = |column| row.try_get_by_index::<Option<i64>>(column).map(|at| at.map(time));
    Ok(Key {
        made: NewKey {
            id: named(&id)?,
            tenant: Arc::from(tenant),
            name: row.try_get_by_index(2)?,
            digest: digest.try_into().map_err(|_| corrupt("a digest"))?,
            grant: Grant::read(scopes.split(' ')).map_err(|_| corrupt("scopes"))?,
            created_at: time(row.try_get_by_index(5)?),
            expires_at: moment(6)?,
        },
        revoked_at: moment(7)?,
        rotated_to: rotated_to.as_deref().map(named).transpose()?,
    })
}

pub(in crate::store) async fn audit(on: &impl ConnectionTrait, filter: &AuditFilter) -> Result<Vec<AuditRow>, Trouble> {
    let mut conditions = Where::default();
    if let Some(tenant) = &filter.tenant {
        conditions.and("a.tenant = ?", tenant.to_string());
    }
    if let Some(key) = &filter.key {
        conditions.and("a.api_key = ?", key.clone());
    }
    if let Some(action) = filter.action {
        conditions.and("a.action = ?", action.name());
    }
    if let Some(guilds) = &filter.among {
        conditions.among("a.guild_id", guilds);
    }
    if let Some(before) = filter.before {
        conditions.and("a.place < ?", before);
    }
    let (rest, values) = conditions.ordered("a.place DESC", filter.limit);
    let select = format!(
        "SELECT a.place, a.at, a.tenant, a.api_key, a.action, a.guild_id, a.target, a.detail, a.request FROM audit a {rest}"
    );
    query(on, &select, values).await?.iter().map(read_note).collect()
}

fn read_note(row: &QueryResult) -> Result<AuditRow, Trouble> {
    let text = |column| row.try_get_by_index::<String>(column);
    let (place, action): (i64, String) = (row.try_get_by_index(0)?, text(4)?);
    let unknown = || Trouble::Corrupt(format!("the note {place} is about {action:?}, which nobody knows"));
    let note = Note {
        at: time(row.try_get_by_index(1)?),
        tenant: Arc::from(text(2)?),
        key: Arc::from(text(3)?),
        action: Action::from_name(&action).ok_or_else(unknown)?,
        guild: row.try_get_by_index::<Option<i64>>(5)?.map(i64::cast_unsigned),
        target: text(6)?,
        detail: text(7)?,
        request: Arc::from(text(8)?),
    };
    Ok(AuditRow { place, note })
}

/// Whose a guild is, if it is in the store.
pub(in crate::store) async fn tenant(on: &impl ConnectionTrait, guild: u64) -> Result<Option<Arc<str>>, Trouble> {
    let select = "SELECT tenant FROM guild_queues WHERE queue = $1";
    let rows = query(on, select, vec![guild.cast_signed().into()]).await?;
    let tenant: Option<String> = rows.first().map(|row| row.try_get_by_index(0)).transpose()?;
    Ok(tenant.map(Arc::from))
}
