//! The context of one execution: makes the calls with the operation's marker, lane and maximum wait.

use std::time::Duration;

use bytes::Bytes;
use guildhall_actors::access::RoleCache;
use guildhall_actors::gate::{Effects, RequestBody, RestRequest, RestResponse};
use guildhall_actors::ports::Execution;
use guildhall_core::access::Owner;
use guildhall_core::invalid::Submitter;
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{FailureClass, ManagedKind, Reference};
use guildhall_core::response::Credential;
use guildhall_core::time::UnixMs;
use http::{HeaderMap, HeaderValue, Method, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use twilight_http::Client;
use twilight_http::request::TryIntoRequest;
use twilight_model::id::Id;
use twilight_model::id::marker::GuildMarker;

use super::execution_error::{self, ExecutionError, RepeatSafety};
use super::snowflake::lowest_id_at;
use super::{DiscordExecutor, ExecutorConfig};
use crate::discord::rest::{CallBuilder, raw, with_reason};

/// The time that Discord allows for the first response to an interaction, with a margin for the response to a posted one
/// and for clocks.
const FIRST_RESPONSE_TIME: Duration = Duration::from_secs(15);

/// An operation, and what is needed to execute it.
#[derive(Clone, Copy)]
pub(crate) struct ExecutionContext<'a> {
    executor: &'a DiscordExecutor,
    pub(crate) work: &'a Execution,
    charge: Charge,
}

/// What the calls are charged to, besides the guild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// The key that submitted the operation, and its tenant.
    Submitter,
    /// Nothing: the daemon searches for its own effects, and that must not wait for a caller's share.
    Daemon,
}

impl<'a> ExecutionContext<'a> {
    pub(crate) fn new(executor: &'a DiscordExecutor, work: &'a Execution, charge: Charge) -> Self {
        Self { executor, work, charge }
    }

