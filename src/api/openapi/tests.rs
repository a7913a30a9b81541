//! Checks of the complete description.

use std::collections::BTreeSet;

use serde_json::Value;

use super::assemble;
use crate::api::problem::ProblemType;

const COPY: &str = include_str!("../../../docs/openapi.json");

fn document() -> Value {
    serde_json::to_value(assemble::document()).unwrap()
}

/// All values in a value, itself first.
fn all(value: &Value) -> Vec<&Value> {
    let mut found = vec![value];
    let mut next = 0;
    while let Some(value) = found.get(next) {
        match *value {
            Value::Array(items) => found.extend(items),
            Value::Object(fields) => found.extend(fields.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        next += 1;
    }
    found
}

#[test]
fn path_parameters_match_the_path() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        let named: Vec<_> = path.split('{').skip(1).map(|part| part.split('}').next().unwrap()).collect();
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let described: Vec<_> =
                parameters.iter().filter(|one| one["in"] == "path").map(|one| &one["name"]).collect();
            assert_eq!(described, named, "{method} {path}");
        }
    }
}

#[test]
fn operation_ids_are_unique_with_summary_tag_and_scope() {
    let document = document();
    let tags: Vec<_> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
            assert!(operation["summary"].is_string() && tags.contains(&&operation["tags"][0]), "{method} {path}");
            let security = &operation["security"];
            let scope = security[0]["key"][0].as_str();
            assert_eq!(scope.is_some(), path.starts_with("/v1/"), "{method} {path}: {security}");
            let is_described = scope.is_none_or(|scope| operation["description"].as_str().unwrap().contains(scope));
            assert!(is_described, "{method} {path}");
        }
    }
}

/// A problem that is missing here is missing in `ProblemType::ALL`, too.
const fn is_listed(problem: ProblemType) -> bool {
    use ProblemType as P;
    match problem {
        P::NotFound
        | P::MethodNotAllowed
        | P::BodyTooLarge
        | P::BodyTooSlow
        | P::Unauthorized
        | P::KeyInvalid
        | P::KeyExpired
        | P::KeyRevoked
        | P::Forbidden => true,
        P::BadRequest | P::NotJson | P::InvalidOperation | P::KeyReused | P::Conflict | P::AlreadyRedriven => true,
        P::ShareFull | P::StoreFull | P::InvalidSettings => true,
        P::QueueFull | P::Starting | P::Busy | P::StoreUnavailable | P::BudgetUnavailable | P::Internal => true,
        P::TooManyRequests | P::TooManyConnections | P::Draining => true,
    }
}

#[test]
fn every_problem_is_documented() {
    assert!(ProblemType::ALL.into_iter().all(is_listed));
    let document = document();
    let documented: BTreeSet<_> = all(&document).into_iter().filter_map(Value::as_str).collect();
    // No existing route returns it; the introduction describes it.
    for problem in ProblemType::ALL.into_iter().filter(|problem| *problem != ProblemType::MethodNotAllowed) {
        assert!(documented.contains(problem.urn().as_str()), "{}: no route returns it", problem.name());
    }
}

#[test]
fn references_resolve_and_components_are_used() {
    let document = document();
    let named: BTreeSet<_> = all(&document).into_iter().filter_map(|value| value.get("$ref")?.as_str()).collect();
    for name in &named {
        assert!(document.pointer(name.strip_prefix('#').unwrap()).is_some(), "{name}");
    }
    for kind in ["schemas", "headers"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            assert!(named.contains(format!("#/components/{kind}/{name}").as_str()), "{kind} {name}");
        }
    }
}

#[test]
fn every_body_has_an_example() {
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if let Some(content) = operation.pointer("/requestBody/content/application~1json") {
                assert!(
                    content["examples"].as_object().is_some_and(|examples| !examples.is_empty()),
                    "{method} {path}"
                );
            }
        }
    }
}

#[test]
fn docs_copy_is_up_to_date() {
    let is_same = COPY == super::description();
    assert!(is_same, "docs/openapi.json is out of date; update it with: cargo run -- openapi > docs/openapi.json");
}
