//! Every route of the API, and the scope that it needs. There is no other list: the listener serves this one.

use std::{future::Future, pin::Pin, sync::LazyLock};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{Method, header::HeaderValue},
    web::Data,
};
use guildhall_core::{
    access::Scope,
    policy::Policy::{self, Heavy, HeavyWaits, Light},
};

use percent_encoding::percent_decode_str;

use crate::api::app_state::AppState;
use crate::api::handlers::{
    audit, breakers, budgets, dead_letters, erase, guilds, instances, keys, limits, operations, reload, shards, state,
    stream, usage,
};
use crate::api::problem::{ProblemResponse, ProblemType};

/// Prefix of all paths.
pub(crate) const ROOT: &str = "/v1";

type HandlerFuture = Pin<Box<dyn Future<Output = Result<HttpResponse, ProblemResponse>>>>;

/// A route of the API.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The method. GET includes HEAD.
    pub method: &'static str,
    /// The path below `/v1`, with names for its variable segments. `{…:.+}` matches the rest of the path.
    pub path: &'static str,
    /// The scope that a key needs.
    pub needs: Scope,
    /// The policy that a request counts for.
    pub policy: Policy,
    handler: fn(HttpRequest, Data<AppState>) -> HandlerFuture,
}

impl Route {
    /// Whether a request may contain many operations, and thus be larger than others.
    pub(crate) fn accepts_batches(&self) -> bool {
        self.method == "POST" && matches!(self.path, "/operations" | "/guilds/{guild_id}/operations")
    }
}

const fn route(
    method: &'static str,
    path: &'static str,
    needs: Scope,
    policy: Policy,
    answer: fn(HttpRequest, Data<AppState>) -> HandlerFuture,
) -> Route {
    Route { method, path, needs, policy, handler: answer }
}

macro_rules! to {
    ($handler:path) => {
        |request, served| Box::pin($handler(request, served))
    };
}

