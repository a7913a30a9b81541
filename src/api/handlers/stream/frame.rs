//! Formats server-sent events.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::ports::OperationDetails;
use guildhall_core::operation::ChangeCursor;
use serde_json::json;

use crate::api::dto::Operation;

/// After how long a disconnected client should reconnect, in milliseconds.
const RETRY_MS: u32 = 1_000;

/// The position of a client, which it sends back as `Last-Event-ID`.
pub(crate) fn encode_cursor(at: &ChangeCursor) -> String {
    URL_SAFE_NO_PAD.encode(at.to_bytes())
}

/// Parses the position that a client sends.
pub(crate) fn decode_cursor(text: &str) -> Option<ChangeCursor> {
    ChangeCursor::from_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
}

/// Why a client may have missed changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GapReason {
    /// Operations were removed before the client received their changes.
    Forgotten,
    /// The position is ahead of this store.
    Ahead,
}

/// The first event. A client that is disconnected before any change continues from here, too.
pub(crate) fn greeting(at: &ChangeCursor) -> String {
    format!("retry: {RETRY_MS}\nid: {}\n\n", encode_cursor(at))
}

/// A keep-alive; a client that has received no change for long continues from here.
pub(crate) fn heartbeat(at: &ChangeCursor) -> String {
    format!(": nothing new\nid: {}\n\n", encode_cursor(at))
}

/// The last comment of a stream.
pub(crate) fn closing_comment(reason: &str) -> String {
    format!(": {reason}\n\n")
}

pub(crate) fn operation(text: &mut String, at: &ChangeCursor, details: &OperationDetails) {
    let data = json!(Operation::from(details));
    write!(text, "id: {}\nevent: operation\ndata: {data}\n\n", encode_cursor(at)).expect(
        "invariant: writing to a String \
        cannot fail",
    );
}

pub(crate) fn gap(text: &mut String, at: &ChangeCursor, reason: GapReason) {
    let (reason, detail) = match reason {
        GapReason::Forgotten => (
            "forgotten",
            "Finished operations were removed since; the changes of those that are still stored follow. List the \
             operations that matter to you.",
        ),
        GapReason::Ahead => (
            "ahead",
            "The store is another one, or an older copy; everything that it contains follows. List the operations that \
             matter to you.",
        ),
    };
    let data = json!({"why": reason, "detail": detail});
    write!(text, "id: {}\nevent: gap\ndata: {data}\n\n", encode_cursor(at)).expect(
        "invariant: writing to a String cannot \
        fail",
    );
}

#[cfg(test)]
mod tests {
    use guildhall_core::operation::VisibleChanges;

    use super::*;

    #[test]
    fn cursor_round_trips_and_rejects_other_text() {
        let at = ChangeCursor::at(VisibleChanges { next: 1_800_000_000_000_000, open: [5, 7].into() });
        assert_eq!(decode_cursor(&encode_cursor(&at)), Some(at));
        for invalid in ["", "0", "!", "AAAA", "1571715189416398849"] {
            assert_eq!(decode_cursor(invalid), None, "{invalid}");
        }
    }
}
