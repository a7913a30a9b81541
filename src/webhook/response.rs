//! Parses a webhook's response: `operations`, `reply`, `set` and `cooldown`, all optional.

use std::time::Duration;

use guildhall_actors::ports::WebhookResponse;
use guildhall_core::state_key::MAX_BYTES;
use serde_json::{Map, Value};

/// Maximum number of operations in a response.
const MAX_OPERATIONS: usize = 100;
/// Maximum number of values in a response.
const MAX_VALUES: usize = 100;
/// Maximum time to live of a value, and maximum duration of a cooldown: a year.
const MAX_DURATION_MS: u64 = 365 * 24 * 3_600_000;
/// Maximum number of errors that are reported.
const MAX_REPORTED_ERRORS: usize = 20;

/// Time to live of values that do not set one, by the prefix of their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultTtl {
    /// Keys that start with `sess:`.
    pub session: Duration,
    /// Keys that start with `cache:`.
    pub cache: Duration,
}

impl Default for DefaultTtl {
    fn default() -> Self {
        Self { session: Duration::from_secs(15 * 60), cache: Duration::from_secs(5 * 60) }
    }
}

impl DefaultTtl {
    /// Other keys have no time to live.
    fn for_key(self, key: &str) -> Option<Duration> {
        if key.starts_with("sess:") {
            Some(self.session)
        } else if key.starts_with("cache:") {
            Some(self.cache)
        } else {
            None
        }
    }
}

/// Parses the body of a response. An empty one is valid.
///
/// # Errors
///
/// Returns all errors in one line.
pub(super) fn parse(body: &[u8], default_ttl: DefaultTtl) -> Result<WebhookResponse, String> {
    if body.trim_ascii().is_empty() {
        return Ok(WebhookResponse::default());
    }
    let value = serde_json::from_slice(body).map_err(|error| format!("it is not valid JSON: {error}"))?;
    let Value::Object(mut fields) = value else {
        return Err(format!("it is {}, not an object", json_type(&value)));
    };
    let mut problems = Problems::default();
    let response = WebhookResponse {
        operations: operations(fields.remove("operations"), &mut problems),
        reply: non_null(fields.remove("reply"))
            .and_then(|reply| object(reply, "reply", &mut problems))
            .map(Value::Object),
        set: set(fields.remove("set"), default_ttl, &mut problems),
        cooldown: cooldown(fields.remove("cooldown"), &mut problems),
    };
    problems.add_unknown_fields(&fields, "", "operations, reply, set, cooldown");
    problems.into_result().map(|()| response)
}

fn operations(value: Option<Value>, problems: &mut Problems) -> Vec<Value> {
    let listed = match non_null(value) {
        None => return Vec::new(),
        Some(Value::Array(listed)) => listed,
        Some(other) => {
            problems.add("operations", format!("must be a list, but is {}", json_type(&other)));
            return Vec::new();
        }
    };
    if listed.len() > MAX_OPERATIONS {
        problems.add("operations", format!("has {} entries; the maximum is {MAX_OPERATIONS}", listed.len()));
    }
    for (at, operation) in listed.iter().enumerate().filter(|(_, operation)| !operation.is_object()) {
        let actual = json_type(operation);
        problems
            .add(format!("operations[{at}]"), format!("must be an object with `kind` and `payload`, but is {actual}"));
    }
    listed
}

fn set(
    value: Option<Value>,
    default_ttl: DefaultTtl,
    problems: &mut Problems,
) -> Vec<(String, Value, Option<Duration>)> {
    let values = non_null(value).and_then(|values| object(values, "set", problems)).unwrap_or_default();
    if values.len() > MAX_VALUES {
        problems.add("set", format!("has {} keys; the maximum is {MAX_VALUES}", values.len()));
    }
    let mut read = Vec::new();
    for (key, entry) in values {
        let path = format!("set.{}", display_name(&key));
        check_key(&key, &path, problems);
        let Some(mut entry) = object(entry, &path, problems) else { continue };
        let value = entry.remove("value");
        let ttl = millis(entry.remove("ttl_ms"), &format!("{path}.ttl_ms"), problems);
        problems.add_unknown_fields(&entry, &format!("{path}."), "value, ttl_ms");
        match value {
            None => problems.add(format!("{path}.value"), "is missing; null removes the stored value"),
            // A removed value has no time to live.
            Some(Value::Null) => read.push((key, Value::Null, None)),
            Some(value) => {
                let ttl_or_default = ttl.or_else(|| default_ttl.for_key(&key));
                read.push((key, value, ttl_or_default));
            }
        }
    }
    read
}

