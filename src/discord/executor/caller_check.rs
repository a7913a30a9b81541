//! Checks a call that a caller makes by itself, through the REST proxy, by the rules for operations of the kind `request`.
//!
//! ```text
//!  Caller, ProposedCall ──▶ guilds, channels and webhooks that it addresses ──▶ effect on permissions ──▶ Ok │ CallRefusal
//! ```
//!
//! An operation has one guild. A caller may have several, so here each object that the call addresses must belong to
//! one of them.

use std::time::Duration;

use guildhall_actors::access::{Caller, default_tenant};
use guildhall_actors::guild::Journal;
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::Execution;
use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::submission::ForeignTargetRefused;
use guildhall_core::access::{Bounds, MissingAccess, Owner, Scope, ScopeSet, not_found_message};
use guildhall_core::lane::Lane;
use guildhall_core::operation::payload::{Location, Method, Request};
use guildhall_core::operation::{Failure, FailureClass, Marker, OperationId, Payload, Progress};
use guildhall_core::trace::TraceContext;

use super::DiscordExecutor;
use super::bounds::find_owners;
use super::danger::{self, invalidate_changed_roles};
use super::execution_context::{Charge, ExecutionContext};
use super::execution_error::ExecutionError;

/// A call that a caller makes by itself.
#[derive(Debug)]
pub struct ProposedCall {
    /// Method, path and body.
    pub request: Request,
    /// Lane of the reads that the check needs.
    pub lane: Lane,
    /// How long each of these reads may wait.
    pub max_wait: Duration,
    /// Trace of the call.
    pub trace: Option<TraceContext>,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum CallRefusal {
    /// The caller lacks a scope.
    Forbidden(String),
    /// It addresses an object that does not exist for the caller.
    Foreign {
        /// The object.
        location: Location,
        /// The message for people.
        message: String,
    },
    /// It needs an object that does not exist.
    Missing(String),
    /// It cannot be checked.
    Invalid(String),
    /// A read for the check was not sent, or a limit refused it.
    Held {
        /// How long to wait; `None` if a wait does not help by itself.
        retry_after: Option<Duration>,
        /// A short name, for metrics.
        reason: &'static str,
        /// The message for people.
        message: String,
    },
    /// Discord responded to such a read with an error.
    Refused {
        /// The status.
        status: u16,
        /// Discord's error code.
        code: u32,
        /// The message for people.
        message: String,
    },
    /// Such a read failed.
    Failed(String),
}

impl From<ExecutionError> for CallRefusal {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::Held { retry_after, reason, message, .. } => Self::Held { retry_after, reason, message },
            ExecutionError::Failed(Failure { status: Some(status), code, message, .. }) => {
                Self::Refused { status, code: code.unwrap_or(0), message }
            }
            ExecutionError::Failed(Failure { class, message, .. }) => match class {
                FailureClass::Forbidden => Self::Forbidden(message),
                FailureClass::NotFound => Self::Missing(message),
                FailureClass::Validation | FailureClass::Conflict => Self::Invalid(message),
                FailureClass::RateLimited
                | FailureClass::Transient
                | FailureClass::Ambiguous
                | FailureClass::Expired
                | FailureClass::Poison
                | FailureClass::Restored => Self::Failed(message),
            },
            ExecutionError::Unknown(Failure { message, .. }) => Self::Failed(message),
        }
    }
}

impl DiscordExecutor {
    /// Checks whether a caller may make a call. Returns the guild that it concerns, where known.
    ///
    /// # Errors
    ///
    /// Why it may not, or why that cannot be determined now.
    pub async fn authorize_call(&self, caller: &Caller, call: ProposedCall) -> Result<Option<u64>, CallRefusal> {
        if caller.bounds() == Bounds::Anywhere {
            return Ok(None);
        }
        let work = self.execution_of(caller, call);
        let context = ExecutionContext::new(self, &work, Charge::Submitter);
        let guild = check_reach(&context, caller).await?;
        danger::check(&context).await?;
        Ok(guild)
    }

    /// Removes cached permissions of roles that a call may have changed. `guild` is the guild that it concerns, if it
    /// is known.
    pub fn on_call_made(&self, request: &Request, guild: Option<u64>) {
        if may_change_roles(request) {
            invalidate_changed_roles(&self.roles, guild, &Payload::Request(request.clone()));
        }
    }

    /// The call as an operation, which is never executed.
    fn execution_of(&self, caller: &Caller, call: ProposedCall) -> Execution {
        let now = self.now();
        let id = OperationId::new(now.millis(), [0; 10]);
        Execution {
            id,
            guild: None,
            tenant: caller.tenant.clone().unwrap_or_else(default_tenant),
            bounds: caller.bounds(),
            caller: caller.key.clone(),
            scopes: ScopeSet::of(&caller.grant),
            payload: Payload::Request(call.request),
            existing: None,
            progress: Progress::default(),
            marker: Marker::of(id),
            reason: None,
            lane: call.lane,
            max_wait: call.max_wait,
            intent_at: now,
            lease: LeaseGuard::always(),
            journal: Journal::none(),
            trace: call.trace,
        }
    }
}

