//! The documentation of one route.

use serde_json::Value;

use super::{
    headers::ResponseHeader,
    schema::{SchemaRef, integer, text},
};
use crate::api::problem::ProblemType;

/// The group of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Operations,
    DeadLetters,
    Guilds,
    Events,
    State,
    Fleet,
    Limits,
    Budgets,
    Keys,
    Health,
}

impl Tag {
    /// All tags, in the order of the page.
    pub(crate) const ALL: [Self; 10] = [
        Self::Operations,
        Self::DeadLetters,
        Self::Guilds,
        Self::Events,
        Self::State,
        Self::Fleet,
        Self::Limits,
        Self::Budgets,
        Self::Keys,
        Self::Health,
    ];

    /// Its name and its description.
    pub(crate) const fn name_and_description(self) -> (&'static str, &'static str) {
        match self {
            Self::Operations => ("Operations", "Submit, inspect, cancel and retry operations in Discord."),
            Self::DeadLetters => ("Dead letters", "Operations that failed for good."),
            Self::Guilds => ("Guilds", "Inspect, pause and resume guilds."),
            Self::Events => ("Events", "Events that failed for good."),
            Self::State => ("State", "State entries of bots and handlers."),
            Self::Fleet => ("Fleet", "The processes and their shards; pause and resume everything."),
            Self::Limits => ("Limits", "Discord's rate limits as far as they are known, and the circuit breakers."),
            Self::Budgets => ("Budgets", "Named budgets for other upstreams than Discord."),
            Self::Keys => ("Keys and audit", "API keys and the audit."),
            Self::Health => ("Health", "Health of the daemon, and this description. No key is required."),
        }
    }
}

/// The location of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterLocation {
    Path,
    Query,
    Header,
}

pub(crate) struct ParameterDoc {
    pub(crate) location: ParameterLocation,
    pub(crate) name: &'static str,
    pub(crate) shape: SchemaRef,
    pub(crate) description: &'static str,
}

/// A request body, with examples and their summaries.
pub(crate) struct BodyDoc {
    pub(crate) required: bool,
    pub(crate) shape: SchemaRef,
    pub(crate) examples: Vec<(String, Value)>,
}

/// A response that is not a problem.
pub(crate) struct ResponseDoc {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: Option<ContentDoc>,
    pub(crate) headers: Vec<ResponseHeader>,
}

pub(crate) struct ContentDoc {
    pub(crate) kind: &'static str,
    pub(crate) shape: SchemaRef,
    pub(crate) examples: Vec<(&'static str, Value)>,
}

/// The documentation of one route.
pub(crate) struct RouteDoc {
    pub(crate) tag: Tag,
    /// The operation id, which is unique.
    pub(crate) operation_id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: String,
    pub(crate) parameters: Vec<ParameterDoc>,
    pub(crate) body: Option<BodyDoc>,
    pub(crate) responses: Vec<ResponseDoc>,
    /// Problems that it may return beside those that every route may return.
    pub(crate) problems: Vec<ProblemType>,
}

/// Maximum number of entries in a list.
const MAX_PAGE_SIZE: u64 = 500;
/// Default number of entries in a list.
const DEFAULT_PAGE_SIZE: u64 = 50;

impl RouteDoc {
    pub(crate) const fn new(tag: Tag, name: &'static str, summary: &'static str) -> Self {
        Self {
            tag,
            operation_id: name,
            summary,
            description: String::new(),
            parameters: Vec::new(),
            body: None,
            responses: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn description(mut self, what: impl Into<String>) -> Self {
        self.description = what.into();
        self
    }

    /// Adds a problem that it may return.
    pub(crate) fn problem(mut self, problem: ProblemType) -> Self {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        self
    }

    /// Adds a path parameter.
    pub(crate) fn path(self, name: &'static str, shape: impl Into<SchemaRef>, description: &'static str) -> Self {
        self.parameter(ParameterLocation::Path, name, shape.into(), description)
            .problem(ProblemType::BadRequest)
            .problem(ProblemType::NotFound)
    }

    /// Adds a query parameter. Unknown ones are rejected.
    pub(crate) fn query(self, name: &'static str, shape: impl Into<SchemaRef>, description: &'static str) -> Self {
        self.parameter(ParameterLocation::Query, name, shape.into(), description).problem(ProblemType::BadRequest)
    }

    pub(crate) fn header(self, name: &'static str, shape: impl Into<SchemaRef>, description: &'static str) -> Self {
        self.parameter(ParameterLocation::Header, name, shape.into(), description)
    }

    fn parameter(
        mut self,
        place: ParameterLocation,
        name: &'static str,
        shape: SchemaRef,
        description: &'static str,
    ) -> Self {
        self.parameters.push(ParameterDoc { location: place, name, shape, description });
        self
    }

    /// Adds the parameter for the number of entries.
    pub(crate) fn with_limit(self) -> Self {
        let limit = integer(1, MAX_PAGE_SIZE).default(Some(DEFAULT_PAGE_SIZE.into()));
        self.query("limit", limit, "Maximum number of entries.")
    }

    /// Adds the parameters for the number of entries and the page.
    pub(crate) fn with_paging(self) -> Self {
        self.with_limit().query("cursor", text(), "`next` of the previous response.")
    }

    /// Adds a required body.
    pub(crate) fn required_body(
        self,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (impl Into<String>, Value)>,
    ) -> Self {
        self.body(true, shape.into(), examples)
    }

    /// Adds an optional body.
    pub(crate) fn optional_body(
        self,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (impl Into<String>, Value)>,
    ) -> Self {
        self.body(false, shape.into(), examples)
    }

    fn body(
        mut self,
        required: bool,
        shape: SchemaRef,
        examples: impl IntoIterator<Item = (impl Into<String>, Value)>,
    ) -> Self {
        let examples = examples.into_iter().map(|(description, example)| (description.into(), example)).collect();
        self.body = Some(BodyDoc { required, shape, examples });
        self.problem(ProblemType::BadRequest).problem(ProblemType::NotJson)
    }

    /// Adds a response with JSON.
    pub(crate) fn responses(
        self,
        status: u16,
        description: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.responses_as("application/json", status, description, shape, examples)
    }

    /// Adds a response with another content type.
    pub(crate) fn responses_as(
        mut self,
        kind: &'static str,
        status: u16,
        description: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let content = Some(ContentDoc { kind, shape: shape.into(), examples: examples.into_iter().collect() });
        self.responses.push(ResponseDoc { status, description, content, headers: Vec::new() });
        self
    }

    /// Adds a response without a body.
    pub(crate) fn empty_response(mut self, status: u16, description: &'static str) -> Self {
        self.responses.push(ResponseDoc { status, description, content: None, headers: Vec::new() });
        self
    }

    /// Adds a header to the last response.
    pub(crate) fn with_header(mut self, header: ResponseHeader) -> Self {
        if let Some(answer) = self.responses.last_mut() {
            answer.headers.push(header);
        }
        self
    }
}