    pub(crate) fn config(&self) -> &'a ExecutorConfig {
        &self.executor.config
    }

    /// Store time.
    pub(crate) fn now(&self) -> UnixMs {
        self.executor.now()
    }

    /// The lowest id that an object of this operation can have, with a margin. Ids are in Discord's time, the intent is
    /// in store time.
    pub(crate) fn lowest_id(&self, margin: Duration) -> u64 {
        let intent = self.work.intent_at;
        let intent = self.executor.clocks.as_ref().map_or(intent, |clocks| clocks.discord_time_of(intent));
        lowest_id_at(intent, margin)
    }

    /// Whether Discord may not have received the first response to an interaction yet: it was created a moment ago.
    pub(crate) fn is_new_interaction(&self, interaction: u64) -> bool {
        let now = self.now();
        let now = self.executor.clocks.as_ref().map_or(now, |clocks| clocks.discord_time_of(now));
        interaction >= lowest_id_at(now, FIRST_RESPONSE_TIME)
    }

    pub(crate) fn calls(&self) -> &'a CallBuilder {
        &self.executor.calls
    }

    /// Twilight's builders.
    pub(crate) fn builders(&self) -> &'a Client {
        self.executor.calls.builders()
    }

    pub(crate) fn application(&self) -> u64 {
        self.executor.application.get()
    }

    /// The bot's user id.
    pub(crate) fn bot(&self) -> u64 {
        self.executor.bot.get()
    }

    /// The guild of the operation.
    pub(crate) fn guild(&self) -> Result<Id<GuildMarker>, ExecutionError> {
        let guild = self.work.guild.and_then(Id::new_checked);
        guild.ok_or_else(|| ExecutionError::failed(FailureClass::Validation, "this kind of operation needs a guild_id"))
    }

    /// The owners of these locations, where known.
    pub(crate) async fn owners(&self, locations: Vec<Location>) -> Result<Vec<Option<Owner>>, ExecutionError> {
        Ok(self.executor.ownership.owners(locations).await?)
    }

    /// Stores the guild that a location belongs to, and returns its owner.
    pub(crate) async fn store_guild(&self, location: Location, guild: Option<u64>) -> Result<Owner, ExecutionError> {
        Ok(self.executor.ownership.store_guild(location, guild).await?)
    }

    /// The cache of role permissions.
    pub(crate) fn roles(&self) -> &'a RoleCache {
        &self.executor.roles
    }

    /// Returns those of these objects that have no owner yet.
    pub(crate) async fn without_owner(&self, kind: ManagedKind, ids: Vec<u64>) -> Result<Vec<u64>, ExecutionError> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let bound = self.executor.ownership.bound(kind, ids.clone()).await?;
        Ok(ids.into_iter().filter(|id| !bound.contains(id)).collect())
    }

    /// Reads an object.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, builder: impl TryIntoRequest) -> Result<T, ExecutionError> {
        self.read(self.calls().build::<T>(builder)?.request).await
    }

    /// Reads an object with a request that is built already. Opening a direct message channel counts as a read: it is
    /// not visible to anyone, and is idempotent.
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: RestRequest) -> Result<T, ExecutionError> {
        self.work.journal.on_read();
        let answer = self
            .exchange(request, RepeatSafety::Harmless)
            .await
            .and_then(|response| read(&response, RepeatSafety::Harmless));
        answer.map_err(ExecutionError::without_effect)
    }

    /// Makes a change that is safe to repeat.
    pub(crate) async fn change(&self, builder: impl TryIntoRequest) -> Result<RestResponse, ExecutionError> {
        let request = self.calls().build::<()>(builder)?.request;
        self.send_marked(request, RepeatSafety::Harmless).await
    }

    /// Builds a call with a JSON body that twilight has no builder for.
    pub(crate) fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<RestRequest, ExecutionError> {
        let invalid = |message: String| ExecutionError::failed(FailureClass::Validation, message);
        let mut headers = HeaderMap::new();
        let body = match body {
            Some(body) => {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                RequestBody::Whole(Bytes::from(serde_json::to_vec(body).map_err(|error| invalid(error.to_string()))?))
            }
            None => RequestBody::Empty,
        };
        let credential = Credential::Application(self.application());
        raw(method, path, headers, body, credential, self.work.lease.clone())
            .map_err(|error| invalid(error.to_string()))
    }

    /// Sends a call with a reason for the audit log, which carries the operation's marker.
    pub(crate) async fn send_marked(
        &self,
        mut request: RestRequest,
        repeat_safety: RepeatSafety,
    ) -> Result<RestResponse, ExecutionError> {
        with_reason(&mut request, &self.work.marker.reason(self.work.reason.as_deref()))?;
        self.send(request, repeat_safety).await
    }

    /// Sends a call. A call with an effect is sent only after the store has recorded that it may be in flight.
    pub(crate) async fn send(
        &self,
        mut request: RestRequest,
        repeat_safety: RepeatSafety,
    ) -> Result<RestResponse, ExecutionError> {
        match request.effects {
            Effects::None => self.work.journal.on_read(),
            Effects::Idempotent | Effects::Creates => request.before_send = self.work.journal.hook(),
        }
        self.exchange(request, repeat_safety).await
    }

    async fn exchange(
        &self,
        mut request: RestRequest,
        repeat_safety: RepeatSafety,
    ) -> Result<RestResponse, ExecutionError> {
        request.lane = self.work.lane;
        request.max_wait = self.work.max_wait;
        request.guild = request.guild.or(self.work.guild);
        request.submitter = match self.charge {
            Charge::Submitter => Submitter::of(&self.work.caller, &self.work.tenant),
            Charge::Daemon => Submitter::default(),
        };
        let (is_own_guild, reads) = (request.guild == self.work.guild, request.method == Method::GET);
        request.lease = self.work.lease.clone();
        request.trace = self.work.trace;
        let mut result = execution_error::evaluate(self.executor.rest.call(request).await, repeat_safety);
        if reads {
            result = result.map_err(ExecutionError::without_effect);
        }
        if is_own_guild { result.map_err(ExecutionError::in_queue_of_guild) } else { result }
    }
}

/// Decodes a successful response.
pub(crate) fn read<T: DeserializeOwned>(
    response: &RestResponse,
    repeat_safety: RepeatSafety,
) -> Result<T, ExecutionError> {
    serde_json::from_slice(&response.body).map_err(|error| {
        let message = format!("unexpected response from Discord: {error}");
        execution_error::unknown_outcome(repeat_safety, Some(response.status.as_u16()), message)
    })
}

/// Converts a resolved reference to a typed id.
pub(crate) fn reference_id<M>(reference: &Reference) -> Result<Id<M>, ExecutionError> {
    match reference {
        Reference::Id(id) => typed_id(*id),
        Reference::Key(_) | Reference::Operation(_) => Err(ExecutionError::failed(
            FailureClass::Validation,
            "the payload contains a reference that was not resolved",
        )),
    }
}

/// Converts a number to a typed id.
pub(crate) fn typed_id<M>(id: u64) -> Result<Id<M>, ExecutionError> {
    Id::new_checked(id).ok_or_else(|| ExecutionError::failed(FailureClass::Validation, "0 is not a valid id"))
}
