//! Problems, as responses contain them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::{
    Content, Response, content::ContentBuilder, example::ExampleBuilder, response::ResponseBuilder,
    schema::AllOfBuilder,
};

use super::{
    headers::ResponseHeader,
    schema::{
        Describe as _, SchemaRef, count, formatted_as, integer, list, number, object, optional, or_null, required,
        schema_ref, text,
    },
};
use crate::api::problem::ProblemType;

/// The `Content-Type` of a problem.
const KIND: &str = "application/problem+json";

/// Problems that every route under `/v1` may return.
pub(crate) const ALWAYS: [ProblemType; 13] = [
    ProblemType::Unauthorized,
    ProblemType::KeyInvalid,
    ProblemType::KeyExpired,
    ProblemType::KeyRevoked,
    ProblemType::Forbidden,
    ProblemType::BodyTooLarge,
    ProblemType::TooManyRequests,
    ProblemType::Starting,
    ProblemType::Busy,
    ProblemType::TooManyConnections,
    ProblemType::Draining,
    ProblemType::StoreUnavailable,
    ProblemType::Internal,
];

/// Problems that every route outside `/v1` may return.
pub(crate) const OUTSIDE: [ProblemType; 2] = [ProblemType::BodyTooLarge, ProblemType::TooManyConnections];

/// Problems that every route may return that reads a body, even if it does not use it.
pub(crate) const WITH_BODY: [ProblemType; 2] = [ProblemType::BodyTooSlow, ProblemType::BadRequest];

/// The schemas that all problems share.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let problem = object([
        required("type", formatted_as("uri").describe("The kind of problem. It is stable: programs may compare it.")),
        required("title", text().describe("A short summary of the kind of problem.")),
        required("status", integer(400, 599).describe("The status of the response.")),
        required(
            "detail",
            text().describe("What failed in this case, and what to do about it. The text is not stable."),
        ),
        optional("errors", list(schema_ref("FieldError")).describe("All invalid fields.")),
        optional("needs", text().describe("The scope that the key lacks.")),
        optional("state", text().describe("The state of the operation or breaker, which does not allow the request.")),
        optional("progress", list(schema_ref("ProgressStep")).describe("The steps that the operation has completed.")),
        optional(
            "operation_id",
            schema_ref("OperationId").describe(
                "The operation that used the key, or that already redrives this \
            one.",
            ),
        ),
        optional("pending", count().describe("Number of operations in the queue.")),
        optional("bound", text().describe("The bound on stored data that would be exceeded.")),
        optional("used", count().describe("How much of the bound is used: operations, or bytes.")),
        optional("more", count().describe("How much the request adds.")),
        optional("most", count().describe("Maximum number of operations in the queue, or the value of the bound.")),
        optional("setting", text().describe("The setting of the bound.")),
        optional("policy", text().describe("The rate limit policy that was exceeded.")),
        optional(
            "retry_after_ms",
            count().describe(
                "When the request would be within the limit, if no other request comes \
            first.",
            ),
        ),
        optional("instance", or_null(text().describe("The process that can execute the request."))),
        optional("maximum", number().describe("The maximum of the budget.")),
    ]);
    let error = object([
        optional(
            "field",
            text().describe(
                "Path of the field, such as `operations[2].payload.role_id`, or a parameter; absent for the whole body.",
            ),
        ),
        required("message", text().describe("Why the field is invalid, and what is expected.")),
    ]);
    vec![
        ("Problem", problem.describe("An error, as defined by RFC 9457.").into()),
        ("FieldError", error.describe("An error in one field.").into()),
    ]
}

/// A response with problems of one status, which many routes share.
pub(crate) struct ProblemGroup {
    pub(crate) status: u16,
    /// Its name among the components.
    pub(crate) name: String,
    pub(crate) response: Response,
}

/// Responses with these problems, by status.
pub(crate) fn problem_responses(problems: &[ProblemType], headers: &[ResponseHeader]) -> Vec<ProblemGroup> {
    let mut by_status: BTreeMap<u16, Vec<ProblemType>> = BTreeMap::new();
    for problem in problems {
        let same = by_status.entry(problem.status().as_u16()).or_default();
        if !same.contains(problem) {
            same.push(*problem);
        }
    }
    let refusal = |(status, problems): (u16, Vec<ProblemType>)| {
        let names: Vec<_> = problems.iter().map(|problem| problem.name()).collect();
        let bare = if headers.is_empty() { "-bare" } else { "" };
        ProblemGroup { status, name: format!("{}{bare}", names.join("-or-")), response: response(&problems, headers) }
    };
    by_status.into_iter().map(refusal).collect()
}

fn response(problems: &[ProblemType], headers: &[ResponseHeader]) -> Response {
    let titles: Vec<_> = problems.iter().map(|problem| format!("`{}`: {}.", problem.name(), problem.title())).collect();
    let response = ResponseBuilder::new().description(titles.join(" ")).content(KIND, content(problems));
    let own = problems.iter().flat_map(|problem| headers_of(*problem));
    headers
        .iter()
        .copied()
        .chain(own)
        .fold(response, |response, sent| response.header_ref(sent.name(), sent.component_ref()))
        .build()
}

/// The headers of a problem's response.
fn headers_of(problem: ProblemType) -> impl Iterator<Item = ResponseHeader> {
    let response = problem.response();
    let headers = [ResponseHeader::Authenticate, ResponseHeader::RetryAfter];
    headers.into_iter().filter(move |sent| response.headers().contains_key(sent.name()))
}

fn content(problems: &[ProblemType]) -> Content {
    let types: Vec<Value> = problems.iter().map(|problem| problem.urn().into()).collect();
    let this = object([optional("type", text().enum_values(Some(types)))]);
    let shape = AllOfBuilder::new().item(schema_ref("Problem")).item(this);
    let examples = problems.iter().map(|problem| {
        let example = json!({
            "type": problem.urn(),
            "title": problem.title(),
            "status": problem.status().as_u16(),
            "detail": problem.detail(),
        });
        (problem.name(), ExampleBuilder::new().summary(problem.title()).value(Some(example)).build())
    });
    ContentBuilder::new().schema(Some(shape)).examples_from_iter(examples).build()
}
