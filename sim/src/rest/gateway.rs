//! `/gateway`: the URL of the gateway, and the limit of session starts.

use serde_json::json;

use super::call::{Call, Reply};
use super::error::ApiError;
use crate::world::World;

#[expect(clippy::unnecessary_wraps, reason = "every handler has this signature")]
pub(crate) fn url(world: &mut World, _: &Call<'_>) -> Result<Reply, ApiError> {
    Ok(Reply::ok(&json!({ "url": world.gateway_url })))
}

#[expect(clippy::unnecessary_wraps, reason = "every handler has this signature")]
pub(crate) fn for_bot(world: &mut World, _: &Call<'_>) -> Result<Reply, ApiError> {
    Ok(Reply::ok(&json!({
        "url": world.gateway_url,
        "shards": world.recommended_shards,
        "session_start_limit": world.session_starts,
    })))
}
