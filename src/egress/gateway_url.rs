//! The URL of the gateway that bots are told to connect to.

use bytes::Bytes;
use http::Method;
use serde_json::Value;

/// Whether a call asks for the URL of the gateway.
pub(super) fn is_requested(method: &Method, path: &str) -> bool {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    *method == Method::GET && matches!(path, "/gateway" | "/gateway/bot")
}

/// Replaces the URL in Discord's response. A response in an unknown format stays as it is.
pub(super) fn replace(body: &Bytes, url: &str) -> Bytes {
    match serde_json::from_slice(body) {
        Ok(Value::Object(mut fields)) if fields.contains_key("url") => {
            fields.insert("url".to_owned(), Value::from(url));
            Bytes::from(Value::Object(fields).to_string())
        }
        Ok(_) | Err(_) => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_url_is_replaced() {
        let body = Bytes::from_static(br#"{"url":"wss://gateway.discord.gg","shards":3}"#);
        let replaced: Value = serde_json::from_slice(&replace(&body, "ws://127.0.0.1:8083")).unwrap();
        assert_eq!(replaced, serde_json::json!({"url": "ws://127.0.0.1:8083", "shards": 3}));
        for unknown in ["[]", "no json", r#"{"message":"x"}"#] {
            let unknown = Bytes::from_static(unknown.as_bytes());
            assert_eq!(replace(&unknown, "ws://127.0.0.1:8083"), unknown);
        }
    }

    #[test]
    fn only_reads_of_the_gateway_are_recognized() {
        for (method, path, expected) in [
            (Method::GET, "/gateway/bot?x=1", true),
            (Method::GET, "/gateway", true),
            (Method::POST, "/gateway/bot", false),
            (Method::GET, "/gateway/bots", false),
        ] {
            assert_eq!(is_requested(&method, path), expected, "{path}");
        }
    }
}
