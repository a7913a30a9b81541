//! HELLO: the first message from the gateway.

use std::time::Duration;

use serde::Deserialize;

/// Maximum length of a HELLO. Longer text is not parsed.
const LONGEST: usize = 1_024;

/// Returns the heartbeat interval of a HELLO.
pub(crate) fn heartbeats_of(text: &str) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Hello {
        d: Every,
    }
    #[derive(Deserialize)]
    struct Every {
        heartbeat_interval: u64,
    }
    if text.len() > LONGEST {
        return None;
    }
    let hello: Hello = serde_json::from_str(text).ok()?;
    Some(Duration::from_millis(hello.d.heartbeat_interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_are_read_from_a_hello_and_from_nothing_else() {
        let hello = r#"{"t":null,"s":null,"op":10,"d":{"heartbeat_interval":41250,"_trace":["x"]}}"#;
        assert_eq!(heartbeats_of(hello), Some(Duration::from_millis(41_250)));
        assert_eq!(heartbeats_of(r#"{"t":null,"s":null,"op":11,"d":null}"#), None);
        assert_eq!(heartbeats_of(&hello.replace('x', &"x".repeat(LONGEST))), None);
    }
}
