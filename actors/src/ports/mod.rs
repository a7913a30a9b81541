//! Traits of what the actors need from outside, and the values that cross them.
//!
//! The `guildhall` crate implements them: stores over SQLite, PostgreSQL and Redis, the executor and the responder over Discord's
//! REST API, webhooks over HTTP. Tests implement them in memory.

pub(crate) mod change_feed;
pub(crate) mod event_broker;
pub(crate) mod event_observer;
pub(crate) mod event_store;
pub(crate) mod executor;
pub(crate) mod gateway_connection;
pub(crate) mod guild_store;
pub(crate) mod idempotency_cache;
pub(crate) mod interaction_responder;
pub(crate) mod key_store;
pub(crate) mod leases;
pub(crate) mod operation_store;
pub(crate) mod shard_admin;
pub(crate) mod shared_budget;
pub(crate) mod snapshot_store;
pub(crate) mod webhook;

pub use self::change_feed::{ChangeFeed, ChangePage, ChangedOperation};
pub use self::event_broker::{AvailableFuture, BrokerEvent, EventBroker, PublishError, PublishFuture, StreamPosition};
pub use self::event_observer::EventObserver;
pub use self::event_store::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    PostponeResult, StateWrite, StoredSession,
};
pub use self::executor::{
    Execution, ExecutionOutput, ExecutionResult, ExecutorFuture, HoldScope, OperationExecutor, ReconcileResult,
};
pub use self::gateway_connection::{GatewayConnection, GatewayError, GatewayItem, GatewayState, SessionPosition};
pub use self::guild_store::{GuildFilter, GuildPage, GuildStore, KnownGuild};
pub use self::idempotency_cache::{CacheFuture, IdempotencyCache, IdempotencyRecord};
pub use self::interaction_responder::{InitialResponse, InteractionResponder, RespondFuture, ResponseResult};
pub use self::key_store::{
    AddKeyResult, ApiKey, GeneratedAdminKey, KeyFilter, KeyStore, NewApiKey, RevokeResult, RotateResult,
};
pub use self::leases::{
    InvalidLeaseName, Lease, LeaseError, LeaseFence, LeaseFuture, LeaseName, LeaseStore, LeaseToken,
};
pub use self::operation_store::{
    Attempt, Binding, Claim, ClaimFrom, DEAD_EVENTS, DEAD_LETTERS, DeadLetter, DeadLetterFilter, DelayedBy, Fence,
    FileUsage, IdempotencyKey, Instance, IntentUpdate, NewOperation, OperationDetails, OperationFilter, OperationPage,
    OperationStore, OperationUpdate, PauseTarget, ProgressUpdate, ResolvedReference, RestoredOperation, Retention,
    ScopeUsage, StoreError, StoreFuture, StoreUsage, StoredOperation, SubmitError, SubmitResult, SweepSummary,
    UnknownOutcome, UnreadableOperation, UnresolvedReference, UpdateResult, WaitReason,
};
pub use self::shard_admin::{ShardAdmin, ShardState, ShardView, ShardsFuture};
pub use self::shared_budget::{SharedBudgets, SharedReply, SharedReplyFuture, Unreachable};
pub use self::snapshot_store::{SnapshotError, SnapshotFuture, SnapshotStore, StateSnapshotStore};
pub use self::webhook::{
    WebhookBody, WebhookCall, WebhookCallError, WebhookCallFuture, WebhookClient, WebhookResponse,
};
