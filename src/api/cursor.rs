//! Where a page of a list ended. The content is opaque to clients.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_core::{access::KeyId, operation::OperationId, time::UnixMs};
use uuid::Uuid;

/// A page of operations or dead letters that ended with this one.
pub(crate) fn of_operation(last: OperationId) -> String {
    let mut bytes = vec![1];
    bytes.extend_from_slice(last.uuid().as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn read_operation(text: &str) -> Option<OperationId> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    match bytes.split_first() {
        Some((1, id)) => Uuid::from_slice(id).ok().map(OperationId::from_uuid),
        _ => None,
    }
}

/// A page of keys that ended with this one.
pub(crate) fn of_key(at: UnixMs, id: KeyId) -> String {
    format!("{}.{id}", at.millis())
}

pub(crate) fn read_key(text: &str) -> Option<(UnixMs, KeyId)> {
    let (at, id) = text.split_once('.')?;
    Some((UnixMs::new(at.parse().ok()?), id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_rejects_other_text() {
        let id = OperationId::new(1_700_000_000_000, [7; 10]);
        assert_eq!(read_operation(&of_operation(id)), Some(id));
        for invalid in ["", "AQ", "!", &id.to_string(), &URL_SAFE_NO_PAD.encode([2; 17])] {
            assert_eq!(read_operation(invalid), None, "{invalid}");
        }
    }
}