/// All routes.
pub const ROUTES: &[Route] = &[
    route(
        "POST",
        "/guilds/{guild_id}/operations",
        Scope::OperationsWrite,
        HeavyWaits,
        to!(operations::submit_in_guild),
    ),
    route("POST", "/guilds/{guild_id}/pause", Scope::GuildsWrite, Light, to!(guilds::pause)),
    route("POST", "/guilds/{guild_id}/resume", Scope::GuildsWrite, Light, to!(guilds::resume)),
    route("GET", "/guilds/{guild_id}", Scope::GuildsRead, Light, to!(guilds::show)),
    route("GET", "/events/dead", Scope::EventsRead, Light, to!(state::list_dead)),
    route("POST", "/events/dead/{place}/revive", Scope::EventsWrite, Light, to!(state::revive)),
    route("GET", "/state/{key:.+}", Scope::StateRead, Light, to!(state::show)),
    route("PUT", "/state/{key:.+}", Scope::StateWrite, Light, to!(state::put)),
    route("DELETE", "/state/{key:.+}", Scope::StateWrite, Light, to!(state::remove)),
    route("GET", "/instances", Scope::FleetRead, Light, to!(instances::list)),
    route("GET", "/usage", Scope::OperationsRead, Light, to!(usage::show)),
    route("POST", "/pause", Scope::FleetWrite, Light, to!(guilds::pause_all)),
    route("POST", "/resume", Scope::FleetWrite, Light, to!(guilds::resume_all)),
    route("GET", "/operations", Scope::OperationsRead, Light, to!(operations::list)),
    route("POST", "/operations", Scope::OperationsWrite, HeavyWaits, to!(operations::submit)),
    route("GET", "/operations/stream", Scope::OperationsRead, Light, to!(stream::open)),
    route("GET", "/operations/{id}", Scope::OperationsRead, Light, to!(operations::show)),
    route("POST", "/operations/{id}/cancel", Scope::OperationsWrite, Light, to!(operations::cancel)),
    route("POST", "/operations/{id}/retry", Scope::OperationsWrite, Light, to!(operations::retry)),
    route("GET", "/dead-letters", Scope::OperationsRead, Light, to!(dead_letters::list)),
    route("POST", "/dead-letters/redrive", Scope::OperationsWrite, Heavy, to!(dead_letters::redrive_all)),
    route("POST", "/dead-letters/discard", Scope::OperationsWrite, Heavy, to!(dead_letters::discard_all)),
    route("GET", "/dead-letters/{id}", Scope::OperationsRead, Light, to!(dead_letters::show)),
    route("DELETE", "/dead-letters/{id}", Scope::OperationsWrite, Light, to!(dead_letters::discard)),
    route("POST", "/dead-letters/{id}/redrive", Scope::OperationsWrite, Light, to!(dead_letters::redrive)),
    route("GET", "/keys", Scope::Admin, Light, to!(keys::list)),
    route("POST", "/keys", Scope::Admin, Light, to!(keys::create)),
    route("GET", "/keys/{id}", Scope::Admin, Light, to!(keys::show)),
    route("DELETE", "/keys/{id}", Scope::Admin, Light, to!(keys::revoke)),
    route("POST", "/keys/{id}/rotate", Scope::Admin, Light, to!(keys::rotate)),
    route("GET", "/audit", Scope::Audit, Light, to!(audit::list)),
    route("POST", "/reload", Scope::Admin, Light, to!(reload::reload)),
    route("POST", "/erase", Scope::Admin, Heavy, to!(erase::erase)),
    route("GET", "/limits", Scope::FleetRead, Light, to!(limits::show)),
    route("GET", "/limits/buckets", Scope::FleetRead, Light, to!(limits::buckets)),
    route("GET", "/limits/top", Scope::FleetRead, Light, to!(limits::top)),
    route("GET", "/breakers", Scope::FleetRead, Light, to!(breakers::list)),
    route("POST", "/breakers/force", Scope::FleetWrite, Light, to!(breakers::force)),
    route("POST", "/breakers/reset", Scope::FleetWrite, Light, to!(breakers::reset)),
    route("GET", "/shards", Scope::FleetRead, Light, to!(shards::list)),
    route("POST", "/shards/{id}/restart", Scope::FleetWrite, Light, to!(shards::restart)),
    route("GET", "/budgets", Scope::BudgetsRead, Light, to!(budgets::list)),
    route("GET", "/budgets/{name}", Scope::BudgetsRead, Light, to!(budgets::show)),
    route("POST", "/budgets/{name}/acquire", Scope::BudgetsWrite, Light, to!(budgets::acquire)),
    route("POST", "/budgets/{name}/observe", Scope::BudgetsWrite, Light, to!(budgets::observe)),
];

/// A segment of a path.
#[derive(Debug)]
enum PathSegment {
    /// A fixed segment.
    Literal(&'static str),
    /// A variable segment.
    Variable,
    /// The rest of the path.
    Rest,
}

impl PathSegment {
    fn read(part: &'static str) -> Self {
        match part {
            _ if !part.starts_with('{') => Self::Literal(part),
            _ if part.ends_with(":.+}") => Self::Rest,
            _ => Self::Variable,
        }
    }
}

/// A path with its routes, one a method.
#[derive(Debug)]
pub(crate) struct PathTemplate {
    /// The path, with names for its variable segments.
    pub(crate) pattern: String,
    parts: Vec<PathSegment>,
    routes: Vec<&'static Route>,
    allow: HeaderValue,
}

impl PathTemplate {
    fn new(path: &'static str, routes: Vec<&'static Route>) -> Self {
        let methods: Vec<_> =
            routes.iter().map(|route| if route.method == "GET" { "GET, HEAD" } else { route.method }).collect();
        let allow = HeaderValue::from_str(&methods.join(", ")).expect("invariant: methods are plain words");
        let parts = path.split('/').skip(1).map(PathSegment::read);
        let parts = [PathSegment::Literal(&ROOT[1..])].into_iter().chain(parts).collect();
        Self { pattern: format!("{ROOT}{}", path.replace(":.+", "")), parts, routes, allow }
    }

    /// The value of the variable segment, empty if there is none; `None` if the path does not match.
    fn match_path<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (mut left, mut named) = (path, "");
        for part in &self.parts {
            left = left.strip_prefix('/')?;
            let end = if matches!(part, PathSegment::Rest) { left.len() } else { left.find('/').unwrap_or(left.len()) };
            let (given, rest) = left.split_at(end);
            left = rest;
            match part {
                PathSegment::Literal(plain) if segment_equals(given, plain) => {}
                PathSegment::Variable | PathSegment::Rest if !given.is_empty() => named = given,
                PathSegment::Literal(_) | PathSegment::Variable | PathSegment::Rest => return None,
            }
        }
        left.is_empty().then_some(named)
    }
}

