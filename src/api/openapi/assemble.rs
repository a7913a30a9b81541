//! Assembles the description.

use std::collections::BTreeMap;

use guildhall_core::access::Scope;
use utoipa::openapi::{
    Components, Content, OpenApi, OpenApiBuilder, Paths, Ref, Response,
    content::ContentBuilder,
    example::ExampleBuilder,
    info::{InfoBuilder, License},
    path::{HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn},
    request_body::{RequestBody, RequestBodyBuilder},
    response::ResponseBuilder,
    schema::ComponentsBuilder,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    tag::TagBuilder,
    {Required, Server},
};

use super::{
    headers::{self, ResponseHeader},
    outside, payloads,
    problems::{self, ProblemGroup},
    route_doc::{BodyDoc, Examples, ParameterLocation, ResponseDoc, RouteDoc, Tag},
    schema::{self, SchemaRef},
    submission,
};
use crate::api::{ROUTES, Route};

/// Name of the security scheme.
const SECURITY_SCHEME: &str = "key";

const INTRODUCTION: &str = "The control API of Guildhall, for bots and operators.\n\nBodies are JSON. Discord ids are \
    strings, because JavaScript loses digits of such numbers. Times are RFC 3339 in UTC, durations are in \
    milliseconds. Errors are RFC 9457 problems: `type` is stable, the texts are not. The last page of a list has \
    `next` set to `null`. HEAD is supported wherever GET is; a request with an unsupported method gets `405`, and \
    `Allow` lists the supported ones.";

/// The complete description.
pub(crate) fn document() -> OpenApi {
    let (mut paths, mut tags, mut shared) = (Paths::new(), Vec::new(), Shared::new());
    let under = ROUTES.iter().map(|route| (full_path(route), method(route.method), (route.doc)(), Some(route.needs)));
    let outside = outside::DOCS.iter().map(|(path, doc)| ((*path).to_owned(), HttpMethod::Get, doc(), None));
    let (mut schemas, mut bodies) = (BTreeMap::new(), Vec::new());
    for (path, method, mut doc, needs) in under.chain(outside) {
        tags.push(doc.tag);
        schemas.extend(std::mem::take(&mut doc.schemas));
        bodies.extend(doc.body_schema.take());
        let reads = method != HttpMethod::Get;
        paths.add_path_operation(path, vec![method], operation(doc, needs, reads, &mut shared));
    }
    let tags = Tag::ALL.into_iter().filter(|tag| tags.contains(tag)).map(Tag::name_and_description);
    let tags = tags.map(|(name, description)| TagBuilder::new().name(name).description(Some(description)).build());
    let info = InfoBuilder::new()
        .title("Guildhall")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(INTRODUCTION))
        .license(Some(License::builder().name("MIT").identifier(Some("MIT")).build()));
    OpenApiBuilder::new()
        .info(info.build())
        .servers(Some([Server::new("/")]))
        .tags(Some(tags.collect::<Vec<_>>()))
        .paths(paths)
        .components(Some(components(shared, &schemas, bodies)))
        .build()
}

/// The path of a route in the notation of OpenAPI.
fn full_path(route: &Route) -> String {
    let mut path = String::from("/v1");
    for segment in route.path.split_inclusive('}') {
        match segment.split_once(':') {
            Some((name, _)) => path.extend([name, "}"]),
            None => path.push_str(segment),
        }
    }
    path
}

