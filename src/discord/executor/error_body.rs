//! Formats the error bodies of Discord for people.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Maximum number of field errors to report.
const MAX_FIELD_ERRORS: usize = 20;

/// Maximum length of the text, in characters.
const MAX_CHARS: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorDetails {
    message: Value,
    errors: Value,
}

/// Formats the body of an error on one line: Discord's message, and every invalid field.
pub(crate) fn format_error(body: &[u8]) -> Option<String> {
    let ErrorDetails { message, errors } = serde_json::from_slice(body).ok()?;
    let mut field_errors = Vec::new();
    if let Value::Object(tree) = &errors {
        flatten("", tree, &mut field_errors);
    }
    let message = message.as_str().filter(|message| !message.is_empty());
    let text = match (message, field_errors.is_empty()) {
        (Some(message), true) => message.to_owned(),
        (Some(message), false) => format!("{message}: {}", field_errors.join("; ")),
        (None, false) => field_errors.join("; "),
        (None, true) => return None,
    };
    Some(text.chars().take(MAX_CHARS).collect())
}

/// Walks the tree of errors; the keys on the way form the path of the field. The depth of a body cannot overflow the
/// stack: the parser stops at 128 levels.
fn flatten(path: &str, tree: &Map<String, Value>, field_errors: &mut Vec<String>) {
    for (name, inner) in tree {
        if field_errors.len() >= MAX_FIELD_ERRORS {
            return;
        }
        match inner {
            Value::Array(list) if name == "_errors" => {
                let messages: Vec<&str> = list.iter().filter_map(|error| error["message"].as_str()).collect();
                let field = if path.is_empty() { "the body" } else { path };
                field_errors.push(format!("{field}: {}", messages.join(" ")));
            }
            Value::Object(inner) if path.is_empty() => flatten(name, inner, field_errors),
            Value::Object(inner) => flatten(&format!("{path}.{name}"), inner, field_errors),
            // An older format of the same.
            Value::String(message) => field_errors.push(format!("{path}: {message}")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_invalid_field_is_named_with_its_error() {
        let body = json!({
            "code": 50035,
            "message": "Invalid Form Body",
            "errors": {
                "name": { "_errors": [{ "code": "BASE_TYPE_BAD_LENGTH", "message": "Must be between 1 and 100 in length." }] },
                "overwrites": { "0": { "type": { "_errors": [{ "code": "X", "message": "One." }, { "message": "Two." }] } } },
                "_errors": [{ "message": "All of it." }],
            },
        });
        let text = format_error(body.to_string().as_bytes()).unwrap();
        assert!(text.starts_with("Invalid Form Body: "), "{text}");
        for part in
            ["name: Must be between 1 and 100 in length.", "overwrites.0.type: One. Two.", "the body: All of it."]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn empty_body_gives_none_and_a_long_one_is_truncated() {
        assert_eq!(format_error(b"<html>"), None);
        assert_eq!(format_error(b"{}"), None);
        assert_eq!(format_error(br#"{"message":"Missing Permissions","code":50013}"#).unwrap(), "Missing Permissions");
        let long = json!({ "message": "x".repeat(5_000) });
        assert_eq!(format_error(long.to_string().as_bytes()).unwrap().len(), MAX_CHARS);
        let many: Map<String, Value> =
            (0..99).map(|n| (n.to_string(), json!({ "_errors": [{ "message": "no" }] }))).collect();
        let text = format_error(json!({ "errors": many }).to_string().as_bytes()).unwrap();
        assert_eq!(text.matches("no").count(), MAX_FIELD_ERRORS);
    }
}
