//! Checks that the schemas of payloads match `Payload::parse`: every described limit is met and violated, and both must
//! agree.

use std::collections::BTreeMap;

use guildhall_actors::submission::OperationRequest;
use guildhall_core::operation::{
    OperationKind, Payload,
    payload::patterns::{ID, KEY, NAME, PATH, PERMISSIONS, TOKEN},
};
use serde_json::{Map, Value, json};

use super::{examples, title};
use crate::api::openapi::{
    assemble,
    common::{A_GUILD, AN_OPERATION, PRINTABLE, TRACEPARENT},
};

/// Strings that match a pattern, strings that do not, and the character that long strings consist of.
fn pattern_samples(pattern: &str) -> (&[&str], &[&str], &str) {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    match pattern {
        ID => (&["1", "3999999999999999999"], &["", "0", "01", "-1", "x", "40000000000000000000"], "1"),
        PERMISSIONS => (&["0", "1024", "9999999999999999999"], &["", "01", "-1", "x", "1.0"], "1"),
        NAME => (&["a", "a b"], &[" a", "a ", "\ta"], "a"),
        KEY => (&["a", "A-b_c.d:e/9"], &["a b", "ä", "a\n", "{"], "a"),
        PRINTABLE => (&["a b", "~"], &["ä", "a\nb"], "a"),
        TRACEPARENT => (&[TRACE], &["", "00-0-0-0", "x"], "a"),
        TOKEN => (&["aW50.-_~!\"$&@[]"], &["a/b", "a?b", "a#b", "a%b", "a\\b", "a b", "ä"], "a"),
        PATH => (&["/users/@me?a=b"], &["users", "/a b", "/a#b", "/ä"], "a"),
        other => panic!("add strings that match {other}, and strings that do not"),
    }
}

/// The schemas, by name.
struct SchemaDocument(Value);

impl SchemaDocument {
    fn open() -> Self {
        Self(serde_json::to_value(assemble::document()).unwrap())
    }

    fn schema(&self, name: &str) -> &Value {
        self.resolve(&self.0["components"]["schemas"][name])
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(name) => self.resolve(self.0.pointer(&name[1..]).unwrap()),
            None => schema,
        }
    }

    /// The alternatives of a schema: itself, or each of several.
    fn alternatives<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        let several = ["oneOf", "anyOf"].into_iter().find_map(|word| schema[word].as_array());
        match several.filter(|_| schema["properties"].is_null()) {
            Some(several) => several.iter().flat_map(|one| self.alternatives(one)).collect(),
            None => vec![schema],
        }
    }

    /// Values that match, and values that do not.
    fn samples(&self, schema: &Value) -> (Vec<Value>, Vec<Value>) {
        let several = self.alternatives(schema);
        let (mut fit, mut unfit) = (Vec::new(), Vec::new());
        for schema in &several {
            let (more_fit, more_unfit) = self.samples_of_one(schema);
            fit.extend(more_fit);
            unfit.extend(more_unfit);
        }
        let takes = |kind: &str| several.iter().any(|schema| is_of(schema, kind));
        if takes("anything") {
            return (fit, Vec::new());
        }
        for (kind, value) in
            [("null", json!(null)), ("boolean", json!(true)), ("number", json!(7)), ("array", json!([]))]
        {
            match (kind, takes(kind)) {
                ("null", true) => fit.push(value),
                (_, true) => {}
                (_, false) => unfit.push(value),
            }
        }
        if !takes("string") {
            unfit.push(json!("7"));
        }
        (fit, unfit)
    }

    fn samples_of_one(&self, schema: &Value) -> (Vec<Value>, Vec<Value>) {
        let (mut fit, mut unfit) = (Vec::new(), Vec::new());
        if let Some(names) = schema["enum"].as_array() {
            fit.extend(names.iter().cloned());
            unfit.push(json!("no such name"));
        } else if is_of(schema, "string") {
            text_samples(schema, &mut fit, &mut unfit);
        } else if is_of(schema, "number") {
            let (least, max) = (schema["minimum"].as_i64().unwrap(), schema["maximum"].as_i64().unwrap());
            fit.extend([json!(least), json!(max)]);
            unfit.extend([json!(least - 1), json!(max + 1), json!(1.5)]);
        } else if is_of(schema, "boolean") {
            fit.extend([json!(true), json!(false)]);
        } else if is_of(schema, "array") {
            let bounds = [schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64().unwrap()];
            let many = |count: u64| (0..count).map(|n| self.item(&schema["items"], n)).collect::<Vec<_>>();
            fit.extend(bounds.map(|count| json!(many(count))));
            unfit.push(json!(many(bounds[1] + 1)));
            if bounds[0] > 0 {
                unfit.push(json!(many(bounds[0] - 1)));
            }
        }
        (fit, unfit)
    }

    /// A value that matches, and differs from the others in its list.
    fn item(&self, schema: &Value, n: u64) -> Value {
        let schema = self.alternatives(schema)[0];
        if let Some(names) = schema["enum"].as_array() {
            return names[usize::try_from(n).unwrap() % names.len()].clone();
        }
        match schema["pattern"].as_str() {
            Some(ID) => return json!((n + 1).to_string()),
            Some(pattern) => return json!(pattern_samples(pattern).0[0]),
            None => {}
        }
        if is_of(schema, "number") {
            return schema["minimum"].clone();
        }
        let mut object = Map::new();
        let first = schema.pointer("/anyOf/0/required/0").into_iter();
        for name in schema["required"].as_array().into_iter().flatten().chain(first) {
            let name = name.as_str().unwrap();
            object.insert(name.to_owned(), self.item(&schema["properties"][name], n));
        }
        Value::Object(object)
    }
}

