//! The documentation of one route.

use serde_json::Value;

use super::{
    headers::ResponseHeader,
    schema::{SchemaRef, integer, text},
};
use crate::api::problem::ProblemType;

/// The group of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
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
    pub(super) const ALL: [Self; 10] = [
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
    pub(super) const fn about(self) -> (&'static str, &'static str) {
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
pub(super) enum ParameterLocation {
    Path,
    Query,
    Header,
}

pub(super) struct ParameterDoc {
    pub(super) place: ParameterLocation,
    pub(super) name: &'static str,
    pub(super) shape: SchemaRef,
    pub(super) says: &'static str,
}

/// A request body, with examples and their summaries.
pub(super) struct BodyDoc {
    pub(super) required: bool,
    pub(super) shape: SchemaRef,
    pub(super) examples: Vec<(String, Value)>,
}

/// A response that is not a problem.
pub(super) struct ResponseDoc {
    pub(super) status: u16,
    pub(super) says: &'static str,
    pub(super) content: Option<ContentDoc>,
    pub(super) headers: Vec<ResponseHeader>,
}

pub(super) struct ContentDoc {
    pub(super) kind: &'static str,
    pub(super) shape: SchemaRef,
    pub(super) examples: Vec<(&'static str, Value)>,
}

/// The documentation of one route.
pub(super) struct RouteDoc {
    pub(super) tag: Tag,
    /// The operation id, which is unique.
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) says: String,
    pub(super) parameters: Vec<ParameterDoc>,
    pub(super) body: Option<BodyDoc>,
    pub(super) answers: Vec<ResponseDoc>,
    /// Problems that it may return beside those that every route may return.
    pub(super) problems: Vec<ProblemType>,
}

/// Maximum number of entries in a list.
const PAGE_MOST: u64 = 500;
/// Default number of entries in a list.
const PAGE: u64 = 50;

impl RouteDoc {
    pub(super) const fn new(tag: Tag, name: &'static str, summary: &'static str) -> Self {
        Self {
            tag,
            name,
            summary,
            says: String::new(),
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn says(mut self, what: impl Into<String>) -> Self {
        self.says = what.into();
        self
    }

    /// Adds a problem that it may return.
    pub(super) fn refuses(mut self, problem: ProblemType) -> Self {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        self
    }

    /// Adds a path parameter.
    pub(super) fn path(self, name: &'static str, shape: impl Into<SchemaRef>, says: &'static str) -> Self {
        self.parameter(ParameterLocation::Path, name, shape.into(), says)
            .refuses(ProblemType::BadRequest)
            .refuses(ProblemType::NotFound)
    }

    /// Adds a query parameter. Unknown ones are rejected.
    pub(super) fn query(self, name: &'static str, shape: impl Into<SchemaRef>, says: &'static str) -> Self {
        self.parameter(ParameterLocation::Query, name, shape.into(), says).refuses(ProblemType::BadRequest)
    }

    pub(super) fn header(self, name: &'static str, shape: impl Into<SchemaRef>, says: &'static str) -> Self {
        self.parameter(ParameterLocation::Header, name, shape.into(), says)
    }

    fn parameter(mut self, place: ParameterLocation, name: &'static str, shape: SchemaRef, says: &'static str) -> Self {
        self.parameters.push(ParameterDoc { place, name, shape, says });
        self
    }

    /// Adds the parameter for the number of entries.
    pub(super) fn limited(self) -> Self {
        let limit = integer(1, PAGE_MOST).default(Some(PAGE.into()));
        self.query("limit", limit, "Maximum number of entries.")
    }

    /// Adds the parameters for the number of entries and the page.
    pub(super) fn paged(self) -> Self {
        self.limited().query("cursor", text(), "`next` of the previous response.")
    }

    /// Adds a required body.
    pub(super) fn takes(
        self,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (impl Into<String>, Value)>,
    ) -> Self {
        self.body(true, shape.into(), examples)
    }

    /// Adds an optional body.
    pub(super) fn may_take(
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
        let examples = examples.into_iter().map(|(says, example)| (says.into(), example)).collect();
        self.body = Some(BodyDoc { required, shape, examples });
        self.refuses(ProblemType::BadRequest).refuses(ProblemType::NotJson)
    }

    /// Adds a response with JSON.
    pub(super) fn answers(
        self,
        status: u16,
        says: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.answers_as("application/json", status, says, shape, examples)
    }

    /// Adds a response with another content type.
    pub(super) fn answers_as(
        mut self,
        kind: &'static str,
        status: u16,
        says: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let content = Some(ContentDoc { kind, shape: shape.into(), examples: examples.into_iter().collect() });
        self.answers.push(ResponseDoc { status, says, content, headers: Vec::new() });
        self
    }

    /// Adds a response without a body.
    pub(super) fn answers_nothing(mut self, status: u16, says: &'static str) -> Self {
        self.answers.push(ResponseDoc { status, says, content: None, headers: Vec::new() });
        self
    }

    /// Adds a header to the last response.
    pub(super) fn with(mut self, header: ResponseHeader) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }
}