/// Whether a segment of a path, which may be percent-encoded, equals this.
fn segment_equals(given: &str, plain: &str) -> bool {
    given == plain || (given.contains('%') && percent_decode_str(given).eq(plain.bytes()))
}

/// All path templates, in the order of the list: the first match is used.
static TEMPLATES: LazyLock<Vec<PathTemplate>> = LazyLock::new(|| {
    let mut places: Vec<(&str, Vec<&Route>)> = Vec::new();
    for way in ROUTES {
        match places.iter_mut().find(|(path, _)| *path == way.path) {
            Some((_, ways)) => ways.push(way),
            None => places.push((way.path, vec![way])),
        }
    }
    places.into_iter().map(|(path, ways)| PathTemplate::new(path, ways)).collect()
});

/// The route of a request. Its scope and its handler come from the same entry, so that no handler is reached without
/// its check.
#[derive(Clone, Debug)]
pub(crate) struct RouteMatch {
    template: Option<&'static PathTemplate>,
    route: Option<&'static Route>,
    /// The value of the variable segment, still percent-encoded.
    pub(crate) parameter: String,
}

impl RouteMatch {
    /// Finds the route of a request. GET includes HEAD.
    pub(crate) fn find(path: &str, method: &Method) -> Self {
        let fitting = TEMPLATES.iter().find_map(|template| template.match_path(path).map(|named| (template, named)));
        let Some((template, named)) = fitting else {
            return Self { template: None, route: None, parameter: String::new() };
        };
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        let route = template.routes.iter().copied().find(|route| route.method == method);
        Self { template: Some(template), route, parameter: named.to_owned() }
    }

    /// The route, if there is one.
    pub(crate) fn route(&self) -> Option<&'static Route> {
        self.route
    }

    /// The pattern of the path, out of a fixed set.
    pub(crate) fn pattern(&self) -> &'static str {
        self.template.map_or("none", |template| template.pattern.as_str())
    }

    /// Answers a request with the handler of its route.
    pub(crate) async fn dispatch(
        &self,
        request: HttpRequest,
        app: Data<AppState>,
    ) -> Result<HttpResponse, ProblemResponse> {
        match (self.route, self.template) {
            (Some(route), _) => (route.handler)(request, app).await,
            (None, Some(template)) => Ok(ProblemType::not_allowed(template.allow.clone())),
            (None, None) => Err(ProblemType::NotFound.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> (&'static str, Option<Scope>, String) {
        let found = RouteMatch::find(path, &Method::from_bytes(method.as_bytes()).unwrap());
        (found.pattern(), found.route().map(|route| route.needs), found.parameter)
    }

    #[test]
    fn percent_encoded_paths_match_the_same_route() {
        for path in ["/v1/audit", "/v1/a%75dit", "/%761/%61%75%64%69%74"] {
            assert_eq!(found("GET", path), ("/v1/audit", Some(Scope::Audit), String::new()), "{path}");
        }
        for path in
            ["/v1/audit/", "/v1//audit", "/v1/%2Faudit", "/v1/audi%", "/v1/audi%7", "/v1", "/v1/", "", "/v2/audit"]
        {
            assert_eq!(found("GET", path), ("none", None, String::new()), "{path}");
        }
    }

    #[test]
    fn first_match_wins_and_variables_match_one_segment() {
        let needs = Some(Scope::OperationsRead);
        assert_eq!(found("GET", "/v1/operations/stream"), ("/v1/operations/stream", needs, String::new()));
        assert_eq!(found("HEAD", "/v1/operations/%31"), ("/v1/operations/{id}", needs, "%31".to_owned()));
        assert_eq!(found("GET", "/v1/operations/1/more").0, "none");
        assert_eq!(found("GET", "/v1/state/a/b%2Fc").2, "a/b%2Fc");
        assert_eq!(found("GET", "/v1/state/").0, "none");
        assert_eq!(found("PATCH", "/v1/state/a"), ("/v1/state/{key}", None, "a".to_owned()));
    }
}
