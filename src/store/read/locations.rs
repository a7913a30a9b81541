//! Owners of channels, webhooks and guilds.

use std::collections::HashMap;

use guildhall_actors::access::DEFAULT_TENANT;
use guildhall_core::{access::Owner, operation::payload::Location};
use sea_orm::{ConnectionTrait, FromQueryResult};

use crate::store::{
    error::EngineError,
    rows::{ColumnType, Columns, RowValue, Rows, with_rows_as},
};

/// Parameter columns of the owner query.
pub(in crate::store) const LOCATION_COLUMNS: Columns =
    Columns(&[("its_id", ColumnType::Number), ("its_kind", ColumnType::Text)]);

/// Finds their guilds, and the tenants of those. A channel that an operation created under a key is found by that key.
pub(in crate::store) const SELECT_OWNERS: &str = "SELECT v.its_kind, v.its_id,
    COALESCE(c.guild_id, m.guild_id, CASE WHEN v.its_kind = 'guild' THEN v.its_id END) AS guild,
    q.tenant FROM {v}
    LEFT JOIN channel_guilds c ON c.kind = v.its_kind AND c.id = v.its_id
    LEFT JOIN managed_objects m ON m.kind = v.its_kind AND m.discord_id = v.its_id
    LEFT JOIN guild_queues q
    ON q.queue = COALESCE(c.guild_id, m.guild_id, CASE WHEN v.its_kind = 'guild' THEN v.its_id END)";

#[derive(FromQueryResult)]
struct OwnerRow {
    its_kind: String,
    its_id: i64,
    guild: Option<i64>,
    tenant: Option<String>,
}

pub(in crate::store) async fn owners(
    on: &impl ConnectionTrait,
    locations: &[Location],
) -> Result<Vec<Option<Owner>>, EngineError> {
    let mut rows = Rows::new();
    for location in locations {
        rows.push(&[RowValue::Number(location.id().cast_signed()), RowValue::Text(location.type_name())]);
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut found: HashMap<(String, i64), Owner> = HashMap::new();
    for row in with_rows_as::<OwnerRow>(on, SELECT_OWNERS, LOCATION_COLUMNS, rows, Vec::new()).await? {
        if let Some(guild) = row.guild {
            found.insert((row.its_kind, row.its_id), guild_owner(guild, row.tenant));
        }
    }
    let owner_of =
        |location: &Location| found.get(&(location.type_name().to_owned(), location.id().cast_signed())).cloned();
    Ok(locations.iter().map(owner_of).collect())
}

/// Owner of an object in this guild; 0 means no guild.
fn guild_owner(guild: i64, tenant: Option<String>) -> Owner {
    let tenant = tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    Owner { guild: (guild != 0).then(|| guild.cast_unsigned()), tenant }
}
