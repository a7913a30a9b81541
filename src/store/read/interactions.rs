//! Received interactions.

use guildhall_core::{
    interaction::{ReceivedInteraction, TokenDigest},
    time::UnixMs,
};
use sea_orm::{ConnectionTrait, QueryResult};

use crate::store::{
    error::EngineError,
    rows::{ColumnType, Columns, RowValue, Rows, with_rows},
};

pub(in crate::store) const TOKENS: Columns = Columns(&[("its_token", ColumnType::Bytes)]);

pub(in crate::store) const RECEIVED: &str = "SELECT r.token, r.id, r.application_id, r.guild_id, r.received_at,
    r.expires_at FROM {v} JOIN received_interactions r ON r.token = v.its_token";

/// The recorded interactions with these tokens.
pub(in crate::store) async fn received(
    on: &impl ConnectionTrait,
    tokens: &[TokenDigest],
) -> Result<Vec<ReceivedInteraction>, EngineError> {
    let rows = Rows::of(tokens.iter().map(|token| RowValue::Bytes(&token.0)));
    with_rows(on, RECEIVED, TOKENS, rows, Vec::new()).await?.iter().map(read).collect()
}

fn read(row: &QueryResult) -> Result<ReceivedInteraction, EngineError> {
    let token: Vec<u8> = row.try_get_by_index(0)?;
    let number = |index: usize| row.try_get_by_index::<i64>(index).map(i64::cast_unsigned);
    let token = token.try_into().map_err(|_| {
        EngineError::Corrupt("the token digest of a received interaction is not 32 bytes long".to_owned())
    })?;
    Ok(ReceivedInteraction {
        token: TokenDigest(token),
        id: number(1)?,
        application: number(2)?,
        guild: Some(number(3)?).filter(|guild| *guild != 0),
        received_at: UnixMs::new(number(4)?),
        expires_at: UnixMs::new(number(5)?),
    })
}
