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
//! outcome of either is `Ambiguous` until [`reconcile`](super::reconcile) has searched for it.

pub(crate) mod bounds;
pub(crate) mod caller_check;
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
use guildhall_core::time::UnixMs;
use twilight_model::id::Id;
use twilight_model::id::marker::{ApplicationMarker, UserMarker};

pub use self::caller_check::{CallRefusal, ProposedCall};
use self::execution_context::{Charge, ExecutionContext};
use self::execution_error::ExecutionError;
pub use self::ownership::ObjectOwnership;
use super::rest::CallBuilder;
use crate::clock::{Clocks, SystemTimeSource, TimeSource as _};

/// Configuration of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Maximum size of a response that is stored as an operation's result, in bytes.
    pub max_result_bytes: usize,
    /// Clock difference to tolerate beyond what was measured. An object that is older than the intent by more than this
    /// was not created by it.
    pub clock_slack: Duration,
    /// How far before an intent the audit log is searched. Longer than the clock slack, because a marker is
    /// unambiguous.
    pub log_reach: Duration,
    /// How long Discord retains its audit log, with a margin.
    pub log_retention: Duration,
    /// Maximum number of pages of the audit log, or of a channel's messages, to read in one search.
    pub max_pages: u32,
    /// Delay before a search that could not be made is retried, if no other delay is known.
    pub retry_delay: Duration,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            max_result_bytes: 256 * 1024,
            clock_slack: Duration::from_secs(60),
            log_reach: Duration::from_secs(10 * 60),
            log_retention: Duration::from_secs(44 * 24 * 60 * 60),
            max_pages: 10,
            retry_delay: Duration::from_secs(5),
        }
    }
}

/// Executes operations in Discord.
pub struct DiscordExecutor {
    rest: Arc<dyn Rest>,
    calls: CallBuilder,
    application: Id<ApplicationMarker>,
    bot: Id<UserMarker>,
    ownership: Box<dyn ObjectOwnership>,
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
        ownership: impl ObjectOwnership + 'static,
        config: ExecutorConfig,
    ) -> Self {
        let roles = Arc::new(RoleCache::new(RoleCacheConfig::default()));
        Self {
            rest,
            calls: CallBuilder::new(application),
            application,
            bot,
            ownership: Box::new(ownership),
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

    /// Store time.
    pub(crate) fn now(&self) -> UnixMs {
        self.clocks.as_ref().map_or_else(|| SystemTimeSource.wall(), Clocks::now)
    }

    /// Searches for created objects by Discord's clock as these clocks have measured it. Without them, Discord's clock
    /// is taken to be equal to that of this machine.
    #[must_use]
    pub fn with_clocks(self, clocks: Clocks) -> Self {
        Self { clocks: Some(clocks), ..self }
    }
}

async fn perform(context: &ExecutionContext<'_>) -> Result<ExecutionOutput, ExecutionError> {
    bounds::check(context).await?;
    danger::check(context).await?;
    let _changes = danger::RoleCacheInvalidation::of(*context);
    match &context.work.payload {
        Payload::CreateRole(payload) => roles::create(context, payload).await,
        Payload::DeleteRole(payload) => roles::delete(context, payload).await,
        Payload::AssignRole(payload) => roles::assign(context, payload).await,
        Payload::RemoveRole(payload) => roles::remove(context, payload).await,
        Payload::CreateChannel(payload) => channels::create(context, payload).await,
        Payload::DeleteChannel(payload) => channels::delete(context, payload).await,
        Payload::UpdatePermissions(payload) => overwrites::update(context, payload).await,
        Payload::SetMemberRoles(payload) => roles::set(context, payload).await,
        Payload::EnsureRole(payload) => roles::ensure(context, payload).await,
        Payload::EnsureChannel(payload) => channels::ensure(context, payload).await,
        Payload::ReplaceOverwrites(payload) => overwrites::replace(context, payload).await,
        Payload::Reorder(payload) => reorder::reorder(context, payload).await,
        Payload::EnsureMessage(payload) => messages::ensure(context, payload).await,
        Payload::SendMessage(payload) => messages::send(context, payload).await,
        Payload::EditMessage(payload) => messages::edit(context, payload).await,
        Payload::DeleteMessage(payload) => messages::delete(context, payload).await,
        Payload::SendDm(payload) => messages::send_dm(context, payload).await,
        Payload::DeferReply(payload) => interactions::defer(context, payload).await,
        Payload::SendFollowup(payload) => interactions::follow_up(context, payload).await,
        Payload::EditOriginal(payload) => interactions::edit_original(context, payload).await,
        Payload::Read(payload) => raw_request::read(context, payload).await,
        Payload::Request(payload) => raw_request::request(context, payload).await,
    }
}

impl OperationExecutor for DiscordExecutor {
    fn execute(&self, work: Execution) -> ExecutorFuture<'_, ExecutionResult> {
        Box::pin(async move {
            let done = perform(&ExecutionContext::new(self, &work, Charge::Submitter)).await;
            done.map_or_else(ExecutionResult::from, ExecutionResult::Done)
        })
    }

    fn reconcile(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let found = crate::discord::reconcile::reconcile(&ExecutionContext::new(self, &work, Charge::Daemon)).await;
            found.unwrap_or_else(|error| error.into_reconcile_result(self.config.retry_delay))
        })
    }

    fn verify(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult> {
        Box::pin(async move {
            let found = verify::verify(&ExecutionContext::new(self, &work, Charge::Daemon)).await;
            found.unwrap_or_else(|error| error.into_reconcile_result(self.config.retry_delay))
        })
    }
}
