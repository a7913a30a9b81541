//! Executes operations in Discord, and finds out afterwards whether one took effect.
//!
//! ```text
//!  Execution ─perform────▶ roles, channels, messages, … ─ExecutionContext─▶ Rest ─▶ Done │ Held │ Failed
//!  Execution ─reconcile──▶ audit log, lists, scans      ─ExecutionContext─▶ Rest ─▶ Found │ Absent │ Unclear │ Held
//!  Execution ─verify─────▶ the object itself            ─ExecutionContext─▶ Rest ─▶ Found │ Absent │ Unclear │ Held
//! ```
//!
//! A call that is safe to repeat is sent again when its outcome is unknown. If it must not be sent again, [`verify`]
//! checks whether its effect is in place before the operation ends. Created objects are identified: a role or a channel
//! carries the operation's marker in the audit log reason, and a message carries it as an enforced nonce. An unknown
//! outcome of either is `Ambiguous` until [`reconcile`] has searched for it.

pub(crate) mod bounds;
pub(crate) mod channels;
pub(crate) mod danger;
pub(crate) mod diff;
pub(crate) mod error_body;
pub(crate) mod execution_context;
pub(crate) mod execution_error;
pub(crate) mod interactions;
pub(crate) mod messages;
pub(crate) mod model;
pub(crate) mod overwrites;
pub(crate) mod ownership;
pub(crate) mod raw_request;
pub(crate) mod reorder;
pub(crate) mod result;
pub(crate) mod roles;
pub(crate) mod snowflake;
pub(crate) mod verify;

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

/// Configuration of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Maximum size of a response that is stored as an operation's result, in bytes.
    pub most_result: usize,
    /// Clock difference to tolerate beyond what was measured. An object that is older than the intent by more than this
    /// was not created by it.
    pub clock_slack: Duration,
    /// How far before an intent the audit log is searched. Longer than the clock slack, because a marker is
    /// unambiguous.
    pub log_reach: Duration,
    /// How long Discord retains its audit log, with a margin.
    pub log_kept: Duration,
    /// Maximum number of pages of the audit log, or of a channel's messages, to read in one search.
    pub most_pages: u32,
    /// Delay before a search that could not be made is retried, if no other delay is known.
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

/// Executes operations in Discord.
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
    /// Creates an executor for the operations of an application, whose bot is this user, over a gate. `ownership` finds
    /// the objects that already belong to operations; an `Arc` of the store implements it. Must be called within a
    /// Tokio runtime.
    ///
    /// `bot` must be correct: messages of the bot are identified by their author.
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

    /// Uses this cache of role permissions, which others can read and invalidate.
    #[must_use]
    pub fn with_roles(self, roles: Arc<RoleCache>) -> Self {
        Self { roles, ..self }
    }

    /// Searches for created objects by Discord's clock as these clocks have measured it. Without them, Discord's clock
    /// is taken to be equal to that of this machine.
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
            let found = crate::discord::reconcile::reconcile(&ExecutionContext::new(self, &work, Charge::Daemon)).await;
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