fn text_samples(schema: &Value, fit: &mut Vec<Value>, unfit: &mut Vec<Value>) {
    if schema["format"] == "uuid" {
        fit.push(json!(AN_OPERATION));
        unfit.push(json!("no id"));
        return;
    }
    let (good, bad, filler) = schema["pattern"].as_str().map_or((&[][..], &[][..], "ä"), pattern_samples);
    fit.extend(good.iter().map(|text| json!(text)));
    unfit.extend(bad.iter().map(|text| json!(text)));
    let start = if schema["pattern"] == PATH { "/" } else { "" };
    let long = |length: u64| json!(format!("{start}{}", filler.repeat(usize::try_from(length).unwrap() - start.len())));
    if let Some(max) = schema["maxLength"].as_u64() {
        fit.push(long(max));
        unfit.push(long(max + 1));
    }
    if let Some(least) = schema["minLength"].as_u64() {
        unfit.push(long(least - 1));
    }
}

/// Whether a schema accepts values of this type.
fn is_of(schema: &Value, kind: &str) -> bool {
    let is = |given: &str| given == kind || (kind == "number" && given == "integer");
    match &schema["type"] {
        Value::String(given) => is(given),
        Value::Array(several) => several.iter().any(|given| is(given.as_str().unwrap())),
        _ => kind == "anything",
    }
}

/// Whether a schema describes the fields of such an object.
fn describes(schema: &Value, fields: &Map<String, Value>) -> bool {
    let required = schema["required"].as_array().into_iter().flatten();
    is_of(schema, "object") && !schema["properties"].is_null() && has_all(fields, required)
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
}

fn has_all<'a>(fields: &Map<String, Value>, mut names: impl Iterator<Item = &'a Value>) -> bool {
    names.all(|name| fields.contains_key(name.as_str().unwrap()))
}

/// Whether an object has all required fields, and one of those of which one is required.
fn has_enough(schema: &Value, fields: &Map<String, Value>) -> bool {
    let names = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let one_of = names(&schema["anyOf"]);
    has_all(fields, names(&schema["required"]).iter())
        && (one_of.is_empty() || one_of.iter().any(|one| has_all(fields, names(&one["required"]).iter())))
}

