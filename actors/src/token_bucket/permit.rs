//! Permits as values: given back by a word, or by being dropped.

use actix::Addr;
use guildhall_core::limit::PermitId;
use guildhall_core::response::ResponseInfo;
use guildhall_core::route::RouteKey;

use super::{PermitEnd, PermitEnded, TokenBucket};
use crate::crash;

/// Leave to send one call now. Dropped before [`Permit::sent`], it is given back unused; dropped after, it counts as a
/// call whose answer was lost.
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back unused"]
pub struct Permit {
    id: PermitId,
    route: Option<RouteKey>,
    state: PermitState,
    waited: bool,
    bucket: Addr<TokenBucket>,
}

#[derive(Debug, PartialEq, Eq)]
enum PermitState {
    Unused,
    Sent,
    Ended,
}

impl Permit {
    pub(super) fn new(id: PermitId, waited: bool, bucket: Addr<TokenBucket>) -> Self {
        Self { id, route: None, state: PermitState::Unused, waited, bucket }
    }

    pub(super) fn of(mut self, route: RouteKey) -> Self {
        self.route = Some(route);
        self
    }

    /// Whether it had to be waited for, and so whether anything can have happened in between.
    #[must_use]
    pub const fn has_waited(&self) -> bool {
        self.waited
    }

    /// The call goes out now.
    pub fn sent(&mut self) {
        self.state = PermitState::Sent;
    }

    /// The call was answered.
    pub fn answered(mut self, answer: ResponseInfo) {
        self.end(PermitEnd::Answered(answer));
    }

    /// It is certain that the call never left, although it was meant to.
    pub fn unused(mut self) {
        self.end(PermitEnd::Unused);
    }

    fn end(&mut self, how: PermitEnd) {
        self.state = PermitState::Ended;
        let route = self.route.clone().unwrap_or_else(|| RouteKey::new(""));
        // Past the mailbox's bound, but no more often than permits were granted; one that was lost would never come back.
        self.bucket.do_send(PermitEnded { permit: self.id, route, how, input: crash::current() });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.state {
            PermitState::Unused => self.end(PermitEnd::Unused),
            PermitState::Sent => self.end(PermitEnd::Lost),
            PermitState::Ended => {}
        }
    }
}
