//! The documentation of one route.

use serde_json::Value;
use utoipa::ToSchema;

use super::{
    headers::ResponseHeader,
    schema::{SchemaRef, schema_ref},
};
use crate::api::{
    fields::{FieldDoc, Fields},
    problem::ProblemType,
};

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
    Egress,
    Budgets,
    Keys,
    Health,
}

impl Tag {
    /// All tags, in the order of the page.
    pub(crate) const ALL: [Self; 11] = [
        Self::Operations,
        Self::DeadLetters,
        Self::Guilds,
        Self::Events,
        Self::State,
        Self::Fleet,
        Self::Limits,
        Self::Egress,
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
            Self::Egress => ("REST proxy", "Calls that bots make through this process."),
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
    pub(crate) description: String,
}

/// Examples, each with a summary.
pub(crate) type Examples = Vec<(String, Value)>;

/// A request body.
pub(crate) struct BodyDoc {
    pub(crate) required: bool,
    pub(crate) shape: SchemaRef,
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
    /// `None` until the type of the response is known.
    pub(crate) shape: Option<SchemaRef>,
    pub(crate) examples: Examples,
}

/// The documentation of one route. The signature of its handler adds the parameters, the schema of the body and, if it has
/// one type, the schema of the response.
pub(crate) struct RouteDoc {
    pub(crate) tag: Tag,
    /// The operation id, which is unique.
    pub(crate) operation_id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: String,
    pub(crate) parameters: Vec<ParameterDoc>,
    pub(crate) body: Option<BodyDoc>,
    pub(crate) body_examples: Examples,
    pub(crate) responses: Vec<ResponseDoc>,
    /// Problems that it may return beside those that every route may return.
    pub(crate) problems: Vec<ProblemType>,
    /// The schemas of the types that its responses name.
    pub(crate) schemas: Vec<(String, SchemaRef)>,
    /// The schema of its body, if that has a name.
    pub(crate) body_schema: Option<(String, SchemaRef)>,
}

impl RouteDoc {
    pub(crate) const fn new(tag: Tag, name: &'static str, summary: &'static str) -> Self {
        Self {
            tag,
            operation_id: name,
            summary,
            description: String::new(),
            parameters: Vec::new(),
            body: None,
            body_examples: Vec::new(),
            responses: Vec::new(),
            problems: Vec::new(),
            schemas: Vec::new(),
            body_schema: None,
        }
    }

    pub(crate) fn description(mut self, what: impl Into<String>) -> Self {
        self.description = what.into();
        self
    }

    /// Adds a problem that it may return.
    pub(crate) fn problem(self, problem: ProblemType) -> Self {
        self.problems([problem])
    }

    /// Adds problems that it may return.
    pub(crate) fn problems(mut self, problems: impl IntoIterator<Item = ProblemType>) -> Self {
        for problem in problems {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        self
    }

    /// Adds a path parameter.
    pub(crate) fn path(self, name: &'static str, shape: SchemaRef, description: &str) -> Self {
        self.parameter(ParameterLocation::Path, name, shape, description)
            .problems([ProblemType::BadRequest, ProblemType::NotFound])
    }

    /// Adds a query parameter. Unknown ones are rejected.
    pub(crate) fn query(self, field: FieldDoc) -> Self {
        self.parameter(ParameterLocation::Query, field.name, field.shape, &field.description)
    }

    pub(crate) fn header(self, name: &'static str, shape: impl Into<SchemaRef>, description: &str) -> Self {
        self.parameter(ParameterLocation::Header, name, shape.into(), description)
    }

    fn parameter(
        mut self,
        location: ParameterLocation,
        name: &'static str,
        shape: SchemaRef,
        description: &str,
    ) -> Self {
        self.parameters.push(ParameterDoc { location, name, shape, description: description.to_owned() });
        self
    }

    /// Adds a body with these fields.
    pub(crate) fn body<T: Fields>(mut self, required: bool) -> Self {
        self.body_schema = Some((T::NAME.to_owned(), T::schema()));
        self.body_of(required, schema_ref(T::NAME))
    }

    /// Adds a body of this schema.
    pub(crate) fn body_of(mut self, required: bool, shape: impl Into<SchemaRef>) -> Self {
        self.body = Some(BodyDoc { required, shape: shape.into() });
        self.problems([ProblemType::BadRequest, ProblemType::NotJson])
    }

    /// Adds an example of the body.
    pub(crate) fn body_example(mut self, summary: impl Into<String>, body: Value) -> Self {
        self.body_examples.push((summary.into(), body));
        self
    }

    /// Adds a response with JSON, of the type that the handler returns.
    pub(crate) fn response(
        self,
        status: u16,
        description: &'static str,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.content("application/json", status, description, None, examples)
    }

    /// Adds a response with JSON of this type.
    pub(crate) fn response_of<T: ToSchema>(
        self,
        status: u16,
        description: &'static str,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.response(status, description, examples).with_schema::<T>()
    }

    /// Adds a response of another content type.
    pub(crate) fn response_as(
        self,
        kind: &'static str,
        status: u16,
        description: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.content(kind, status, description, Some(shape.into()), examples)
    }

    fn content(
        mut self,
        kind: &'static str,
        status: u16,
        description: &'static str,
        shape: Option<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let examples = examples.into_iter().map(|(summary, example)| (summary.to_owned(), example)).collect();
        let content = Some(ContentDoc { kind, shape, examples });
        self.responses.push(ResponseDoc { status, description, content, headers: Vec::new() });
        self
    }

    /// Sets the type of the responses that have none yet.
    pub(crate) fn with_schema<T: ToSchema>(mut self) -> Self {
        self.add_schema::<T>();
        for content in self.responses.iter_mut().filter_map(|response| response.content.as_mut()) {
            content.shape.get_or_insert_with(|| schema_ref(&T::name()).into());
        }
        self
    }

    /// Adds the schema of a type, and those that it refers to.
    pub(crate) fn add_schema<T: ToSchema>(&mut self) {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.schemas);
    }

    /// Adds a response without a body.
    pub(crate) fn empty_response(mut self, status: u16, description: &'static str) -> Self {
        self.responses.push(ResponseDoc { status, description, content: None, headers: Vec::new() });
        self
    }

    /// Adds headers to the last response.
    pub(crate) fn headers(mut self, headers: impl IntoIterator<Item = ResponseHeader>) -> Self {
        if let Some(response) = self.responses.last_mut() {
            response.headers.extend(headers);
        }
        self
    }
}
