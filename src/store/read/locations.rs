//! Owners of channels, webhooks and guilds.

use std::collections::HashMap;

use guildhall_actors::access::DEFAULT_TENANT;
use guildhall_core::{access::Owner, operation::payload::Location};
use sea_orm::{ConnectionTrait, FromQueryResult};

use crate::store::sql;
use crate::store::{
    error::EngineError,
    rows::{ColumnType, Columns, RowValue, Rows, with_rows_as},
};

/// Parameter columns of the owner query.
pub(in crate::store) const LOCATION_COLUMNS: Columns =
    Columns(&[("its_id", ColumnType::Number), ("its_kind", ColumnType::Text)]);

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
    for row in with_rows_as::<OwnerRow>(on, sql::locations::SELECT_OWNERS, LOCATION_COLUMNS, rows, Vec::new()).await? {
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
