//! Encodes frames: JSON with all four keys, in the order `t, s, op, d`: clients scan the text, and read keys without a
//! check.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// An event before it has a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    /// The `d` of the frame, as JSON.
    pub(crate) data: Bytes,
}

/// Frames other than events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Hello(Duration),
    HeartbeatAck,
    /// Requests a heartbeat at once.
    Heartbeat,
    Reconnect,
    InvalidSession {
        resumable: bool,
    },
}

impl Control {
    pub(crate) fn write(self, out: &mut BytesMut) {
        let frame: &[u8] = match self {
            Self::Hello(interval) => {
                out.extend_from_slice(br#"{"t":null,"s":null,"op":10,"d":{"heartbeat_interval":"#);
                let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
                out.extend_from_slice(itoa::Buffer::new().format(millis).as_bytes());
                br#","_trace":["[\"guildhall-sim\"]"]}}"#
            }
            Self::HeartbeatAck => br#"{"t":null,"s":null,"op":11,"d":null}"#,
            Self::Heartbeat => br#"{"t":null,"s":null,"op":1,"d":null}"#,
            Self::Reconnect => br#"{"t":null,"s":null,"op":7,"d":null}"#,
            Self::InvalidSession { resumable: true } => br#"{"t":null,"s":null,"op":9,"d":true}"#,
            Self::InvalidSession { resumable: false } => br#"{"t":null,"s":null,"op":9,"d":false}"#,
        };
        out.extend_from_slice(frame);
    }
}

/// Writes the frame of a dispatch.
pub(crate) fn write_event(out: &mut BytesMut, sequence: u64, event: &Event) {
    out.reserve(event.data.len() + event.name.len() + 48);
    out.extend_from_slice(br#"{"t":""#);
    out.extend_from_slice(event.name.as_bytes());
    out.extend_from_slice(br#"","s":"#);
    out.extend_from_slice(itoa::Buffer::new().format(sequence).as_bytes());
    out.extend_from_slice(br#","op":0,"d":"#);
    out.extend_from_slice(&event.data);
    out.extend_from_slice(b"}");
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(control: Control) -> String {
        let mut out = BytesMut::new();
        control.write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn an_event_is_written_with_type_and_sequence_in_front() {
        let mut out = BytesMut::new();
        write_event(&mut out, 42, &Event { name: "READY", data: Bytes::from_static(b"{\"v\":10}") });
        assert_eq!(&out[..], br#"{"t":"READY","s":42,"op":0,"d":{"v":10}}"#);
    }

    #[test]
    fn control_frames_have_all_four_keys_in_order() {
        let hello = json!({ "heartbeat_interval": 41_250, "_trace": ["[\"guildhall-sim\"]"] });
        let all = [
            (Control::Hello(Duration::from_millis(41_250)), 10, hello),
            (Control::HeartbeatAck, 11, Value::Null),
            (Control::Heartbeat, 1, Value::Null),
            (Control::Reconnect, 7, Value::Null),
            (Control::InvalidSession { resumable: true }, 9, json!(true)),
            (Control::InvalidSession { resumable: false }, 9, json!(false)),
        ];
        for (control, op, data) in all {
            let text = text(control);
            let data_text = text
                .strip_prefix(&format!(r#"{{"t":null,"s":null,"op":{op},"d":"#))
                .unwrap_or_else(|| panic!("{text}"));
            let written: Value = serde_json::from_str(data_text.strip_suffix('}').unwrap()).unwrap();
            assert_eq!(written, data, "{text}");
        }
    }
}
