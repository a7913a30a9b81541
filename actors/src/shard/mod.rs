//! Events from one gateway connection to the supervisor: batches, credit, and which process owns the shard.

pub(crate) mod channel;
pub(crate) mod event_batch;
pub(crate) mod ownership;

pub use self::channel::{Credit, FlowLimit, ShardMessage, ShardSender};
pub use self::event_batch::EventBatch;
pub use self::ownership::{ClaimedShards, DesiredShards, ShardClaim, ShardStore};