/// Objects in a value with their schemas: the pointer to each, and also without the index in lists.
fn objects<'a>(
    document: &'a SchemaDocument,
    schema: &'a Value,
    value: &Value,
    not: &[&str],
) -> Vec<(String, String, &'a Value)> {
    let mut found = Vec::new();
    let mut remaining = vec![(String::new(), String::new(), schema, value)];
    while let Some((pointer, place, schema, value)) = remaining.pop() {
        for schema in document.alternatives(schema) {
            match value {
                Value::Object(fields) if describes(schema, fields) => {
                    // Alternatives describe the same position differently.
                    let place = format!("{place}{}", schema["title"].as_str().unwrap_or_default());
                    found.push((pointer.clone(), place.clone(), schema));
                    for (name, value) in fields {
                        let below = &schema["properties"][name];
                        if !below.is_null() && !not.contains(&name.as_str()) {
                            remaining.push((format!("{pointer}/{name}"), format!("{place}/{name}"), below, value));
                        }
                    }
                }
                Value::Array(items) if is_of(schema, "array") => {
                    for (n, value) in items.iter().enumerate() {
                        remaining.push((format!("{pointer}/{n}"), format!("{place}/*"), &schema["items"], value));
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// What was tried, whether the schema accepts it, and how often it was accepted.
type Checks = BTreeMap<(String, String), (bool, u32)>;

/// Compares a schema with the parser, starting from some valid values.
fn check_schema(
    document: &SchemaDocument,
    schema: &Value,
    examples: &[Value],
    not: &[&str],
    accepts: impl Fn(&Value) -> bool,
) -> usize {
    let mut checks = Checks::new();
    let mut note = |place: String, what: &str, fits: bool, value: &Value| {
        let entry = checks.entry((place, what.to_owned())).or_insert((fits, 0));
        assert_eq!(entry.0, fits, "{value}");
        entry.1 += u32::from(accepts(value));
    };
    for example in examples {
        note(String::new(), "an example", true, example);
        for (pointer, place, schema) in objects(document, schema, example, not) {
            let changed = |change: &dyn Fn(&mut Map<String, Value>)| {
                let mut changed = example.clone();
                change(changed.pointer_mut(&pointer).and_then(Value::as_object_mut).unwrap());
                changed
            };
            for (name, below) in schema["properties"].as_object().unwrap() {
                if not.contains(&name.as_str()) {
                    continue;
                }
                let at = format!("{place}/{name}");
                let without = changed(&|object| drop(object.remove(name)));
                let fits = has_enough(schema, without.pointer(&pointer).and_then(Value::as_object).unwrap());
                note(at.clone(), if fits { "is left out" } else { "is left out alone" }, fits, &without);
                let (fit, unfit) = document.samples(below);
                for (value, fits) in
                    fit.iter().map(|value| (value, true)).chain(unfit.iter().map(|value| (value, false)))
                {
                    let with = changed(&|object| drop(object.insert(name.clone(), value.clone())));
                    note(at.clone(), &value.to_string(), fits, &with);
                    // A value that conflicts with another field may still be valid without it.
                    let others = schema["properties"].as_object().unwrap().keys().filter(|other| *other != name);
                    for other in others.filter(|other| !is_required(schema, other)) {
                        let alone = changed(&|object| {
                            object.insert(name.clone(), value.clone());
                            object.remove(other);
                        });
                        note(at.clone(), &value.to_string(), fits, &alone);
                    }
                }
            }
            let is_closed = schema["additionalProperties"] == false;
            note(
                place,
                "has another field",
                !is_closed,
                &changed(&|object| drop(object.insert("0".to_owned(), json!(0)))),
            );
        }
    }
    for ((place, what), (fits, taken)) in &checks {
        let what: String = what.chars().take(80).collect();
        assert_eq!(
            *taken > 0,
            *fits,
            "{place}: {what}: the schema says that it {} match",
            if *fits { "does" } else { "does not" }
        );
    }
    checks.len()
}

/// Whether it is accepted in a guild, or outside of any.
fn is_accepted(kind: OperationKind, payload: &Value) -> bool {
    [A_GUILD.parse().ok(), None].into_iter().any(|guild| Payload::parse(kind, payload, guild).is_ok())
}

#[test]
fn payload_examples_are_accepted() {
    for kind in OperationKind::ALL {
        for example in examples(kind) {
            assert!(is_accepted(kind, &example), "{}: {example}", kind.name());
        }
    }
}

#[test]
fn payload_schemas_match_the_parser() {
    let document = SchemaDocument::open();
    for kind in OperationKind::ALL {
        let schema = document.schema(&format!("{}Payload", title(kind)));
        // A body may be any JSON.
        let tried = check_schema(&document, schema, &examples(kind), &["body"], |payload| is_accepted(kind, payload));
        assert!(tried >= 7, "{}: {tried}", kind.name());
    }
}

#[test]
fn schema_fields_match_the_known_fields() {
    let document = SchemaDocument::open();
    for kind in OperationKind::ALL {
        let error = Payload::parse(kind, &json!({"0": 0}), A_GUILD.parse().ok()).unwrap_err();
        let unknown = error.errors.iter().find(|error| error.field == "0").unwrap();
        let names = unknown.message.split_once("known fields: ").unwrap().1;
        let mut names: Vec<_> = names.split(", ").map(|name| name.trim_matches('`')).collect();
        let schema = document.schema(&format!("{}Payload", title(kind)));
        let mut described: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        described.sort_unstable();
        assert_eq!(described, names, "{}", kind.name());
    }
}

#[test]
fn operation_schema_matches_the_parser() {
    let document = SchemaDocument::open();
    let example = json!({
        "kind": "delete_role", "payload": {"role_id": "1"}, "key": "k", "reason": "tidying", "max_attempts": 3, "delay_ms": 0,
        "deadline_ms": 60_000, "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    });
    let without = json!({"kind": "delete_role", "payload": {"role_id": "1"}});
    // A payload is checked later.
    let accepts = |value: &Value| OperationRequest::read(value.clone()).is_ok();
    check_schema(&document, document.schema("NewDeleteRole"), &[example, without], &["payload", "role_id"], accepts);
}
