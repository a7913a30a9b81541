//! Validates values against the schemas of the API description. Supports the part of JSON Schema that the description
//! uses, and rejects fields that are not described.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A description, with lookup of its schemas.
pub(crate) struct Book(Value);

impl Book {
    pub(crate) fn open() -> Self {
        Self(serde_json::from_str(&guildhall::api::description()).unwrap())
    }

    pub(crate) fn document(&self) -> &Value {
        &self.0
    }

    /// Follows a `$ref`.
    pub(crate) fn resolve<'a>(&'a self, part: &'a Value) -> &'a Value {
        match part["$ref"].as_str() {
            Some(name) => self.resolve(self.0.pointer(&name[1..]).unwrap_or_else(|| panic!("no {name}"))),
            None => part,
        }
    }

    /// All differences between a value and a schema.
    pub(crate) fn differs(&self, schema: &Value, value: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.compare(schema, value, "", &mut found);
        let known = self.known(schema, value);
        if let (Some(known), Some(fields)) = (known, value.as_object()) {
            found.extend(
                fields.keys().filter(|name| !known.contains(*name)).map(|name| format!(".{name} is not described")),
            );
        }
        found
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        self.differs(schema, value).is_empty()
    }

    fn compare(&self, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
        let schema = self.resolve(schema);
        let mut wrong = |what: String| found.push(format!("{at} {what}: {}", short(value)));
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(value, kind)) {
            return wrong(format!("is not {}", kinds.join(" or ")));
        }
        if schema["enum"].as_array().is_some_and(|names| !names.contains(value)) {
            wrong("is not in the enum".to_owned());
        }
        let size = match value {
            Value::String(text) => Some(("Length", text.chars().count() as f64)),
            Value::Array(items) => Some(("Items", items.len() as f64)),
            _ => None,
        };
        let (least, most, size) = match size {
            Some((what, size)) => (&schema[format!("min{what}")], &schema[format!("max{what}")], Some(size)),
            None => (&schema["minimum"], &schema["maximum"], value.as_f64()),
        };
        if let Some(size) = size
            && (least.as_f64().is_some_and(|least| size < least) || most.as_f64().is_some_and(|most| size > most))
        {
            wrong("is out of bounds".to_owned());
        }
        if let (Some(format), Some(text)) = (schema["format"].as_str(), value.as_str())
            && !has_format(format, text)
        {
            wrong(format!("is not a valid {format}"));
        }
        for (word, allowed) in [("oneOf", 1..=1), ("anyOf", 1..=usize::MAX)] {
            if let Some(several) = schema[word].as_array() {
                let count = several.iter().filter(|one| self.fits(one, value)).count();
                if !allowed.contains(&count) {
                    found.push(format!("{at} fits {count} of {word}: {}", short(value)));
                }
            }
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.compare(part, value, at, found);
        }
        match value {
            Value::Object(fields) => self.compare_fields(schema, fields, at, found),
            Value::Array(items) if !schema["items"].is_null() => {
                for (n, item) in items.iter().enumerate() {
                    self.compare_below(&schema["items"], item, &format!("{at}[{n}]"), found);
                }
            }
            _ => {}
        }
    }

    fn compare_fields(&self, schema: &Value, fields: &Map<String, Value>, at: &str, found: &mut Vec<String>) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                found.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in fields {
            let at = format!("{at}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => found.push(format!("{at} is not allowed")),
                (Value::Null, others @ Value::Object(_)) => self.compare_below(others, value, &at, found),
                (Value::Null, _) => {}
                (described, _) => self.compare_below(described, value, &at, found),
            }
        }
    }

    fn compare_below(&self, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
        found.extend(self.differs(schema, value).into_iter().map(|what| format!("{at}{what}")));
    }

    /// The fields that are described for a value, or `None` if any field is allowed.
    fn known(&self, schema: &Value, value: &Value) -> Option<BTreeSet<String>> {
        let schema = self.resolve(schema);
        let named = schema["properties"].as_object().map(|fields| fields.keys().cloned().collect::<BTreeSet<_>>());
        let parts =
            ["allOf", "oneOf", "anyOf"].into_iter().flat_map(|word| schema[word].as_array().into_iter().flatten());
        let mut known = named;
        for part in parts.filter(|part| self.resolve(part)["properties"].is_object()) {
            let mut differs = Vec::new();
            self.compare(part, value, "", &mut differs);
            if differs.is_empty() {
                known.get_or_insert_default().extend(self.known(part, value).unwrap_or_default());
            }
        }
        known.filter(|_| !schema["additionalProperties"].is_object())
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is not a type"),
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "uuid" => text.parse::<guildhall_core::operation::OperationId>().is_ok(),
        "date-time" => chrono::DateTime::parse_from_rfc3339(text).is_ok(),
        "uri" => text.contains(':'),
        "uri-reference" => text.starts_with('/'),
        other => panic!("add a check for the format {other}"),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}