/// Checks that everything that the call addresses belongs to the caller.
async fn check_reach(context: &ExecutionContext<'_>, caller: &Caller) -> Result<Option<u64>, CallRefusal> {
    let Payload::Request(request) = &context.work.payload else { return Ok(None) };
    let locations = context.work.payload.locations();
    let mut locations = locations
        .map_err(|error| CallRefusal::Forbidden(format!("the call {error}; that needs a key with the scope admin")))?;
    // A response to an interaction: its token is the permission.
    locations.retain(|location| !matches!(location, Location::Webhook(id, Some(_)) if *id == context.application()));
    if locations.is_empty() {
        if caller.has_scope(Scope::Application) || concerns_everyone(request) {
            return Ok(None);
        }
        let lack = MissingAccess::Scope(Scope::Application);
        return Err(CallRefusal::Forbidden(format!("the call concerns no guild of the key; that {lack}")));
    }
    let mut guild = None;
    for (location, owner) in find_owners(context, locations).await? {
        if !may_address(caller, &owner) {
            emit(ForeignTargetRefused { at: "egress" });
            return Err(CallRefusal::Foreign { message: not_found_message(&location, None), location });
        }
        guild = guild.or(owner.guild);
    }
    Ok(guild)
}

fn may_address(caller: &Caller, owner: &Owner) -> bool {
    match owner.guild {
        Some(_) => caller.can_see(&owner.tenant, owner.guild),
        // A private channel belongs to no guild.
        None => caller.has_scope(Scope::Application),
    }
}

/// Reads that every bot makes when it starts, or whose responses are the same for everyone. `{}` is any segment.
const PUBLIC_READS: &[&str] = &[
    "/gateway",
    "/gateway/bot",
    "/users/@me",
    "/users/{}",
    "/applications/@me",
    "/oauth2/applications/@me",
    "/voice/regions",
    "/sticker-packs",
    "/sticker-packs/{}",
    "/stickers/{}",
    "/soundboard-default-sounds",
    "/invites/{}",
];

/// Whether a call without an object of a guild is for every key: a public read, or one that the token in its path
/// permits.
fn concerns_everyone(request: &Request) -> bool {
    let path = request.path.split_once('?').map_or(request.path.as_str(), |(path, _)| path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let matches = |template: &str| {
        let template: Vec<&str> = template.split('/').skip(1).collect();
        template.len() == segments.len()
            && template.iter().zip(&segments).all(|(expected, segment)| *expected == "{}" || expected == segment)
    };
    match segments.as_slice() {
        ["interactions", _, _, "callback"] => request.method == Method::Post,
        // Those of other applications are locations.
        ["webhooks", _, _, ..] => true,
        _ => request.method == Method::Get && PUBLIC_READS.iter().any(|template| matches(template)),
    }
}

/// Whether a call may change the permissions of roles, or the overwrites of channels.
fn may_change_roles(request: &Request) -> bool {
    let path = request.path.split_once('?').map_or(request.path.as_str(), |(path, _)| path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    request.method != Method::Get
        && !matches!(
            segments.as_slice(),
            ["channels", _, "messages" | "typing" | "threads" | "pins" | "thread-members" | "polls", ..]
                | ["webhooks" | "interactions" | "users" | "lobbies" | "applications", ..]
                | ["guilds", _, "members" | "bans" | "emojis" | "stickers" | "voice-states" | "scheduled-events", ..]
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &str) -> Request {
        Request { method, path: path.to_owned(), body: None, user: None }
    }

    #[test]
    fn only_public_reads_and_tokens_in_the_path_are_for_every_key() {
        for (method, path, expected) in [
            (Method::Get, "/gateway/bot", true),
            (Method::Get, "/users/@me?x=1", true),
            (Method::Get, "/users/@me/guilds", false),
            (Method::Patch, "/users/@me", false),
            (Method::Get, "/users/5", true),
            (Method::Post, "/users/@me/channels", false),
            (Method::Get, "/applications/1/commands", false),
            (Method::Get, "/Users/@me", false),
            (Method::Post, "/interactions/1/token/callback", true),
            (Method::Get, "/interactions/1/token/callback", false),
            (Method::Post, "/interactions/1/token", false),
            (Method::Patch, "/webhooks/1/token/messages/@original", true),
            (Method::Post, "/webhooks/1", false),
        ] {
            assert_eq!(concerns_everyone(&request(method, path)), expected, "{path}");
        }
    }

    #[test]
    fn calls_that_may_change_roles_or_overwrites_are_recognized() {
        for (method, path, expected) in [
            (Method::Patch, "/guilds/1/roles/2", true),
            (Method::Post, "/guilds/1/channels", true),
            (Method::Put, "/channels/1/permissions/2", true),
            (Method::Patch, "/channels/1", true),
            (Method::Patch, "/guilds/1/a-new-way", true),
            (Method::Get, "/guilds/1/roles", false),
            (Method::Post, "/channels/1/messages", false),
            (Method::Put, "/guilds/1/members/2/roles/3", false),
            (Method::Post, "/webhooks/1/t", false),
        ] {
            assert_eq!(may_change_roles(&request(method, path)), expected, "{path}");
        }
    }
}
