//! Every way into the API, and what a key needs for it. There is no other list: the listener serves this one.

use std::{collections::BTreeMap, future::ready};

use actix_web::{
    Resource, Route, Scope as Under,
    guard::{self, Guard},
    http::{Method, header::HeaderValue},
    web,
};
use guildhall_core::{
    access::Scope,
    policy::Policy::{self, Heavy, HeavyWaits, Light},
};

use super::{audit, breakers, budgets, guilds, instances, kept, keys, letters, limits, operations, shards, stream};
use crate::api::problem::Problem;

/// What all paths begin with.
const ROOT: &str = "/v1";

/// One way into the API.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The method. Who may GET may also HEAD.
    pub method: &'static str,
    /// The path below `/v1`, with names for what is different each time.
    pub path: &'static str,
    /// What a key needs for it.
    pub needs: Scope,
    /// What a request counts as.
    pub policy: Policy,
    route: fn() -> Route,
}

const fn way(method: &'static str, path: &'static str, needs: Scope, policy: Policy, route: fn() -> Route) -> Way {
    Way { method, path, needs, policy, route }
}

/// Every way there is.
pub const WAYS: &[Way] = &[
    way("POST", "/guilds/{guild_id}/operations", Scope::OperationsWrite, HeavyWaits, || {
        post().to(operations::submit_in_guild)
    }),
    way("POST", "/guilds/{guild_id}/pause", Scope::GuildsWrite, Light, || post().to(guilds::pause)),
    way("POST", "/guilds/{guild_id}/resume", Scope::GuildsWrite, Light, || post().to(guilds::resume)),
    way("GET", "/guilds/{guild_id}", Scope::GuildsRead, Light, || get().to(guilds::show)),
    way("GET", "/events/dead", Scope::EventsRead, Light, || get().to(kept::dead)),
    way("POST", "/events/dead/{place}/revive", Scope::EventsWrite, Light, || post().to(kept::revive)),
    way("GET", "/state/{key:.+}", Scope::StateRead, Light, || get().to(kept::show)),
    way("PUT", "/state/{key:.+}", Scope::StateWrite, Light, || web::put().to(kept::put)),
    way("DELETE", "/state/{key:.+}", Scope::StateWrite, Light, || delete().to(kept::remove)),
    way("GET", "/instances", Scope::FleetRead, Light, || get().to(instances::list)),
    way("POST", "/pause", Scope::FleetWrite, Light, || post().to(guilds::pause_all)),
    way("POST", "/resume", Scope::FleetWrite, Light, || post().to(guilds::resume_all)),
    way("GET", "/operations", Scope::OperationsRead, Light, || get().to(operations::list)),
    way("POST", "/operations", Scope::OperationsWrite, HeavyWaits, || post().to(operations::submit)),
    way("GET", "/operations/stream", Scope::OperationsRead, Light, || get().to(stream::open)),
    way("GET", "/operations/{id}", Scope::OperationsRead, Light, || get().to(operations::show)),
    way("POST", "/operations/{id}/cancel", Scope::OperationsWrite, Light, || post().to(operations::cancel)),
    way("POST", "/operations/{id}/retry", Scope::OperationsWrite, Light, || post().to(operations::retry)),
    way("GET", "/dead-letters", Scope::OperationsRead, Light, || get().to(letters::list)),
    way("POST", "/dead-letters/redrive", Scope::OperationsWrite, Heavy, || post().to(letters::redrive_all)),
    way("POST", "/dead-letters/discard", Scope::OperationsWrite, Heavy, || post().to(letters::discard_all)),
    way("GET", "/dead-letters/{id}", Scope::OperationsRead, Light, || get().to(letters::show)),
    way("DELETE", "/dead-letters/{id}", Scope::OperationsWrite, Light, || delete().to(letters::discard)),
    way("POST", "/dead-letters/{id}/redrive", Scope::OperationsWrite, Light, || post().to(letters::redrive)),
    way("GET", "/keys", Scope::Admin, Light, || get().to(keys::list)),
    way("POST", "/keys", Scope::Admin, Light, || post().to(keys::create)),
    way("GET", "/keys/{id}", Scope::Admin, Light, || get().to(keys::show)),
    way("DELETE", "/keys/{id}", Scope::Admin, Light, || delete().to(keys::revoke)),
    way("POST", "/keys/{id}/rotate", Scope::Admin, Light, || post().to(keys::rotate)),
    way("GET", "/audit", Scope::Audit, Light, || get().to(audit::list)),
    way("GET", "/limits", Scope::FleetRead, Light, || get().to(limits::show)),
    way("GET", "/limits/buckets", Scope::FleetRead, Light, || get().to(limits::buckets)),
    way("GET", "/limits/top", Scope::FleetRead, Light, || get().to(limits::top)),
    way("GET", "/breakers", Scope::FleetRead, Light, || get().to(breakers::list)),
    way("POST", "/breakers/force", Scope::FleetWrite, Light, || post().to(breakers::force)),
    way("POST", "/breakers/reset", Scope::FleetWrite, Light, || post().to(breakers::reset)),
    way("GET", "/shards", Scope::FleetRead, Light, || get().to(shards::list)),
    way("POST", "/shards/{id}/restart", Scope::FleetWrite, Light, || post().to(shards::restart)),
    way("GET", "/budgets", Scope::BudgetsRead, Light, || get().to(budgets::list)),
    way("GET", "/budgets/{name}", Scope::BudgetsRead, Light, || get().to(budgets::show)),
    way("POST", "/budgets/{name}/acquire", Scope::BudgetsWrite, Light, || post().to(budgets::acquire)),
    way("POST", "/budgets/{name}/observe", Scope::BudgetsWrite, Light, || post().to(budgets::observe)),
];

/// The way that a request takes, by the pattern that its path fits and its method; nothing if there is none.
pub(super) fn find(pattern: &str, method: &Method) -> Option<&'static Way> {
    let path = pattern.strip_prefix(ROOT)?;
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    WAYS.iter().find(|way| way.path == path && way.method == method)
}

/// Whether a request may hold many operations, and so be larger than others.
pub(super) fn takes_many(pattern: &str, method: &Method) -> bool {
    let path = pattern.strip_prefix(ROOT).unwrap_or_default();
    *method == Method::POST && matches!(path, "/operations" | "/guilds/{guild_id}/operations")
}

/// All of them, to be served.
pub(super) fn scope() -> Under {
    // Those of one path together, in the order of the list: the first that fits is taken.
    let mut order = Vec::new();
    let mut by_path: BTreeMap<&str, Vec<&Way>> = BTreeMap::new();
    for way in WAYS {
        let ways = by_path.entry(way.path).or_default();
        if ways.is_empty() {
            order.push(way.path);
        }
        ways.push(way);
    }
    order.into_iter().fold(web::scope(ROOT), |scope, path| scope.service(resource(path, &by_path[path])))
}

fn resource(path: &'static str, ways: &[&Way]) -> Resource {
    let methods: Vec<_> = ways.iter().map(|way| if way.method == "GET" { "GET, HEAD" } else { way.method }).collect();
    let allow = HeaderValue::from_str(&methods.join(", ")).expect("invariant: methods are plain words");
    let resource = ways.iter().map(|way| (way.route)()).fold(web::resource(path), Resource::route);
    resource.default_service(web::to(move || ready(Problem::not_allowed(allow.clone()))))
}

/// Who may GET may also HEAD.
fn get() -> Route {
    web::route().guard(guard::fn_guard(|context| guard::Get().check(context) || context.head().method == Method::HEAD))
}

fn post() -> Route {
    web::post()
}

fn delete() -> Route {
    web::delete()
}