fn cooldown(value: Option<Value>, problems: &mut Problems) -> Option<(String, Duration)> {
    let mut fields = object(non_null(value)?, "cooldown", problems)?;
    let (key, duration) = (non_null(fields.remove("key")), non_null(fields.remove("for_ms")));
    problems.add_unknown_fields(&fields, "cooldown.", "key, for_ms");
    let key = match key {
        Some(Value::String(key)) => {
            check_key(&key, "cooldown.key", problems);
            Some(key)
        }
        None => {
            problems.add("cooldown.key", "is missing");
            None
        }
        Some(other) => {
            problems.add("cooldown.key", format!("must be a string, but is {}", json_type(&other)));
            None
        }
    };
    if duration.is_none() {
        problems.add("cooldown.for_ms", "is missing");
    }
    let duration = millis(duration, "cooldown.for_ms", problems);
    key.zip(duration)
}

/// Treats `null` as a missing field.
fn non_null(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_null())
}

fn object(value: Value, path: &str, problems: &mut Problems) -> Option<Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields),
        other => {
            problems.add(path, format!("must be an object, but is {}", json_type(&other)));
            None
        }
    }
}

/// Reads an optional duration.
fn millis(value: Option<Value>, path: &str, problems: &mut Problems) -> Option<Duration> {
    let millis = non_null(value)?.as_u64().filter(|millis| (1..=MAX_DURATION_MS).contains(millis));
    if millis.is_none() {
        problems.add(path, format!("must be a whole number of milliseconds from 1 to {MAX_DURATION_MS}"));
    }
    millis.map(Duration::from_millis)
}

