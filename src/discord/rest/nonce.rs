//! Adds to a message's body what twilight's builder lacks: a nonce of the full length that Discord permits, and
//! `enforce_nonce`.

use bytes::Bytes;
use guildhall_actors::gate::{RequestBody, RestRequest};
use http::header;
use serde_json::{Map, Value};

use super::call::{CallError, invalid};

/// Maximum length of a nonce in Discord, in characters.
const MAX_NONCE_CHARS: usize = 25;

/// Sets a message's nonce. If it is sent again within a few minutes, Discord returns the first message and creates no
/// other.
pub(super) fn with_nonce(request: &mut RestRequest, nonce: &str) -> Result<(), CallError> {
    let length = nonce.chars().count();
    if length == 0 || length > MAX_NONCE_CHARS {
        return Err(CallError::Nonce(length));
    }
    let json = request.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let (RequestBody::Whole(body), true) = (&request.body, json) else {
        return Err(CallError::NonceWithFiles);
    };
    let mut fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| invalid(&error))?;
    fields.insert("nonce".to_owned(), nonce.into());
    fields.insert("enforce_nonce".to_owned(), true.into());
    request.body = RequestBody::Whole(Bytes::from(Value::Object(fields).to_string()));
    Ok(())
}
