//! Problems, as answers have them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::{
    Content, Response, content::ContentBuilder, example::ExampleBuilder, response::ResponseBuilder,
    schema::AllOfBuilder,
};

use super::{
    headers::ResponseHeader,
    schema::{
        Describe as _, SchemaRef, count, formatted_as, integer, list, may, must, named, number, object, or_null, text,
    },
};
use crate::api::problem::ProblemType;

/// What a problem's `Content-Type` is.
const KIND: &str = "application/problem+json";

/// What every way under `/v1` may refuse, whatever is asked of it.
pub(super) const ALWAYS: [ProblemType; 10] = [
    ProblemType::Unauthorized,
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

/// What every way outside `/v1` may refuse.
pub(super) const OUTSIDE: [ProblemType; 2] = [ProblemType::BodyTooLarge, ProblemType::TooManyConnections];

/// What every way may refuse that reads a body, be it to throw it away.
pub(super) const READING: [ProblemType; 2] = [ProblemType::BodyTooSlow, ProblemType::BadRequest];

/// The schemas that all of them share.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let problem = object([
        must("type", formatted_as("uri").says("Which problem it is. It is stable: programs may compare it.")),
        must("title", text().says("The problem in a few words.")),
        must("status", integer(400, 599).says("The same as the answer's status.")),
        must("detail", text().says("What went wrong in this case, and what to do about it. The words are not stable.")),
        may("errors", list(named("FieldError")).says("Every field that is wrong.")),
        may("needs", text().says("The scope that the key lacks.")),
        may("state", text().says("What the operation or breaker is, so that this cannot be done to it.")),
        may("progress", list(named("ProgressStep")).says("What the operation has done so far.")),
        may("operation_id", named("OperationId").says("The operation that has the key, or does it again already.")),
        may("pending", count().says("How many operations the queue holds.")),
        may("bound", text().says("Which bound on stored data would be passed.")),
        may("used", count().says("How much of that bound is used: operations, or bytes.")),
        may("more", count().says("How much the request adds.")),
        may("most", count().says("How many the queue takes, or how much the bound allows.")),
        may("setting", text().says("The setting that the bound comes from.")),
        may("policy", text().says("Which of the caller's own limits it is.")),
        may("retry_after_ms", count().says("When it would not be too much any more, if nobody else came first.")),
        may("instance", or_null(text().says("The process that can do it."))),
        may("maximum", number().says("The most that the budget ever holds.")),
    ]);
    let error = object([
        must("field", text().says("Where: `operations[2].payload.role_id`, a parameter, or empty for all of it.")),
        must("message", text().says("What is wrong with it, and what it should be.")),
    ]);
    vec![
        ("Problem", problem.says("What went wrong, as RFC 9457 has it.").into()),
        ("FieldError", error.says("What is wrong with one field.").into()),
    ]
}

/// An answer with some problems of one status, which many ways share.
pub(super) struct ProblemGroup {
    pub(super) status: u16,
    /// What it is called among the components.
    pub(super) name: String,
    pub(super) response: Response,
}

/// Answers with these problems, by their status.
pub(super) fn refusals(problems: &[ProblemType], headers: &[ResponseHeader]) -> Vec<ProblemGroup> {
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
    let own = problems.iter().flat_map(|problem| sends(*problem));
    headers
        .iter()
        .copied()
        .chain(own)
        .fold(response, |response, sent| response.header_ref(sent.name(), sent.named()))
        .build()
}

/// The headers that come with a problem, as they do when it comes up.
fn sends(problem: ProblemType) -> impl Iterator<Item = ResponseHeader> {
    let response = problem.response();
    let told = [ResponseHeader::Authenticate, ResponseHeader::RetryAfter];
    told.into_iter().filter(move |sent| response.headers().contains_key(sent.name()))
}

fn content(problems: &[ProblemType]) -> Content {
    let types: Vec<Value> = problems.iter().map(|problem| problem.urn().into()).collect();
    let this = object([may("type", text().enum_values(Some(types)))]);
    let shape = AllOfBuilder::new().item(named("Problem")).item(this);
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
