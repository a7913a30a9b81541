//! Every route of the API, and the scope that it needs. There is no other list: the listener serves this one.

use std::{future::Future, pin::Pin, sync::LazyLock};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{Method, header::HeaderValue},
};
use guildhall_core::{
    access::Scope,
    policy::Policy::{self, Heavy, HeavyWaits, Light},
};

use percent_encoding::percent_decode_str;

use crate::api::extract;
use crate::api::handlers::{
    audit, breakers, budgets, dead_letters, egress, erase, guilds, instances, keys, limits, operations, reload, shards,
    state, stream, usage, webhooks,
};
use crate::api::openapi::route_doc::RouteDoc;
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
    handler: fn(HttpRequest) -> HandlerFuture,
    pub(crate) doc: fn() -> RouteDoc,
}

impl Route {
    /// Whether a request may contain many operations, and thus be larger than others.
    pub(crate) fn accepts_batches(&self) -> bool {
        self.method == "POST" && matches!(self.path, "/operations" | "/guilds/{guild_id}/operations")
    }
}

/// A route with its handler. The documentation consists of the function beside the handler, and of what the handler's
/// signature says.
macro_rules! route {
    ($method:literal, $path:literal, $needs:ident, $policy:expr, $handler:path, $doc:path) => {
        Route {
            method: $method,
            path: $path,
            needs: Scope::$needs,
            policy: $policy,
            handler: |request| Box::pin(extract::call($handler, request)),
            doc: || extract::describe($handler, $doc()),
        }
    };
}

/// All routes.
pub const ROUTES: &[Route] = &[
    route!(
        "POST",
        "/guilds/{guild_id}/operations",
        OperationsWrite,
        HeavyWaits,
        operations::submit_in_guild,
        operations::submit_in_guild_doc
    ),
    route!("GET", "/guilds", GuildsRead, Light, guilds::list, guilds::list_doc),
    route!("POST", "/guilds/{guild_id}/pause", GuildsWrite, Light, guilds::pause, guilds::pause_doc),
    route!("POST", "/guilds/{guild_id}/resume", GuildsWrite, Light, guilds::resume, guilds::resume_doc),
    route!("GET", "/guilds/{guild_id}", GuildsRead, Light, guilds::show, guilds::show_doc),
    route!("GET", "/events/dead", EventsRead, Light, state::list_dead, state::list_dead_doc),
    route!("GET", "/events/dead/{id}", EventsRead, Light, state::show_dead, state::show_dead_doc),
    route!("DELETE", "/events/dead/{id}", EventsWrite, Light, state::discard_dead, state::discard_dead_doc),
    route!("POST", "/events/dead/{id}/revive", EventsWrite, Light, state::revive, state::revive_doc),
    route!("GET", "/state/{key:.+}", StateRead, Light, state::show, state::show_doc),
    route!("PUT", "/state/{key:.+}", StateWrite, Light, state::put, state::put_doc),
    route!("DELETE", "/state/{key:.+}", StateWrite, Light, state::remove, state::remove_doc),
    route!("GET", "/instances", FleetRead, Light, instances::list, instances::list_doc),
    route!("GET", "/queues", FleetRead, Light, instances::queues, instances::queues_doc),
    route!("GET", "/usage", OperationsRead, Light, usage::show, usage::show_doc),
    route!("POST", "/pause", FleetWrite, Light, guilds::pause_all, guilds::pause_all_doc),
    route!("POST", "/resume", FleetWrite, Light, guilds::resume_all, guilds::resume_all_doc),
    route!("GET", "/operations", OperationsRead, Light, operations::list, operations::list_doc),
    route!("POST", "/operations", OperationsWrite, HeavyWaits, operations::submit, operations::submit_doc),
    route!("GET", "/operations/stream", OperationsRead, Light, stream::open, stream::open_doc),
    route!("GET", "/operations/{id}", OperationsRead, Light, operations::show, operations::show_doc),
    route!("POST", "/operations/{id}/cancel", OperationsWrite, Light, operations::cancel, operations::cancel_doc),
    route!("POST", "/operations/{id}/retry", OperationsWrite, Light, operations::retry, operations::retry_doc),
    route!("GET", "/dead-letters", OperationsRead, Light, dead_letters::list, dead_letters::list_doc),
    route!(
        "POST",
        "/dead-letters/redrive",
        OperationsWrite,
        Heavy,
        dead_letters::redrive_all,
        dead_letters::redrive_all_doc
    ),
    route!(
        "POST",
        "/dead-letters/discard",
        OperationsWrite,
        Heavy,
        dead_letters::discard_all,
        dead_letters::discard_all_doc
    ),
    route!("GET", "/dead-letters/{id}", OperationsRead, Light, dead_letters::show, dead_letters::show_doc),
    route!("DELETE", "/dead-letters/{id}", OperationsWrite, Light, dead_letters::discard, dead_letters::discard_doc),
    route!(
        "POST",
        "/dead-letters/{id}/redrive",
        OperationsWrite,
        Light,
        dead_letters::redrive,
        dead_letters::redrive_doc
    ),
    route!("GET", "/keys", Admin, Light, keys::list, keys::list_doc),
    route!("POST", "/keys", Admin, Light, keys::create, keys::create_doc),
    route!("GET", "/keys/{id}", Admin, Light, keys::show, keys::show_doc),
    route!("DELETE", "/keys/{id}", Admin, Light, keys::revoke, keys::revoke_doc),
    route!("POST", "/keys/{id}/rotate", Admin, Light, keys::rotate, keys::rotate_doc),
    route!("GET", "/audit", Audit, Light, audit::list, audit::list_doc),
    route!("POST", "/reload", Admin, Light, reload::reload, reload::reload_doc),
    route!("POST", "/erase", Admin, Heavy, erase::erase, erase::erase_doc),
    route!("GET", "/limits", FleetRead, Light, limits::show, limits::show_doc),
    route!("GET", "/limits/buckets", FleetRead, Light, limits::buckets, limits::buckets_doc),
    route!("GET", "/limits/top", FleetRead, Light, limits::top, limits::top_doc),
    route!("GET", "/egress/top", FleetRead, Light, egress::top, egress::top_doc),
    route!("GET", "/breakers", FleetRead, Light, breakers::list, breakers::list_doc),
    route!("POST", "/breakers/force", FleetWrite, Light, breakers::force, breakers::force_doc),
    route!("POST", "/breakers/reset", FleetWrite, Light, breakers::reset, breakers::reset_doc),
    route!("POST", "/egress/webhooks/clear", FleetWrite, Light, webhooks::clear, webhooks::clear_doc),
    route!("GET", "/shards", FleetRead, Light, shards::list, shards::list_doc),
    route!("POST", "/shards/{id}/restart", FleetWrite, Light, shards::restart, shards::restart_doc),
    route!("GET", "/budgets", BudgetsRead, Light, budgets::list, budgets::list_doc),
    route!("GET", "/budgets/{name}", BudgetsRead, Light, budgets::show, budgets::show_doc),
    route!("POST", "/budgets/{name}/acquire", BudgetsWrite, Light, budgets::acquire, budgets::acquire_doc),
    route!("POST", "/budgets/{name}/observe", BudgetsWrite, Light, budgets::observe, budgets::observe_doc),
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
        let (mut left, mut parameter) = (path, "");
        for part in &self.parts {
            left = left.strip_prefix('/')?;
            let end = if matches!(part, PathSegment::Rest) { left.len() } else { left.find('/').unwrap_or(left.len()) };
            let (given, rest) = left.split_at(end);
            left = rest;
            match part {
                PathSegment::Literal(plain) if segment_equals(given, plain) => {}
                PathSegment::Variable | PathSegment::Rest if !given.is_empty() => parameter = given,
                PathSegment::Literal(_) | PathSegment::Variable | PathSegment::Rest => return None,
            }
        }
        left.is_empty().then_some(parameter)
    }
}

