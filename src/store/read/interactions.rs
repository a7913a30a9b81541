//! Received interactions.

use guildhall_core::{
    interaction::{ReceivedInteraction, TokenDigest},
    time::UnixMs,
};
use sea_orm::ConnectionTrait;

use crate::store::sql;
use crate::store::{
    entities::received_interactions::Model,
    error::EngineError,
    rows::{ColumnType, Columns, RowValue, Rows, with_rows_as},
};

pub(in crate::store) const TOKENS: Columns = Columns(&[("its_token", ColumnType::Bytes)]);

/// The recorded interactions with these tokens.
pub(in crate::store) async fn received(
    on: &impl ConnectionTrait,
    tokens: &[TokenDigest],
) -> Result<Vec<ReceivedInteraction>, EngineError> {
    let rows = Rows::of(tokens.iter().map(|token| RowValue::Bytes(&token.0)));
    with_rows_as(on, sql::interactions::RECEIVED, TOKENS, rows, Vec::new()).await?.into_iter().map(read).collect()
}

fn read(row: Model) -> Result<ReceivedInteraction, EngineError> {
    let token = row.token.try_into().map_err(|_| {
        EngineError::Corrupt("the token digest of a received interaction is not 32 bytes long".to_owned())
    })?;
    Ok(ReceivedInteraction {
        token: TokenDigest(token),
        id: row.id.cast_unsigned(),
        application: row.application_id.cast_unsigned(),
        guild: Some(row.guild_id.cast_unsigned()).filter(|guild| *guild != 0),
        received_at: UnixMs::new(row.received_at.cast_unsigned()),
        expires_at: UnixMs::new(row.expires_at.cast_unsigned()),
    })
}
