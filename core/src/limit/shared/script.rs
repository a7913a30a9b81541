//! Calls to the Redis script, and its replies.

use std::time::Duration;

/// A call of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
    /// Id of the calling member.
    pub member: String,
    /// Incarnation of the member: a process that takes over the id of another one has a new incarnation.
    pub incarnation: u64,
    /// After this time on Redis's clock the call has no effect, because its caller has given up. 0 if the caller does
    /// not know that clock yet.
    pub not_after: u64,
    /// The command.
    pub command: ScriptCommand,
}

/// A command of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptCommand {
    /// Checks whether Redis is reachable, and reads its clock.
    Probe,
    /// Becomes a member, or returns as one.
    Join(JoinRequest),
    /// Reports slots and requests new ones.
    Sync(SyncRequest),
    /// Leaves the membership.
    Leave(SyncRequest),
}

/// State of a process that becomes a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinRequest {
    /// The epoch that it was in; empty if none.
    pub epoch: String,
    /// The epoch that should end because its clock jumped; empty if none.
    pub renew: String,
    /// The last share that it was given. It no longer uses this share.
    pub held: u32,
    /// Whether it would use a share.
    pub uses_share: bool,
    /// Its calls without a response.
    pub in_flight: u32,
    /// Its calls that were answered within the last window.
    pub cooling: u32,
    /// Those of them whose outcome it has not reported yet.
    pub unreported: u32,
    /// When the tokens that it brings may be used: after the processes that may not know of it have stopped.
    pub ready_in: Duration,
    /// How long it sends nothing.
    pub block: Duration,
    /// Remaining duration of a global 429.
    pub global_block: Duration,
}

/// Regular call of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncRequest {
    /// The epoch that it is in.
    pub epoch: String,
    /// The last share that it was given.
    pub held: u32,
    /// Whether it would use a share.
    pub uses_share: bool,
    /// Number of requested slots; in a leave command, number of calls without a response.
    pub requested_slots: u32,
    /// Whether the first of them is for an urgent call, which should not wait for even spacing.
    pub urgent: bool,
    /// Outcome of slots that it had.
    pub reports: Vec<SlotReport>,
    /// Remaining duration of a global 429 that the other members do not know of.
    pub block: Duration,
    /// Members that are certainly dead.
    pub dead: Vec<String>,
}

/// Report of the outcome of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// The token.
    pub token: u64,
    /// The booking of the token.
    pub booking: u64,
    /// The outcome.
    pub outcome: SlotOutcome,
}

/// Outcome of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOutcome {
    /// The call was answered, or could no longer arrive, this long ago.
    Answered(Duration),
    /// The slot was not used.
    Unused,
}

/// Reply of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptReply {
    /// The call was too late and had no effect.
    Stale {
        /// Time on Redis's clock.
        now: u64,
    },
    /// Redis is reachable.
    Status {
        /// Time on Redis's clock.
        now: u64,
        /// The epoch; empty if none.
        epoch: String,
    },
    /// Redis does not know the caller as a member of this epoch. The call had no effect.
    Rejoin {
        /// Time on Redis's clock.
        now: u64,
        /// Whether another process uses the same member id.
        replaced: bool,
    },
    /// The call was executed.
    Done(MembershipState),
}

/// State of a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipState {
    /// Time on Redis's clock.
    pub now: u64,
    /// The epoch.
    pub epoch: String,
    /// The share that it may use while it cannot reach Redis.
    pub share: u32,
    /// Number of members, including detached ones.
    pub members: u32,
    /// Number of attached members.
    pub live: u32,
    /// Number of tokens that all attached members may use together.
    pub pool: u32,
    /// Number of them that are free now: not booked, and used longer ago than a window.
    pub free: u32,
    /// How long no slot is booked.
    pub blocked: Duration,
    /// Remaining duration of a global 429, which also stops calls that need no token.
    pub global_block: Duration,
    /// When to request again, if not all requested slots were booked.
    pub retry_after: Option<Duration>,
    /// The booked slots. For a process that joins: the tokens assigned to its calls without a response.
    pub slots: Vec<Slot>,
}

/// A slot: permission to make one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The token.
    pub token: u64,
    /// The booking of the token.
    pub booking: u64,
    /// Start of the slot, relative to Redis's `now`.
    pub wait: Duration,
}
