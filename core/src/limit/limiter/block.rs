//! Global 429s: everything of a credential stops, whether the global limit counts it or not.

use super::Limiter;
use super::persist::LASTING;
use crate::limit::domain::{Domain, DomainId};
use crate::limit::global::GlobalLimit;
use crate::response::Credential;
use crate::snapshot::Urgency;
use crate::time::Timestamp;

impl Limiter {
    /// A call of this credential was answered with a global 429.
    pub(super) fn block(&mut self, credential: Credential, until: Timestamp, now: Timestamp) {
        // Other processes are told by the side that shares the global limit, which an exempt call has not made.
        let domain = self.domain_for(credential, false);
        if let Some(global) = &mut self.domains[domain].global {
            global.close(until);
        }
        self.note_block(credential, until, now);
    }

    /// Nothing of this credential goes before `until`. Other processes know of it already.
    pub(super) fn note_block(&mut self, credential: Credential, until: Timestamp, now: Timestamp) {
        if until <= now {
            return;
        }
        self.end_blocks(now);
        let known = self.blocks.iter_mut().find(|(blocked, _)| *blocked == credential);
        let before = known.as_ref().map_or(now, |(_, end)| *end);
        match known {
            Some((_, end)) => *end = until.max(*end),
            None => self.blocks.push((credential, until)),
        }
        for domain in self.domains.iter_mut().filter(|domain| domain.credential == credential) {
            domain.block(until);
            domain.global.iter_mut().for_each(|global| global.heard_closed(until));
        }
        // The same block, as other processes know it, differs by as long as their messages take.
        if until.since(before) > LASTING {
            self.changed(Urgency::Soon);
        }
    }

    /// Forgets global 429s that have ended.
    pub(super) fn end_blocks(&mut self, now: Timestamp) {
        let before = self.blocks.len();
        self.blocks.retain(|(_, end)| *end > now);
        self.block_ended |= self.blocks.len() < before;
    }

    /// Whether a global 429 has ended since this was last asked.
    pub fn take_block_ended(&mut self) -> bool {
        std::mem::take(&mut self.block_ended)
    }

    /// Adds a domain, blocked for as long as its credential is.
    pub(super) fn add_domain(&mut self, credential: Credential, global: Option<GlobalLimit>) -> DomainId {
        let mut domain = Domain::new(credential, global);
        for (_, until) in self.blocks.iter().filter(|(blocked, _)| *blocked == credential) {
            domain.block(*until);
            domain.global.iter_mut().for_each(|global| global.heard_closed(*until));
        }
        self.domains.push(domain);
        self.domains.len() - 1
    }
}