fn method(name: &str) -> HttpMethod {
    match name {
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "PATCH" => HttpMethod::Patch,
        "DELETE" => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

/// Responses that several routes share, by name.
type Shared = BTreeMap<String, Response>;

/// One operation; the scope that it needs, if any; and whether its body is read, even if it is not used.
fn operation(doc: RouteDoc, needs: Option<Scope>, reads_body: bool, shared: &mut Shared) -> Operation {
    let RouteDoc {
        tag,
        operation_id: name,
        summary,
        description: text,
        parameters,
        body,
        body_examples,
        responses: answers,
        problems,
        schemas: _,
        body_schema: _,
    } = doc;
    let scope = needs.map(|needs| format!("Requires the scope `{}`.", needs.name()));
    let description = [text, scope.unwrap_or_default()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let mut may_return = problems;
    let headers: &[ResponseHeader] = if needs.is_some() {
        may_return.extend(problems::ALWAYS);
        if reads_body {
            may_return.extend(problems::WITH_BODY);
        }
        &headers::ALWAYS
    } else {
        may_return.extend(problems::OUTSIDE);
        &[]
    };
    let mut operation = OperationBuilder::new()
        .tag(tag.name_and_description().0)
        .operation_id(Some(name))
        .summary(Some(summary))
        .description(Some(description.join("\n\n")).filter(|text| !text.is_empty()))
        .request_body(body.map(|body| request_body(body, body_examples)));
    for parameter in parameters {
        let (location, required) = match parameter.location {
            ParameterLocation::Path => (ParameterIn::Path, Required::True),
            ParameterLocation::Query => (ParameterIn::Query, Required::False),
            ParameterLocation::Header => (ParameterIn::Header, Required::False),
        };
        operation = operation.parameter(
            ParameterBuilder::new()
                .name(parameter.name)
                .parameter_in(location)
                .required(required)
                .description(Some(parameter.description))
                .schema(Some(parameter.shape)),
        );
    }
    operation = match needs {
        Some(needs) => operation.security(SecurityRequirement::new(SECURITY_SCHEME, [needs.name()])),
        None => operation.securities(Some([])),
    };
    let mut answers: BTreeMap<u16, Response> =
        answers.into_iter().map(|answer| (answer.status, response(answer, headers))).collect();
    for ProblemGroup { status, name, response } in problems::problem_responses(&may_return, headers) {
        // Responses that differ by content type only.
        if let Some(answer) = answers.get_mut(&status) {
            answer.description = format!("{} {}", answer.description, response.description);
            answer.content.extend(response.content);
            continue;
        }
        operation = operation.response(status.to_string(), Ref::from_response_name(&name));
        shared.insert(name, response);
    }
    answers
        .into_iter()
        .fold(operation, |operation, (status, answer)| operation.response(status.to_string(), answer))
        .build()
}

fn request_body(body: BodyDoc, examples: Examples) -> RequestBody {
    let content = content(Some(body.shape), examples);
    let required = if body.required { Required::True } else { Required::False };
    RequestBodyBuilder::new().content("application/json", content).required(Some(required)).build()
}

fn response(answer: ResponseDoc, headers: &[ResponseHeader]) -> Response {
    let mut response = ResponseBuilder::new().description(answer.description);
    if let Some(described) = answer.content {
        response = response.content(described.kind, content(described.shape, described.examples));
    }
    let sent = answer.headers.iter().chain(headers);
    sent.fold(response, |response, sent| response.header_ref(sent.name(), sent.component_ref())).build()
}

fn content(shape: Option<SchemaRef>, examples: Examples) -> Content {
    let examples = examples.into_iter().map(|(summary, example)| {
        (slug(&summary), ExampleBuilder::new().summary(summary).value(Some(example)).build())
    });
    ContentBuilder::new().schema(shape).examples_from_iter(examples).build()
}

/// An identifier derived from a text.
fn slug(words: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    words.chars().map(plain).collect()
}

fn components(shared: Shared, derived: &BTreeMap<String, SchemaRef>, bodies: Vec<(String, SchemaRef)>) -> Components {
    let scopes: Vec<_> = Scope::ALL.into_iter().map(|scope| format!("`{}`", scope.name())).collect();
    let key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("gh_<id>_<secret>").description(Some(format!(
        "An API key that was created with `POST /v1/keys`, or `api.admin_key` of the settings. Its permissions are its \
         scopes: {}, and `guild:<id>` for each guild that it is restricted to.",
        scopes.join(", ")
    )));
    let fixed = problems::schemas().into_iter().map(|(name, shape)| (name.to_owned(), shape));
    let find = |name: &str| derived.get(name).cloned();
    let derived = derived.iter().map(|(name, shape)| (name.clone(), schema::derived(shape.clone(), &find)));
    let schemas: Vec<(String, SchemaRef)> =
        derived.chain(bodies).chain(fixed).chain(payloads::schemas()).chain(submission::schemas()).collect();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .responses_from_iter(shared)
        .security_scheme(SECURITY_SCHEME, SecurityScheme::Http(key.build()));
    headers::components().into_iter().fold(components, |built, (name, header)| built.header(name, header)).build()
}
