//! Validates values against the schemas of the API description. Supports the part of JSON Schema that the description
//! uses, and rejects fields that are not described.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A description, with lookup of its schemas.
pub(crate) struct ApiDescription(Value);

impl ApiDescription {
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
    pub(crate) fn differences(&self, schema: &Value, value: &Value) -> Vec<String> {
        let mut differences = Vec::new();
        self.compare(schema, value, "", &mut differences);
        let described = self.described_fields(schema, value);
        if let (Some(described), Some(fields)) = (described, value.as_object()) {
            differences.extend(
                fields.keys().filter(|name| !described.contains(*name)).map(|name| format!(".{name} is not described")),
            );
        }
        differences
    }

    fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        self.differences(schema, value).is_empty()
    }

    fn compare(&self, schema: &Value, value: &Value, at: &str, differences: &mut Vec<String>) {
        let schema = self.resolve(schema);
        let mut report = |problem: String| differences.push(format!("{at} {problem}: {}", truncate(value)));
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !kinds.is_empty() && !kinds.iter().any(|kind| has_type(value, kind)) {
            return report(format!("is not {}", kinds.join(" or ")));
        }
        if schema["enum"].as_array().is_some_and(|names| !names.contains(value)) {
            report("is not in the enum".to_owned());
        }
        let size = match value {
            Value::String(text) => Some(("Length", text.chars().count() as f64)),
            Value::Array(items) => Some(("Items", items.len() as f64)),
            _ => None,
        };
        let (min, max, size) = match size {
            Some((problem, size)) => (&schema[format!("min{problem}")], &schema[format!("max{problem}")], Some(size)),
            None => (&schema["minimum"], &schema["maximum"], value.as_f64()),
        };
        if let Some(size) = size
            && (min.as_f64().is_some_and(|min| size < min) || max.as_f64().is_some_and(|max| size > max))
        {
            report("is out of bounds".to_owned());
        }
        if let (Some(format), Some(text)) = (schema["format"].as_str(), value.as_str())
            && !has_format(format, text)
        {
            report(format!("is not a valid {format}"));
        }
        for (keyword, allowed) in [("oneOf", 1..=1), ("anyOf", 1..=usize::MAX)] {
            if let Some(several) = schema[keyword].as_array() {
                let count = several.iter().filter(|one| self.is_valid(one, value)).count();
                if !allowed.contains(&count) {
                    differences.push(format!("{at} fits {count} of {keyword}: {}", truncate(value)));
                }
            }
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.compare(part, value, at, differences);
        }
        match value {
            Value::Object(fields) => self.compare_fields(schema, fields, at, differences),
            Value::Array(items) if !schema["items"].is_null() => {
                for (n, item) in items.iter().enumerate() {
                    self.compare_below(&schema["items"], item, &format!("{at}[{n}]"), differences);
                }
            }
            _ => {}
        }
    }

    fn compare_fields(&self, schema: &Value, fields: &Map<String, Value>, at: &str, differences: &mut Vec<String>) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                differences.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in fields {
            let at = format!("{at}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => differences.push(format!("{at} is not allowed")),
                (Value::Null, others @ Value::Object(_)) => self.compare_below(others, value, &at, differences),
                (Value::Null, _) => {}
                (described, _) => self.compare_below(described, value, &at, differences),
            }
        }
    }

    fn compare_below(&self, schema: &Value, value: &Value, at: &str, differences: &mut Vec<String>) {
        differences.extend(self.differences(schema, value).into_iter().map(|difference| format!("{at}{difference}")));
    }

    /// The fields that are described for a value, or `None` if any field is allowed.
    fn described_fields(&self, schema: &Value, value: &Value) -> Option<BTreeSet<String>> {
        let schema = self.resolve(schema);
        let own_fields = schema["properties"].as_object().map(|fields| fields.keys().cloned().collect::<BTreeSet<_>>());
        let parts = ["allOf", "oneOf", "anyOf"]
            .into_iter()
            .flat_map(|keyword| schema[keyword].as_array().into_iter().flatten());
        let mut described = own_fields;
        for part in parts.filter(|part| self.resolve(part)["properties"].is_object()) {
            let mut differences = Vec::new();
            self.compare(part, value, "", &mut differences);
            if differences.is_empty() {
                described.get_or_insert_default().extend(self.described_fields(part, value).unwrap_or_default());
            }
        }
        described.filter(|_| !schema["additionalProperties"].is_object())
    }
}

fn has_type(value: &Value, kind: &str) -> bool {
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

fn truncate(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}
