//! Formats the error bodies of Discord for people.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Maximum number of field errors to report.
const MOST_FAULTS: usize = 20;

/// Maximum length of the text, in characters.
const LONGEST: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorDetails {
    message: Value,
    errors: Value,
}

/// Formats the body of an error on one line: Discord's message, and every invalid field.
pub(crate) fn told(body: &[u8]) -> Option<String> {
    let ErrorDetails { message, errors } = serde_json::from_slice(body).ok()?;
    let mut faults = Vec::new();
    if let Value::Object(tree) = &errors {
        flatten("", tree, &mut faults);
    }
    let message = message.as_str().filter(|message| !message.is_empty());
    let text = match (message, faults.is_empty()) {
        (Some(message), true) => message.to_owned(),
        (Some(message), false) => format!("{message}: {}", faults.join("; ")),
        (None, false) => faults.join("; "),
        (None, true) => return None,
    };
    Some(text.chars().take(LONGEST).collect())
}

/// Walks the tree of errors; the keys on the way form the path of the field. The depth of a body cannot overflow the
/// stack: the parser stops at 128 levels.
fn flatten(path: &str, tree: &Map<String, Value>, faults: &mut Vec<String>) {
    for (name, inner) in tree {
        if faults.len() >= MOST_FAULTS {
            return;
        }
        match inner {
            Value::Array(list) if name == "_errors" => {
                let messages: Vec<&str> = list.iter().filter_map(|fault| fault["message"].as_str()).collect();
                let field = if path.is_empty() { "the body" } else { path };
                faults.push(format!("{field}: {}", messages.join(" ")));
            }
            Value::Object(inner) if path.is_empty() => flatten(name, inner, faults),
            Value::Object(inner) => flatten(&format!("{path}.{name}"), inner, faults),
            // An older format of the same.
            Value::String(message) => faults.push(format!("{path}: {message}")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_wrong_field_is_named_with_what_is_wrong() {
        let body = json!({
            "code": 50035,
            "message": "Invalid Form Body",
            "errors": {
                "name": { "_errors": [{ "code": "BASE_TYPE_BAD_LENGTH", "message": "Must be between 1 and 100 in length." }] },
                "overwrites": { "0": { "type": { "_errors": [{ "code": "X", "message": "One." }, { "message": "Two." }] } } },
                "_errors": [{ "message": "All of it." }],
            },
        });
        let told = told(body.to_string().as_bytes()).unwrap();
        assert!(told.starts_with("Invalid Form Body: "), "{told}");
        for part in
            ["name: Must be between 1 and 100 in length.", "overwrites.0.type: One. Two.", "the body: All of it."]
        {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn a_body_that_says_nothing_is_told_as_nothing_and_a_long_one_is_cut() {
        assert_eq!(told(b"<html>"), None);
        assert_eq!(told(b"{}"), None);
        assert_eq!(told(br#"{"message":"Missing Permissions","code":50013}"#).unwrap(), "Missing Permissions");
        let long = json!({ "message": "x".repeat(5_000) });
        assert_eq!(told(long.to_string().as_bytes()).unwrap().len(), LONGEST);
        let many: Map<String, Value> =
            (0..99).map(|n| (n.to_string(), json!({ "_errors": [{ "message": "no" }] }))).collect();
        let told = told(json!({ "errors": many }).to_string().as_bytes()).unwrap();
        assert_eq!(told.matches("no").count(), MOST_FAULTS);
    }
}
