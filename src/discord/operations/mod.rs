//! What each kind of operation does in Discord, and how it is found out afterwards whether it was done.
//!
//! ```text
//!  Work ──perform────▶ roles, channels, messages, … ──Errand──▶ Rest ──▶ verdict ──▶ Done │ Held │ Failed
//!  Work ──reconcile──▶ audit log, lists, scans      ──Errand──▶ Rest ──▶ verdict ──▶ Found │ Absent │ Unclear │ Held
//!  Work ──verify─────▶ the object itself            ──Errand──▶ Rest ──▶ verdict ──▶ Found │ Absent │ Unclear │ Held
//! ```
//!
//! Everything that can be sent twice without harm is simply sent again when in doubt; if it may not be sent again,
//! [`verify`] checks whether its effect is in place before it ends. What makes something new is told
//! apart: a role or a channel carries its operation's marker in the audit log's reason, a message carries it as an
//! enforced nonce, and a doubt about either is `Ambiguous` until [`reconcile`] has looked.

mod bounds;
mod channels;
mod danger;
mod diff;
mod error_body;
mod execution_context;
mod execution_error;
mod interactions;
mod messages;
mod model;
mod overwrites;
mod ownership;
mod raw_request;
mod reconcile;
mod reorder;
mod result;
mod roles;
mod snowflake;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use guildhall_actors::access::{RoleCache, RoleCacheConfig};
use guildhall_actors::gate::Rest;
use guildhall_actors::ports::{
    Execution, ExecutionOutput, ExecutionResult, ExecutorFuture, OperationExecutor, ReconcileResult,
};
use guildhall_core::operation::Payload;
use twilight_model::id::Id;
use twilight_model::id::marker::{ApplicationMarker, UserMarker};

use self::execution_context::{Charge, ExecutionContext};
use self::execution_error::ExecutionError;
pub use self::ownership::ObjectOwnership;
use super::rest::CallBuilder;
use crate::clock::Clocks;

/// How operations are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// The largest answer that is kept as an operation's result, in bytes.
    pub most_result: usize,
    /// How far clocks may be apart beyond what was measured. What was made earlier than this before an intent was not made
    /// by it.
    pub clock_slack: Duration,
    /// How far before an intent the audit log is searched. Longer than the clock's slack: a marker cannot be mistaken.
    pub log_reach: Duration,
    /// How long Discord keeps its audit log, with a margin.
    pub log_kept: Duration,
    /// How many pages of the audit log, or of a channel's messages, are read for one question.
    pub most_pages: u32,
    /// How long to wait with a question that could not be asked, if nothing says how long.
    pub ask_again: Duration,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            most_result: 256 * 1024,
            clock_slack: Duration::from_secs(60),
            log_reach: Duration::from_secs(10 * 60),
            log_kept: Duration::from_secs(44 * 24 * 60 * 60),
            most_pages: 10,
            ask_again: Duration::from_secs(5),
        }
    }
}

/// Does operations in Discord.
pub struct DiscordExecutor {
    rest: Arc<dyn Rest>,
    calls: CallBuilder,
    application: Id<ApplicationMarker>,
    bot: Id<UserMarker>,
    known: Box<dyn ObjectOwnership>,
    roles: Arc<RoleCache>,
    clocks: Option<Clocks>,
    config: ExecutorConfig,
}

impl std::fmt::Debug for DiscordExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { application, bot, config, .. } = self;
        f.debug_struct("DiscordExecutor")
            .field("application", application)
            .field("bot", bot)
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl DiscordExecutor {
    /// Does the operations of an application, whose bot is this user, over a gate. `known` tells the objects that belong to
    /// operations from strangers; an `Arc` of the store will do. Needs a Tokio runtime around it.
    ///
    /// `bot` has to be right: an own message is found again by its author.
    #[must_use]
    pub fn new(
        rest: Arc<dyn Rest>,
        application: Id<ApplicationMarker>,
        bot: Id<UserMarker>,
        known: impl ObjectOwnership + 'static,
        config: ExecutorConfig,
    ) -> Self {
        let roles = Arc::new(RoleCache::new(RoleCacheConfig::default()));
        Self {
            rest,
            calls: CallBuilder::new(application),
            application,
            bot,
            known: Box::new(known),
            roles,
            clocks: None,
            config,
        }
    }

    /// Uses this cache of roles' permissions, which others can look into and remove entries from.
    #[must_use]
    pub fn with_roles(self, roles: Arc<RoleCache>) -> Self {
        Self { roles, ..self }
    }

    /// Looks for what was made by Discord's clock as these clocks have measured it. Without them it is taken for the same
    /// as this machine's.
    #[must_use]
    pub fn with_clocks(self, clocks: Clocks) -> Self {
        Self { clocks: Some(clocks), ..self }
    }
}

async fn perform(errand: &ExecutionContext<'_>) -> Result<ExecutionOutput, ExecutionError> {
    bounds::check(errand).await?;
    danger::check(errand).await?;
    let _changes = danger::RoleCacheInvalidation::of(*errand);
    match &errand.work.payload {
        Payload::CreateRole(payload) => roles::create(errand, payload).await,
        Payload::DeleteRole(payload) => roles::delete(errand, payload).await,
        Payload::AssignRole(payload) => roles::assign(errand, payload).await,
        Payload::RemoveRole(payload) => roles::remove(errand, payload).await,
        Payload::CreateChannel(payload) => channels::create(errand, payload).await,
        Payload::DeleteChannel(payload) => channels::delete(errand, payload).await,
        Payload::UpdatePermissions(payload) => overwrites::update(errand, payload).await,
        Payload::SetMemberRoles(payload) => roles::set(errand, payload).await,
        Payload::EnsureRole(payload) => roles::ensure(errand, payload).await,
        Payload::EnsureChannel(payload) => channels::ensure(errand, payload).await,
        Payload::ReplaceOverwrites(payload) => overwrites::replace(errand, payload).await,
        Payload::Reorder(payload) => reorder::reorder(errand, payload).await,
        Payload::EnsureMessage(payload) => messages::ensure(errand, payload).await,
        Payload::SendMessage(payload) => messages::send(errand, payload).await,
        Payload::EditMessage(payload) => messages::edit(errand, payload).await,
        Payload::DeleteMessage(payload) => messages::delete(errand, payload).await,
        Payload::SendDm(payload) => messages::send_dm(errand, payload).await,
        Payload::DeferReply(payload) => interactions::defer(errand, payload).await,
        Payload::SendFollowup(payload) => interactions::follow_up(errand, payload).await,
        Payload::EditOriginal(payload) => interactions::edit_original(errand, payload).await,
        Payload::Read(payload) => raw_request::read(errand, payload).await,
        Payload::Request(payload) => raw_request::request(errand, payload).await,
    }
}

impl OperationExecutor for DiscordExecutor {
    fn perform(&self, work: Execution) -> ExecutorFuture<'_, ExecutionResult> {
        Box::pin(async move {
            let done = perform(&ExecutionContext::new(self, &work, Charge::Submitter)).await;
            done.map_or_else(ExecutionResult::from, ExecutionResult::Done)
        })
    }

    fn reconcile(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let found = reconcile::reconcile(&ExecutionContext::new(self, &work, Charge::Daemon)).await;
            found.unwrap_or_else(|stop| stop.unasked(self.config.ask_again))
        })
    }

    fn verify(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let found = verify::verify(&ExecutionContext::new(self, &work, Charge::Daemon)).await;
            found.unwrap_or_else(|stop| stop.unasked(self.config.ask_again))
        })
    }
}
