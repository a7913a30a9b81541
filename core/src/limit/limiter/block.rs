//! Global 429s: all calls of a credential stop, whether the global limit counts them or not.

use super::Limiter;
use super::persist::SAVE_SOON_ABOVE;
use crate::limit::domain::{Domain, DomainId};
use crate::limit::global::GlobalLimit;
use crate::response::Credential;
use crate::snapshot::Urgency;
use crate::time::Timestamp;

impl Limiter {
    /// A call of this credential got a global 429.
    pub(super) fn block(&mut self, credential: Credential, until: Timestamp, now: Timestamp) {
        // Only the domain that shares the global limit notifies other processes, and an exempt call has not created it.
        let domain = self.domain_for(credential, false, now);
        if let Some(global) = domain.and_then(|domain| self.domains[domain].global.as_mut()) {
            global.close(until);
        }
        self.record_block(credential, until, now);
    }

    /// Blocks all calls of this credential until `until`. Other processes know of the block already.
    pub(super) fn record_block(&mut self, credential: Credential, until: Timestamp, now: Timestamp) {
        if until <= now {
            return;
        }
        self.end_blocks(now);
        let existing = self.blocks.iter_mut().find(|(blocked, _)| *blocked == credential);
        let before = existing.as_ref().map_or(now, |(_, end)| *end);
        match existing {
            Some((_, end)) => *end = until.max(*end),
            None => self.blocks.push((credential, until)),
        }
        for domain in self.domains.iter_mut().filter(|domain| domain.credential == credential) {
            domain.block(until);
            domain.global.iter_mut().for_each(|global| global.on_remote_block(until));
        }
        // The same block differs between processes by the time that their messages take.
        if until.since(before) > SAVE_SOON_ABOVE {
            self.mark_unsaved(Urgency::Soon);
        }
    }

    /// Removes global 429s that have ended.
    pub(super) fn end_blocks(&mut self, now: Timestamp) {
        let before = self.blocks.len();
        self.blocks.retain(|(_, end)| *end > now);
        self.block_ended |= self.blocks.len() < before;
    }

    /// Whether a global 429 has ended since the last call of this method.
    pub fn take_block_ended(&mut self) -> bool {
        std::mem::take(&mut self.block_ended)
    }

    /// Adds a domain, blocked for as long as its credential is; in the place of another one if that is given.
    pub(super) fn add_domain(
        &mut self,
        credential: Credential,
        global: Option<GlobalLimit>,
        free: Option<DomainId>,
        now: Timestamp,
    ) -> DomainId {
        let mut domain = Domain::new(credential, global, now);
        for (_, until) in self.blocks.iter().filter(|(blocked, _)| *blocked == credential) {
            domain.block(*until);
            domain.global.iter_mut().for_each(|global| global.on_remote_block(*until));
        }
        match free {
            Some(free) => {
                self.domains[free] = domain;
                free
            }
            None => {
                self.domains.push(domain);
                self.domains.len() - 1
            }
        }
    }
}
