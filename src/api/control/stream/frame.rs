//! Server-sent events, as they are written.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::ports::OperationDetails;
use guildhall_core::operation::ChangeCursor;
use serde_json::json;

use super::super::dto;

/// How soon a client that was cut off should come again, in milliseconds.
const COME_AGAIN_MS: u32 = 1_000;

/// How far a client is told of: what it brings back as `Last-Event-ID`.
pub(super) fn cursor(at: &ChangeCursor) -> String {
    URL_SAFE_NO_PAD.encode(at.to_bytes())
}

/// What a client brings back.
pub(super) fn read_cursor(text: &str) -> Option<ChangeCursor> {
    ChangeCursor::from_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
}

/// Why a client may have missed something.
#[derive(Clone, Copy, Debug)]
pub(super) enum GapReason {
    /// Operations were removed that it was not told of.
    Forgotten,
    /// It was told of things that this store knows nothing of.
    Ahead,
}

/// The first words. A client that is cut off before anything has happened goes on from here, too.
pub(super) fn greeting(at: &ChangeCursor) -> String {
    format!("retry: {COME_AGAIN_MS}\nid: {}\n\n", cursor(at))
}

/// That somebody is still there; and a client that nothing concerned for long goes on from here.
pub(super) fn alive(at: &ChangeCursor) -> String {
    format!(": nothing new\nid: {}\n\n", cursor(at))
}

/// The last words.
pub(super) fn ending(why: &str) -> String {
    format!(": {why}\n\n")
}

pub(super) fn operation(text: &mut String, at: &ChangeCursor, shown: &OperationDetails) {
    let data = dto::in_list(shown);
    write!(text, "id: {}\nevent: operation\ndata: {data}\n\n", cursor(at)).expect("invariant: a String takes all");
}

pub(super) fn gap(text: &mut String, at: &ChangeCursor, why: GapReason) {
    let (why, detail) = match why {
        GapReason::Forgotten => (
            "forgotten",
            "Operations have ended and were removed since; what is still kept follows. List what you care about.",
        ),
        GapReason::Ahead => (
            "ahead",
            "The store is another one, or an older copy; all that it keeps follows. List what you care about.",
        ),
    };
    let data = json!({"why": why, "detail": detail});
    write!(text, "id: {}\nevent: gap\ndata: {data}\n\n", cursor(at)).expect("invariant: a String takes all");
}

#[cfg(test)]
mod tests {
    use guildhall_core::operation::VisibleChanges;

    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        let at = ChangeCursor::at(VisibleChanges { next: 1_800_000_000_000_000, open: [5, 7].into() });
        assert_eq!(read_cursor(&cursor(&at)), Some(at));
        for wrong in ["", "0", "!", "AAAA", "1571715189416398849"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }
}
