//! HELLO: the first message from the gateway.

use std::time::Duration;

use serde::Deserialize;

/// Maximum length of a HELLO. Longer text is not parsed.
const MAX_LEN: usize = 1_024;

/// Returns the heartbeat interval of a HELLO.
pub(crate) fn heartbeat_interval(text: &str) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Hello {
        d: Every,
    }
    #[derive(Deserialize)]
    struct Every {
        heartbeat_interval: u64,
    }
    if text.len() > MAX_LEN {
        return None;
    }
    let hello: Hello = serde_json::from_str(text).ok()?;
    Some(Duration::from_millis(hello.d.heartbeat_interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_interval_is_parsed_only_from_hello() {
        let hello = r#"{"t":null,"s":null,"op":10,"d":{"heartbeat_interval":41250,"_trace":["x"]}}"#;
        assert_eq!(heartbeat_interval(hello), Some(Duration::from_millis(41_250)));
        assert_eq!(heartbeat_interval(r#"{"t":null,"s":null,"op":11,"d":null}"#), None);
        assert_eq!(heartbeat_interval(&hello.replace('x', &"x".repeat(MAX_LEN))), None);
    }
}