fn check_key(key: &str, path: &str, problems: &mut Problems) {
    if !(1..=MAX_BYTES).contains(&key.len()) || key.chars().any(char::is_control) {
        problems.add(path, format!("a key must have 1 to {MAX_BYTES} bytes and no control characters"));
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Shortens and escapes a name from the response, for a log line.
fn display_name(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Errors in a response.
#[derive(Default)]
struct Problems {
    messages: Vec<String>,
    omitted: usize,
}

impl Problems {
    fn add(&mut self, path: impl AsRef<str>, message: impl AsRef<str>) {
        if self.messages.len() < MAX_REPORTED_ERRORS {
            self.messages.push(format!("{}: {}", path.as_ref(), message.as_ref()));
        } else {
            self.omitted += 1;
        }
    }

    fn add_unknown_fields(&mut self, fields: &Map<String, Value>, path: &str, known_fields: &str) {
        for name in fields.keys() {
            self.add(
                format!("{path}{}", display_name(name)),
                format!("is not a known field; known fields are {known_fields}"),
            );
        }
    }

    fn into_result(self) -> Result<(), String> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let mut line = self.messages.join("; ");
        if self.omitted > 0 {
            line.push_str(&format!("; and {} more", self.omitted));
        }
        Err(line)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: &Value) -> WebhookResponse {
        parse(value.to_string().as_bytes(), DefaultTtl::default()).unwrap()
    }

    fn error_of(value: &Value) -> String {
        parse(value.to_string().as_bytes(), DefaultTtl::default()).unwrap_err()
    }

    #[test]
    fn empty_responses_are_valid() {
        for nothing in ["", " \r\n", "{}", r#"{"operations":[],"set":{}}"#] {
            assert_eq!(parse(nothing.as_bytes(), DefaultTtl::default()), Ok(WebhookResponse::default()), "{nothing:?}");
        }
        let nulls = json!({"operations": null, "reply": null, "set": null, "cooldown": null});
        assert_eq!(parsed(&nulls), WebhookResponse::default());
    }

    #[test]
    fn all_fields_are_parsed() {
        let operation = json!({"kind": "assign_role", "payload": {"user_id": "1", "role_id": "2"}});
        let response = parsed(&json!({
            "operations": [operation],
            "reply": {"content": "hello"},
            "set": {"count": {"value": 3, "ttl_ms": 1_500}},
            "cooldown": {"key": "hello:1", "for_ms": 60_000},
        }));
        assert_eq!(response.operations, [operation]);
        assert_eq!(response.reply, Some(json!({"content": "hello"})));
        assert_eq!(response.set, [("count".to_owned(), json!(3), Some(Duration::from_millis(1_500)))]);
        assert_eq!(response.cooldown, Some(("hello:1".to_owned(), Duration::from_secs(60))));
    }

    #[test]
    fn default_ttl_depends_on_the_key_prefix() {
        let set = parsed(&json!({"set": {
            "cache:a": {"value": 1},
            "cache:b": {"value": 1, "ttl_ms": 7},
            "other": {"value": false},
            "removed": {"value": null, "ttl_ms": 7},
            "sess:a": {"value": {"step": 2}},
            "sess:removed": {"value": null},
        }}))
        .set;
        let ttls: Vec<_> = set.iter().map(|(key, _, ttls)| (key.as_str(), ttls.map(|ttls| ttls.as_millis()))).collect();
        let expected = [
            ("cache:a", Some(300_000)),
            ("cache:b", Some(7)),
            ("other", None),
            ("removed", None),
            ("sess:a", Some(900_000)),
            ("sess:removed", None),
        ];
        assert_eq!(ttls, expected);
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let error = error_of(&json!({
            "operations": [{}, 7, []],
            "reply": "hello",
            "set": {
                "": {"value": 1},
                "a": 5,
                "b": null,
                "c": {"ttl_ms": 0, "ttl": 5},
                "d": {"value": 1, "ttl_ms": "soon"},
            },
            "cooldown": {"for_ms": -1, "until": 5},
            "operation": {},
        }));
        for part in [
            "operations[1]: must be an object with `kind` and `payload`, but is a number",
            "operations[2]: must be an object with `kind` and `payload`, but is a list",
            "reply: must be an object, but is a string",
            "set.: a key must have 1 to 255 bytes",
            "set.a: must be an object, but is a number",
            "set.b: must be an object, but is null",
            "set.c.ttl_ms: must be a whole number",
            "set.c.ttl: is not a known field; known fields are value, ttl_ms",
            "set.c.value: is missing",
            "set.d.ttl_ms: must be a whole number",
            "cooldown.key: is missing",
            "cooldown.for_ms: must be a whole number",
            "cooldown.until: is not a known field",
            "operation: is not a known field; known fields are operations, reply, set, cooldown",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn non_objects_are_rejected() {
        for (body, what) in [
            ("ok", "not valid JSON"),
            (r#"{"operations": ["#, "not valid JSON"),
            ("[]", "a list, not an object"),
            ("null", "null, not an object"),
            (r#""hello""#, "a string, not an object"),
            ("{} {}", "not valid JSON"),
        ] {
            let error = parse(body.as_bytes(), DefaultTtl::default()).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes(), DefaultTtl::default()).unwrap_err().contains("recursion"));
    }

    #[test]
    fn lists_and_keys_have_limits() {
        let operations = |count| json!({"operations": vec![json!({}); count]});
        assert_eq!(parsed(&operations(100)).operations.len(), 100);
        assert!(error_of(&operations(101)).contains("has 101 entries; the maximum is 100"));
        let values = |count: usize| {
            let entries: Map<String, Value> = (0..count).map(|at| (at.to_string(), json!({"value": 1}))).collect();
            json!({"set": entries})
        };
        assert_eq!(parsed(&values(100)).set.len(), 100);
        assert!(error_of(&values(101)).contains("has 101 keys"));
        for (key, fits) in [("k".repeat(255), true), ("k".repeat(256), false), ("ü".repeat(128), false)] {
            let given = json!({"set": {key.as_str(): {"value": 1}}}).to_string();
            assert_eq!(parse(given.as_bytes(), DefaultTtl::default()).is_ok(), fits, "{} bytes", key.len());
        }
        let fields: Map<String, Value> = (0..50).map(|at| (format!("x{at}"), Value::Null)).collect();
        assert!(error_of(&Value::Object(fields)).ends_with("; and 30 more"));
    }
}
