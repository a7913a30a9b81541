//! Parser for server-sent events. Input may be split at any byte.

use std::{mem, time::Duration};

/// Maximum size of an event.
const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SseEvent {
    /// Its type; `message` by default.
    pub(super) kind: String,
    /// Its data.
    pub(super) data: String,
}

/// An event exceeds the maximum size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventTooLarge;

/// Incremental parser of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct SseParser {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return: a line feed after it does not end another line.
    after_cr: bool,
    has_started: bool,
    kind: String,
    data: String,
    /// Id of the current event. It takes effect when the event is complete.
    pending: Option<String>,
    last: Option<String>,
    retry: Option<Duration>,
}

impl SseParser {
    /// Id of the last complete event.
    pub(super) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Delay before a reconnect that the server requested.
    pub(super) const fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Parses bytes, and returns the events that are complete now.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, EventTooLarge> {
        let mut events = Vec::new();
        for &byte in bytes {
            if mem::replace(&mut self.after_cr, byte == b'\r') && byte == b'\n' {
                continue;
            }
            if matches!(byte, b'\r' | b'\n') {
                let line = mem::take(&mut self.line);
                events.extend(self.parse_line(&line));
                continue;
            }
            self.line.push(byte);
            if self.line.len() + self.data.len() > MAX_EVENT_BYTES {
                return Err(EventTooLarge);
            }
        }
        Ok(events)
    }

    fn parse_line(&mut self, line: &[u8]) -> Option<SseEvent> {
        let line = if mem::replace(&mut self.has_started, true) {
            line
        } else {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            return self.finish_event();
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => self.pending = Some(value.to_owned()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis);
            }
            // A comment, or an unknown field.
            _ => {}
        }
        None
    }

    fn finish_event(&mut self) -> Option<SseEvent> {
        if let Some(id) = self.pending.take() {
            self.last = (!id.is_empty()).then_some(id);
        }
        let (kind, mut data) = (mem::take(&mut self.kind), mem::take(&mut self.data));
        if data.is_empty() && kind.is_empty() {
            return None;
        }
        data.truncate(data.len().saturating_sub(1));
        Some(SseEvent { kind: if kind.is_empty() { "message".to_owned() } else { kind }, data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(kind: &str, data: &str) -> SseEvent {
        SseEvent { kind: kind.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_are_parsed_and_comments_ignored() {
        let mut parser = SseParser::default();
        let text = ":hello\n\nid: 1\nevent: operation\ndata: {\ndata:  }\n\nretry: 250\n\ndata: x\n\nevent: gap\n\nid\n: end\n";
        let events = parser.push(text.as_bytes()).unwrap();
        assert_eq!(events, [event("operation", "{\n }"), event("message", "x"), event("gap", "")]);
        assert_eq!((parser.last(), parser.retry()), (Some("1"), Some(Duration::from_millis(250))));
        parser.push(b"\n").unwrap();
        assert_eq!(parser.last(), None, "an empty id resets the last one");
    }

    #[test]
    fn incomplete_event_does_not_count() {
        let mut parser = SseParser::default();
        assert_eq!(parser.push(b"id: 1\ndata: a\n\nid: 2\ndata: b\n").unwrap(), [event("message", "a")]);
        assert_eq!(parser.last(), Some("1"), "the second event will be sent again");
    }

    #[test]
    fn oversized_event_is_an_error() {
        let mut parser = SseParser::default();
        let piece = vec![b'a'; 1024 * 1024];
        assert_eq!((0..9).find_map(|_| parser.push(&piece).err()), Some(EventTooLarge));
        let mut parser = SseParser::default();
        let line = format!("data: {}\n", "b".repeat(1024 * 1024));
        assert_eq!((0..9).find_map(|_| parser.push(line.as_bytes()).err()), Some(EventTooLarge));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_bytes_are_cut(
            events in proptest::collection::vec(("[a-z]{1,5}", "[ -~é]{0,20}", 0_u32..99), 0..6),
            end in prop_oneof!["\n", "\r\n", "\r"],
            cuts in proptest::collection::vec(1_usize..9, 1..40),
        ) {
            let mut text = String::from("\u{feff}");
            for (kind, data, id) in &events {
                text += &format!("id: {id}{end}event: {kind}{end}: c{end}data: {data}{end}{end}");
            }
            let mut parser = SseParser::default();
            let mut found = Vec::new();
            let (mut rest, mut cuts) = (text.as_bytes(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                found.extend(parser.push(piece).unwrap());
                rest = after;
            }
            let meant: Vec<_> = events.iter().map(|(kind, data, _)| event(kind, data)).collect();
            prop_assert_eq!(found, meant);
            let last = events.last().map(|(_, _, id)| id.to_string());
            prop_assert_eq!(parser.last().map(str::to_owned), last);
        }
    }
}