/// Whether a segment of a path, which may be percent-encoded, equals this.
fn segment_equals(given: &str, plain: &str) -> bool {
    given == plain || (given.contains('%') && percent_decode_str(given).eq(plain.bytes()))
}

/// All path templates, in the order of the list: the first match is used.
static TEMPLATES: LazyLock<Vec<PathTemplate>> = LazyLock::new(|| {
    let mut by_path: Vec<(&str, Vec<&Route>)> = Vec::new();
    for route in ROUTES {
        match by_path.iter_mut().find(|(path, _)| *path == route.path) {
            Some((_, routes)) => routes.push(route),
            None => by_path.push((route.path, vec![route])),
        }
    }
    by_path.into_iter().map(|(path, routes)| PathTemplate::new(path, routes)).collect()
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
        let matching =
            TEMPLATES.iter().find_map(|template| template.match_path(path).map(|parameter| (template, parameter)));
        let Some((template, parameter)) = matching else {
            return Self { template: None, route: None, parameter: String::new() };
        };
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        let route = template.routes.iter().copied().find(|route| route.method == method);
        Self { template: Some(template), route, parameter: parameter.to_owned() }
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
    pub(crate) async fn dispatch(&self, request: HttpRequest) -> Result<HttpResponse, ProblemResponse> {
        match (self.route, self.template) {
            (Some(route), _) => (route.handler)(request).await,
            (None, Some(template)) => Ok(ProblemType::not_allowed(template.allow.clone())),
            (None, None) => Err(ProblemType::NotFound.into()),
        }
    }
}

/// Finds the route of a request. HEAD requests have the route of GET.
pub fn find_route(path: &str, method: &Method) -> Option<&'static Route> {
    RouteMatch::find(path, method).route()
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
