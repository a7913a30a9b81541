//! Permits: returned explicitly, or by a drop.

use actix::Addr;
use guildhall_core::limit::PermitId;
use guildhall_core::response::ResponseInfo;
use guildhall_core::route::RouteKey;

use super::{PermitEnd, PermitEnded, TokenBucket};
use crate::crash;

/// Permission to send one call now. If dropped before [`Permit::sent`], it is returned unused; if dropped after, it
/// counts as a call whose response was lost.
#[derive(Debug)]
#[must_use = "a permit that is dropped is returned unused"]
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

    pub(super) fn with_route(mut self, route: RouteKey) -> Self {
        self.route = Some(route);
        self
    }

    /// Whether the caller had to wait for it, so that state may have changed in between.
    #[must_use]
    pub const fn has_waited(&self) -> bool {
        self.waited
    }

    /// Marks the call as sent.
    pub fn sent(&mut self) {
        self.state = PermitState::Sent;
    }

    /// Reports the response of the call.
    pub fn answered(mut self, response: ResponseInfo) {
        self.end(PermitEnd::Answered(response));
    }

    /// Reports that the call certainly was not sent.
    pub fn unused(mut self) {
        self.end(PermitEnd::Unused);
    }

    fn end(&mut self, end: PermitEnd) {
        self.state = PermitState::Ended;
        let route = self.route.clone().unwrap_or_else(|| RouteKey::new(""));
        // Ignores the mailbox capacity, but is sent once for each granted permit: a lost message would lose the permit.
        self.bucket.do_send(PermitEnded { permit: self.id, route, end, input: crash::current() });
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
