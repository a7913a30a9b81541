//! Limits that are shared with other processes: calls to Redis, and their replies.

use super::Limiter;
use crate::limit::division::DivisionView;
use crate::limit::global::GlobalLimit;
use crate::limit::shared::{Member, ScriptCall, ScriptReply, SharedLimitConfig, SharingMode};
use crate::response::Credential;
use crate::time::Timestamp;

/// How limits are shared.
#[derive(Clone, Debug)]
pub struct SharingConfig {
    /// Settings of the shared limits.
    pub rules: SharedLimitConfig,
    /// Name of this process as a member.
    pub member_id: String,
    /// Random number that identifies this run of the member.
    pub incarnation: u64,
}

impl Limiter {
    /// Shares all global limits with other processes, and joins the limit of this credential immediately. Must be
    /// called before the first [`Limiter::acquire`].
    pub fn share(&mut self, sharing: SharingConfig, credential: Credential) {
        self.sharing = Some(sharing);
        let global = self.new_global_limit();
        self.add_domain(credential, Some(global), None, self.now);
    }

    /// Uses only a part of each global limit. If more tokens are in use than the share, no call is granted under that
    /// limit until enough have returned.
    pub fn set_share(&mut self, view: DivisionView, now: Timestamp) {
        self.division = Some(view);
        let share = view.share;
        let globals = self.domains.iter_mut().filter_map(|domain| domain.global.as_mut());
        globals.for_each(|global| global.set_local_limit(share));
        self.advance(now);
    }

    /// Whether no limit has more tokens in use than its share.
    pub fn is_within_share(&mut self, now: Timestamp) -> bool {
        let share = self.division.map_or(self.config.global, |division| division.share);
        let globals = self.domains.iter_mut().filter_map(|domain| domain.global.as_mut());
        globals.map(|global| global.local_in_use(now)).all(|in_use| in_use <= share)
    }

    /// When the next token returns, if more are in use than the share.
    pub(super) fn next_excess(&self) -> Option<Timestamp> {
        self.division?;
        self.domains.iter().filter_map(|domain| domain.global.as_ref()?.next_local_excess()).min()
    }

    pub(super) fn new_global_limit(&self) -> GlobalLimit {
        match &self.sharing {
            // Counted from the start of the limiter: for a credential that is first seen later, the quiet window has
            // passed.
            None => {
                let mut global = GlobalLimit::new(&self.config, self.started);
                if let Some(division) = self.division {
                    global.set_local_limit(division.share);
                }
                global
            }
            Some(SharingConfig { rules, member_id, incarnation: life }) => {
                GlobalLimit::shared(&self.config, Member::new(rules.clone(), member_id.clone(), *life, self.now))
            }
        }
    }

    /// The next call to Redis, and the credential whose limit it is for. There is one call at a time for each limit.
    pub fn next_shared_call(&mut self, now: Timestamp) -> Option<(Credential, ScriptCall)> {
        self.domains.iter_mut().find_map(|domain| {
            let call = domain.global.as_mut()?.member_mut()?.next_call(now)?;
            Some((domain.credential, call))
        })
    }

    /// Redis replied; `None` if it did not reply in time.
    pub fn on_shared_reply(&mut self, credential: Credential, reply: Option<ScriptReply>, now: Timestamp) {
        if let Some(member) = self.member_of(credential) {
            match reply {
                Some(reply) => member.on_reply(reply, now),
                None => member.on_lost(now),
            }
            let until = member.global_block();
            self.record_block(credential, until, now);
        }
        self.advance(now);
    }

    /// Another process received a global 429.
    pub fn on_remote_block(&mut self, credential: Credential, until: Timestamp, now: Timestamp) {
        self.record_block(credential, until, now);
        self.advance(now);
    }

    /// Marks members as certainly dead: no limit has to wait for them.
    pub fn mark_dead(&mut self, dead: &[String]) {
        let members = self.domains.iter_mut().filter_map(|domain| domain.global.as_mut()?.member_mut());
        members.for_each(|member| member.mark_dead(dead.iter().cloned()));
    }

    /// Leaves the shared limits. No call is granted under a shared limit from now on.
    pub fn leave(&mut self, now: Timestamp) -> Vec<(Credential, ScriptCall)> {
        let shared = self.domains.iter_mut().filter_map(|domain| {
            let call = domain.global.as_mut()?.member_mut()?.leave(now)?;
            Some((domain.credential, call))
        });
        shared.collect()
    }

    /// The mode of each shared limit.
    pub fn modes(&self, now: Timestamp) -> impl Iterator<Item = (Credential, SharingMode, &Member)> {
        self.domains.iter().filter_map(move |domain| {
            let member = domain.global.as_ref()?.member()?;
            Some((domain.credential, member.mode(now), member))
        })
    }

    pub(super) fn next_shared_wake(&self) -> Option<Timestamp> {
        let members = self.domains.iter().filter_map(|domain| domain.global.as_ref()?.member());
        members.filter_map(|member| member.next_wake(self.now)).min()
    }

    fn member_of(&mut self, credential: Credential) -> Option<&mut Member> {
        let mut domains = self.domains.iter_mut().filter(|domain| domain.credential == credential);
        domains.find_map(|domain| domain.global.as_mut()?.member_mut())
    }
}
