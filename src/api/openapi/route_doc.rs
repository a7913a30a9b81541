//! What there is to say of one way into the API.

use serde_json::Value;

use super::{
    headers::ResponseHeader,
    schema::{SchemaRef, integer, text},
};
use crate::api::problem::ProblemType;

/// What a way belongs to.
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
    /// All of them, in the order in which people look for them.
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

    /// Its name, and what it is about.
    pub(super) const fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::Operations => {
                ("Operations", "What is to be done in Discord: submitted, looked at, taken back, tried again.")
            }
            Self::DeadLetters => ("Dead letters", "Operations that were given up."),
            Self::Guilds => ("Guilds", "How things stand in a guild, and pausing it."),
            Self::Events => ("Events", "Events that were given up."),
            Self::State => ("State", "What bots and handlers keep."),
            Self::Fleet => ("Fleet", "The processes and their shards, and pausing everything."),
            Self::Limits => ("Limits", "Discord's limits as they are known here, and the breakers."),
            Self::Budgets => ("Budgets", "Named budgets, for other upstreams than Discord."),
            Self::Keys => ("Keys and audit", "Who may do what, and who did."),
            Self::Health => ("Health", "How the daemon is, and this description. None of it asks for a key."),
        }
    }
}

/// Where a parameter stands.
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

/// A body, with examples of it: each with what it is for.
pub(super) struct BodyDoc {
    pub(super) required: bool,
    pub(super) shape: SchemaRef,
    pub(super) examples: Vec<(String, Value)>,
}

/// An answer that is no problem.
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

/// What there is to say of one way.
pub(super) struct RouteDoc {
    pub(super) tag: Tag,
    /// What programs call it. No two are called the same.
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) says: String,
    pub(super) parameters: Vec<ParameterDoc>,
    pub(super) body: Option<BodyDoc>,
    pub(super) answers: Vec<ResponseDoc>,
    /// What it may refuse beside what every way may.
    pub(super) problems: Vec<ProblemType>,
}

/// How many entries a list may be asked for.
const PAGE_MOST: u64 = 500;
/// How many it has unless it is asked for others.
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

    /// It may also refuse this.
    pub(super) fn refuses(mut self, problem: ProblemType) -> Self {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        self
    }

    /// A part of its path.
    pub(super) fn path(self, name: &'static str, shape: impl Into<SchemaRef>, says: &'static str) -> Self {
        self.parameter(ParameterLocation::Path, name, shape.into(), says)
            .refuses(ProblemType::BadRequest)
            .refuses(ProblemType::NotFound)
    }

    /// A part of its query. What it does not know is refused.
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

    /// How many entries its list has.
    pub(super) fn limited(self) -> Self {
        let limit = integer(1, PAGE_MOST).default(Some(PAGE.into()));
        self.query("limit", limit, "How many at most.")
    }

    /// How many entries its list has, and where it begins.
    pub(super) fn paged(self) -> Self {
        self.limited().query("cursor", text(), "`next` of the answer before.")
    }

    /// It takes a body that has to be there.
    pub(super) fn takes(
        self,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (impl Into<String>, Value)>,
    ) -> Self {
        self.body(true, shape.into(), examples)
    }

    /// It takes a body that may be left out.
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

    /// It answers JSON.
    pub(super) fn answers(
        self,
        status: u16,
        says: &'static str,
        shape: impl Into<SchemaRef>,
        examples: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.answers_as("application/json", status, says, shape, examples)
    }

    /// It answers something else than JSON.
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

    /// It answers without a body.
    pub(super) fn answers_nothing(mut self, status: u16, says: &'static str) -> Self {
        self.answers.push(ResponseDoc { status, says, content: None, headers: Vec::new() });
        self
    }

    /// The last answer has this header.
    pub(super) fn with(mut self, header: ResponseHeader) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }
}
