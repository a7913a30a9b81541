//! What other REST proxies have and their users rely on: paths and metrics.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use guildhall_core::{response::Credential, route::RouteKey};
use http::{HeaderMap, StatusCode};
use metrics::SharedString;

use super::events::{NirnCallAnswered, NirnCallFailed, NirnCallsChanged, TwilightCallAnswered};
use crate::events::emit;
use crate::metrics::{describe_nirn, describe_twilight};
use crate::settings::EgressCompat;

/// Number of routes with a label of their own; the others share one.
const MAX_LABELS: usize = 200;

/// Path by which load balancers check nirn-proxy.
const NIRN_HEALTH: &str = "/nirn/healthz";

/// Compatibility with another proxy.
#[derive(Debug)]
pub(super) struct Compat {
    with: EgressCompat,
    labels: RouteLabels,
}

/// A call in progress, as nirn-proxy counts it, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenCall {
    method: &'static str,
    route: SharedString,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        emit(NirnCallsChanged { method: self.method, route: self.route.clone(), change: -1.0 });
    }
}

/// A response of Discord to a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompatCall<'a> {
    pub(super) method: &'static str,
    pub(super) route: &'a RouteKey,
    pub(super) credential: Credential,
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    /// Response time of Discord.
    pub(super) elapsed: Duration,
}

impl Compat {
    pub(super) fn new(with: EgressCompat) -> Self {
        match with {
            EgressCompat::None => {}
            EgressCompat::Nirn => describe_nirn(),
            EgressCompat::Twilight => describe_twilight(),
        }
        Self { with, labels: RouteLabels::default() }
    }

    /// Whether a request with this path only asks whether the proxy runs.
    pub(super) fn is_health_check(&self, path: &str) -> bool {
        self.with == EgressCompat::Nirn && path == NIRN_HEALTH
    }

    /// A call with this route is in progress.
    pub(super) fn on_call(&self, method: &'static str, route: &RouteKey) -> Option<OpenCall> {
        if self.with != EgressCompat::Nirn {
            return None;
        }
        let open = OpenCall { method, route: self.labels.find(route) };
        emit(NirnCallsChanged { method, route: open.route.clone(), change: 1.0 });
        Some(open)
    }

    /// Discord answered a call.
    pub(super) fn on_answer(&self, call: &CompatCall<'_>) {
        let CompatCall { method, route, credential, status, headers, elapsed } = *call;
        let scope = scope(headers);
        match self.with {
            EgressCompat::None => {}
            EgressCompat::Nirn => {
                // A route that does not exist at Discord gets no label: a caller could invent them without end.
                let route = if route_exists(status) { self.labels.learn(route) } else { self.labels.find(route) };
                let (status, client) = (nirn_status(status, scope), client_id(credential));
                emit(NirnCallAnswered { method, status, route, client, elapsed });
            }
            EgressCompat::Twilight => {
                let route = twilight_route(&nirn_route(route));
                emit(TwilightCallAnswered { method, route, status: status.to_string().into(), scope, elapsed });
            }
        }
    }

    /// The proxy answered a call itself.
    pub(super) fn on_own_answer(&self, status: StatusCode) {
        if self.with == EgressCompat::Nirn && status.is_server_error() {
            emit(NirnCallFailed);
        }
    }
}

/// The status as nirn-proxy names it.
fn nirn_status(status: StatusCode, scope: &str) -> SharedString {
    match (status, scope) {
        (StatusCode::TOO_MANY_REQUESTS, "shared") => SharedString::const_str("429 Shared"),
        (status, _) => status.to_string().into(),
    }
}

fn route_exists(status: StatusCode) -> bool {
    !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

/// The scope of a 429, out of Discord's.
fn scope(headers: &HeaderMap) -> &'static str {
    let given = headers.get("x-ratelimit-scope").and_then(|scope| scope.to_str().ok());
    ["user", "shared", "global"].into_iter().find(|scope| given == Some(*scope)).unwrap_or_default()
}

/// The bot whose limits a call counts for.
fn client_id(credential: Credential) -> SharedString {
    match credential {
        Credential::Application(id) => id.to_string().into(),
        Credential::Anonymous => SharedString::const_str("NoAuth"),
        Credential::Token(_) => SharedString::const_str("Bearer"),
    }
}

/// Labels of routes, out of a bounded set.
#[derive(Debug, Default)]
struct RouteLabels(Mutex<HashMap<RouteKey, Arc<str>>>);

impl RouteLabels {
    /// The label of a route.
    fn find(&self, route: &RouteKey) -> SharedString {
        let labels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        labels.get(route).map_or(SharedString::const_str("other"), |label| SharedString::from(Arc::clone(label)))
    }

