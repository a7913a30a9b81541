//! Checks before a REST call is served: the ban, the user agent, the token, the limits, the faults.

use std::net::IpAddr;
use std::time::Duration;

use http::Method;

use crate::fault::{CloudflareForm, FaultAction, FaultPlan};
use crate::id::Snowflake;
use crate::limit::{BucketState, Case, Credential, LimitRequest, Scope};
use crate::rest::error::ApiError;
use crate::rest::route::{Auth, Params, Route};
use crate::state::Core;
use crate::time::At;
use crate::world::World;

/// Deleting messages older than this has a limit of its own.
const OLD_MESSAGE: Duration = Duration::from_secs(14 * 86_400);

/// Deleting messages younger than this, too.
const FRESH_MESSAGE: Duration = Duration::from_secs(10);

/// A call that has arrived and is not admitted yet.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    pub(super) peer: IpAddr,
    pub(super) method: &'a Method,
    /// The route and its parameters, or the error if no route matches.
    pub(super) route: Result<(&'static Route, Params<'a>), ApiError>,
    /// Value of the `Authorization` header.
    pub(super) authorization: Option<&'a str>,
    pub(super) user_agent: Option<&'a str>,
    /// Whether a `User-Agent` of another form than Discord's is refused.
    pub(super) requires_user_agent: bool,
    /// Whether the body changes a channel's name or topic.
    pub(super) changes_name_or_topic: bool,
    pub(super) plan: &'a FaultPlan,
}

/// A call that may be served.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    pub(super) route: &'static Route,
    pub(super) params: Params<'a>,
    pub(super) caller: Option<Snowflake>,
    pub(super) bucket: Option<BucketState>,
}

/// What caused a 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateLimitOrigin {
    /// A limit was exceeded.
    Limit,
    /// A fault demanded it.
    Fault,
}

/// Why a call is not served.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    Error {
        error: ApiError,
        bucket: Option<BucketState>,
    },
    RateLimited {
        scope: Scope,
        wait: Duration,
        bucket: Option<BucketState>,
        origin: RateLimitOrigin,
    },
    Cloudflare {
        form: CloudflareForm,
        retry_after: Option<Duration>,
    },
    /// A fault ends the call with this status.
    Status {
        status: u16,
        code: u32,
        bucket: Option<BucketState>,
    },
    /// The connection is cut.
    Dropped,
}

