//! Resets the gateway and disconnects its clients.

use super::close::Close;
use super::gateway_state::{ConnectionId, Ending, GatewayState};
use super::identify::IdentifyBudget;
use super::members::MemberRequests;
use crate::time::At;

impl GatewayState {
    /// Ends every session and closes every connection with 4009, after which clients identify again.
    pub(crate) fn end_all(&mut self, now: At) {
        let mut sessions: Vec<_> = self.sessions.keys().copied().collect();
        sessions.sort_unstable();
        let mut connections: Vec<ConnectionId> = self.connections.keys().copied().collect();
        connections.sort_unstable();
        connections.into_iter().for_each(|id| self.end_connection(id, Ending::Close(Close::TIMED_OUT), now));
        sessions.into_iter().for_each(|key| self.end_session(key));
    }

    /// Resets to the state after the start: no sessions, faults, counted identifies or score.
    pub(crate) fn reset(&mut self, now: At) {
        self.end_all(now);
        self.clear_faults(now);
        self.budget = IdentifyBudget::new(&self.config);
        self.member_requests = MemberRequests::default();
        self.reset_score();
    }
}