    /// The label of a route, which gets one of its own if there is room.
    fn learn(&self, route: &RouteKey) -> SharedString {
        let mut labels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = labels.get(route) {
            return SharedString::from(Arc::clone(label));
        }
        if labels.len() >= MAX_LABELS {
            return SharedString::const_str("other");
        }
        let label: Arc<str> = nirn_route(route).into();
        labels.insert(route.clone(), Arc::clone(&label));
        SharedString::from(label)
    }
}

/// The path as nirn-proxy names it: `!` for what varies.
fn nirn_route(route: &RouteKey) -> String {
    let template = route.template();
    // Without the age of a message.
    let template = template.split_once(' ').map_or(template, |(path, _)| path);
    let mut path = String::with_capacity(template.len());
    for (at, part) in template.split('/').skip(1).enumerate() {
        if part == "reactions" && path.starts_with("/channels") {
            path.push_str("/reactions/!/!");
            break;
        }
        path.push('/');
        let is_code = at == 1 && path.starts_with("/invites");
        path.push_str(if part.starts_with('{') || is_code { "!" } else { part });
    }
    path
}

/// What twilight's http-proxy calls a path.
fn twilight_route(path: &str) -> &'static str {
    match path {
        "/applications/!/commands" => "Application commands",
        "/applications/!/commands/!" => "Application command",
        "/applications/!/guilds/!/commands" => "Application commands in guild",
        "/applications/!/guilds/!/commands/!" => "Application command in guild",
        "/channels/!" => "Channel",
        "/channels/!/followers" => "Channel followers",
        "/channels/!/invites" => "Channel invite",
        "/channels/!/messages" | "/channels/!/messages/!" => "Channel message",
        "/channels/!/messages/bulk-delete" => "Bulk delete message",
        "/channels/!/messages/!/crosspost" => "Crosspost message",
        "/channels/!/messages/!/reactions/!/!" => "Message reaction",
        "/channels/!/messages/!/threads" => "Threads of a specific message",
        "/channels/!/permissions/!" => "Channel permission override",
        "/channels/!/pins" => "Channel pins",
        "/channels/!/pins/!" => "Specific channel pin",
        "/channels/!/recipients/!" => "Channel recipients",
        "/channels/!/thread-members" => "Thread members",
        "/channels/!/thread-members/!" | "/channels/!/thread-members/@me" => "Thread member",
        "/channels/!/threads" => "Channel threads",
        "/channels/!/typing" => "Typing indicator",
        "/channels/!/webhooks" | "/webhooks/!" | "/webhooks/!/!" => "Webhook",
        "/gateway" => "Gateway",
        "/gateway/bot" => "Gateway bot info",
        "/guilds" => "Guilds",
        "/guilds/!" => "Guild",
        "/guilds/!/audit-logs" => "Guild audit logs",
        "/guilds/!/auto-moderation/rules" => "Guild automoderation rules",
        "/guilds/!/auto-moderation/rules/!" => "Guild automoderation rule",
        "/guilds/!/bans" => "Guild bans",
        "/guilds/!/bans/!" => "Guild ban for user",
        "/guilds/!/channels" => "Guild channel",
        "/guilds/!/emojis" => "Guild emoji",
        "/guilds/!/emojis/!" => "Specific guild emoji",
        "/guilds/!/integrations" => "Guild integrations",
        "/guilds/!/integrations/!" => "Specific guild integration",
        "/guilds/!/invites" => "Guild invites",
        "/guilds/!/members" => "Guild members",
        "/guilds/!/members/!" | "/guilds/!/members/@me" => "Specific guild member",
        "/guilds/!/members/!/roles/!" => "Guild member role",
        "/guilds/!/members/@me/nick" => "Modify own nickname",
        "/guilds/!/members/search" => "Search guild members",
        "/guilds/!/mfa" => "Guild MFA setting",
        "/guilds/!/preview" => "Guild preview",
        "/guilds/!/prune" => "Guild prune",
        "/guilds/!/regions" => "Guild region",
        "/guilds/!/roles" => "Guild roles",
        "/guilds/!/roles/!" => "Specific guild role",
        "/guilds/!/scheduled-events" => "Scheduled events in guild",
        "/guilds/!/scheduled-events/!" => "Scheduled event in guild",
        "/guilds/!/scheduled-events/!/users" => "Users of a scheduled event",
        "/guilds/!/stickers" | "/guilds/!/stickers/!" => "Guild stickers",
        "/guilds/!/templates" => "Guild templates",
        "/guilds/!/templates/!" | "/guilds/templates/!" => "Specific guild template",
        "/guilds/!/threads/active" => "Guild threads",
        "/guilds/!/vanity-url" => "Guild vanity invite",
        "/guilds/!/voice-states/!" | "/guilds/!/voice-states/@me" => "Guild voice states",
        "/guilds/!/webhooks" => "Guild webhooks",
        "/guilds/!/welcome-screen" => "Guild welcome screen",
        "/guilds/!/widget" => "Guild widget",
        "/interactions/!/!/callback" => "Interaction callback",
        "/invites/!" => "Invite info",
        "/oauth2/applications/@me" => "Current application info",
        "/stage-instances" | "/stage-instances/!" => "Stage instances",
        "/sticker-packs" => "Sticker packs",
        "/stickers/!" => "Stickers",
        "/users/!" | "/users/@me" => "User info",
        "/users/@me/channels" => "User channels",
        "/users/@me/connections" => "User connections",
        "/users/@me/guilds" => "User in guild",
        "/users/@me/guilds/!" => "Guild from user",
        "/users/@me/guilds/!/member" => "Member of a guild",
        "/voice/regions" => "Voice region list",
        "/webhooks/!/!/messages/!" | "/webhooks/!/!/messages/@original" => "Specific webhook message",
        _ => "Unknown path!",
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::route::Route;

    use super::*;

    fn route(method: &str, path: &str) -> RouteKey {
        Route::parse(method, path, 0, 0).key
    }

    #[test]
    fn paths_have_the_names_of_nirn() {
        for (method, path, name) in [
            ("GET", "/users/@me", "/users/@me"),
            ("GET", "/channels/5", "/channels/!"),
            ("POST", "/channels/5/messages", "/channels/!/messages"),
            ("DELETE", "/channels/5/messages/1", "/channels/!/messages/!"),
            ("PUT", "/channels/5/messages/6/reactions/%F0/@me", "/channels/!/messages/!/reactions/!/!"),
            ("GET", "/channels/5/messages/6/reactions/%F0", "/channels/!/messages/!/reactions/!/!"),
            ("GET", "/guilds/5/channels", "/guilds/!/channels"),
            ("GET", "/invites/hello", "/invites/!"),
            ("POST", "/interactions/5/a-token/callback", "/interactions/!/!/callback"),
            ("PATCH", "/webhooks/5/a-token/messages/@original", "/webhooks/!/!/messages/@original"),
            ("GET", "/gateway/bot", "/gateway/bot"),
        ] {
            assert_eq!(nirn_route(&route(method, path)), name, "{method} {path}");
        }
    }

    #[test]
    fn statuses_have_the_names_of_nirn() {
        for (status, scope, name) in [
            (StatusCode::OK, "", "200 OK"),
            (StatusCode::TOO_MANY_REQUESTS, "user", "429 Too Many Requests"),
            (StatusCode::TOO_MANY_REQUESTS, "shared", "429 Shared"),
            (StatusCode::BAD_GATEWAY, "shared", "502 Bad Gateway"),
        ] {
            assert_eq!(&*nirn_status(status, scope), name);
        }
    }

    #[test]
    fn paths_have_the_names_of_twilight() {
        for (method, path, name) in [
            ("POST", "/channels/5/messages", "Channel message"),
            ("PUT", "/channels/5/messages/6/reactions/%F0/@me", "Message reaction"),
            ("GET", "/users/@me", "User info"),
            ("POST", "/webhooks/5/a-token", "Webhook"),
            ("GET", "/no/such/path", "Unknown path!"),
        ] {
            assert_eq!(twilight_route(&nirn_route(&route(method, path))), name, "{method} {path}");
        }
    }

    #[test]
    fn labels_are_bounded_and_learned_from_routes_that_exist() {
        let labels = RouteLabels::default();
        let known = route("GET", "/users/@me");
        assert_eq!(&*labels.find(&known), "other");
        assert_eq!(&*labels.learn(&known), "/users/@me");
        assert_eq!(&*labels.find(&known), "/users/@me");
        for number in 0..MAX_LABELS {
            let word: String = number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            labels.learn(&route("GET", &format!("/{word}")));
        }
        assert_eq!(&*labels.learn(&route("GET", "/one/more")), "other");
        assert_eq!(labels.0.lock().unwrap().len(), MAX_LABELS);
    }

    #[test]
    fn health_path_exists_only_in_place_of_nirn() {
        let compat = |with| Compat { with, labels: RouteLabels::default() };
        assert!(compat(EgressCompat::Nirn).is_health_check("/nirn/healthz"));
        assert!(!compat(EgressCompat::Nirn).is_health_check("/nirn/global"));
        for with in [EgressCompat::None, EgressCompat::Twilight] {
            assert!(!compat(with).is_health_check("/nirn/healthz"));
        }
    }
}
