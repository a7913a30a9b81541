//! What a member says to Redis, and what it hears.

use std::time::Duration;

/// A call of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
    /// Who calls.
    pub member: String,
    /// Which life of it: a seat that another process takes over has a new one.
    pub life: u64,
    /// Past this time on Redis's clock the call does nothing: its caller has given up on it. 0 if it does not know that
    /// clock yet.
    pub not_after: u64,
    /// What for.
    pub doing: ScriptCommand,
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptCommand {
    /// Only to see whether Redis is there, and what its clock shows.
    Look,
    /// To become a member, or to come back.
    Join(JoinRequest),
    /// What a member does all the time.
    Sync(SyncRequest),
    /// To say goodbye.
    Leave(SyncRequest),
}

/// What a process says that becomes a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinRequest {
    /// The epoch it was in; empty if in none.
    pub epoch: String,
    /// It found the clock of this epoch wrong: it should end. Empty if not.
    pub renew: String,
    /// The share it was told, which from now on it no longer uses.
    pub held: u32,
    /// Whether it would use a share.
    pub wants_share: bool,
    /// Its calls that have no answer yet.
    pub flying: u32,
    /// Its calls that were answered within the last window.
    pub cooling: u32,
    /// Those of them whose end it has not told yet.
    pub untold: u32,
    /// When what it brings may be used: once those who may not know of it yet have stopped.
    pub ready_in: Duration,
    /// It sends nothing for so long.
    pub block: Duration,
    /// A global 429 lasts for so long.
    pub global_block: Duration,
}

/// What a member says all the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncRequest {
    /// The epoch it is in.
    pub epoch: String,
    /// The share it was told last.
    pub held: u32,
    /// Whether it would use a share.
    pub wants_share: bool,
    /// How many slots it wants; of somebody who leaves, how many of its calls have no answer.
    pub want: u32,
    /// Whether the first of them is for somebody who should not wait for even spacing.
    pub urgent: bool,
    /// What came of slots that it had.
    pub ended: Vec<SlotReport>,
    /// A global 429 that the others do not know of lasts for so long.
    pub block: Duration,
    /// Members that are certainly dead.
    pub dead: Vec<String>,
}

/// What came of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// The token.
    pub token: u64,
    /// Whose turn with it.
    pub booking: u64,
    /// What came of it.
    pub how: SlotOutcome,
}

/// What came of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOutcome {
    /// The call was answered so long ago, or could not arrive any more.
    Answered(Duration),
    /// It was not used.
    Unused,
}

/// What the script answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptReply {
    /// It came too late and did nothing.
    Stale {
        /// Redis's clock.
        now: u64,
    },
    /// Redis is there.
    Seen {
        /// Redis's clock.
        now: u64,
        /// The epoch; empty if there is none.
        epoch: String,
    },
    /// It does not know the caller as it thinks of itself. Nothing was done.
    Rejoin {
        /// Redis's clock.
        now: u64,
        /// Whether another process sits in its seat.
        replaced: bool,
    },
    /// It is done.
    Done(MembershipState),
}

/// Where a member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipState {
    /// Redis's clock.
    pub now: u64,
    /// The epoch.
    pub epoch: String,
    /// The share it may use when it cannot reach Redis.
    pub share: u32,
    /// Members, those that are detached included.
    pub members: u32,
    /// Members that are in touch.
    pub live: u32,
    /// What all that are in touch may use together.
    pub pool: u32,
    /// Nothing is booked for so long.
    pub blocked: Duration,
    /// A global 429 lasts for so long: it stops what needs no token, too.
    pub global_block: Duration,
    /// When to ask again, if not all that was wanted was given.
    pub again: Option<Duration>,
    /// The slots that were booked, and for a process that joins those of its calls without an answer.
    pub slots: Vec<Slot>,
}

/// A slot: leave to make one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The token.
    pub token: u64,
    /// Whose turn with it.
    pub booking: u64,
    /// When: so long from Redis's `now`.
    pub wait: Duration,
}