impl Core {
    /// Counts a call that arrived, and decides whether it is served.
    pub(super) fn admit<'a>(&mut self, arrival: Arrival<'a>, now: At) -> Result<Admitted<'a>, Refusal> {
        let bot = arrival.authorization.and_then(|header| header.strip_prefix("Bot ")).map(str::trim);
        let caller = bot
            .and_then(|token| self.world.bot_by_token(token))
            .map(|bot| bot.application_id)
            .filter(|application| !self.gateway.is_token_reset(*application));
        let credential = caller.map_or(Credential::Address(arrival.peer), Credential::Application);
        let auth = arrival.route.as_ref().map_or(Auth::Open, |(route, _)| route.auth);
        let exempt = auth == Auth::InteractionToken && self.limits.config().interactions_exempt;
        self.score.record_request(credential, &route_name(arrival.method, &arrival.route), exempt, now);
        // Calls with an interaction token need no user agent: clients send them with other HTTP clients, and Discord
        // accepts that.
        let has_agent =
            auth == Auth::InteractionToken || arrival.user_agent.is_some_and(|agent| agent.starts_with("DiscordBot ("));
        if !has_agent {
            self.score.record_invalid_user_agent();
        }

        if let Some(remaining) = self.bans.remaining_ban(arrival.peer, now) {
            self.score.record_banned_request();
            return Err(Refusal::Cloudflare { form: CloudflareForm::Json, retry_after: Some(remaining) });
        }
        let refuse = |error| Err(Refusal::Error { error, bucket: None });
        if !has_agent && arrival.requires_user_agent {
            return refuse(ApiError::NO_USER_AGENT);
        }
        let (route, params) = match arrival.route {
            Ok(found) => found,
            Err(error) => return refuse(error),
        };
        let invalid_token = arrival.authorization.is_some() && caller.is_none();
        if auth == Auth::Bot && caller.is_none() || auth == Auth::Open && invalid_token {
            return refuse(ApiError::UNAUTHORIZED);
        }

        let limit_request = LimitRequest {
            credential,
            method: route.method.as_str(),
            template: route.template,
            major: &major(&params),
            case: case(route, &params, arrival.changes_name_or_topic, &self.world, now),
            exempt,
        };
        let decision = self.limits.check(&limit_request, now);
        let bucket = decision.bucket;
        if let Some((scope, wait)) = decision.refusal {
            return Err(Refusal::RateLimited { scope, wait, bucket, origin: RateLimitOrigin::Limit });
        }
        match arrival.plan.final_action {
            None | Some(FaultAction::DropAfter | FaultAction::StatusAfter { .. }) => {
                Ok(Admitted { route, params, caller, bucket })
            }
            Some(FaultAction::DropBefore) => Err(Refusal::Dropped),
            Some(FaultAction::Status { status, code }) => Err(Refusal::Status { status, code, bucket }),
            Some(FaultAction::RateLimit { scope, retry_after_ms }) => {
                let wait = Duration::from_millis(retry_after_ms);
                Err(Refusal::RateLimited { scope, wait, bucket, origin: RateLimitOrigin::Fault })
            }
            Some(FaultAction::Cloudflare { form, retry_after_ms }) => {
                Err(Refusal::Cloudflare { form, retry_after: retry_after_ms.map(Duration::from_millis) })
            }
            Some(FaultAction::Latency { .. } | FaultAction::HideChannels { .. } | FaultAction::HideEntries { .. }) => {
                unreachable!("invariant: these do not end a call")
            }
        }
    }

    /// Counts an invalid request, which may cause a ban.
    pub(super) fn record_invalid_request(&mut self, peer: IpAddr, now: At) {
        let limit = self.limits.config().invalid;
        let banned = self.bans.record(peer, &limit, now);
        self.score.record_invalid_request(banned);
        if banned {
            tracing::info!(%peer, "address banned for too many invalid requests");
        }
    }
}

/// Name of a route in the score: its method and template.
pub(super) fn route_name(method: &Method, route: &Result<(&'static Route, Params<'_>), ApiError>) -> String {
    match route {
        Ok((route, _)) => format!("{} {}", route.method, route.template),
        // Methods are arbitrary text from callers: only the usual ones get an entry of their own.
        Err(_) => match *method {
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => {
                format!("{method} (no such route)")
            }
            _ => "(no such route)".to_owned(),
        },
    }
}

/// The top-level id that a bucket is split by, with its token if it has one.
fn major(params: &Params<'_>) -> String {
    let mut parts = params.iter();
    match parts.next() {
        Some((name @ ("application.id" | "interaction.id"), id)) => match parts.next() {
            Some(("interaction.token", token)) => format!("{id}/{token}"),
            // Buckets of application commands are not split: an application is not a top-level resource.
            _ if name == "application.id" => String::new(),
            _ => id.to_owned(),
        },
        Some(("guild.id" | "channel.id", id)) => id.to_owned(),
        _ => String::new(),
    }
}

fn case(route: &Route, params: &Params<'_>, changes_name_or_topic: bool, world: &World, now: At) -> Case {
    if route.method == Method::PATCH && route.template == "/channels/{channel.id}" && changes_name_or_topic {
        return Case::NameOrTopic;
    }
    if route.method == Method::DELETE
        && route.template == "/channels/{channel.id}/messages/{message.id}"
        && let (Ok(channel), Ok(message)) = (params.id("channel.id"), params.id("message.id"))
        && world.has_message(channel, message)
    {
        let age = now.since(message.created_at());
        if age > OLD_MESSAGE {
            return Case::OldMessage;
        }
        if age > FRESH_MESSAGE {
            return Case::Message;
        }
    }
    Case::Any
}
